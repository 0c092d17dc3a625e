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
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from molecule_hermes import __version__
from molecule_hermes.cli.arguments import (
    OF_A_REQUEST,
    add_agents,
    add_client,
    add_handoff,
    add_plugin,
    add_resume,
    add_send,
    add_server,
    add_watch,
)
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
    """Runs a command. An error is one line on standard error.

    Returns 0 for success, 1 for a failure, 2 for wrong arguments or settings, 130 for Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    # If OpenTelemetry is installed, the SDK traces every call even without a collector, which
    # costs a third of the throughput.
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
        return _fail(_os_error(error), 1)


def _os_error(error: OSError) -> StartError:
    if not error.filename:
        return StartError(error.strerror or str(error))
    return StartError(f"{error.filename}: {error.strerror}", "check the path and its permissions")


def _fail(error: BridgeError, code: int) -> int:
    print(f"molecule-hermes: {redact(str(error))}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="molecule-hermes",
        description="A bridge between A2A peers and the Hermes agent.",
        epilog="Settings come from environment variables; the README lists them.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_server(commands, "up", _up, "run Hermes and the bridge together")
    add_server(
        commands, "serve", _serve, "run the bridge alone, for a Hermes that is already running"
    )
    add_plugin(commands, _plugin)
    add_send(commands, _send)
    add_watch(commands, _watch)
    add_agents(commands, _agents)
    add_handoff(commands, _handoff)
    add_resume(commands, _resume)
    add_client(commands, "card", _card, "print an agent's card as JSON")
    add_client(commands, "doctor", _doctor, "find problems and say how to solve them")
    return parser


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


def _watch(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.watch import after_of, shown_of, since_of
    from molecule_hermes.client.watch import watch

    settings = Settings.from_env()
    url, token = _url(options, settings), _token(options, settings)
    since, after = since_of(options), after_of(options)
    return _run(watch(url, token, shown_of(options), since=since, after=after))


def _request(options: argparse.Namespace) -> SendMessageRequest:
    from molecule_hermes.client.connection import file_part, message

    if options.text is None and not options.file:
        raise ConfigError("there is no message to send", "give a TEXT or --file PATH")
    if options.task and options.file:
        raise ConfigError("a task takes only text", "use --file without --task")
    text = options.text or ""
    if text == "-":
        # It is None if the caller closed it.
        text = sys.stdin.buffer.read().decode("utf-8", "replace") if sys.stdin else ""
    files = [file_part(Path(path)) for path in options.file]
    return message(_utf8(text), _utf8(options.context), _utf8(options.task), files)


def _utf8(text: str) -> str:
    """The text with a replacement character for each byte that is not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _keyboard(options: argparse.Namespace) -> int | None:
    """The terminal where questions can be asked, if any."""
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
    """The command for the next message to the same agent, without the token."""
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


def _agents(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.agents import Overview, Request

    overview = Overview(Settings.from_env())
    for warning in overview.warnings:
        _say_progress(f"warning: {warning}")
    given = {name: vars(options)[name] for name in OF_A_REQUEST if vars(options)[name] is not None}
    answer = overview.answer(Request(**given)) if given else None
    shown = answer or overview
    if options.json:
        print(json.dumps(shown.as_json(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(redact, shown.lines())))
    return 1 if answer is not None and answer.is_refused else 0


def _handoff(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.handoff import handoff

    return _run(handoff(options, _say, _say_progress))


def _resume(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.resume import resume

    return resume(options)


def _doctor(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.doctor import examine

    async def show() -> int:
        settings = Settings.from_env()
        failures = 0
        url, token = _url(options, settings), _token(options, settings)
        async for finding in examine(settings, url, token, _say_progress):
            print(redact(str(finding)), flush=True)
            failures += not finding.ok
        print(f"{failures or 'no'} problem{'' if failures == 1 else 's'} found")
        return 1 if failures else 0

    return _run(show())


def _plugin(options: argparse.Namespace) -> int:
    from molecule_hermes.cli.doctor import plugin_finding
    from molecule_hermes.cli.messages import report_mcp_servers
    from molecule_hermes.hermes.home import HermesHome
    from molecule_hermes.hermes.plugin_setup import enable
    from molecule_hermes.hermes.workspace import merge_mcp_servers

    settings = Settings.from_env(hermes_home=options.hermes_home)
    home = HermesHome(settings.home)
    if options.action == "enable":
        enable(home, settings, even_if_disabled=True)
        report_mcp_servers(merge_mcp_servers(home, settings), print)
        print(f"enabled in {home.config_file}; next:")
        print("  1. install the package in Hermes's own environment, if it is not there yet")
        print(
            "  2. set MOLECULE_A2A_PLATFORM_SHARED_SECRET to the same value for Hermes and bridge"
        )
        print(f"  3. restart Hermes; the plugin then listens at {settings.platform_url}")
        return 0
    finding = _run_for(plugin_finding(settings, settings.local_url, _say_progress))
    print(redact(str(finding)))
    return 0 if finding.ok else 1


def _run(work: Coroutine[Any, Any, int | None]) -> int:
    return _run_for(work) or 0


def _run_for(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _guarded(options: argparse.Namespace) -> tuple[Settings, Mapping[str, str]]:
    """Returns the settings and the environment, and removes the secrets from `os.environ`."""
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
    # The SDK logs each bad request as a warning, and some as an error with a stack trace.
    logging.getLogger("a2a").setLevel(logging.ERROR)
    for name in ("httpx", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Redacted(handler.formatter))
    return settings


class _Redacted(logging.Formatter):
    """Redacts secrets in all log records, including those of libraries."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        if record.name.startswith("a2a."):
            record = _one_line(record)
        return redact(self._inner.format(record))


def _one_line(record: logging.LogRecord) -> logging.LogRecord:
    """The record without stack trace and line breaks, because it may quote what a peer sent."""
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
                f"--url={options.url!r} is not a URL", "use one like http://127.0.0.1:8000"
            ) from None
    return settings.local_url


def _token(options: argparse.Namespace, settings: Settings) -> str:
    known = settings.token.get_secret_value() if settings.token else ""
    token = str(options.token or known)
    if not (token.isascii() and token.isprintable()):
        raise ConfigError("the token has characters other than printable ASCII", "copy it again")
    return token


def _say(text: str) -> None:
    print(text, flush=True)


def _say_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
