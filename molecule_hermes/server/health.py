"""The liveness, readiness and startup probes, with a reason for each part that fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from molecule_hermes import __version__
from molecule_hermes.errors import TurnFailure
from molecule_hermes.text import without_addresses

__all__ = ["Health", "Report", "probe_routes"]

logger = logging.getLogger(__name__)

_DEMO = "the built-in demo model answers, not a real one"

Workers = Callable[[], Sequence[Mapping[str, Any]]]
"""What is known of each Hermes that the bridge runs."""
Check = Callable[[], Awaitable[None]]
"""Returns if its part is ready; otherwise raises a `TurnFailure` that says why not."""


@dataclass(frozen=True, slots=True)
class Report:
    ready: bool
    parts: Mapping[str, Mapping[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        return {"ready": self.ready, "parts": {k: dict(v) for k, v in self.parts.items()}}

    def without_addresses(self) -> Report:
        """The report for a caller that may not see internal addresses."""
        parts = {
            name: {k: without_addresses(v) if isinstance(v, str) else v for k, v in part.items()}
            for name, part in self.parts.items()
        }
        return Report(self.ready, parts)

    @property
    def reason(self) -> str:
        """The failing parts in one line."""
        failing = ((name, part) for name, part in self.parts.items() if not part["ok"])
        return "; ".join(f"{name}: {part['reason']}" for name, part in failing)


class Health:
    """Runs the checks on demand, and reuses a report for `fresh` seconds."""

    def __init__(self, checks: Mapping[str, Check], *, fresh: float = 0.5, timeout: float = 3.0):
        self._checks = dict(checks)
        self._fresh = fresh
        self._timeout = timeout
        self._last: tuple[float, Report] | None = None
        self._checking = asyncio.Lock()
        self.started = False
        self.draining = False
        self.workers: Workers = list

    def add(self, name: str, check: Check) -> None:
        self._checks[name] = check

    async def ready(self) -> Report:
        if self.draining:
            return Report(False, {"bridge": {"ok": False, "reason": "shutting down", "hint": ""}})
        async with self._checking:
            if self._last is None or time.monotonic() - self._last[0] > self._fresh:
                report = await self._run()
                self._last = (time.monotonic(), report)
            report = self._last[1]
        self.started = self.started or report.ready
        return report

    async def _run(self) -> Report:
        names = list(self._checks)
        parts = await asyncio.gather(*(self._part(name) for name in names))
        return Report(all(part["ok"] for part in parts), dict(zip(names, parts, strict=True)))

    async def _part(self, name: str) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(self._timeout):
                await self._checks[name]()
        except TurnFailure as failure:
            return {"ok": False, "reason": failure.message, "hint": failure.hint}
        except TimeoutError:
            return {"ok": False, "reason": f"no response within {self._timeout:g} s", "hint": ""}
        except Exception:
            logger.exception("the readiness check of %s failed", name)
            return {"ok": False, "reason": "the check itself failed", "hint": "see the log"}
        return {"ok": True}


def probe_routes(
    health: Health,
    warnings: Sequence[str],
    may_see_addresses: Callable[[HTTPConnection], bool],
    *,
    demo: bool = False,
) -> list[Route]:
    """The probes. Callers that `may_see_addresses` rejects get no internal addresses and paths.

    `demo` says that the demo model answers in place of a real one.
    """
    warnings = [_DEMO, *warnings] if demo else warnings

    async def live(request: Request) -> JSONResponse:
        return JSONResponse({"live": True, "version": __version__})

    async def ready(request: Request) -> JSONResponse:
        report = await health.ready()
        shown = list(warnings)
        if not may_see_addresses(request):
            report = report.without_addresses()
            shown = [without_addresses(warning) for warning in shown]
        body = report.as_dict() | ({"demo": True} if demo else {})
        if may_see_addresses(request) and (workers := health.workers()):
            body |= {"workers": workers}
        body |= {"warnings": shown} if shown else {}
        return JSONResponse(body, 200 if report.ready else 503)

    async def startup(request: Request) -> JSONResponse:
        if not health.started:
            return await ready(request)
        return JSONResponse({"started": True})

    endpoints = {"/livez": live, "/readyz": ready, "/startupz": startup, "/healthz": ready}
    return [Route(path, endpoint) for path, endpoint in endpoints.items()]
