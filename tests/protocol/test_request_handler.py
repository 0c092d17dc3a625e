"""Requests answered from task logs: whatever peers do at once, every caller gets an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.tasks import InMemoryPushNotificationConfigStore, TaskStore
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from hypothesis import example, given
from hypothesis import strategies as st

from molecule_hermes.client.connection import message
from molecule_hermes.errors import StorageFailure
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.net.addresses import PublicOnly
from molecule_hermes.protocol.request_handler import BridgeRequestHandler
from molecule_hermes.protocol.states import INTERRUPTED, ends, rests
from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.webhooks import PushConfigs, PushSender
from molecule_hermes.storage.memory import MemoryTaskStore
from molecule_hermes.turns.idempotency import IdempotencyIndex
from molecule_hermes.turns.model import Completed, Question, TextDelta
from tests.conftest import StartBridge
from tests.support import peers
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import failure, peer, state
from tests.support.tasks import context
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)

CARD = AgentCard(
    name="n",
    description="d",
    version="1",
    capabilities=AgentCapabilities(streaming=True, push_notifications=True),
)
APPROVAL = Question("q1", "approval", "may I?", ("once", "deny"))
CLARIFY = Question("q2", "clarify", "which one?")
PEER = context()


class Disk(MemoryTaskStore):
    """Takes `pace` turns of the loop for a save; fails at those in `bad`; `go` holds it up."""

    def __init__(self, pace: int = 0, bad: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.pace = pace
        self.bad = bad
        self.saves = 0
        self.go = asyncio.Event()
        self.go.set()

    async def save(self, task: Task, context: ServerCallContext, turn: str = "") -> None:
        self.saves += 1
        number = self.saves
        for _ in range(self.pace):
            await asyncio.sleep(0)
        await self.go.wait()
        if number in self.bad:
            raise StorageFailure("the disk is full")
        await super().save(task, context)


class SeenConfigs(InMemoryPushNotificationConfigStore):
    """Notes the tasks that webhooks are registered for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig | None:
        self.seen.append(task_id)
        return await super().set_info(task_id, notification_config, context)


class SlowWebhooks(PushSender):
    """Accepts any webhook, once `go` is set."""

    def __init__(self) -> None:
        self.store = SeenConfigs()
        super().__init__(PushConfigs(self.store), PublicOnly())
        self.go = asyncio.Event()
        self.asked = asyncio.Event()

    async def accepts(self, url: str) -> bool:
        self.asked.set()
        await self.go.wait()
        return True


def _configs() -> PushConfigs:
    return PushConfigs(MemoryTaskStore().push_configs)


@asynccontextmanager
async def serving(
    executor: AgentExecutor,
    store: TaskStore | None = None,
    *,
    window: float = 60.0,
    webhooks: PushSender | None = None,
    close_timeout: float = 10.0,
) -> AsyncIterator[BridgeRequestHandler]:
    push = webhooks or PushSender(_configs(), PublicOnly())
    stopping = set()

    def stop_if_lost(log: TaskLog) -> None:
        if log.lost is not None:
            request = RequestContext(ServerCallContext(), task_id=log.task.id)
            stopping.add(asyncio.create_task(executor.cancel(request, log)))

    async with (
        asyncio.timeout(30),
        TaskRegistry(store or Disk(), push.notify, checkpoint=0.01, on_end=stop_if_lost) as tasks,
    ):
        handler = BridgeRequestHandler(
            executor,
            tasks,
            CARD,
            push,
            idempotency=IdempotencyIndex(window),
            close_timeout=close_timeout,
        )
        yield handler
        if isinstance(executor, HermesAgentProxyExecutor):
            await executor.drain(0)
        await handler.aclose()
        await asyncio.gather(*stopping)


def scripted(*script: Any) -> HermesAgentProxyExecutor:
    return HermesAgentProxyExecutor(ScriptedTransport(*script), cancel_timeout=2.0)


def again(request: SendMessageRequest) -> SendMessageRequest:
    copy = SendMessageRequest()
    copy.CopyFrom(request)
    return copy


def again_task(task: Task) -> Task:
    copy = Task()
    copy.CopyFrom(task)
    return copy


async def send(handler: BridgeRequestHandler, request: SendMessageRequest) -> Task:
    result = await handler.on_message_send(again(request), PEER)
    assert isinstance(result, Task)
    return result


async def stream(handler: BridgeRequestHandler, request: SendMessageRequest) -> list[Any]:
    return [event async for event in handler.on_message_send_stream(again(request), PEER)]


async def subscribe(handler: BridgeRequestHandler, task_id: str) -> list[Any]:
    request = SubscribeToTaskRequest(id=task_id)
    return [event async for event in handler.on_subscribe_to_task(request, PEER)]


async def cancel(handler: BridgeRequestHandler, task_id: str) -> Task:
    return await handler.on_cancel_task(CancelTaskRequest(id=task_id), PEER)


# Whatever is done at once.


def require_legal(events: list[Any]) -> None:
    """A task first, if it is told at all, and nothing after its one end."""
    assert not any(isinstance(event, Task) for event in events[1:])
    assert len({e.id if isinstance(e, Task) else e.task_id for e in events}) == 1
    assert not any(ends(event) for event in events[:-1])
    for event in events:
        if isinstance(event, Task | TaskStatusUpdateEvent):
            assert event.status.state != TaskState.TASK_STATE_UNSPECIFIED


class Peers:
    """Callers that run side by side; each does one thing and checks what it gets."""

    ACTIONS = (
        "send",
        "send_and_go",
        "stream",
        "answer",
        "answer_and_go",
        "answer_streaming",
        "resend",
        "resend_streaming",
        "subscribe",
        "cancel",
        "leave",
    )

    def __init__(self, handler: BridgeRequestHandler) -> None:
        self._handler = handler
        self._callers: list[asyncio.Task[None]] = []
        self._sent: list[SendMessageRequest] = []
        self._task_of: dict[str, str] = {}
        """By messageId: a resend must get the same task."""
        self.known: list[str] = []

    def start(self, action: str, which: int) -> None:
        self._callers.append(asyncio.create_task(self._act(action, which), name=action))

    async def _act(self, action: str, which: int) -> None:
        try:
            await getattr(self, f"_{action}")(which)
        except A2AError as error:
            assert "disk is full" in str(error) or "internal" not in str(error)

    def _task(self, which: int) -> str:
        return self.known[which % len(self.known)] if self.known else "nobody"

    def _note(self, task_id: str) -> None:
        if task_id not in self.known:
            self.known.append(task_id)

    async def _sends(self, request: SendMessageRequest) -> None:
        self._sent.append(request)
        result = await send(self._handler, request)
        assert request.configuration.return_immediately or rests(result)
        assert result.status.state != TaskState.TASK_STATE_UNSPECIFIED
        self._note(result.id)
        self._require_same_task(request, result.id)

    def _require_same_task(self, request: SendMessageRequest, task_id: str) -> None:
        assert self._task_of.setdefault(request.message.message_id, task_id) == task_id

    async def _streams(self, request: SendMessageRequest) -> None:
        self._sent.append(request)
        events = []
        async for event in self._handler.on_message_send_stream(again(request), PEER):
            events.append(event)
            if isinstance(event, Task):
                self._note(event.id)
                self._require_same_task(request, event.id)
        require_legal(events)
        assert rests(events[-1])
        assert request.message.task_id or isinstance(events[0], Task)

    async def _send(self, which: int) -> None:
        await self._sends(message("go"))

    async def _send_and_go(self, which: int) -> None:
        request = message("go")
        request.configuration.return_immediately = True
        await self._sends(request)

    async def _stream(self, which: int) -> None:
        await self._streams(message("go", f"context {which}"))

    async def _answer(self, which: int) -> None:
        await self._sends(message("yes", task_id=self._task(which)))

    async def _answer_and_go(self, which: int) -> None:
        request = message("yes", task_id=self._task(which))
        request.configuration.return_immediately = True
        await self._sends(request)

    async def _answer_streaming(self, which: int) -> None:
        await self._streams(message("what?", task_id=self._task(which)))

    async def _resend(self, which: int) -> None:
        if self._sent:
            await self._sends(self._sent[which % len(self._sent)])

    async def _resend_streaming(self, which: int) -> None:
        if self._sent:
            await self._streams(self._sent[which % len(self._sent)])

    async def _subscribe(self, which: int) -> None:
        events = await subscribe(self._handler, self._task(which))
        require_legal(events)
        assert isinstance(events[0], Task)
        assert not any(rests(event) for event in events[1:-1])
        assert rests(events[-1])

    async def _cancel(self, which: int) -> None:
        assert ends(await cancel(self._handler, self._task(which)))

    async def _leave(self, which: int) -> None:
        """Closes its connection after the first event."""
        events = self._handler.on_message_send_stream(message("go"), PEER)
        self._note((await anext(events)).id)
        await events.aclose()

    async def all_got_an_end(self) -> None:
        """Cancels what waits for its peer: else subscribers would wait, too."""
        async with asyncio.timeout(20):
            while (tasks := await self._open()) or not all(c.done() for c in self._callers):
                for task in tasks:
                    if task.status.state in INTERRUPTED:
                        self.start("cancel", self._number(task.id))
                await asyncio.sleep(0.001)
        for caller in self._callers:
            caller.result()

    def _number(self, task_id: str) -> int:
        self._note(task_id)
        return self.known.index(task_id)

    async def _open(self) -> list[Task]:
        page = await self._handler.on_list_tasks(ListTasksRequest(page_size=100), PEER)
        return [task for task in page.tasks if not ends(task)]


def scripts(go: asyncio.Event) -> dict[str, list[Any]]:
    return {
        "answers": [TextDelta("x"), Completed("x")],
        "waits": [TextDelta("x"), go, Completed("x")],
        "asks": [TextDelta("x"), APPROVAL, Answered(), TextDelta("y"), Completed("xy")],
        "asks twice": [APPROVAL, Answered(), go, CLARIFY, Answered(), Completed("x")],
        "does not wait for the answer": [APPROVAL, 0.002, Completed("x")],
        "breaks": [APPROVAL, Answered(), RuntimeError("password=hunter2")],
    }


STEPS = st.lists(
    st.tuples(st.sampled_from(Peers.ACTIONS), st.integers(0, 5), st.integers(0, 12)),
    min_size=1,
    max_size=14,
)


@example([("resend", 0, 0), ("answer", 0, 8), ("answer", 0, 0)], "asks twice", 2, frozenset())
@given(
    steps=STEPS,
    script=st.sampled_from(sorted(scripts(asyncio.Event()))),
    pace=st.integers(0, 3),
    bad=st.frozensets(st.integers(1, 20), max_size=2),
)
async def test_every_caller_gets_an_end_and_sees_a_legal_history(
    steps: list[tuple[str, int, int]], script: str, pace: int, bad: frozenset[int]
) -> None:
    go = asyncio.Event()
    executor = scripted(*scripts(go)[script])
    async with serving(executor, Disk(pace, bad)) as handler:
        callers = Peers(handler)
        callers.start("stream", 0)
        for action, which, turns in steps:
            for _ in range(turns):
                await asyncio.sleep(0)
            callers.start(action, which)
        go.set()
        await callers.all_got_an_end()
        await until(lambda: bad or not handler.active)


# One thing at a time.


@asynccontextmanager
async def asked(*rest: Any, **more: Any) -> AsyncIterator[tuple[BridgeRequestHandler, Task]]:
    """A task that waits for its peer's answer."""
    async with serving(scripted(APPROVAL, Answered(), *rest), **more) as handler:
        task = await send(handler, message("go"))
        assert state(task) == "INPUT_REQUIRED"
        yield handler, task


async def test_of_two_cancels_at_once_one_wins() -> None:
    async with asked() as (handler, task):
        following = asyncio.create_task(subscribe(handler, task.id))
        await asyncio.sleep(0)
        outcomes = await asyncio.gather(
            *(cancel(handler, task.id) for _ in range(2)), return_exceptions=True
        )
        won = [outcome for outcome in outcomes if isinstance(outcome, Task)]
        lost = [outcome for outcome in outcomes if outcome not in won]
        assert {state(task) for task in won} == {"CANCELED"}
        assert all(isinstance(error, TaskNotCancelableError) for error in lost)
        events = await following
        require_legal(events)
        assert events[-1].status.state == TaskState.TASK_STATE_CANCELED
        assert handler.active == 0


class Misbehaving(AgentExecutor):
    """Emits what it is given, then raises what it is given."""

    def __init__(self, emits: bool = False, raises: Exception | None = None) -> None:
        self._emits = emits
        self._raises = raises

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if self._emits:
            task = Task(id=context.task_id, context_id=context.context_id)
            task.status.state = TaskState.TASK_STATE_WORKING
            await event_queue.enqueue_event(task)
        if self._raises is not None:
            raise self._raises

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        if self._raises is not None:
            raise self._raises


@pytest.mark.parametrize("emits", [False, True])
@pytest.mark.parametrize("raises", [None, RuntimeError("password=hunter2")])
async def test_an_executor_that_tells_no_end_fails_its_task_and_leaks_nothing(
    emits: bool, raises: Exception | None
) -> None:
    async with serving(Misbehaving(emits, raises)) as handler:
        failed = await send(handler, message("go"))
        events = await stream(handler, message("go"))
        require_legal(events)
        assert isinstance(events[0], Task)
        for end in (failed, events[-1]):
            assert end.status.state == TaskState.TASK_STATE_FAILED
            assert failure(end.status)["kind"] == "internal"
        assert "hunter2" not in str(failed) + str(events)
        assert handler.active == 0


class Hanging(AgentExecutor):
    """Asks at first, if it is told to, and then does not return."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self._stubborn = stubborn
        self.began = asyncio.Event()
        self.go = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(working(context))
        self.began.set()
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                if not self._stubborn:
                    raise

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


def working(context: RequestContext, state: str = "WORKING") -> Task:
    task = Task(id=context.task_id, context_id=context.context_id)
    task.status.state = TaskState.Value(f"TASK_STATE_{state}")
    return task


async def test_a_handler_that_closes_ends_the_tasks_of_an_executor_that_does_not_return() -> None:
    executor = Hanging()
    async with serving(executor, close_timeout=0.05) as handler:
        callers = [
            asyncio.create_task(send(handler, message("go"))),
            asyncio.create_task(send(handler, message("go"))),
        ]
        streaming = asyncio.create_task(stream(handler, message("go")))
        await until(lambda: handler.active == 3)
        await executor.began.wait()
        await handler.aclose()
        ends_of = [*(await asyncio.gather(*callers)), (await streaming)[-1]]
    for end in ends_of:
        assert state(end) == "FAILED"
        assert failure(end.status)["kind"] == "interrupted"


async def test_a_handler_closes_though_an_executor_cannot_be_stopped() -> None:
    executor = Hanging(stubborn=True)
    async with serving(executor, close_timeout=0.05) as handler:
        caller = asyncio.create_task(send(handler, message("go")))
        await executor.began.wait()
        await handler.aclose()
        executor.go.set()
        assert state(await caller) == "FAILED"


class Silent(AgentExecutor):
    """Asks, and says nothing to the answer."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.current_task is None:
            await event_queue.enqueue_event(working(context, "INPUT_REQUIRED"))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


@pytest.mark.parametrize("now", [True, False])
async def test_an_answer_without_any_event_leaves_no_caller_waiting(now: bool) -> None:
    async with serving(Silent()) as handler:
        task = await send(handler, message("go"))
        for _ in range(2):
            answer = message("yes", task_id=task.id)
            answer.configuration.return_immediately = now
            assert state(await send(handler, answer)) == "INPUT_REQUIRED"
        assert await stream(handler, message("yes", task_id=task.id)) == []


async def test_a_peer_that_hangs_up_during_send_message_finds_its_task(
    bridge: StartBridge,
) -> None:
    go = asyncio.Event()
    transport = ScriptedTransport(go, Completed("done"))
    request = message("go")
    async with bridge(transport) as b, peer(b.url, streaming=False) as client:
        hung_up = asyncio.create_task(peers.send(client, again(request)))
        await until(lambda: transport.turns)
        hung_up.cancel()
        await asyncio.wait({hung_up})
        go.set()
        found = await peers.send(client, again(request))
    assert found.states == ["COMPLETED"]
    assert len(transport.turns) == 1


async def test_what_the_executor_raises_in_a_cancel_does_not_leak() -> None:
    disk = Disk()
    async with serving(Misbehaving(raises=RuntimeError("password=hunter2")), disk) as handler:
        stored = Task(id="t", context_id="c")
        stored.status.state = TaskState.TASK_STATE_INPUT_REQUIRED
        await disk.save(stored, PEER)
        with pytest.raises(A2AError, match="reference") as caught:
            await cancel(handler, "t")
        assert "hunter2" not in str(caught.value)


async def test_a_message_that_is_sent_again_while_its_task_is_created_joins_it() -> None:
    disk, request = Disk(), message("go")
    transport = ScriptedTransport(Completed("done"))
    async with serving(HermesAgentProxyExecutor(transport), disk) as handler:
        disk.go.clear()
        callers = [asyncio.create_task(stream(handler, request))]
        await until(lambda: disk.saves)
        callers.append(asyncio.create_task(stream(handler, request)))
        whole = asyncio.create_task(send(handler, request))
        for _ in range(20):
            await asyncio.sleep(0)
        disk.go.set()
        for events in await asyncio.gather(*callers):
            require_legal(events)
            assert isinstance(events[0], Task)
            assert events[0].id == (await whole).id
            assert rests(events[-1])
        assert state(await whole) == "COMPLETED"
    assert len(transport.turns) == 1


def with_webhook(request: SendMessageRequest, url: str) -> SendMessageRequest:
    copy = again(request)
    copy.configuration.task_push_notification_config.url = url
    return copy


async def test_a_message_whose_webhook_is_refused_may_be_sent_again() -> None:
    request = message("go")
    async with serving(scripted(APPROVAL, Answered(), Completed("done"))) as handler:
        for _ in range(2):
            with pytest.raises(InvalidParamsError):
                await send(handler, with_webhook(request, "http://127.0.0.1:1/hook"))
        assert handler.active == 0
        task = await send(handler, request)
        answer = message("yes", task_id=task.id)
        with pytest.raises(InvalidParamsError):
            await send(handler, with_webhook(answer, "http://127.0.0.1:1/hook"))
        assert state(await send(handler, answer)) == "COMPLETED"


async def test_a_message_that_comes_twice_while_its_webhook_is_checked_runs_once() -> None:
    request = with_webhook(message("go"), "https://example.org/hook")
    transport = ScriptedTransport(Completed("done"))
    webhooks = SlowWebhooks()
    async with serving(HermesAgentProxyExecutor(transport), webhooks=webhooks) as handler:
        callers = [asyncio.create_task(send(handler, request)) for _ in range(3)]
        await webhooks.asked.wait()
        webhooks.go.set()
        tasks = {task.id for task in await asyncio.gather(*callers)}
        assert len(tasks) == 1
    assert len(transport.turns) == 1
    kept = [task for task in webhooks.store.seen if await webhooks.store.get_info(task, PEER)]
    assert set(kept) == tasks, "the others left no webhook behind"


async def test_an_answer_is_refused_if_its_task_ends_while_its_webhook_is_checked() -> None:
    webhooks = SlowWebhooks()
    async with asked(webhooks=webhooks) as (handler, task):
        answer = message("yes", task_id=task.id)
        request = with_webhook(answer, "https://example.org/hook")
        answering = asyncio.create_task(send(handler, request))
        await webhooks.asked.wait()
        await cancel(handler, task.id)
        webhooks.go.set()
        with pytest.raises(UnsupportedOperationError, match="terminal state"):
            await answering
        kept = await handler.on_get_task(GetTaskRequest(id=task.id), PEER)
        assert answer.message.message_id not in {m.message_id for m in kept.history}


async def test_an_answer_that_does_not_wait_shows_that_it_was_taken() -> None:
    async with asked(asyncio.Event()) as (handler, task):
        answer = message("yes", task_id=task.id)
        answer.configuration.return_immediately = True
        assert state(await send(handler, answer)) == "WORKING"


async def test_an_answer_is_not_mistaken_for_a_message_with_the_same_id() -> None:
    first = message("go")
    async with serving(scripted(APPROVAL, Answered(), Completed("done"))) as handler:
        await send(handler, first)
        other = await send(handler, message("go"))
        answer = message("yes", task_id=other.id)
        answer.message.message_id = first.message.message_id
        assert state(await send(handler, answer)) == "COMPLETED"


async def test_an_answer_in_the_history_is_not_given_again() -> None:
    disk = Disk()
    script = APPROVAL, Answered(), CLARIFY, Answered(), Completed("done")
    async with serving(scripted(*script), disk) as handler:
        task = await send(handler, message("go"))
        answer = message("yes", task_id=task.id)
        await send(handler, answer)
        request = GetTaskRequest(id=task.id)
        kept = again_task(await handler.on_get_task(request, PEER))
    assert state(kept) == "INPUT_REQUIRED"
    await disk.save(kept, PEER)
    async with serving(scripted(), disk) as restarted:
        assert state(await send(restarted, answer)) == "INPUT_REQUIRED"


async def test_without_a_window_an_answer_that_is_sent_again_is_a_new_one() -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), CLARIFY, Answered(), Completed("done"))
    async with serving(HermesAgentProxyExecutor(transport), window=0.0) as handler:
        task = await send(handler, message("go"))
        answer = message("yes", task_id=task.id)
        assert state(await send(handler, answer)) == "INPUT_REQUIRED"
        assert state(await send(handler, answer)) == "COMPLETED"
    assert transport.answers == [("q1", "once"), ("q2", "yes")]


async def test_an_answer_with_the_id_of_another_and_other_words_is_a_new_one() -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), CLARIFY, Answered(), Completed("done"))
    async with serving(HermesAgentProxyExecutor(transport)) as handler:
        task = await send(handler, message("go"))
        first, second = message("yes", task_id=task.id), message("that one", task_id=task.id)
        second.message.message_id = first.message.message_id
        assert state(await send(handler, first)) == "INPUT_REQUIRED"
        assert state(await send(handler, first)) == "INPUT_REQUIRED"
        assert state(await send(handler, second)) == "COMPLETED"
    assert transport.answers == [("q1", "once"), ("q2", "that one")]


async def test_an_answer_is_not_mistaken_for_one_to_another_task_of_its_context() -> None:
    async with serving(scripted(APPROVAL, Answered(), Completed("done"))) as handler:
        for _ in range(2):
            task = await send(handler, message("go", "ctx"))
            answer = message("yes", task_id=task.id)
            answer.message.message_id = "1"
            assert state(await send(handler, answer)) == "COMPLETED"
