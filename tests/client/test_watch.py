"""`molecule-hermes watch` against a real bridge."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.client.watch import ServerSentEvents, Shown, Watching
from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.transports.plugin.transport import PluginTransport
from tests.cli.test_main import run
from tests.support.peers import ask, peer
from tests.support.pushing_plugin import SECRET, PushingPlugin, pushing_plugin
from tests.support.serving import free_port
from tests.support.waiting import until


@pytest.fixture
async def plugin() -> AsyncIterator[PushingPlugin]:
    async with pushing_plugin() as plugin:
        yield plugin


def shown(**options: object) -> tuple[Shown, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Shown(out, err, **options), out, err  # type: ignore[arg-type]


async def test_deliveries_are_shown_as_they_come_also_after_a_restart_of_the_bridge(
    plugin: PushingPlugin, settings: Callable[..., Settings]
) -> None:
    port = free_port()

    def bridge() -> Bridge:
        plugin.callback_url = ""
        transport = PluginTransport(plugin.url, secret=SECRET, tell_every=0.05)
        return Bridge(settings(PORT=port, DRAIN_TIMEOUT=0), transport)

    everything, out, err = shown()
    quiet, texts, silence = shown(quiet=True, context="other")
    raw, lines, _ = shown(as_json=True)
    url = f"http://127.0.0.1:{port}"
    async with asyncio.timeout(60):
        async with bridge() as first:
            await until(lambda: plugin.takes)
            watching = [
                asyncio.create_task(Watching(url, "", each, since="", after="0").run())
                for each in (everything, quiet, raw)
            ]
            async with peer(first.url) as client:
                await ask(client, "ping", "ctx")
                chat = plugin.chat
                await ask(client, "ping", "other")
            await plugin.deliver("p1", "one", chat, job="make all")
            await plugin.deliver("p2", "two")
            await until(lambda: "two" in out.getvalue() and "two" in texts.getvalue())
        async with bridge():
            await until(lambda: plugin.takes)
            await plugin.deliver("p3", "three")
            await until(lambda: "three" in out.getvalue() and "three" in texts.getvalue())
            await until(lambda: "three" in lines.getvalue())
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    assert out.getvalue().splitlines() == ["one", "two", "three"]
    assert "[background: make all] completed" in err.getvalue()
    assert (texts.getvalue().splitlines(), silence.getvalue()) == (["two", "three"], "")
    kinds = [json.loads(line)["kind"] for line in lines.getvalue().splitlines()]
    assert sorted(kinds) == ["created"] * 3 + ["ended"] * 3


async def test_an_agent_that_does_not_answer_is_one_line() -> None:
    printer, _, _ = shown()
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(StartError, match="no agent answers"):
        await Watching(url, "", printer, since="", after="").run()


@pytest.mark.parametrize(
    "arguments", [["--after", "x"], ["--since", "soon"], ["--after", "1", "--since", "2h"]]
)
def test_wrong_arguments_of_watch_are_one_line_and_exit_2(arguments: list[str]) -> None:
    ended = run("watch", *arguments)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


@given(st.lists(st.text(max_size=20)))
def test_any_lines_are_read_as_events(lines: list[str]) -> None:
    events, (printer, _, _) = ServerSentEvents(), shown()
    for line in lines:
        if (data := events.take(line)) is not None:
            printer.event(data)


@given(st.text())
def test_any_data_is_shown_or_ignored(data: str) -> None:
    shown()[0].event(data)
