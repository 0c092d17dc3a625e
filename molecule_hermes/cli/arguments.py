"""The arguments of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

__all__ = [
    "OF_A_REQUEST",
    "add_agents",
    "add_client",
    "add_handoff",
    "add_plugin",
    "add_resume",
    "add_send",
    "add_server",
    "add_watch",
]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Run: TypeAlias = Callable[[argparse.Namespace], int]


OF_A_REQUEST = {
    "peer": "the name of the peer that sends the request",
    "tenant": "the tenant that it names",
    "context": "the ID of its context",
    "skill": "the skill that it asks for",
}


def add_server(commands: _Commands, name: str, run: _Run, text: str) -> None:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("--host", help="address to listen on (MOLECULE_HERMES_HOST)")
    command.add_argument("--port", help="port to listen on (MOLECULE_HERMES_PORT)")
    command.add_argument("--state-dir", help="folder for state (MOLECULE_HERMES_STATE_DIR)")
    command.add_argument(
        "--transport",
        choices=("plugin", "chat") if name == "serve" else ("plugin", "chat", "auto"),
        help="how to reach Hermes (MOLECULE_A2A_PLATFORM_ENABLED)",
    )
    command.set_defaults(run=run)
    if name == "up":
        command.add_argument(
            "--keep-config", action="store_true", help="do not change Hermes's folder"
        )


def add_client(commands: _Commands, name: str, run: _Run, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("--url", help="the agent's URL (default: this machine's bridge)")
    command.add_argument("--token", help="a peer's token (default: MOLECULE_HERMES_TOKEN)")
    command.set_defaults(run=run)
    return command


def add_send(commands: _Commands, run: _Run) -> None:
    send = add_client(commands, "send", run, "send a message and stream the reply")
    send.epilog = (
        "The reply goes to standard output, everything else to standard error. Questions are asked "
        "at the terminal (Ctrl-D leaves a question open). Ctrl-C cancels the task; a second Ctrl-C "
        "leaves it running. Exit codes: 0 completed; 1 failed, canceled, or a question is open; "
        "2 wrong arguments; 130 Ctrl-C."
    )
    add = send.add_argument
    add("text", nargs="?", metavar="TEXT", help="the message; - reads it from standard input")
    add("--context", default="", metavar="ID", help="continue this conversation")
    add("--task", default="", metavar="ID", help="steer this running task, or answer its question")
    add(
        "--file",
        action="append",
        default=[],
        metavar="PATH",
        help="attach this file; can be repeated",
    )
    add("--save", metavar="DIR", help="save files from the agent in this folder")
    add("--json", action="store_true", help="print raw events as JSON lines; do not ask questions")


def add_watch(commands: _Commands, run: _Run) -> None:
    from molecule_hermes.cli.watch import EPILOG, add_options

    command = add_client(commands, "watch", run, "show what the agent says unasked")
    command.epilog = EPILOG
    add_options(command)


def add_agents(commands: _Commands, run: _Run) -> None:
    text = "list agents, routes and peers, or say which agent a request gets"
    command = commands.add_parser("agents", help=text, description=text)
    command.epilog = (
        "They come from the file that MOLECULE_HERMES_CONFIG names. Exit codes: 0; 1 if the "
        "request is refused; 2 if the file or a setting is not valid."
    )
    for option, what in OF_A_REQUEST.items():
        command.add_argument(f"--{option}", metavar=option.upper(), help=what)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


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
