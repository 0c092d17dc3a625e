"""What the agent says unasked becomes a task of its own, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from a2a.client import Client
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, Task
from google.protobuf.json_format import MessageToDict

from molecule_hermes.client.connection import message
from molecule_hermes.config import Settings
from molecule_hermes.errors import StorageFailure
from molecule_hermes.protocol.reply import artifact_text
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.storage.sql import SqlTaskStore
from molecule_hermes.transports.plugin.transport import PluginTransport
from tests.support.peers import Turn, ask, failure, peer, state
from tests.support.pushing_plugin import SECRET, PushingPlugin, pushing_plugin
from tests.support.waiting import until


@pytest.fixture
async def plugin() -> AsyncIterator[PushingPlugin]:
    async with pushing_plugin() as plugin:
        yield plugin


Start = Callable[..., contextlib.AbstractAsyncContextManager[tuple[Bridge, Client]]]


@pytest.fixture
def start(settings: Callable[..., Settings], plugin: PushingPlugin) -> Start:
    """Starts a bridge that leaves its turns to the next one."""

    @contextlib.asynccontextmanager
    async def run(takes: bool = True, **variables: Any) -> AsyncIterator[tuple[Bridge, Client]]:
        given = {"DRAIN_TIMEOUT": 0, "KEEP_WORKER": "true"} | variables
        transport = PluginTransport(plugin.url, secret=SECRET, tell_every=0.05)
        plugin.callback_url = ""
        async with (
            asyncio.timeout(60),
            Bridge(settings(**given), transport) as bridge,
            peer(bridge.url) as client,
        ):
            if takes:
                await until(lambda: plugin.takes)
            yield bridge, client

    return run


async def listed(client: Client, context_id: str = "") -> list[Task]:
    """The deliveries, oldest first."""
    params = ListTasksRequest(context_id=context_id, include_artifacts=True, page_size=100)
    tasks = (await client.list_tasks(params)).tasks
    return [task for task in reversed(tasks) if "initiatedBy" in task.metadata]


async def ended(client: Client, count: int = 1) -> list[Task]:
    async def all_ended() -> list[Task]:
        tasks = await listed(client)
        over = [task for task in tasks if state(task) in ("COMPLETED", "FAILED", "CANCELED")]
        return over if len(over) >= count else []

    tasks: list[Task] = await until(all_ended)
    return tasks


def about(task: Task) -> Any:
    found = MessageToDict(task.metadata)
    return {key: found.get(key) for key in ("initiatedBy", "cause", "job", "referenceTaskIds")}


async def test_a_delivery_is_a_task_in_the_conversations_context(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as (_, client):
        turn = await ask(client, "ping", "ctx")
        origin = {"a2a_task_id": turn.task_id}
        answer = await plugin.deliver("p1", "the build is green", origin=origin, job="make all")
        assert answer == {"status": 200, "ok": True}
        (task,) = await ended(client)
    assert state(task) == "COMPLETED"
    assert task.context_id == "ctx"
    assert task.id != turn.task_id
    assert artifact_text(task) == "the build is green"
    assert about(task) == {
        "initiatedBy": "agent",
        "cause": "background",
        "job": "make all",
        "referenceTaskIds": [turn.task_id],
    }
    (said,) = [each for each in task.history if each.reference_task_ids]
    assert list(said.reference_task_ids) == [turn.task_id]
    assert "make all" in said.parts[0].text


async def test_a_delivery_that_comes_again_is_one_task(plugin: PushingPlugin, start: Start) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        answers = await asyncio.gather(*(plugin.send(plugin.opening("p1")) for _ in range(5)))
        assert sum("duplicate" not in answer for answer in answers) == 1
        await plugin.deliver("p1", "done")
        assert [artifact_text(task) for task in await ended(client)] == ["done"]
        assert not (await plugin.deliver("p1", "done")).get("unknown")
        assert len(await listed(client)) == 1
    async with start() as (_, client):
        again = await plugin.deliver("p1", "done")
        assert again["ok"] is True
        assert not again.get("unknown")  # the plugin may forget it
        assert [artifact_text(task) for task in await listed(client)] == ["done"]


async def test_a_delivery_goes_on_at_the_next_bridge(plugin: PushingPlugin, start: Start) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        await plugin.send(
            plugin.opening("p1"), plugin.event(plugin.chat, "p1", 1, "Hel", type="delta")
        )

        async def has_text() -> bool:
            return [artifact_text(each) for each in await listed(client)] == ["Hel"]

        await until(has_text)
    async with start() as (_, client):
        await until(lambda: plugin.attached)
        assert plugin.attached[-1]["message_id"] == "p1"
        # It comes again as a whole, as if it had never been acknowledged.
        await plugin.deliver("p1", "Hello")
        (task,) = await ended(client)
        assert (state(task), artifact_text(task)) == ("COMPLETED", "Hello")


async def test_a_delivery_that_was_stored_but_not_acknowledged_goes_on_at_the_next_bridge(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        await plugin.send(plugin.opening("p1"))
        first = plugin.checks[-1]["bridge"]
    # The plugin did not hear that the delivery was stored, and gives it to the one that asks next.
    async with start() as (_, client):
        assert "refused" not in await plugin.send(plugin.opening("p1"))
        await until(lambda: plugin.attached)
        (task,) = await listed(client)
        cancel = asyncio.create_task(client.cancel_task(CancelTaskRequest(id=task.id)))
        await until(lambda: plugin.posts)
        # It was stored in the name of the first.
        assert [plugin.attached[-1]["bridge"], plugin.posts[-1][1]["bridge"]] == [first] * 2
        await plugin.send(plugin.event(plugin.chat, "p1", 1, type="final", status="canceled"))
        assert state(await cancel) == "CANCELED"


async def test_a_delivery_under_another_id_than_its_own_is_refused(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        opening = plugin.opening("p1") | {"reply_to": "p2"}
        assert list((await plugin.send(opening))["refused"]) == ["p2"]
        assert not await listed(client)


async def test_callbacks_after_the_end_change_nothing(plugin: PushingPlugin, start: Start) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        await plugin.deliver("p1", "done")
        await ended(client)
        late = await plugin.send(plugin.event(plugin.chat, "p1", 3, "late", type="delta"))
        assert late["stale"] is True
        assert [artifact_text(task) for task in await listed(client)] == ["done"]


async def test_a_delivery_that_cannot_be_stored_comes_again(
    plugin: PushingPlugin, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start() as (bridge, client):
        await ask(client, "ping")
        with monkeypatch.context() as broken:

            async def fail(*given: Any) -> None:
                raise StorageFailure("the disk is full")

            broken.setattr(SqlTaskStore, "save", fail)
            answer = await plugin.deliver("p1", "done")
            assert answer["status"] == 503
            assert not await listed(client)
        assert bridge.turns == 0
        assert (await plugin.deliver("p1", "done"))["status"] == 200
        assert [artifact_text(task) for task in await ended(client)] == ["done"]


async def test_a_delivery_into_an_unknown_conversation_is_refused(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        answer = await plugin.deliver("p1", "done", chat="a2a-nobody")
        assert answer["refused"]["p1"]["kind"] == "bad_request"
        assert not await listed(client)


async def test_more_deliveries_than_allowed_are_refused_and_counted(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start(MAX_DELIVERIES_OF_PEER=2) as (bridge, client):
        await ask(client, "ping")
        answers = [await plugin.send(plugin.opening(f"p{n}")) for n in range(3)]
        assert ["refused" in answer for answer in answers] == [False, False, True]
        assert answers[2]["refused"]["p2"]["kind"] == "busy"
        await plugin.deliver("p0", "done")
        await ended(client)
        assert "refused" not in await plugin.send(plugin.opening("p2"))
        metrics = bridge.metrics.text().decode()
    assert 'molecule_hermes_refused_deliveries_total{agent="main",kind="busy"} 1.0' in metrics
    assert 'molecule_hermes_deliveries_total{agent="main",cause="background"} 3.0' in metrics


async def test_a_peer_gets_no_more_deliveries_in_an_hour_than_allowed(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start(MAX_DELIVERIES_PER_HOUR=1) as (_, client):
        await ask(client, "ping")
        await plugin.deliver("p0", "done")
        await ended(client)
        assert (await plugin.deliver("p1", "x"))["refused"]["p1"]["kind"] == "rate_limit"


async def test_a_refused_deliverys_callbacks_do_not_disturb_the_others(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        chat = plugin.chat
        answer = await plugin.send(
            plugin.opening("bad", "a2a-nobody"),
            plugin.opening("good"),
            plugin.event("a2a-nobody", "bad", 1, "x", type="delta"),
            plugin.event(chat, "good", 1, "yes", type="final"),
        )
        assert list(answer["refused"]) == ["bad"]
        assert [artifact_text(task) for task in await ended(client)] == ["yes"]


async def test_the_peer_can_cancel_a_delivery(plugin: PushingPlugin, start: Start) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        await plugin.send(plugin.opening("p1"))
        (task,) = await until(lambda: listed(client))
        cancel = asyncio.create_task(client.cancel_task(CancelTaskRequest(id=task.id)))
        await until(lambda: plugin.posts)
        path, posted = plugin.posts[-1]
        assert (path, posted["message_id"]) == ("cancel", "p1")
        end = plugin.event(plugin.chat, "p1", 1, type="final", status="canceled")
        await plugin.send(end)
        assert state(await cancel) == "CANCELED"


async def test_the_peer_can_answer_a_deliverys_question(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        question = {"type": "clarify", "question_id": "q", "choices": ["yes", "no"]}
        asked = plugin.event(plugin.chat, "p1", 1, "deploy?", **question)
        await plugin.send(plugin.opening("p1"), asked)

        async def waits() -> Task | None:
            found = await listed(client)
            return found[0] if found and state(found[0]) == "INPUT_REQUIRED" else None

        task = await until(waits)
        request = message("yes", task.context_id, task.id)
        request.configuration.return_immediately = True
        turn = Turn()
        async for event in client.send_message(request):
            turn.add(event)
            break
        await until(lambda: plugin.posts)
        assert plugin.posts[-1][1]["answer"] == "yes"
        await plugin.send(plugin.event(plugin.chat, "p1", 2, "deployed", type="final"))
        (task,) = await ended(client)
        assert artifact_text(task) == "deployed"


async def test_a_delivery_that_fails_says_why(plugin: PushingPlugin, start: Start) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        error = {"kind": "rate_limit", "message": "slow down", "hint": "", "retryable": True}
        end = plugin.event(plugin.chat, "p1", 1, type="final", status="failed", error=error)
        await plugin.send(plugin.opening("p1"), end)
        (task,) = await ended(client)
        assert failure(task.status)["kind"] == "rate_limit"


async def test_a_hermes_that_dies_ends_its_deliveries(plugin: PushingPlugin, start: Start) -> None:
    async with start() as (_, client):
        await ask(client, "ping")
        await plugin.send(plugin.opening("p1"))
        plugin.instance = "two"
        (task,) = await ended(client)
        assert failure(task.status)["kind"] == "interrupted"


async def test_a_hermes_that_is_restarted_is_told_that_deliveries_are_taken(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start():
        plugin.instance, plugin.callback_url = "two", ""
        await until(lambda: plugin.takes)
        assert plugin.checks[-1]["bridge"]


async def test_a_bridge_that_takes_no_deliveries_says_so(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start(takes=False, DELIVERIES="off") as (bridge, client):
        await ask(client, "ping")
        await until(lambda: is_ready(bridge))
        assert plugin.checks
        assert not any(check.get("deliveries") for check in plugin.checks)
        url = plugin.inbound[-1]["callback_url"]
        answer = await plugin.send(plugin.opening("p1"), url=url)
        assert "p1" in answer["refused"]
        assert not await listed(client)


async def is_ready(bridge: Bridge) -> bool:
    return (await bridge.health.ready()).ready


async def test_an_older_plugin_makes_no_deliveries_and_its_push_is_dropped(
    plugin: PushingPlugin, start: Start
) -> None:
    plugin.knows_deliveries = False
    async with start(takes=False) as (_, client):
        await ask(client, "ping")
        url = plugin.inbound[-1]["callback_url"]
        push = plugin.event(plugin.chat, "m", 0, "a late word", type="push")
        assert (await plugin.send(push, url=url))["ok"] is True
        assert not await listed(client)


async def test_messages_and_deliveries_of_a_conversation_do_not_mix(
    plugin: PushingPlugin, start: Start
) -> None:
    async with start() as (_, client):
        turns = [await ask(client, f"ping {n}", "ctx") for n in range(3)]
        for number in range(5):
            await plugin.deliver(f"p{number}", f"delivery {number}")
            turns.append(await ask(client, "ping", "ctx"))
        tasks = await ended(client, 5)
        assert sorted(map(artifact_text, tasks)) == [f"delivery {n}" for n in range(5)]
        assert {turn.text for turn in turns} == {"pong"}
        for turn in turns:
            task = await client.get_task(GetTaskRequest(id=turn.task_id))
            assert artifact_text(task) == "pong"
