"""The deliveries of cron jobs, which Hermes sends without an event and without naming the job."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CronRun", "current_cron_run", "follow_cron"]


@dataclass(frozen=True, slots=True, eq=False)
class CronRun:
    """One delivery of a job's result."""

    job_id: str
    name: str
    origin: tuple[str, str]
    """The platform and the chat in which the job was made; empty if it was not made in a chat."""

    def unwrapped(self, text: str) -> str:
        """The text without what Hermes puts around it unless `cron.wrap_response` is off
        (cron/scheduler.py:1497)."""
        head = f"Cronjob Response: {self.name}\n(job_id: {self.job_id})\n-------------\n\n"
        foot = (
            "\n\nTo stop or manage this job, send me a new message "
            f'(e.g. "stop reminder {self.name}").'
        )
        return text.removesuffix(foot).removeprefix(head).strip()


_RUN: contextvars.ContextVar[CronRun | None] = contextvars.ContextVar("cron_run", default=None)


def current_cron_run() -> CronRun | None:
    """The delivery of a cron job that this task belongs to."""
    return _RUN.get()


def follow_cron(
    runner: Any, gateway_loop: asyncio.AbstractEventLoop, ended: Callable[[CronRun], None]
) -> Callable[[], None]:
    """Has the deliveries of cron jobs known in their tasks, and `ended` called after each, in a
    thread of Hermes. Returns what undoes it.

    Replaces `_deliver_result` (cron/scheduler.py:1445), which `run_one_job` (scheduler.py:3826)
    calls with the job. It runs in a thread and schedules the text and each file on the gateway's
    loop, in a copy of its context (`safe_schedule_threadsafe`, agent/async_utils.py). A job that an
    agent runs at once comes without adapters and loop (tools/cronjob_tools.py:640); its text would
    be sent on a loop of its own, and its files not at all.
    """
    # Any: it is read before it is replaced, so that a Hermes without it fails loudly.
    from cron import scheduler

    hermes: Any = scheduler
    deliver = hermes._deliver_result

    @functools.wraps(deliver)
    def _deliver_result(job: Any, content: str, adapters: Any = None, loop: Any = None) -> Any:
        run = _RUN.get() or _run_of(job)
        token = _RUN.set(run)
        try:
            if adapters is None:
                adapters, loop = runner.adapters, gateway_loop
            return deliver(job, content, adapters=adapters, loop=loop)
        finally:
            _RUN.reset(token)
            ended(run)

    hermes._deliver_result = _deliver_result

    def undo() -> None:
        if hermes._deliver_result is _deliver_result:
            hermes._deliver_result = deliver

    return undo


def _run_of(job: Mapping[str, Any]) -> CronRun:
    job_id, origin = str(job["id"]), job.get("origin")
    made = origin if isinstance(origin, Mapping) else {}
    where = str(made.get("platform") or ""), str(made.get("chat_id") or "")
    return CronRun(job_id, str(job.get("name", job_id)), where)
