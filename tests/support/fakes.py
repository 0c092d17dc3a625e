"""Fakes of Hermes and of a transport, for behavior that the real Hermes cannot show on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from contextlib import asynccontextmanager
from typing import Any, Self

from aiohttp import web

from molecule_hermes.errors import Interrupted
from molecule_hermes.transports.base import Attached
from molecule_hermes.transports.deliveries import Receiver
from molecule_hermes.turns.features import features_of
from molecule_hermes.turns.model import Canceled, Place, Turn, TurnEvent
from molecule_hermes.wire import Steered
from tests.support.serving import serve

KEY = "0123456789abcdef-test"


def chunk(text: str = "", finish: str | None = None, **extra: Any) -> bytes:
    delta = {"content": text} if text else {}
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **extra}
    return f"data: {json.dumps(body)}\n\n".encode()


def tool(status: str, name: str = "terminal", **extra: Any) -> bytes:
    body = {"tool": name, "toolCallId": "c1", "status": status, **extra}
    return f"event: hermes.tool.progress\ndata: {json.dumps(body)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def answer(*texts: str) -> list[bytes]:
    return [chunk(), *(chunk(t) for t in texts), chunk(finish="stop", usage=USAGE), DONE]


def upstream_error(text: str) -> list[bytes]:
    hermes = {"completed": False, "failed": True, "partial": False, "error": text}
    return [chunk(), chunk(finish="error", hermes=hermes, usage=USAGE), DONE]


Reply = Callable[["FakeHermes", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def streaming(*pieces: bytes) -> Reply:
    async def reply(
        hermes: FakeHermes, request: web.Request, body: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response

    return reply


def status(code: int, body: Any = None, text: str | None = None) -> Reply:
    async def reply(
        hermes: FakeHermes, request: web.Request, data: dict[str, Any]
    ) -> web.StreamResponse:
        if text is not None:
            return web.Response(status=code, text=text, content_type="text/html")
        return web.json_response(body or {"error": {"message": f"status {code}"}}, status=code)

    return reply


def breaking(*pieces: bytes) -> Reply:
    """Streams the pieces, then cuts the connection."""

    async def reply(
        hermes: FakeHermes, request: web.Request, body: dict[str, Any]
    ) -> web.StreamResponse:
        response = await streaming(*pieces)(hermes, request, body)
        await asyncio.sleep(0.05)  # what was written reaches the client before the cut
        assert request.transport is not None
        request.transport.abort()
        return response

    return reply


class FakeHermes:
    """Answers `/v1/chat/completions` from a list of replies; repeats the last one."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [streaming(*answer("pong"))]
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = 0
        self.most_running = 0
        self.closed_early = asyncio.Event()
        self.base_url = ""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "bad key"}}, status=401)
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
            return await reply(self, request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.closed_early.set()
            raise
        finally:
            self.running -= 1

    async def session(self, request: web.Request) -> web.Response:
        """A session exists once a turn has named it."""
        known = {headers.get("X-Hermes-Session-Id") for headers in self.headers}
        return web.json_response({}, status=200 if request.match_info["id"] in known else 404)

    async def models(self, request: web.Request) -> web.Response:
        ok = request.headers.get("Authorization") == f"Bearer {KEY}"
        return web.json_response({"data": []}, status=200 if ok else 401)


@asynccontextmanager
async def fake_hermes(port: int = 0) -> AsyncIterator[FakeHermes]:
    """Serves a fake Hermes, on a free port unless one is given."""
    hermes = FakeHermes()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", hermes.completions)
    app.router.add_get("/v1/models", hermes.models)
    app.router.add_get("/api/sessions/{id}", hermes.session)
    async with serve(app, port) as url:
        hermes.base_url = f"{url}/v1"
        try:
            yield hermes
        finally:
            hermes.gate.set()


class Answered:
    """A step of a script that waits until the question before it is answered."""


class ScriptedTransport:
    """A transport that yields the given events in every turn.

    A `float` in the script waits that many seconds, an `asyncio.Event` until it is set; an
    exception is raised.
    """

    features = features_of("plugin")

    def __init__(self, *script: TurnEvent | float | asyncio.Event | Exception | Answered) -> None:
        self.script = list(script)
        self.turns: list[Turn] = []
        self.failure: Exception | None = None
        self.answers: list[tuple[str, str]] = []
        self.refuses_answers: Exception | None = None
        self._answered: dict[str, asyncio.Queue[str]] = {}
        self._canceled: dict[str, asyncio.Event] = {}
        self.deaf = False
        self.steers: list[str] = []
        self.steered: Steered | Exception = Steered(True)

    @property
    def pending(self) -> int:
        return len(self.turns)

    def all_canceled(self) -> bool:
        """Whether every turn so far was canceled."""
        return all(canceled.is_set() for canceled in self._canceled.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None:
        pass

    async def check(self) -> None:
        if self.failure:
            raise self.failure

    async def cancel(self, turn: Turn) -> None:
        if turn.message_id in self._canceled and not self.deaf:
            self._canceled[turn.message_id].set()

    async def answer(self, turn: Turn, question_id: str, answer: str) -> None:
        if self.refuses_answers:
            raise self.refuses_answers
        self.answers.append((question_id, answer))
        self._answered[turn.message_id].put_nowait(answer)

    def place(self, turn: Turn) -> Place:
        return Place("http://scripted", "instance", "bridge")

    def take_deliveries(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def leave_turns(self) -> None:
        """A scripted turn does not outlive its bridge."""

    async def attach(self, turn: Turn, place: Place) -> Attached:
        raise Interrupted("the agent was restarted during the turn")

    async def steer(self, turn: Turn, text: str) -> Steered:
        if isinstance(self.steered, Exception):
            raise self.steered
        self.steers.append(text)
        return self.steered

    async def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        self.turns.append(turn)
        canceled = self._canceled[turn.message_id] = asyncio.Event()
        answers = self._answered[turn.message_id] = asyncio.Queue()
        for step in self.script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float | asyncio.Event | Answered):
                waits = [asyncio.ensure_future(w) for w in (_wait(step, answers), canceled.wait())]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                if canceled.is_set():
                    yield Canceled()
                    return
            else:
                yield step


async def _wait(step: float | asyncio.Event | Answered, answers: asyncio.Queue[str]) -> None:
    if isinstance(step, float):
        await asyncio.sleep(step)
    elif isinstance(step, asyncio.Event):
        await step.wait()
    else:
        await answers.get()
