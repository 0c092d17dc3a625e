"""Live, ready, startup: what probes ask, answered with a reason for each part that fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from molecule_hermes.errors import TurnFailure

__all__ = ["Health", "Report"]

logger = logging.getLogger(__name__)

Check = Callable[[], Awaitable[None]]
"""Returns when its part is ready, raises a `TurnFailure` that says why not."""


@dataclass(frozen=True, slots=True)
class Report:
    ready: bool
    parts: Mapping[str, Mapping[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        return {"ready": self.ready, "parts": {k: dict(v) for k, v in self.parts.items()}}

    @property
    def reason(self) -> str:
        """The failing parts in one line."""
        bad = (f"{name}: {part['reason']}" for name, part in self.parts.items() if not part["ok"])
        return "; ".join(bad)


class Health:
    """Runs the checks on demand, at most once per `fresh` seconds however many probes ask."""

    def __init__(self, checks: Mapping[str, Check], *, fresh: float = 0.5, timeout: float = 3.0):
        self._checks = dict(checks)
        self._fresh = fresh
        self._timeout = timeout
        self._last: tuple[float, Report] | None = None
        self._checking = asyncio.Lock()
        self.started = False
        self.draining = False

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
            return {"ok": False, "reason": f"no answer in {self._timeout:g} s", "hint": ""}
        except Exception:
            logger.exception("the readiness check of %s failed", name)
            return {"ok": False, "reason": "the check itself failed", "hint": "see the log"}
        return {"ok": True}
