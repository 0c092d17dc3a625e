"""The tool functions of the platform, as far as the tests need them."""

from __future__ import annotations

import asyncio
from pathlib import Path


async def tool_list_peers() -> str:
    return "- Researcher (w-2), online"


async def tool_delegate_task(workspace_id: str, task: str) -> str:
    """With `wait FILE` as its task, writes to the file for as long as it runs."""
    if task.startswith("wait "):
        while True:
            Path(task.removeprefix("wait ")).touch()
            await asyncio.sleep(0.05)
    return f"{workspace_id} did: {task}"


async def tool_delegate_task_async(workspace_id: str, task: str) -> dict[str, str]:
    return {"task_id": f"{workspace_id}-task-1", "status": "submitted"}


async def tool_check_task_status(workspace_id: str, task_id: str) -> str:
    raise ConnectionError(f"no route to {workspace_id}, token=tok-0123456789")


async def tool_send_message_to_user(message: str, attachments: list[str] | None = None) -> str:
    return f"shown: {message}"


async def tool_get_workspace_info() -> str:
    return "x" * 60_000


def tool_commit_memory(content: str, scope: str = "LOCAL") -> str:
    return f"stored in {scope}: {content}"


async def tool_recall_memory(query: str = "", scope: str = "") -> str:
    return f"found {query!r} in {scope!r}"
