"""Starts Hermes for a bridge: `python -m molecule_hermes.plugin.launcher hermes gateway run`.

The handover comes over standard input, or over the descriptor N with `--handover=N`, so that Hermes
has the terminal. The other arguments are Hermes's own command line. It begins with `hermes`, by
which Hermes recognises the process as its gateway (gateway/status.py:345).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from molecule_hermes.plugin import hermes_api, home_files, landlock
from molecule_hermes.plugin.handover import Confinement, Handover, HandoverError, receive
from molecule_hermes.plugin.hardening import forbid_inspection
from molecule_hermes.plugin.settings import API_KEY, PLATFORM, SECRETS

__all__ = ["main"]

_PEERS = frozenset({PLATFORM, "api_server"})
"""The platforms of agents that peers talk to."""


_OPTION = "--handover"


def main() -> int:
    # First, so that no secret is ever readable.
    forbid_inspection()
    try:
        handover = _read_handover()
    except HandoverError as error:
        # Without the secret, anyone on this machine could control the agent.
        sys.stderr.write(f"molecule-hermes: {error}; start Hermes with `molecule-hermes up`\n")
        return 2
    try:
        _confine(handover.confinement)
        # After that, so that nothing in the folder leads them out of it.
        _prepare_home(handover)
    except (landlock.ConfinementError, OSError) as error:
        sys.stderr.write(f"molecule-hermes: Hermes is not started: {error}\n")
        return 3
    receive(handover)
    os.environ.update(handover.environ)
    sys.argv = sys.argv[1:]
    return _run(handover)


def _read_handover() -> Handover:
    """Raises `HandoverError`."""
    option, _, number = sys.argv[1].partition("=")
    if option != _OPTION:
        handover = Handover.read(sys.stdin.buffer)
        _close_standard_input()
        return handover
    del sys.argv[1]
    with os.fdopen(int(number), "rb") as file:
        return Handover.read(file)


def _confine(confinement: Confinement | None) -> None:
    """Raises `landlock.ConfinementError`."""
    if confinement is None:
        return
    # Before it is applied: what it cannot enforce may be the reason not to run.
    lacks = landlock.unenforceable(confinement.rules)
    if lacks and confinement.require:
        raise landlock.ConfinementError(
            "MOLECULE_HERMES_CONFINE=require, but this kernel cannot enforce all of the "
            f"confinement. {' '.join(lacks)} Use a newer kernel, or MOLECULE_HERMES_CONFINE=auto"
        )
    for lack in landlock.confine(confinement.rules):
        sys.stderr.write(f"molecule-hermes: not confined: {lack}\n")


def _prepare_home(handover: Handover) -> None:
    """Raises OSError."""
    if not handover.remove and not handover.files:
        return
    home = Path(os.environ["HERMES_HOME"])
    home_files.remove(home, handover.remove)
    home_files.write(home, handover.files)


def _run(handover: Handover) -> int:
    # First, because it sets up paths and the environment that other modules read on import.
    from hermes_cli.main import main as hermes

    hermes_api.strip_from_tools(SECRETS, handover.environ)
    if handover.api_key:
        hermes_api.lend_api_key(API_KEY, handover.api_key)
    if handover.disabled_toolsets:
        hermes_api.withhold_toolsets(handover.disabled_toolsets, _PEERS)
    return int(hermes() or 0)


def _close_standard_input() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
