"""The arguments of the commands about the operator's own Hermes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["add_handoff", "add_plugin", "add_resume"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Run: TypeAlias = Callable[[argparse.Namespace], int]


def add_plugin(commands: _Commands, run: _Run) -> None:
    text = "enable the plugin in your own Hermes, or find out why it is not bound"
    command = commands.add_parser("plugin", help=text, description=text)
    command.add_argument("action", choices=("enable", "status"))
    command.add_argument("--hermes-home", metavar="DIR", help="Hermes's folder (HERMES_HOME)")
    command.set_defaults(run=run)


def add_handoff(commands: _Commands, run: _Run) -> None:
    text = "hand a conversation of your own Hermes over to a peer, or a peer's to another platform"
    command = commands.add_parser("handoff", help=text, description=text)
    command.epilog = (
        "For the operator, on the bridge's machine, with its MOLECULE_HERMES_STATE_DIR. With the "
        "ID of a peer's context instead of SESSION, --to PLATFORM gives its conversation to "
        "another platform of the agent's Hermes, such as telegram, and the peer's next message "
        "begins a new one. If a peer has the same name, --to means the peer. The context's ID "
        "goes to standard output, everything else to standard error. Exit codes: 0 completed; "
        "1 failed; 2 wrong arguments."
    )
    add = command.add_argument
    add(
        "session",
        nargs="?",
        metavar="SESSION",
        help="its ID, its beginning or title; or a context's ID",
    )
    add("--to", metavar="NAME", help="the peer, or platform, with which the conversation goes on")
    add("--agent", default="", metavar="NAME", help="the agent that goes on with it, or has it")
    add(
        "--peer",
        default="",
        metavar="PEER",
        help="for a platform: whose context, if several have it",
    )
    add("--context", default="", metavar="ID", help="for a peer: its context (default: a new one)")
    add("--hermes-home", metavar="DIR", help="Hermes's folder with the session (HERMES_HOME)")
    add("--list", action="store_true", help="list the handoffs so far")
    command.set_defaults(run=run)


def add_resume(commands: _Commands, run: _Run) -> None:
    text = "go on with a peer's conversation in Hermes's own CLI"
    command = commands.add_parser("resume", help=text, description=text)
    command.epilog = (
        "For the operator, on the machine of a `molecule-hermes up`, with its "
        "MOLECULE_HERMES_STATE_DIR. The peer's messages wait meanwhile. Exit codes: those of "
        "Hermes's CLI; 1 if it is not started; 2 wrong arguments."
    )
    add = command.add_argument
    add("context", metavar="CONTEXT", help="the ID of the peer's context")
    add("--peer", default="", metavar="PEER", help="whose context it is, if several have it")
    add("--agent", default="", metavar="NAME", help="which agent's, if several have it")
    add("-q", dest="text", metavar="TEXT", help="say only this, and print the answer")
    command.set_defaults(run=run)
