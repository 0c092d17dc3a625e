"""The command line: `molecule-hermes …`."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from molecule_hermes import __version__
from molecule_hermes.config import Settings, secret_variables
from molecule_hermes.errors import BridgeError, ConfigError, StartError
from molecule_hermes.net.urls import http_url
from molecule_hermes.plugin.hardening import forbid_inspection
from molecule_hermes.text import redact

if TYPE_CHECKING:
    from a2a.types import SendMessageRequest

    from molecule_hermes.client.terminal import Printer

__all__ = ["main"]

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: it failed; 2: it was asked wrongly; 130: Ctrl-C. An error is one line."""
    options = _parser().parse_args(arguments)
    # With OpenTelemetry's packages installed the SDK traces every call, for a third of the
    # throughput, whether or not anybody collects it.
    os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")
    try:
        return int(options.run(options))
    except ConfigError as error:
        return _fail(error, 2)
    except BridgeError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        return _fail(StartError(f"{error.strerror or error}: {error.filename or ''}"), 1)


def _fail(error: BridgeError, code: int) -> int:
    print(f"molecule-hermes: {redact(str(error))}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="molecule-hermes",
        description="A bridge between A2A peers and the Hermes agent.",
        epilog="Settings come from the environment; the README has the table.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, text in (
        ("up", _up, "run Hermes and the bridge together"),
        ("serve", _serve, "run the bridge alone, against a Hermes that already runs"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--host", help="address to listen on (MOLECULE_HERMES_HOST)")
        command.add_argument("--port", help="port to listen on (MOLECULE_HERMES_PORT)")
        command.add_argument("--state-dir", help="folder for state (MOLECULE_HERMES_STATE_DIR)")
        command.add_argument(
            "--transport",
            choices=("plugin", "chat") if name == "serve" else ("plugin", "chat", "auto"),
            help="the way to Hermes (MOLECULE_A2A_PLATFORM_ENABLED)",
        )
        command.set_defaults(run=run)
        if name == "up":
            command.add_argument(
                "--keep-config", action="store_true", help="use Hermes's folder as it is"
            )
    _plugin_command(commands)
    _send_command(commands)
    _client_command(commands, "card", _card, "print an agent's card as JSON")
    _client_command(commands, "doctor", _doctor, "say what is wrong, and what to do")
    return parser


Run = Callable[[argparse.Namespace], int]


def _client_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, run: Run, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("--url", help="the agent's URL (default: this machine's bridge)")
    command.add_argument("--token", help="a peer's token (default: MOLECULE_HERMES_TOKEN)")
    command.set_defaults(run=run)
    return command


def _send_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    send = _client_command(commands, "send", _send, "send a message and stream the reply")
    send.epilog = (
        "The reply goes to standard output, all else to standard error. Questions are asked at the "
        "terminal (Ctrl-D leaves one open). Ctrl-C cancels the task, a second Ctrl-C leaves it. "
        "Exit codes: 0 completed; 1 failed, canceled, or a question is open; 2 asked wrongly; "
        "130 Ctrl-C."
    )
    add = send.add_argument
    add("text", nargs="?", metavar="TEXT", help="the message; - reads it from standard input")
    add("--context", default="", metavar="ID", help="continue this conversation")
    add("--task", default="", metavar="ID", help="answer the question that this task waits on")
    add("--file", action="append", default=[], metavar="PATH", help="send this file; repeatable")
    add("--save", metavar="DIR", help="keep the files that come back in this folder")
    add("--json", action="store_true", help="print raw events, one JSON per line; ask nothing")


def _plugin_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "the plugin in a Hermes of your own: enable it, or say why it is not bound"
    command = commands.add_parser("plugin", help=text, description=text)
    command.add_argument("action", choices=("enable", "status"))
    command.add_argument("--hermes-home", metavar="DIR", help="Hermes's folder (HERMES_HOME)")
    command.set_defaults(run=_plugin)


def _up(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.up import up

    settings, environ = _guarded(options)
    transport, keep = options.transport, options.keep_config
    return _run(up(settings, environ, _say, transport=transport, keep_config=keep))


def _serve(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.serve import serve

    settings, environ = _guarded(options)
    return _run(serve(settings, environ, _say, options.transport))


def _send(options: argparse.Namespace) -> int:
    from molecule_hermes.client.interaction import send

    settings = Settings.from_env()
    url, token = _url(options, settings), _token(options, settings)
    request, printer = _request(options), _printer(options)
    again = _send_again(options)
    return _run(
        send(url, request, printer, token=token, keyboard=_keyboard(options), command=again)
    )


def _request(options: argparse.Namespace) -> SendMessageRequest:
    from molecule_hermes.client.connection import file_part, message

    if options.text is None and not options.file:
        raise ConfigError("there is nothing to send", "give a TEXT or --file PATH")
    if options.task and options.file:
        raise ConfigError("a file is no answer", "send --file without --task")
    text = options.text or ""
    if text == "-":
        # Closed by the caller, it is None.
        text = sys.stdin.buffer.read().decode("utf-8", "replace") if sys.stdin else ""
    files = [file_part(Path(path)) for path in options.file]
    return message(_utf8(text), _utf8(options.context), _utf8(options.task), files)


def _utf8(text: str) -> str:
    """What is not UTF-8 as far as it can be read."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _keyboard(options: argparse.Namespace) -> int | None:
    """The terminal where questions can be asked, if there is one."""
    if options.json or options.text == "-" or not (sys.stdin and sys.stderr):
        return None
    return sys.stdin.fileno() if sys.stdin.isatty() and sys.stderr.isatty() else None


def _printer(options: argparse.Namespace) -> Printer:
    from molecule_hermes.client.save_folder import SaveFolder
    from molecule_hermes.client.terminal import Printer, RawPrinter

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    kind = RawPrinter if options.json else Printer
    folder = SaveFolder(Path(options.save)) if options.save is not None else None
    return kind(sys.stdout or io.StringIO(), sys.stderr or io.StringIO(), folder)


def _send_again(options: argparse.Namespace) -> str:
    """The command for the next message to the same agent; a token is not repeated."""
    from molecule_hermes.client.terminal import command_name

    return f"{command_name()} send" + (f" --url {shlex.quote(options.url)}" if options.url else "")


def _card(options: argparse.Namespace) -> int:
    from molecule_hermes.client.connection import fetch_card

    async def show() -> None:
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict

        settings = Settings.from_env()
        card = await fetch_card(_url(options, settings), _token(options, settings))
        print(json.dumps(agent_card_to_dict(card), indent=2, ensure_ascii=False))

    return _run(show())


def _doctor(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.doctor import examine

    async def show() -> int:
        settings = Settings.from_env()
        failures = 0
        url, token = _url(options, settings), _token(options, settings)
        async for finding in examine(settings, url, token):
            print(redact(str(finding)), flush=True)
            failures += not finding.ok
        print(f"{failures} problems found" if failures else "all is well")
        return 1 if failures else 0

    return _run(show())


def _plugin(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.doctor import plugin_finding
    from molecule_hermes.hermes.home import HermesHome
    from molecule_hermes.hermes.plugin_setup import enable

    settings = Settings.from_env(hermes_home=options.hermes_home)
    home = HermesHome(settings.home)
    if options.action == "enable":
        enable(home, settings, even_if_disabled=True)
        print(f"enabled in {home.config_file}; it listens at {settings.platform_url} once Hermes")
        print("is restarted. The package must be installed in Hermes's own environment, and")
        print("MOLECULE_A2A_PLATFORM_SHARED_SECRET be set for both.")
        return 0
    finding = _run_for(plugin_finding(settings, settings.local_url))
    print(redact(str(finding)))
    return 0 if finding.ok else 1


def _run(work: Coroutine[Any, Any, int | None]) -> int:
    return _run_for(work) or 0


def _run_for(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _guarded(options: argparse.Namespace) -> tuple[Settings, Mapping[str, str]]:
    """The settings and the environment; secrets are no longer in `os.environ` afterwards."""
    from molecule_hermes.hermes.providers import keys_that_are_set

    forbid_inspection()
    settings, environ = _settings(options), dict(os.environ)
    for name in secret_variables().union(keys_that_are_set(environ)):
        os.environ.pop(name, None)
    return settings, environ


def _settings(options: argparse.Namespace) -> Settings:
    settings = Settings.from_env(host=options.host, port=options.port, state_dir=options.state_dir)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # The SDK logs every peer's mistake as a warning, and some as an error with a stack trace.
    logging.getLogger("a2a").setLevel(logging.ERROR)
    for name in ("httpx", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Redacted(handler.formatter))
    return settings


class _Redacted(logging.Formatter):
    """Whatever is logged, by us or by a library, passes the redaction."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        if record.name.startswith("a2a."):
            record = _one_line(record)
        return redact(self._inner.format(record))


def _one_line(record: logging.LogRecord) -> logging.LogRecord:
    """What a peer sent may stand in the SDK's message: no trace, and no line of its own."""
    error = f" ({record.exc_info[1]})" if record.exc_info else ""
    text = " ".join(f"{record.getMessage()}{error}".split())
    plain = {"msg": text[:500], "args": None, "exc_info": None, "exc_text": None}
    return logging.makeLogRecord(record.__dict__ | plain)


def _url(options: argparse.Namespace, settings: Settings) -> str:
    if options.url:
        try:
            return http_url(options.url)
        except ValueError:
            raise ConfigError(
                f"--url={options.url!r} is no URL", "it looks like http://127.0.0.1:8000"
            ) from None
    return settings.local_url


def _token(options: argparse.Namespace, settings: Settings) -> str:
    known = settings.token.get_secret_value() if settings.token else ""
    token = str(options.token or known)
    if not (token.isascii() and token.isprintable()):
        raise ConfigError("the token is not plain text", "tokens are printable ASCII")
    return token


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
