"""Sends a message and follows its task to the end: progress, questions, Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self

import httpx
from a2a.client import A2AClientError, Client
from a2a.helpers import get_text_parts, new_data_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import (
    A2AError,
    MethodNotFoundError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf import json_format

from molecule_hermes.client.connection import connect, message
from molecule_hermes.client.terminal import Printer, forget_typed, read_line, status_in
from molecule_hermes.errors import StartError
from molecule_hermes.protocol.states import WORKING

__all__ = ["INTERRUPTED", "send"]

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

_OPEN = WORKING | {TaskState.TASK_STATE_UNSPECIFIED}

_HINTS = {
    401: "pass a peer's token with --token",
    413: "send a shorter message or smaller files",
}

_PATIENCE = 2.0
"""Seconds without output after which the terminal shows that the command waits."""

Events = AsyncIterator[StreamResponse]


async def send(
    url: str,
    request: SendMessageRequest,
    printer: Printer,
    *,
    token: str = "",
    keyboard: int | None = None,
    command: str = "molecule-hermes send",
) -> int:
    """Returns 0 if the task completed, 130 after Ctrl-C, 1 otherwise. Raises `StartError`.

    Questions are asked at the terminal `keyboard`. Without one, the command ends at a question and
    says how to answer it with `command`.
    """
    patience = asyncio.get_running_loop().call_later(_PATIENCE, printer.still_waiting)
    with _Interrupts() as interrupts:
        try:
            async with connect(url, token) as client:
                exchange = _Exchange(client, printer, interrupts, keyboard, command)
                return await exchange.run(request)
        except asyncio.CancelledError:
            if interrupts.received.is_set():
                return INTERRUPTED
            raise
        finally:
            patience.cancel()


class _Interrupts:
    """Ctrl-C. With `cancels_task`, the first one cancels the task; any other ends the command."""

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.cancels_task = False
        self._work = asyncio.current_task()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._arrived)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _arrived(self) -> None:
        if self._work is not None and (self.received.is_set() or not self.cancels_task):
            self._work.cancel()
        self.received.set()


class _Exchange:
    """One message and its task, as its events describe it."""

    def __init__(
        self,
        client: Client,
        printer: Printer,
        interrupts: _Interrupts,
        keyboard: int | None,
        command: str,
    ) -> None:
        self._client = client
        self._printer = printer
        self._interrupts = interrupts
        self._keyboard = keyboard
        self._command = command
        self._task_id = self._context_id = ""
        self._begun = asyncio.Event()
        self._status = TaskStatus()
        self._metadata: dict[str, Any] = {}
        self._asked = ""
        self._message = Message()
        """The message of the command itself."""
        self._taken = True
        """Whether the running task takes that message; True if the task did not run before."""

    async def run(self, request: SendMessageRequest) -> int:
        self._interrupts.cancels_task = True
        self._message = request.message
        try:
            async with self._cancels_when_interrupted():
                await self._converse(request)
        except asyncio.CancelledError:
            self._printer.interrupted(f"left; {self._may_still_run()}")
            raise
        # The SDK raises ValueError for a response without a result.
        except (A2AError, httpx.HTTPError, json_format.Error, ValueError) as error:
            self._printer.end_line()
            raise self._explained(error) from error
        return self._end()

    async def _converse(self, request: SendMessageRequest) -> None:
        events: Events | None = self._client.send_message(request)
        while events is not None:
            await self._show_or_resume(events)
            events = await self._after_the_question() if self._asks else None

    async def _show_or_resume(self, events: Events) -> None:
        """Shows the events. If the stream breaks, subscribes to the rest of the task."""
        try:
            if await self._show(events):
                return
        except A2AClientError as error:
            if not (self._task_id and _is_broken(error)):
                raise
        if not self._task_id:
            raise A2AClientError("the agent closed the stream without a result")
        self._printer.say("the connection was lost; asking for the rest …")
        if not await self._show(self._follow()):
            raise A2AClientError("the agent does not report how the task ended")

    async def _show(self, events: Events) -> bool:
        """Returns whether the task ended or asked a question."""
        async for event in events:
            self._note(event)
            self._printer.show(event)
            if self._rests:
                return True
        return False

    def _note(self, event: StreamResponse) -> None:
        kind = event.WhichOneof("payload")
        if kind == "message":
            self._status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        if kind in (None, "message"):
            return
        payload = getattr(event, kind)
        self._task_id = payload.id if kind == "task" else payload.task_id
        self._context_id = payload.context_id
        self._begun.set()
        if status := status_in(event):
            self._status = status
            self._metadata = json_format.MessageToDict(payload.metadata)
            self._note_verdict()

    def _note_verdict(self) -> None:
        """The agent says whether the running task takes a message. It names the message, unless
        it has found out later that it did not."""
        verdict = json_format.MessageToDict(self._status.message.metadata).get("steered")
        if not self._message.task_id or not isinstance(verdict, dict):
            return
        if verdict.get("messageId", self._message.message_id) == self._message.message_id:
            self._taken = bool(verdict.get("accepted"))

    @property
    def _asks(self) -> bool:
        return self._status.state == TaskState.TASK_STATE_INPUT_REQUIRED

    @property
    def _rests(self) -> bool:
        """Whether no more events follow. After Ctrl-C, a question does not count."""
        if self._asks and self._interrupts.received.is_set():
            return False
        return self._status.state not in _OPEN

    async def _follow(self) -> AsyncGenerator[StreamResponse, None]:
        """The current task, then its further events."""
        try:
            async for event in self._client.subscribe(SubscribeToTaskRequest(id=self._task_id)):
                yield event
        except (UnsupportedOperationError, MethodNotFoundError, NotImplementedError):
            # The task has ended, or the agent does not support subscriptions.
            task = await self._client.get_task(GetTaskRequest(id=self._task_id))
            yield StreamResponse(task=task)

    # Questions.

    async def _after_the_question(self) -> Events | None:
        """The events that follow the question; None if it stays open."""
        if self._interrupts.received.is_set():
            return self._follow()
        self._show_question()
        if self._keyboard is None:
            return None
        answer = await self._read_answer(self._keyboard)
        if answer is None:
            return None
        return self._answer(answer) if answer else self._follow()

    def _show_question(self) -> None:
        asked = str(self._question.get("questionId", ""))
        text = "\n".join(get_text_parts(self._status.message.parts))
        if asked and asked == self._asked:
            text = str(self._question.get("remark", ""))
        self._asked = asked
        if text:
            self._printer.ask(text)

    @property
    def _question(self) -> dict[str, Any]:
        return _question_in(self._status)

    async def _read_answer(self, keyboard: int) -> str | None:
        """None at the end of the input; "" if the question is no longer open."""
        reading = asyncio.ensure_future(self._read(keyboard))
        closed = asyncio.ensure_future(self._until_question_closes())
        interrupted = asyncio.ensure_future(self._interrupts.received.wait())
        waits: list[asyncio.Future[Any]] = [reading, closed, interrupted]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            over = self._interrupts.received.is_set() or not reading.done()
            return "" if over else reading.result()
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _read(self, keyboard: int) -> str | None:
        forget_typed(keyboard)
        line: str | None = ""
        while line == "":
            self._printer.prompt()
            line = await read_line(keyboard)
            if line is not None:
                self._printer.answered()
        return line

    async def _until_question_closes(self) -> None:
        """Returns when the question is answered elsewhere, expires, or the connection is lost.

        Never returns if the agent does not report that; a late answer is then refused.
        """
        question = self._status.message.message_id
        try:
            async with aclosing(self._follow()) as events:
                async for event in events:
                    status = status_in(event)
                    if status is None or status.message.message_id == question:
                        continue
                    # Another question came or was settled, and this one still waits.
                    if not self._asked or _question_in(status).get("questionId") != self._asked:
                        return
        except A2AError as error:
            if _is_broken(error):
                return
        await asyncio.get_running_loop().create_future()

    async def _answer(self, text: str) -> AsyncGenerator[StreamResponse, None]:
        request = message(text, self._context_id, self._task_id)
        if asked := self._question.get("questionId"):
            data = new_data_part({"questionId": asked, "answer": text})
            request.message.parts[0].CopyFrom(data)
        self._status = TaskStatus()
        try:
            async for event in self._client.send_message(request):
                yield event
        except UnsupportedOperationError:
            self._printer.say("the question is no longer open")
            async for event in self._follow():
                yield event

    # Ctrl-C.

    @asynccontextmanager
    async def _cancels_when_interrupted(self) -> AsyncGenerator[None, None]:
        canceller = asyncio.create_task(self._cancel_when_interrupted(), name="canceller")
        try:
            yield
        finally:
            canceller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await canceller

    async def _cancel_when_interrupted(self) -> None:
        await self._interrupts.received.wait()
        self._printer.interrupted("canceling … (Ctrl-C again leaves)")
        await self._begun.wait()
        try:
            await self._client.cancel_task(CancelTaskRequest(id=self._task_id))
        except TaskNotCancelableError:
            pass  # it has just ended, as its events will show
        except (A2AError, httpx.HTTPError) as error:
            self._printer.say(f"the task could not be canceled: {_one_line(error)}")

    # The end.

    def _end(self) -> int:
        if self._asks:
            example = "yes" if self._question.get("kind") == "approval" else "ANSWER"
            self._printer.say(
                f"task {self._task_id} waits for an answer: "
                f"{self._command} --task {self._task_id} {example}"
            )
        self._printer.end(self._status, self._metadata, "" if self._asks else self._context_id)
        if self._interrupts.received.is_set():
            return INTERRUPTED
        completed = self._status.state == TaskState.TASK_STATE_COMPLETED
        return 0 if completed and self._taken and self._printer.kept_all else 1

    def _may_still_run(self) -> str:
        return f"task {self._task_id} may still run" if self._task_id else "the task may still run"

    def _explained(self, error: Exception) -> StartError:
        if self._message.task_id and isinstance(error, TaskNotFoundError):
            return StartError(
                f"the agent has no task {self._message.task_id}",
                "check the id, and that --token is of the peer that began the task",
            )
        if self._message.task_id and isinstance(error, UnsupportedOperationError):
            hint = "send the message without --task; --context ID keeps it in the conversation"
            return StartError(f"the task does not take the message: {_one_line(error)}", hint)
        if not _is_broken(error):
            return StartError(_one_line(error), _hint(error))
        hint = self._may_still_run() if self._task_id else "check that the agent is running"
        return StartError(f"the connection to the agent was lost ({_one_line(error)})", hint)


def _question_in(status: TaskStatus) -> dict[str, Any]:
    """The oldest open question; empty if there is none."""
    question = json_format.MessageToDict(status.message.metadata).get("question")
    return question if isinstance(question, dict) else {}


def _is_broken(error: Exception) -> bool:
    """Whether the connection was lost, rather than the request refused."""
    return isinstance(error, httpx.TransportError) or isinstance(
        error.__cause__, httpx.TransportError
    )


def _one_line(error: Exception) -> str:
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return f"the agent answered {cause.response.status_code} {cause.response.reason_phrase}"
    shown = cause if isinstance(cause, httpx.TransportError) else error
    return " ".join(str(shown).split()) or type(shown).__name__


def _hint(error: Exception) -> str:
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return _HINTS.get(cause.response.status_code, "")
    return ""
