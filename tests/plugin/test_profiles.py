"""Several agents and profiles on one real Hermes, through both transports."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from molecule_hermes.errors import BadRequest
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    Failed,
    Notice,
    ToolProgress,
    Turn,
    TurnEvent,
)
from tests.support.deliveries import assert_each_is_whole, background, call, delivery, take
from tests.support.gateway import API_KEY, SECRET, Hermes, callback_server, running_hermes
from tests.support.recorded_model import RecordedModel, recorded_model
from tests.support.waiting import until

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]

PROFILES = ("red", "blue")
MARKERS = {"": "MARKER-ROOT", "red": "MARKER-RED", "blue": "MARKER-BLUE"}


def make_profiles(home: Path, model_url: str) -> None:
    (home / "SOUL.md").write_text(MARKERS[""])
    for name in PROFILES:
        folder = home / "profiles" / name
        folder.mkdir(parents=True)
        model = {
            "default": f"model-{name}",
            "provider": "custom",
            "base_url": model_url,
            "api_key": f"key-{name}",
            "api_mode": "chat_completions",
            "context_length": 200000,
        }
        terminal = {"cwd": str(home / "work")}
        (folder / "config.yaml").write_text(json.dumps({"model": model, "terminal": terminal}))
        (folder / "SOUL.md").write_text(MARKERS[name])
        (folder / ".env").write_text("")


@asynccontextmanager
async def hermes_with_profiles(home: Path, model: RecordedModel) -> AsyncIterator[Hermes]:
    make_profiles(home, model.url)
    over = {"model": {"base_url": model.url}, "gateway": {"multiplex_profiles": True}}
    async with running_hermes(home, over=over) as hermes:
        yield hermes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[RecordedModel]:
    async with recorded_model() as model:
        yield model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes(
    model: RecordedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Hermes]:
    async with hermes_with_profiles(tmp_path_factory.mktemp("profiles"), model) as hermes:
        yield hermes


def plugin_of(hermes: Hermes, profile: str = "") -> PluginTransport:
    return PluginTransport(hermes.url(""), secret=SECRET, profile=profile)


def chat_of(hermes: Hermes, profile: str = "") -> ChatTransport:
    return ChatTransport(f"http://127.0.0.1:{hermes.api_port}/v1", API_KEY, profile=profile)


TRANSPORTS = pytest.mark.parametrize("transport_of", [plugin_of, chat_of])


def turn(name: str, text: str, *, agent: str = "main", profile: str = "") -> Turn:
    return Turn(f"m-{name}", "alice", "one context", "t", text, agent=agent, profile=profile)


async def run(transport: Transport, turn: Turn) -> TurnEvent:
    async with asyncio.timeout(90):
        return [event async for event in transport.run(turn)][-1]


def seen(model: RecordedModel, text: str) -> set[tuple[str, str]]:
    """The model and the markers of each agent's request that has the text at its end."""
    return {
        (request["model"], marker)
        for request in model.requests
        if request.get("tools") and text in str(request["messages"][-1]["content"])
        for marker in MARKERS.values()
        if marker in str(request["messages"])
    }


@TRANSPORTS
async def test_a_turn_runs_as_its_profile_also_beside_those_of_others(
    hermes: Hermes, model: RecordedModel, transport_of: type[Transport]
) -> None:
    way = transport_of.__name__
    expected = {}
    async with transport_of(hermes) as transport:
        turns = []
        for number in range(4):
            for profile in ("", *PROFILES):
                text = f"{way}-{number}-{profile or 'root'}-end"
                expected[text] = profile
                agent = profile or "main"
                turns.append(turn(text, text, agent=agent, profile=profile))
        # The first of each, and then the rest at once: same peer, same context, other agent.
        ends = [await run(transport, first) for first in turns[:3]]
        ends += await asyncio.gather(*(run(transport, rest) for rest in turns[3:]))
    assert [type(end) for end in ends] == [Completed] * 12, ends
    for text, profile in expected.items():
        name = f"model-{profile}" if profile else "molecule-demo"
        assert seen(model, text) == {(name, MARKERS[profile])}, text
    for text, profile in expected.items():
        (request,) = [
            r for r in model.requests if r.get("tools") and text in str(r["messages"][-1])
        ]
        others = {t for t in expected if t in str(request["messages"])}
        assert {expected[t] for t in others} == {profile}, "another agent's conversation"


@TRANSPORTS
async def test_check_accepts_a_profile_that_is_served_and_refuses_an_unknown_one(
    hermes: Hermes, transport_of: type[Transport]
) -> None:
    async with transport_of(hermes, "red") as transport:
        await transport.check()
    async with transport_of(hermes, "green") as transport:
        with pytest.raises(BadRequest, match="green"):
            await transport.check()


@TRANSPORTS
async def test_a_turn_with_an_unknown_profile_never_reaches_a_model(
    hermes: Hermes, model: RecordedModel, transport_of: type[Transport]
) -> None:
    text = f"nobody hears {transport_of.__name__}"
    async with transport_of(hermes) as transport:
        end = await run(transport, turn(text, text, profile="green"))
    assert isinstance(end, Failed)
    assert isinstance(end.failure, BadRequest)
    assert "green" in end.failure.message
    assert not seen(model, text)


async def test_a_cancel_stops_the_tool_of_a_profiles_turn(hermes: Hermes) -> None:
    mark = hermes.work / "still-running"
    command = f"demo:run sleep 20 && touch {mark}"
    async with plugin_of(hermes) as transport:
        started = asyncio.Event()
        events = []

        async def follow(asked: Turn) -> None:
            async for event in transport.run(asked):
                events.append(event)
                if isinstance(event, ToolProgress):
                    started.set()

        asked = turn("cancel", command, agent="red", profile="red")
        running = asyncio.create_task(follow(asked))
        async with asyncio.timeout(60):
            await started.wait()
        began = asyncio.get_running_loop().time()
        await transport.cancel(asked)
        async with asyncio.timeout(30):
            await running
        assert isinstance(events[-1], Canceled), events
        assert asyncio.get_running_loop().time() - began < 8
    assert not mark.exists()


async def test_a_text_steers_a_profiles_turn(hermes: Hermes) -> None:
    gate = hermes.work / "gate"
    command = f"demo:run while [ ! -e {gate} ]; do sleep 0.1; done; echo done"
    async with plugin_of(hermes) as transport:
        events: list[TurnEvent] = []
        asked = turn("steer", command, agent="blue", profile="blue")

        async def follow() -> None:
            events.extend([event async for event in transport.run(asked)])

        running = asyncio.create_task(follow())
        await until(lambda: transport.accepted == 1)
        steered = await transport.steer(asked, "be quick about it")
        gate.touch()
        async with asyncio.timeout(60):
            await running
    assert steered.accepted, steered
    assert isinstance(events[-1], Completed)
    assert not [e for e in events if isinstance(e, Notice) and e.kind == "unheard"]


@TRANSPORTS
async def test_a_hermes_that_serves_no_profiles_is_refused(
    tmp_path: Path, transport_of: type[Transport]
) -> None:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(recorded_model())
        make_profiles(tmp_path, model.url)
        over = {"model": {"base_url": model.url}}
        hermes = await stack.enter_async_context(running_hermes(tmp_path, over=over))
        transport = await stack.enter_async_context(transport_of(hermes, "red"))
        with pytest.raises(BadRequest) as refused:
            await transport.check()
        assert "gateway.multiplex_profiles: true" in refused.value.hint
        end = await run(transport, turn("off", "for red only", profile="red"))
        assert isinstance(end, Failed), end
        assert not seen(model, "for red only")


@pytest.mark.parametrize("tool", ["terminal", "delegate_task"])
async def test_a_late_result_is_told_to_the_profile_that_began_the_job(
    hermes: Hermes, model: RecordedModel, tool: str
) -> None:
    late = f"late-{tool}"
    asked = call(tool, goal=f"demo:say {late}", background=True)
    if tool == "terminal":
        asked = background(f"echo {late}")
    async with callback_server() as callbacks:
        await take(hermes, callbacks)
        as_red = {"agent": "red", "profile": "red"}
        final, _ = await callbacks.final(await hermes.say(callbacks, asked, chat=late, **as_red))
        assert ("dispatched" if tool == "delegate_task" else "proc_") in final.content
        push_id = await delivery(callbacks, late)
        assert {callback.agent for callback in callbacks.of(push_id)} == {"red"}
        assert late in callbacks.finals(push_id)[0].content
        assert_each_is_whole(callbacks)
    head = "[ASYNC DELEGATION" if tool == "delegate_task" else "[IMPORTANT: Background process"
    (request,) = [r for r in model.requests if head in str(r["messages"][-1]["content"])]
    assert request["model"] == "model-red"
    assert MARKERS["red"] in str(request["messages"])


async def test_hermes_shows_for_which_agent_a_message_is(hermes: Hermes) -> None:
    async with plugin_of(hermes) as transport:
        end = await run(transport, turn("shown", "demo:run env", agent="red", profile="red"))
    assert isinstance(end, Completed)
    assert re.search(r"message m-shown to agent 'red' from alice", hermes_log(hermes))


def hermes_log(hermes: Hermes) -> str:
    logs = [*hermes.home.glob("logs/*.log"), hermes.home / "gateway.out"]
    return "\n".join(log.read_text(errors="replace") for log in logs)


async def test_hermes_stops_cleanly_after_turns_of_several_profiles(tmp_path: Path) -> None:
    """It closes the adapter once for the root and once for each profile."""
    async with recorded_model() as model, hermes_with_profiles(tmp_path, model) as hermes:
        async with plugin_of(hermes) as transport:
            for profile in PROFILES:
                end = await run(transport, turn(f"stop-{profile}", "hi", profile=profile))
                assert isinstance(end, Completed)
        await hermes.terminate()
        log = hermes_log(hermes)
    assert "Traceback" not in log
    assert not re.search(r"(?i)(error|timed out).*disconnect|disconnect.*(error|timed out)", log)
