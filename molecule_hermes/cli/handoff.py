"""`molecule-hermes handoff`: asks the bridge of this machine, and shows how far it is."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator
from typing import TypeAlias

import httpx

from molecule_hermes.cli.progress import progress
from molecule_hermes.config import Settings
from molecule_hermes.errors import ConfigError, StartError
from molecule_hermes.server.handoff_records import Handoff, HandoffRecords
from molecule_hermes.server.operator import HANDOFFS_PATH, read_access
from molecule_hermes.text import one_line, redact

__all__ = ["handoff", "listed", "no_bridge"]

Say: TypeAlias = Callable[[str], None]

_POLL = 0.2
_GRACE = 60.0
"""Seconds beyond the handoff's own limit: the bridge may be restarted meanwhile."""


async def handoff(options: argparse.Namespace, say: Say, report: Say) -> int:
    """Returns the exit code. `say` is for what programs read, `report` for people."""
    settings = Settings.from_env(hermes_home=options.hermes_home)
    if options.list:
        for line in listed(settings):
            say(line)
        return 0
    if not options.session or not options.to:
        hint = "give SESSION and --to PEER, CONTEXT and --to PLATFORM, or --list"
        raise ConfigError("say what to hand over, and to whom", hint)
    asked = {
        "session": options.session,
        "peer": options.to,
        "agent": options.agent,
        "context_id": options.context,
        "owner": options.peer,
        "home": str(settings.home.absolute()),
    }
    begun = await _begin(settings, asked)
    say(begun.context_id)
    report(f"handing {begun.session} over to {begun.peer}: {begun.state}")
    async with progress(report, "waiting"):
        ended = await _followed(settings, begun, report)
    reason = f" ({ended.reason})" if ended.reason else ""
    report(_shown(f"{ended.state}: session {ended.session_id or ended.session}{reason}"))
    return 0 if ended.state == "completed" else 1


def listed(settings: Settings) -> Iterator[str]:
    """The handoffs so far, the latest last. Needs no bridge."""
    for each in HandoffRecords(settings.handoffs_dir):
        session, peer = each.session_id or each.session, each.peer or "?"
        line = f"{each.began}  {each.state:9}  {session} → {peer}"
        agent = f"  agent {each.agent}" if each.agent else ""
        reason = f"  ({one_line(each.reason)})" if each.reason else ""
        yield _shown(f"{line}{agent}  context {each.context_id}{reason}")


def _shown(text: str) -> str:
    """Names of sessions, and reasons, can be written by an agent's tools."""
    return "".join(filter(str.isprintable, redact(text)))


async def _begin(settings: Settings, asked: dict[str, str]) -> Handoff:
    if (access := read_access(settings.state_dir)) is None:
        raise no_bridge(settings)
    url, token = access
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with httpx.AsyncClient(timeout=10.0, trust_env=False, headers=headers) as http:
            answer = await http.post(url + HANDOFFS_PATH, json=asked)
            body = answer.json()
    except (httpx.HTTPError, ValueError):
        raise no_bridge(settings) from None
    if answer.status_code == 400:
        raise ConfigError(body["error"]["message"], "see `molecule-hermes handoff --help`")
    if answer.status_code != 202:
        raise StartError(f"the bridge refused (status {answer.status_code})", "see its log")
    return Handoff(**body)


async def _followed(settings: Settings, handoff: Handoff, report: Say) -> Handoff:
    """The handoff when it is over, as it is recorded: bridges may come and go meanwhile."""
    records = HandoffRecords(settings.handoffs_dir)
    try:
        async with asyncio.timeout(settings.handoff_timeout + _GRACE):
            while not handoff.is_over:
                await asyncio.sleep(_POLL)
                before, handoff = handoff.state, records.find(handoff.id) or handoff
                if handoff.state != before and not handoff.is_over:
                    report(handoff.state)
    except TimeoutError:
        raise StartError(
            f"the bridge did not end the handoff, which is {handoff.state}",
            "it does at its next start; `molecule-hermes handoff --list` tells",
        ) from None
    return handoff


def no_bridge(settings: Settings) -> StartError:
    return StartError(
        f"no bridge runs on {settings.state_dir}",
        "start `molecule-hermes up`, or set MOLECULE_HERMES_STATE_DIR to its folder",
    )
