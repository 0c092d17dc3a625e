"""What one turn asks of other agents."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from a2a.types import Message, Part, Role, TaskState

from molecule_hermes.agents.outbound import results
from molecule_hermes.agents.outbound.progress import ProgressLines
from molecule_hermes.agents.outbound.remote import Remote
from molecule_hermes.agents.outbound.remote_task import RemoteTask
from molecule_hermes.backoff import Backoff
from molecule_hermes.config import AgentConfig
from molecule_hermes.errors import (
    BadRequest,
    Busy,
    Forbidden,
    InternalFailure,
    TurnFailure,
    TurnTimeout,
)
from molecule_hermes.protocol.chain import Chain, Loops
from molecule_hermes.protocol.states import state_name
from molecule_hermes.turns.outbound import Progress
from molecule_hermes.wire import Called, PeerCall

if TYPE_CHECKING:
    from molecule_hermes.agents.outbound.calls import OutboundCalls

__all__ = ["Context", "OutboundTurn"]

logger = logging.getLogger(__name__)

_FREE = frozenset({"list", "cancel", "stop"})
"""Actions that do not count for the turn's budget."""
_MAX_LISTED = 50
_MAX_AT_ONCE = 16
"""Calls of a turn that run at once, also of those that do not count."""
_LIST_TIMEOUT = 5.0
_START_TIMEOUT = 30.0
_POLLING = Backoff(first=0.5, longest=5.0)


@dataclass(frozen=True, slots=True)
class Context:
    agent: AgentConfig
    caller: str
    """The peer that the turn is for."""
    chain: Chain
    """What led to the turn."""
    loops: Loops
    conversation: str


class OutboundTurn:
    """The calls of a turn (`turns.outbound.TurnCalls`)."""

    def __init__(self, calls: OutboundCalls, context: Context, progress: Progress) -> None:
        self._calls = calls
        self._context = context
        self._progress = progress
        self._spent = 0
        self._closed = False
        self._running: dict[str, asyncio.Task[Called]] = {}
        self._asking: dict[str, tuple[Remote, RemoteTask]] = {}
        """Tasks that this turn waited for, and that asked something, by handle."""

    async def call(self, call: PeerCall) -> Called:
        if call.action == "stop":
            return self._stop(call.call_id)
        if self._closed or call.call_id in self._running:
            failure = BadRequest("the turn is over, or this call is under way", hint="")
            return self._counted(call, results.failed(failure))
        if len(self._running) >= _MAX_AT_ONCE:
            busy = Busy(f"{_MAX_AT_ONCE} calls of this turn run already", hint="wait for them")
            return self._counted(call, results.failed(busy))
        work = asyncio.create_task(self._answered(call), name=f"outbound:{call.action}")
        self._running[call.call_id] = work
        try:
            await asyncio.wait({work})
        finally:
            self._running.pop(call.call_id, None)
            work.cancel()
        if work.cancelled():
            return self._counted(call, Called({"status": "canceled"}))
        return self._counted(call, work.result())

    async def close(self, *, completed: bool) -> None:
        self._closed = True
        for work in self._running.values():
            work.cancel()
        for remote, task in self._asking.values() if not completed else ():
            self._calls.abandon(remote, task, _done())
        self._asking.clear()

    def _stop(self, call_id: str) -> Called:
        work = self._running.get(call_id)
        if work is not None:
            work.cancel()
        return Called({"status": "canceled" if work is not None else "unknown"})

    def _counted(self, call: PeerCall, called: Called) -> Called:
        status = str(called.result.get("status", "ok"))
        error = called.result.get("error")
        kind = str(error.get("kind", "")) if isinstance(error, dict) else ""
        self._calls.metrics.called(call.action, kind or status)
        return called

    async def _answered(self, call: PeerCall) -> Called:
        try:
            self._spend(call)
            return await self._do(call)
        except TurnFailure as failure:
            return results.failed(failure)
        except Exception:
            logger.exception("a call of another agent failed")
            return results.failed(InternalFailure("the call failed inside the bridge"))

    def _spend(self, call: PeerCall) -> None:
        limit = self._calls.settings.max_calls
        if call.action in _FREE:
            return
        if self._spent >= limit:
            raise Forbidden(
                f"this turn has asked other agents {limit} times, and may not do so more often",
                hint="answer with what is known",
            )
        self._spent += 1

    async def _do(self, call: PeerCall) -> Called:
        match call.action:
            case "list":
                return await self._list()
            case "delegate" | "start":
                return await self._delegate(call)
            case "answer":
                return await self._answer(call)
            case _:
                return await self._look(call)

    async def _list(self) -> Called:
        remotes = self._calls.callable_by(self._context.agent, self._context.caller)
        shown = await asyncio.gather(*map(self._describe, remotes[:_MAX_LISTED]))
        result: dict[str, object] = {"peers": list(shown)}
        if more := len(remotes) - len(shown):
            result["left_out"] = f"{more} more peers"
        return Called(result)

    async def _describe(self, remote: Remote) -> dict[str, object]:
        shown: dict[str, object] = {"peer": remote.name}
        if remote.config.from_registry:
            shown["from"] = "registry"
        try:
            async with asyncio.timeout(_LIST_TIMEOUT):
                return shown | results.shown_card(remote.name, await remote.card())
        except TimeoutError:
            return shown | {"error": TurnTimeout("its card did not come in time").as_dict()}
        except TurnFailure as failure:
            return shown | {"error": failure.as_dict()}

    async def _delegate(self, call: PeerCall) -> Called:
        if not call.text and not call.files:
            raise BadRequest("there is no task", hint="say what the other agent shall do")
        remote = self._remote(call.peer)
        message = _message(call)
        if call.task_id:
            earlier = await self._known(call.task_id, remote.name)
            message.context_id = earlier.context_id
            message.reference_task_ids.append(earlier.task_id)
        return await self._send(remote, message, waits=call.action == "delegate")

    async def _answer(self, call: PeerCall) -> Called:
        if not call.text:
            raise BadRequest("there is no answer", hint="say what the answer is")
        task = await self._known(call.task_id)
        remote = self._remote(self._opened(call.task_id)[0])
        if task.state != TaskState.TASK_STATE_INPUT_REQUIRED:
            raise BadRequest(
                f"the task asks nothing: it is {state_name(task.state)}",
                hint="look at it with check_task_status",
            )
        message = _message(call)
        # Some servers take a taskId alone for one in another context.
        message.task_id, message.context_id = task.task_id, task.context_id
        return await self._send(remote, message, waits=True)

    async def _look(self, call: PeerCall) -> Called:
        peer, task_id = self._opened(call.task_id)
        remote = self._remote(peer)
        if call.action == "check":
            found = await remote.get(task_id)
        else:
            found = await remote.cancel(task_id)
            self._asking.pop(call.task_id, None)
        return results.outcome(peer, RemoteTask(found), call.task_id)

    async def _send(self, remote: Remote, message: Message, *, waits: bool) -> Called:
        context = self._context
        context.loops.refuse_call(context.chain, await remote.card())
        context.chain.followed_by(context.loops.agent).mark(message)
        with self._calls.place(remote):
            task = RemoteTask()
            following = self._calls.spawn(
                self._follow(remote, message, task, waits=waits), f"remote:{remote.name}"
            )
            try:
                late = await self._wait(task, following, waits=waits)
            except asyncio.CancelledError:
                self._calls.abandon(remote, task, following)
                raise
            except BaseException:
                following.cancel()
                raise
            following.cancel()
        return self._outcome(remote, task, waits=waits, late=late)

    async def _wait(self, task: RemoteTask, following: asyncio.Task[Any], *, waits: bool) -> bool:
        """Returns whether the agent took too long. Raises a `TurnFailure` if nothing came."""
        seconds = self._calls.settings.call_timeout
        seconds = seconds if waits else min(seconds, _START_TIMEOUT)
        done, _ = await asyncio.wait({following}, timeout=seconds)
        if done:
            following.result()
        if not task.known.is_set():
            raise TurnTimeout(
                f"the other agent did not answer within {seconds:g} s",
                hint="it may have got the task all the same; try again later, or go on without it",
            )
        return not done

    async def _follow(
        self, remote: Remote, message: Message, task: RemoteTask, *, waits: bool
    ) -> None:
        """Returns when the task rests, or, unless it `waits`, when the agent has taken it."""
        with ProgressLines(remote.name, self._progress) as lines:
            # Without a stream, the answer would be the first word of it: too late to cancel it.
            streams = (await remote.card()).capabilities.streaming
            events = remote.send(message, immediately=not waits or not streams)
            async with contextlib.aclosing(events):
                try:
                    async for event in events:
                        task.add(event)
                        if task.rests or not waits:
                            return
                        lines.show(task.line())
                except TurnFailure:
                    if not task.task_id:
                        raise
            if not task.known.is_set():
                raise InternalFailure(f"the agent {remote.name!r} answered nothing")
            await self._poll(remote, task, lines)

    async def _poll(self, remote: Remote, task: RemoteTask, lines: ProgressLines) -> None:
        """For an agent that does not stream, or whose stream broke off."""
        for delay in _POLLING.delays():
            if task.rests or not task.task_id:
                return
            await asyncio.sleep(delay)
            task.update(await remote.get(task.task_id))
            lines.show(task.line())

    def _outcome(self, remote: Remote, task: RemoteTask, *, waits: bool, late: bool) -> Called:
        handle = ""
        if task.task_id:
            handle = self._calls.handle(self._context.conversation, remote, task.task_id)
            self._asking.pop(handle, None)
            if waits and task.asks:
                self._asking[handle] = remote, task
        return results.outcome(remote.name, task, handle, late=late)

    def _remote(self, name: str) -> Remote:
        context = self._context
        remote = self._calls.remote(name)
        if remote is None or not context.agent.may_call(remote.config, context.caller):
            raise Forbidden(
                f"there is no peer {name[:64]!r} that may be asked",
                hint="list_peers shows those that may",
            )
        return remote

    def _opened(self, handle: str) -> tuple[str, str]:
        opened = self._calls.opened(self._context.conversation, handle)
        if opened is None:
            raise BadRequest(
                "there is no such task in this conversation",
                hint="give the task_id exactly as it was returned",
            )
        return opened

    async def _known(self, handle: str, peer: str = "") -> RemoteTask:
        name, task_id = self._opened(handle)
        if peer and name != peer:
            raise BadRequest("that task is one of another agent", hint="leave `follows` out")
        return RemoteTask(await self._remote(name).get(task_id))


def _message(call: PeerCall) -> Message:
    parts = [Part(text=call.text)] if call.text else []
    parts += [
        Part(raw=file.data, filename=file.name, media_type=file.media_type) for file in call.files
    ]
    return Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=parts)


def _done() -> asyncio.Task[None]:
    async def nothing() -> None:
        return None

    return asyncio.create_task(nothing())
