"""A worker: one Hermes process, the transport that reaches it, and when it takes turns."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from molecule_hermes.config import Settings
from molecule_hermes.errors import AuthFailure, Draining, StartError, TurnFailure
from molecule_hermes.hermes.api import FirstSession, count_jobs, platform_state
from molecule_hermes.hermes.credentials import Credentials, public_environment
from molecule_hermes.hermes.diagnosis import Hermes, NotBoundError, diagnose
from molecule_hermes.hermes.process import Gateway
from molecule_hermes.plugin.handover import Handover
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.features import TransportName

__all__ = ["Worker", "WorkerPlan"]

_PAUSE = 0.1
_REPORT_EVERY = 2.0
_NOT_BOUND_AFTER = 4
"""Reports of Hermes in a row without our platform."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker is made from."""

    settings: Settings
    """Those of the bridge, with the worker's own folder and addresses."""
    environ: Mapping[str, str] = field(repr=False)
    credentials: Credentials
    transport: TransportName
    prepare: Callable[[], Handover]
    """Makes the folders ready for the next start, and says what Hermes is started with. Runs in a
    thread."""
    clear: Callable[[], None]
    """Removes what is of no use after the end. Runs in a thread."""
    repair: Callable[[], None]
    """Called before each restart of Hermes. Runs in a thread."""
    origin: object
    """A worker is replaced when this changes."""
    lock: Path | None = None
    """Held while the worker runs, so that no other bridge runs Hermes on its folder; None if it is
    held already."""
    eager: bool = True
    has_api: bool = True
    """Whether Hermes serves its API. Its own files do not tell: it writes them when it starts, and
    its tools can change them."""


class Worker:
    """Implements `fleet.Member`. `say` gets lines for the terminal."""

    def __init__(self, plan: WorkerPlan, gateway: Gateway, transport: Transport, say: Say) -> None:
        self.gateway = gateway
        self.transport = transport
        self._plan = plan
        self._say = say
        gateway.repair = plan.repair
        self._session = self._first_session()
        self._stack = contextlib.AsyncExitStack()

    @property
    def plan(self) -> object:
        return self._plan.origin

    @property
    def eager(self) -> bool:
        return self._plan.eager

    @property
    def ports(self) -> tuple[int, ...]:
        settings = self._plan.settings
        return settings.platform_port, urlsplit(settings.hermes_api_base).port or 0

    # `fleet.Member`.

    async def open(self) -> None:
        await self.transport.__aenter__()

    async def close(self) -> None:
        await self.transport.__aexit__(None, None, None)

    async def start(self) -> None:
        """Returns when Hermes takes turns. Raises `StartError`.

        A Hermes that does not get there is stopped, but not one that is to be kept, when the bridge
        ends meanwhile: it may have turns of an earlier bridge.
        """
        self.gateway.leaves = False
        async with contextlib.AsyncExitStack() as stack:
            try:
                await self._start(stack)
            except asyncio.CancelledError:
                self.gateway.leaves = self._plan.settings.keep_worker
                raise
            self._stack = stack.pop_all()

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        self.gateway.handover = await asyncio.to_thread(self._plan.prepare)
        if self._plan.lock is not None:
            stack.enter_context(self.gateway.home.held(self._plan.lock))
        await stack.enter_async_context(self.gateway)
        self.gateway.watch(self.transport.check)
        self._session = self._first_session()
        waits = [self._until_ready(), self.gateway.failed()]
        if self._plan.transport == "plugin":
            waits.append(self._until_not_bound())
        await _first(*waits)

    async def stop(self) -> None:
        self.gateway.leaves = False
        await self._stack.aclose()
        await asyncio.to_thread(self._plan.clear)

    async def leave(self) -> None:
        self.gateway.leaves = self._plan.settings.keep_worker
        if self.gateway.leaves and self.gateway.pid:
            self._say(f"goes on (process {self.gateway.pid}); the next such `up` adopts it")
            await self._stack.aclose()
        else:
            await self.stop()

    async def has_jobs(self) -> bool:
        """Raises `Unreachable`."""
        return bool(
            await count_jobs(self._plan.settings.platform_url, self._plan.credentials.secret)
        )

    def describe(self) -> Mapping[str, Any]:
        return {"restarts": self.gateway.restarts}

    # Readiness.

    async def check(self) -> None:
        """Raises the `TurnFailure` that a turn would end with now."""
        await self.gateway.check()
        await self._session.check()
        await self.transport.check()

    async def check_session(self) -> None:
        await self._session.check()

    async def _until_ready(self) -> None:
        """Says every two seconds what it still waits for."""
        began = reported = time.monotonic()
        while (reason := await self._why_not_ready()) is not None:
            now = time.monotonic()
            pause = self.gateway.respawn_pause()
            reason = str(pause) if pause else reason
            budget = self._plan.settings.ready_budget + (pause.seconds if pause else 0)
            if now - began > budget:
                raise await self._not_ready(budget, reason)
            if now - reported >= _REPORT_EVERY:
                self._say(f"starting, {now - began:.0f} s … ({reason})")
                reported = now
            await asyncio.sleep(_PAUSE)
        self._say(f"ready after {time.monotonic() - began:.1f} s")

    async def _why_not_ready(self) -> str | None:
        try:
            await self.check()
        except TurnFailure as failure:
            return failure.message
        if self._plan.transport == "plugin" and not await self._is_ours():
            return "the plugin is not bound yet"
        return None

    async def _not_ready(self, budget: float, reason: str) -> StartError:
        """Why the plugin is not bound, if Hermes has no API to ask; else the end of its log."""
        if self._plan.transport == "plugin":
            error = await self._diagnose(None)
            if error.cause not in ("unknown", "not_running"):
                return error
        return StartError(
            f"Hermes was not ready after {budget:g} s ({reason})",
            "raise HERMES_GATEWAY_READY_BUDGET_SEC if it needs longer; its log is "
            f"{self.gateway.log_file}; the last lines:\n{self.gateway.log_tail()}",
        )

    async def _is_ours(self) -> bool:
        """Whether Hermes confirms the plugin: another Hermes's plugin may answer at the port."""
        if not self._plan.has_api:
            return True
        state = await self._state()
        return state is not None and state.get("state") == "connected"

    def _first_session(self) -> FirstSession:
        # Without an API, nobody can open a session in Hermes.
        settings, key = self._plan.settings, self._plan.credentials.api_key
        return FirstSession(settings.hermes_api_base, key, needed=self._plan.has_api)

    async def _state(self) -> Mapping[str, object] | None:
        settings, key = self._plan.settings, self._plan.credentials.api_key
        return await platform_state(settings.hermes_api_base, key)

    async def _until_not_bound(self) -> None:
        """Raises `NotBoundError` once Hermes runs without the plugin; never returns."""
        seen = 0
        state: Mapping[str, object] | None = None
        while seen < _NOT_BOUND_AFTER:
            await asyncio.sleep(0.5)
            state = await self._state()
            seen = seen + 1 if state is not None and not await self._is_bound(state) else 0
        raise await self._diagnose(state)

    async def _is_bound(self, state: Mapping[str, object]) -> bool:
        """A state of `connected` is not enough: Hermes keeps it after it was killed."""
        if state.get("state") == "fatal":
            return False
        try:
            await self.transport.check()
        except AuthFailure as error:
            raise NotBoundError("wrong_secret", error.message, error.hint) from error
        except Draining:
            return True
        except TurnFailure:
            return False
        return True

    async def _diagnose(self, state: Mapping[str, object] | None) -> NotBoundError:
        logs = [self.gateway.log_file, *(self.gateway.home.path / "logs").glob("*.log")]
        environ = public_environment(self._plan.environ)
        url = self._plan.settings.platform_url
        return await asyncio.to_thread(
            diagnose, Hermes(self.gateway.home, environ, logs=logs, url=url), state
        )


async def _first(*waits: Awaitable[None]) -> None:
    """Returns when the first returns, or raises what it raises; the others are canceled."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
