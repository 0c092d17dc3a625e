"""A message and all that follows it: progress, questions, Ctrl-C, until its task has ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self

import httpx
from a2a.client import A2AClientError, Client
from a2a.helpers import get_data_parts, get_text_parts, new_data_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
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
    413: "the message is larger than it takes",
}

_PATIENCE = 2.0
"""Seconds without a word after which a person is told that something happens."""

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
    """0 when the task completed, 130 after Ctrl-C, else 1; raises `StartError`.

    Questions are asked at the terminal `keyboard`. Without one the command ends there, and says
    how to go on with `command`.
    """
    with _Interrupts() as interrupts:
        try:
            async with connect(url, token) as client:
                exchange = _Exchange(client, printer, interrupts, keyboard, command)
                return await exchange.run(request)
        except asyncio.CancelledError:
            if interrupts.asked.is_set():
                return INTERRUPTED
            raise


class _Interrupts:
    """Ctrl-C: while `patient`, the first one is a request to cancel; any other leaves at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.patient = False
        self._work = asyncio.current_task()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._arrived)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _arrived(self) -> None:
        if self._work is not None and (self.asked.is_set() or not self.patient):
            self._work.cancel()
        self.asked.set()


class _Exchange:
    """Knows the task as far as its events have told."""

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

    async def run(self, request: SendMessageRequest) -> int:
        self._interrupts.patient = True
        patience = asyncio.get_running_loop().call_later(_PATIENCE, self._printer.still_waiting)
        try:
            async with self._cancels_when_interrupted():
                await self._converse(request)
        except asyncio.CancelledError:
            self._printer.interrupted(f"left; {self._may_still_run()}")
            raise
        # ValueError: what the SDK raises for an answer without a result.
        except (A2AError, httpx.HTTPError, json_format.Error, ValueError) as error:
            self._printer.end_line()
            raise self._explained(error) from error
        finally:
            patience.cancel()
        return self._end()

    async def _converse(self, request: SendMessageRequest) -> None:
        events: Events | None = self._client.send_message(request)
        while events is not None:
            await self._show_or_resume(events)
            events = await self._after_the_question() if self._asks else None

    async def _show_or_resume(self, events: Events) -> None:
        """Shows the events; if they break off, what the agent says of the task since."""
        try:
            if await self._show(events):
                return
        except A2AClientError as error:
            if not (self._task_id and _is_broken(error)):
                raise
        if not self._task_id:
            raise A2AClientError("the agent ended its answer without a result")
        self._printer.say("the connection broke off; asking for the rest …")
        if not await self._show(self._follow()):
            raise A2AClientError("the agent does not say how the task ended")

    async def _show(self, events: Events) -> bool:
        """Whether the task came to rest."""
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
        told = getattr(event, kind)
        self._task_id = told.id if kind == "task" else told.task_id
        self._context_id = told.context_id
        self._begun.set()
        if status := status_in(event):
            self._status = status
            self._metadata = json_format.MessageToDict(told.metadata)

    @property
    def _asks(self) -> bool:
        return self._status.state == TaskState.TASK_STATE_INPUT_REQUIRED

    @property
    def _rests(self) -> bool:
        """Whether nothing more is to come; a question does not count once it is canceled."""
        if self._asks and self._interrupts.asked.is_set():
            return False
        return self._status.state not in _OPEN

    async def _follow(self) -> AsyncGenerator[StreamResponse, None]:
        """The task as it is, then the rest."""
        try:
            async for event in self._client.subscribe(SubscribeToTaskRequest(id=self._task_id)):
                yield event
        except (UnsupportedOperationError, MethodNotFoundError, NotImplementedError):
            # It has ended, or the agent cannot say more.
            task = await self._client.get_task(GetTaskRequest(id=self._task_id))
            yield StreamResponse(task=task)

    # Questions.

    async def _after_the_question(self) -> Events | None:
        """The events of the answer, or of a task that goes on without; None leaves it open."""
        if self._interrupts.asked.is_set():
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
        for data in get_data_parts(self._status.message.parts):
            if isinstance(data, dict) and "questionId" in data:
                return data
        return {}

    async def _read_answer(self, keyboard: int) -> str | None:
        """None at the end of the input; empty when there is nothing to answer any more."""
        reading = asyncio.ensure_future(self._read(keyboard))
        gone = asyncio.ensure_future(self._until_it_goes_on())
        interrupted = asyncio.ensure_future(self._interrupts.asked.wait())
        waits: list[asyncio.Future[Any]] = [reading, gone, interrupted]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            over = self._interrupts.asked.is_set() or not reading.done()
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

    async def _until_it_goes_on(self) -> None:
        """Until the question is gone (expired, withdrawn, answered by another) or the line breaks.

        An agent that cannot tell never ends this; whoever answers too late will be told.
        """
        asked = self._status.message.message_id
        try:
            async with aclosing(self._follow()) as events:
                async for event in events:
                    status = status_in(event)
                    if status is not None and status.message.message_id != asked:
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
            self._printer.say("that question is no longer open")
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
        await self._interrupts.asked.wait()
        self._printer.interrupted("canceling … (Ctrl-C again leaves)")
        await self._begun.wait()
        try:
            await self._client.cancel_task(CancelTaskRequest(id=self._task_id))
        except TaskNotCancelableError:
            pass  # it has just ended, which its events tell
        except (A2AError, httpx.HTTPError) as error:
            self._printer.say(f"the task could not be canceled: {_one_line(error)}")

    # The end.

    def _end(self) -> int:
        if self._asks:
            example = "yes" if self._question.get("kind") == "approval" else "ANSWER"
            self._printer.say(
                f"task {self._task_id} waits for the answer: "
                f"{self._command} --task {self._task_id} {example}"
            )
        self._printer.end(self._status, self._metadata, "" if self._asks else self._context_id)
        if self._interrupts.asked.is_set():
            return INTERRUPTED
        completed = self._status.state == TaskState.TASK_STATE_COMPLETED
        return 0 if completed and self._printer.kept_all else 1

    def _may_still_run(self) -> str:
        return f"task {self._task_id} may still run" if self._task_id else "the task may still run"

    def _explained(self, error: Exception) -> StartError:
        if not _is_broken(error):
            return StartError(_one_line(error), _hint(error))
        hint = self._may_still_run() if self._task_id else ""
        return StartError(f"the connection to the agent was lost ({_one_line(error)})", hint)


def _is_broken(error: Exception) -> bool:
    """Whether the line broke, in contrast to an agent that refuses."""
    return isinstance(error, httpx.TransportError) or isinstance(
        error.__cause__, httpx.TransportError
    )


def _one_line(error: Exception) -> str:
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return f"the agent answered {cause.response.status_code} {cause.response.reason_phrase}"
    told = cause if isinstance(cause, httpx.TransportError) else error
    return " ".join(str(told).split()) or type(told).__name__


def _hint(error: Exception) -> str:
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return _HINTS.get(cause.response.status_code, "")
    return ""
