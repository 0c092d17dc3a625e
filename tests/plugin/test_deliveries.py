"""Deliveries with a real outbox and callback servers, without Hermes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from molecule_hermes.plugin.callbacks import OtherBridgeError
from molecule_hermes.plugin.cron_deliveries import CronDeliveries
from molecule_hermes.plugin.deliveries import NotDeliveredError
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.hermes_api import CronRun
from molecule_hermes.plugin.journal import Journals
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.plugin.outbox import Outbox
from molecule_hermes.plugin.receiver import Receiver
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import Attach, Check, File, Final, Inbound, Origin, Push
from tests.plugin.test_dispatcher import FakeGateway
from tests.support.gateway import CallbackServer, callback_server
from tests.support.serving import free_port
from tests.support.waiting import until


class Desk:
    """A dispatcher with its outbox."""

    def __init__(self, outbox: Outbox, **bounds: int) -> None:
        self.gateway = FakeGateway()
        self.ledger = Ledger(outbox.journals)
        self.dispatcher = Dispatcher(self.gateway, self.ledger, outbox, **bounds)
        self.deliveries = self.dispatcher.deliveries
        self.now = 0.0
        self.deliveries.receiver = Receiver(lambda: self.now)

    def take(self, url: str, bridge: str = "b") -> None:
        assert self.deliveries.check(Check(url, bridge=bridge, deliveries=True))

    def decline(self, url: str, bridge: str = "b") -> None:
        """And is not about to take them."""
        assert not self.deliveries.check(Check(url, bridge=bridge))
        self.now += 60

    def run(self, chat: str = "c", text: str = "[IMPORTANT: proc_1234 ended]") -> str:
        before = {journal.message_id for journal in self.ledger.journals}
        self.deliveries.run(chat, SimpleNamespace(text=text, message_id=None))
        (push_id,) = {journal.message_id for journal in self.ledger.journals} - before
        return push_id

    async def started(self) -> Turn:
        return await asyncio.wait_for(self.gateway.started.get(), 20)

    def end(self, turn: Turn, answer: str = "done") -> None:
        turn.answered(answer)
        self.dispatcher.finish(turn)
        self.gateway.working.discard(turn.chat_id)

    def notes(self, chat: str = "c") -> list[str]:
        return self.ledger.take_notes(chat)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with Outbox(timeout=2.0) as outbox:
        made = Desk(outbox, max_of_chat=2, max_in_all=3)
        yield made
        await made.dispatcher.close()


@pytest.fixture
async def bridge() -> AsyncIterator[CallbackServer]:
    async with callback_server() as running:
        yield running


def types(bridge: CallbackServer, push_id: str) -> list[str]:
    return [callback.body.type for callback in bridge.of(push_id)]


async def test_a_delivery_waits_behind_the_messages_of_its_chat(
    desk: Desk, bridge: CallbackServer
) -> None:
    desk.take(bridge.url)
    desk.dispatcher.accept(Inbound("c", "p", "m", bridge.url, "hi", bridge="b"))
    running = await desk.started()
    push_id = desk.run()
    await bridge.until(lambda: types(bridge, push_id) == ["push"])
    assert desk.gateway.started.empty()
    desk.end(running, "first")
    turn = await desk.started()
    assert (turn.message_id, str(turn)) == (push_id, f"delivery {push_id} to agent 'main'")
    desk.end(turn, "late")
    final, _ = await bridge.final(push_id)
    assert (final.content, [c.content for c in bridge.finals("m")]) == ("late", ["first"])


async def test_a_complete_text_is_a_delivery_without_a_turn(
    desk: Desk, bridge: CallbackServer
) -> None:
    desk.take(bridge.url)
    desk.deliveries.origins.started("j", "daily", Inbound("c", "p", "m", "", metadata=ORIGIN))
    desk.deliveries.close(desk.deliveries.open("c", "handoff", job_id="j"), "Good morning")
    await bridge.until(lambda: len(bridge.taken) == 2)
    push, final = bridge.taken
    assert push.body == Push(push.reply_to, "handoff", ORIGIN, "daily")
    assert (final.reply_to, final.content, final.body) == (push.reply_to, "Good morning", Final())
    assert desk.gateway.started.empty()


ORIGIN = Origin("am", "at", "ac")


async def test_before_any_bridge_has_said_anything_deliveries_wait(
    desk: Desk, bridge: CallbackServer
) -> None:
    push_id = desk.run()
    desk.end(await desk.started())
    assert desk.dispatcher.active == 1, "it keeps the worker alive"
    desk.take(bridge.url)
    await bridge.final(push_id)
    await until(lambda: desk.dispatcher.active == 0)


async def test_where_no_bridge_takes_deliveries_they_are_dropped_and_the_agent_is_told(
    desk: Desk, bridge: CallbackServer
) -> None:
    desk.take(bridge.url)
    desk.decline(bridge.url)
    for _ in range(2):
        with pytest.raises(NotDeliveredError):
            desk.run(text="[IMPORTANT: Background process proc_1 ended\nCommand: make test\n…]")
    assert desk.notes() == [
        "the result of 'make test': no bridge takes what the agent says after its turn"
    ]
    assert desk.notes() == []
    assert len(desk.ledger.journals) == 0


async def test_a_result_that_comes_while_a_bridge_starts_is_not_dropped(
    desk: Desk, bridge: CallbackServer
) -> None:
    desk.deliveries.check(Check(bridge.url, bridge="b"))  # it does not take any yet
    push_id = desk.run()
    desk.take(bridge.url)
    desk.end(await desk.started())
    await bridge.final(push_id)


async def test_what_a_bridge_takes_no_longer_does_not_keep_the_worker_alive(desk: Desk) -> None:
    away = f"http://127.0.0.1:{free_port()}/a2a/reply"
    desk.take(away)
    desk.run()
    desk.end(await desk.started())
    assert desk.dispatcher.active == 1
    desk.decline(away)
    assert desk.dispatcher.active == 0


async def test_deliveries_are_bounded_per_chat_and_in_all(desk: Desk) -> None:
    desk.take(f"http://127.0.0.1:{free_port()}/a2a/reply")
    for chat in ("c", "c", "d"):
        desk.run(chat)
    for chat in ("c", "e"):
        with pytest.raises(NotDeliveredError, match="too many deliveries wait"):
            desk.run(chat)
        assert desk.notes(chat) == [
            "the result of 'background job': too many deliveries wait already"
        ]
    assert len(desk.ledger.journals) == 3


async def test_a_delivery_that_is_lost_for_want_of_room_is_told_to_the_agent() -> None:
    journals = Journals(max_bytes=3000)
    async with Outbox(journals) as outbox:
        desk = Desk(outbox)
        desk.take(f"http://127.0.0.1:{free_port()}/a2a/reply")
        desk.deliveries.close(desk.deliveries.open("c", "cron", job="first"), "x" * 2000)
        desk.deliveries.close(desk.deliveries.open("c", "cron", job="second"), "y" * 2000)
        why = "no bridge has got it, and there is no room to keep it"
        assert desk.notes() == [f"the result of 'first': {why}"]
        assert [journal.label for journal in journals] == ["second"]


async def test_a_delivery_that_is_over_makes_room(desk: Desk, bridge: CallbackServer) -> None:
    desk.take(bridge.url)
    for _ in range(5):
        push_id = desk.run()
        desk.end(await desk.started())
        await bridge.final(push_id)
        await until(lambda: desk.dispatcher.active == 0)


async def test_a_push_that_no_bridge_has_acknowledged_goes_to_the_next_one(
    desk: Desk, bridge: CallbackServer
) -> None:
    desk.take(f"http://127.0.0.1:{free_port()}/a2a/reply", "first")
    push_id = desk.run()
    turn = await desk.started()
    desk.take(bridge.url, "second")
    await bridge.until(lambda: types(bridge, push_id) == ["push"])
    desk.end(turn)
    await bridge.final(push_id)
    assert types(bridge, push_id) == ["push", "final"]
    # The first may have stored it all the same; then its successor knows it by that name.
    for name in ("first", "second"):
        assert desk.dispatcher.attach(Attach(push_id, bridge.url, 9, name))
    with pytest.raises(OtherBridgeError):
        desk.dispatcher.attach(Attach(push_id, bridge.url, 9, ""))


async def test_a_bridge_at_the_address_of_one_before_gets_the_push_again(
    desk: Desk, bridge: CallbackServer
) -> None:
    desk.take(f"{bridge.url}?to=first", "first")
    bridge.hang = asyncio.Event()
    push_id = desk.run()
    await bridge.arrived.wait()
    # It asks before the push reaches it, and does not take what was meant for the first.
    desk.deliveries.receiver.hear(
        Check(f"{bridge.url}?to=second", bridge="second", deliveries=True)
    )
    bridge.says = {"stale": True, "unknown": [push_id]}
    bridge.hang.set()
    await bridge.until(lambda: len(bridge.of(push_id)) == 2)
    bridge.says = {}
    desk.end(await desk.started())
    await bridge.final(push_id)


async def test_an_acknowledged_push_stays_with_its_bridge_until_one_attaches(
    desk: Desk, bridge: CallbackServer
) -> None:
    async with callback_server() as first:
        desk.take(first.url, "first")
        push_id = desk.run()
        await first.until(lambda: types(first, push_id) == ["push"])
        journal = desk.ledger.journals.find(push_id)
        assert journal is not None
        await until(lambda: journal.opened)
    desk.take(bridge.url, "second")
    desk.end(await desk.started())
    desk.dispatcher.attach(Attach(push_id, bridge.url, 0, "first"))
    await bridge.final(push_id)
    assert types(bridge, push_id) == ["final"]


async def test_what_only_an_earlier_bridge_has_acknowledged_keeps_no_worker_alive(
    desk: Desk, bridge: CallbackServer
) -> None:
    async with callback_server() as first:
        desk.take(first.url, "first")
        push_id = desk.run()
        await first.until(lambda: types(first, push_id) == ["push"])
        journal = desk.ledger.journals.find(push_id)
        assert journal is not None
        await until(lambda: journal.opened)
    desk.end(await desk.started())
    assert desk.dispatcher.active == 1, "that bridge may come back"
    desk.take(bridge.url, "second")
    assert desk.dispatcher.active == 0
    # It can be attached to all the same.
    bridge.refuse = [500]
    desk.dispatcher.attach(Attach(push_id, bridge.url, 0, "first"))
    assert desk.dispatcher.active == 1
    await bridge.final(push_id)
    await until(lambda: desk.dispatcher.active == 0)


@pytest.mark.parametrize("status", [200, 400])
async def test_a_refused_delivery_is_stopped_and_forgotten(
    desk: Desk, bridge: CallbackServer, status: int
) -> None:
    desk.take(bridge.url)
    desk.gateway.working.add("c")
    if status == 400:
        bridge.refuse = [400]
    else:
        bridge.refuse_pushes = {"kind": "forbidden", "message": "it is over\x00\nand out"}
    push_id = desk.run(text="[ASYNC DELEGATION COMPLETE — deleg_1234]")
    await until(lambda: desk.ledger.find(push_id) is None)
    reason = "it is over and out" if status == 200 else "the bridge cannot read it"
    assert desk.notes() == [f"the result of 'background subagents': {reason}"]
    assert desk.ledger.journals.find(push_id) is None
    assert desk.dispatcher.active == 0
    desk.gateway.working.discard("c")
    desk.dispatcher.accept(Inbound("c", "p", "m", bridge.url, "hi"))
    assert (await desk.started()).message_id == "m"
    assert types(bridge, push_id) in ([], ["push"])


async def test_a_bridge_cannot_refuse_a_message(desk: Desk, bridge: CallbackServer) -> None:
    bridge.says = {"refused": {"m": {"kind": "x", "message": "no"}, "n": 1}}
    desk.dispatcher.accept(Inbound("c", "p", "m", bridge.url, "hi"))
    desk.end(await desk.started())
    await bridge.final("m")
    assert desk.ledger.journals.find("m") is not None


def run_of(name: str = "report", origin: tuple[str, str] = ("", "")) -> CronRun:
    return CronRun("j", name, origin)


async def test_the_text_and_the_files_of_a_run_are_one_delivery(
    desk: Desk, bridge: CallbackServer
) -> None:
    desk.take(bridge.url)
    cron, run, other = CronDeliveries(desk.deliveries), run_of(), run_of()
    cron.add(run, "c", "See the file")
    turn = cron.turn(run, "c")
    desk.dispatcher.emit(turn, turn.callback(File("a.txt", "text/plain", b"x")))
    cron.add(other, "c", "Another run")
    cron.end(run)
    await bridge.final(turn.message_id)
    assert types(bridge, turn.message_id) == ["push", "file", "final"]
    assert bridge.finals(turn.message_id)[0].content == "See the file"
    cron.end(run)
    cron.end(other)
    await bridge.until(lambda: len(bridge.taken) == 5)


async def test_a_file_of_a_cron_job_that_is_refused_is_told_to_the_agent(
    desk: Desk, bridge: CallbackServer
) -> None:
    desk.take(bridge.url)
    cron, run = CronDeliveries(desk.deliveries), run_of()
    desk.dispatcher.refuse(cron.turn(run, "c"), "the file a is not available")
    cron.add(run, "c", "See the file")
    cron.end(run)
    await bridge.until(lambda: [c.body.type for c in bridge.taken] == ["push", "notice", "final"])
    assert desk.notes() == ["the file a is not available"]


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (("", ""), True),
        (("telegram", "t"), True),
        (("molecule_a2a", "c"), True),
        (("molecule_a2a", "mine"), True),
        (("molecule_a2a", "theirs"), False),
        (("molecule_a2a", "unknown"), False),
    ],
)
async def test_a_job_of_one_peer_does_not_speak_in_the_conversation_of_another(
    desk: Desk, bridge: CallbackServer, origin: tuple[str, str], allowed: bool
) -> None:
    desk.take(bridge.url)
    for chat, peer in (("c", "p"), ("mine", "p"), ("theirs", "q")):
        desk.deliveries.origins.spoken(Inbound(chat, peer, "m", bridge.url))
    cron, run = CronDeliveries(desk.deliveries), run_of(origin=origin)
    refused: Any = None
    try:
        cron.add(run, "c", "Pay me")
    except NotDeliveredError as error:
        refused = error
    cron.end(run)
    assert (refused is None) is allowed
    assert len(desk.ledger.journals) == allowed


def test_what_hermes_puts_around_the_text_of_a_job_is_removed_once() -> None:
    run = run_of("a\nb")
    head = "Cronjob Response: a\nb\n(job_id: j)\n-------------\n\n"
    foot = '\n\nTo stop or manage this job, send me a new message (e.g. "stop reminder a\nb").'
    assert run.unwrapped(f"{head}{head}text{foot}") == f"{head}text"
    assert run.unwrapped(" text\n") == "text"
