"""What the agent has begun and has not ended, outside of turns."""

from __future__ import annotations

__all__ = ["live_jobs"]


def live_jobs() -> int:
    """The background processes and subagents that run, and the cron jobs that are to run.

    `ProcessRegistry.count_running` (tools/process_registry.py:1691), `active_count`
    (tools/async_delegation.py:410), `list_jobs` (cron/jobs.py:1317), which reads a file.
    """
    from cron.jobs import list_jobs
    from tools.async_delegation import active_count
    from tools.process_registry import process_registry

    return int(process_registry.count_running()) + int(active_count()) + len(list_jobs())
