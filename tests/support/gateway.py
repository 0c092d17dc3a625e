"""The real Hermes gateway with the plugin, on free ports and with a home of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import aiohttp
from aiohttp import web

from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.model_choice import demo_choice
from molecule_hermes.hermes.process import COMMAND
from molecule_hermes.plugin import PLATFORM, hermes_settings
from molecule_hermes.plugin.handover import Handover
from molecule_hermes.wire import (
    ANSWER_PATH,
    CANCEL_PATH,
    HEALTH_PATH,
    INBOUND_PATH,
    SECRET_HEADER,
    STEER_PATH,
    Attachment,
    Callback,
    Final,
    Inbound,
    Push,
)
from tests.support.serving import few_certificates, free_port, serve
from tests.support.waiting import until

SECRET = "a-shared-secret-of-the-tests"
API_KEY = "an-api-key-of-the-tests"


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        mine = merged.get(key)
        nested = isinstance(mine, dict) and isinstance(value, dict)
        merged[key] = merge(mine or {}, value) if nested else value
    return merged


@dataclass
class CallbackServer:
    """In the place of the bridge: takes callbacks in the order in which they come."""

    url: str
    taken: list[Callback] = field(default_factory=list)
    raw: list[dict[str, Any]] = field(default_factory=list)
    secrets: list[str | None] = field(default_factory=list)
    refuse: list[int] = field(default_factory=list)
    hang: asyncio.Event | None = None
    says: dict[str, Any] = field(default_factory=dict)
    """What each response has besides `ok`."""
    refuse_pushes: dict[str, Any] | None = None
    """Why it takes no deliveries, if it takes none."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """The requests that were taken: one callback each, or a batch."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has come, also while it hangs."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle(self, request: web.Request) -> web.Response:
        self.arrived.set()
        if self.hang is not None:
            await self.hang.wait()
        if self.refuse:
            return web.json_response({"ok": False}, status=self.refuse.pop(0))
        body = await request.json()
        async with self._news:
            self.bodies.append(body)
            self.raw.extend(body.get("batch", [body]))
            self.secrets.append(request.headers.get(SECRET_HEADER))
            came = Callback.parse_batch(body)
            self.taken.extend(came)
            self._news.notify_all()
        says = {"ok": True, **self.says}
        pushed = [callback.reply_to for callback in came if isinstance(callback.body, Push)]
        if pushed and self.refuse_pushes is not None:
            says["refused"] = dict.fromkeys(pushed, self.refuse_pushes)
        return web.json_response(says)

    @property
    def requests(self) -> int:
        return len(self.bodies)

    def of(self, message_id: str) -> list[Callback]:
        return [callback for callback in self.taken if callback.reply_to == message_id]

    def finals(self, message_id: str) -> list[Callback]:
        return [callback for callback in self.of(message_id) if isinstance(callback.body, Final)]

    async def until(self, met: Callable[[], Any], timeout: float = 30.0) -> Any:
        """Waits until a callback makes the condition true."""
        async with asyncio.timeout(timeout), self._news:
            return await self._news.wait_for(met)

    async def final(self, message_id: str, timeout: float = 30.0) -> tuple[Callback, Final]:
        await self.until(lambda: self.finals(message_id), timeout)
        (callback,) = self.finals(message_id)
        assert isinstance(callback.body, Final)
        return callback, callback.body


@asynccontextmanager
async def callback_server() -> AsyncIterator[CallbackServer]:
    server = CallbackServer("")
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/a2a/reply", server.handle)
    async with serve(app) as url:
        server.url = f"{url}/a2a/reply"
        yield server


@dataclass
class Hermes:
    """A running gateway and its plugin's endpoints."""

    home: Path
    port: int
    api_port: int
    http: aiohttp.ClientSession
    process: asyncio.subprocess.Process | None = None

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def work(self) -> Path:
        """The agent's working directory."""
        return self.home / "work"

    @property
    def log(self) -> str:
        return (self.home / "gateway.out").read_text(errors="replace")

    async def post(
        self, path: str, body: Any, *, secret: str | None = SECRET, **given: Any
    ) -> tuple[int, dict[str, Any]]:
        headers = {SECRET_HEADER: secret} if secret is not None else {}
        if isinstance(body, bytes | io.BytesIO):
            given["data"] = body
        else:
            given["json"] = body
        async with self.http.post(self.url(path), headers=headers, **given) as response:
            return response.status, await response.json()

    async def say(
        self,
        callbacks: CallbackServer,
        content: str,
        *,
        chat: str = "",
        message_id: str = "",
        peer_id: str = "peer-1",
        attachments: tuple[Attachment, ...] = (),
        **more: Any,
    ) -> str:
        """Sends a message; `more` are other fields of it."""
        message_id = message_id or f"m-{uuid.uuid4().hex}"
        inbound = Inbound(
            chat_id=chat or f"c-{uuid.uuid4().hex}",
            peer_id=peer_id,
            peer_name="A peer",
            message_id=message_id,
            callback_url=callbacks.url,
            content=content,
            attachments=attachments,
            **more,
        )
        status, body = await self.post(INBOUND_PATH, inbound.to_json())
        expected: dict[str, Any] = {"ok": True}
        if inbound.toolsets is not None:
            expected["toolsets"] = True
        if inbound.profile:
            expected["profile"] = inbound.profile
        if inbound.handoff is not None:
            expected["handoff"] = True
        assert (status, body.pop("instance", "") != "", body) == (202, True, expected)
        return message_id

    async def cancel(self, message_id: str) -> tuple[int, dict[str, Any]]:
        return await self.post(CANCEL_PATH, {"message_id": message_id})

    async def answer(
        self, message_id: str, question_id: str, answer: str
    ) -> tuple[int, dict[str, Any]]:
        body = {"message_id": message_id, "question_id": question_id, "answer": answer}
        return await self.post(ANSWER_PATH, body)

    async def steer(self, message_id: str, text: str) -> tuple[int, dict[str, Any]]:
        return await self.post(STEER_PATH, {"message_id": message_id, "text": text})

    async def health(self) -> dict[str, Any]:
        async with self.http.get(self.url(HEALTH_PATH)) as response:
            return dict(await response.json())

    async def platform(self) -> dict[str, Any]:
        """The state of the plugin as Hermes reports it."""
        url = f"http://127.0.0.1:{self.api_port}/health/detailed"
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with self.http.get(url, headers=headers) as response:
            return dict((await response.json()).get("platforms", {}).get(PLATFORM, {}))

    async def until(self, met: Callable[[], Any], timeout: float = 40.0) -> Any:
        """Polls an awaitable condition while the gateway lives; no answer counts as not yet."""

        async def attempt() -> Any:
            assert self.process is not None
            assert self.process.returncode is None, self.log[-3000:]
            try:
                return await met()
            except aiohttp.ClientError:
                return None

        return await until(attempt, timeout, every=0.05)

    async def terminate(self, timeout: float = 40.0) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), timeout)


def write_home(
    home: Path, model_url: str, port: int, api_port: int, over: dict[str, Any] | None = None
) -> None:
    model = dict(demo_choice(model_url).block)
    config = merge({"model": model}, hermes_settings("127.0.0.1", port))
    # One attempt instead of three: a provider's 500 fails the turn after about a second, not eight.
    work = home / "work"
    config = merge(config, {"agent": {"api_max_retries": 1}, "terminal": {"cwd": str(work)}})
    work.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(json.dumps(merge(config, over or {})))
    (home / ".env").write_text(
        f"API_SERVER_ENABLED=true\nAPI_SERVER_KEY={API_KEY}\n"
        f"API_SERVER_HOST=127.0.0.1\nAPI_SERVER_PORT={api_port}\n"
        f"MOLECULE_A2A_PLATFORM_SHARED_SECRET={SECRET}\n"
    )


@asynccontextmanager
async def running_hermes(
    home: Path,
    *,
    over: dict[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    until: str = "ready",
    on_message: Callable[[str], None] = lambda text: None,
    handover: Callable[[Hermes], Handover] | None = None,
    through: Sequence[str] = (),
) -> AsyncIterator[Hermes]:
    """Runs `hermes gateway run` with the demo model; kills its process group on exit.

    With a handover, it starts as a bridge starts it: through the launcher. `through` is a command
    that runs it, such as one that drops privileges.
    """
    async with AsyncExitStack() as stack:
        model_url = await stack.enter_async_context(demo_model(on_message=on_message))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        hermes = Hermes(home, free_port(), free_port(), http)
        write_home(home, model_url, hermes.port, hermes.api_port, over)
        given = handover(hermes) if handover else None
        hermes.process = await _spawn(home, env or {}, given, through)
        try:
            await hermes.until(lambda: _reached(hermes, until))
            yield hermes
        finally:
            await _kill(hermes.process)


async def _reached(hermes: Hermes, state: str) -> bool:
    if state == "ready":
        return bool((await hermes.health())["ready"])
    return (await hermes.platform()).get("state") == state


async def _spawn(
    home: Path, env: Mapping[str, str], handover: Handover | None, through: Sequence[str]
) -> asyncio.subprocess.Process:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES", "MOLECULE"))}
    hermes = (str(Path(sys.executable).with_name("hermes")), "gateway", "run")
    with (home / "gateway.out").open("wb") as out, _stdin(handover) as given:
        return await asyncio.create_subprocess_exec(
            *through,
            *(COMMAND if handover else hermes),
            env={**clean, **few_certificates(), "HERMES_HOME": str(home), "HOME": str(home), **env},
            cwd=home,
            stdin=given,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


@contextmanager
def _stdin(handover: Handover | None) -> Iterator[IO[bytes] | int]:
    if handover is None:
        yield asyncio.subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(handover.to_bytes())
        file.seek(0)
        yield file


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
