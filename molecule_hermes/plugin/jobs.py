"""Recognises in a tool's result that a job was begun which ends after the turn. No I/O."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from molecule_hermes.plugin.tool_calls import brief

__all__ = ["begun_job"]

_PARSED = 2**20
"""A longer result is not parsed: the agent's thread would wait for it."""


def begun_job(given: Mapping[str, Any]) -> tuple[str, str] | None:
    """The id of the job and its label, for people; None if the tool has begun none.

    Hermes names the job by this id when it ends: `proc_…` of a background process
    (tools/terminal_tool.py), `deleg_…` of background subagents (tools/delegate_tool.py:3045), the
    id of a cron job (tools/cronjob_tools.py:762).
    """
    key, label = _TOOLS.get(str(given.get("tool_name")), ("", _nothing))
    text = given.get("result")
    if not key or not isinstance(text, str) or len(text) > _PARSED:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        result = json.loads(text)
        job_id = result.get(key) if isinstance(result, dict) else None
        if isinstance(job_id, str) and job_id:
            args = given.get("args")
            return job_id, brief(label(args if isinstance(args, Mapping) else {}, result))
    return None


def _nothing(args: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    return ""


def _command(args: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    return str(args.get("command") or "")


def _goals(args: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    goals = result.get("goals")
    return "; ".join(map(str, goals)) if isinstance(goals, list) else str(args.get("goal") or "")


def _name(args: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    return str(result.get("name") or "")


_TOOLS: Mapping[str, tuple[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str]]] = {
    "terminal": ("session_id", _command),
    "delegate_task": ("delegation_id", _goals),
    "cronjob": ("job_id", _name),
}
