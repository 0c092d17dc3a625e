"""Puts a conversation into a chat, and takes it out again."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from molecule_hermes.wire import Transcript

__all__ = [
    "Binding",
    "NotBoundError",
    "bind",
    "has_answer",
    "leave_requests",
    "open_session",
    "reopen_session",
    "take_requests",
    "unbind",
]


class NotBoundError(Exception):
    """Hermes did not take the conversation; the text says why."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A chat whose conversation is replaced."""

    session_key: str
    session_id: str
    """The session that has the conversation."""
    previous: str
    """The session that the chat had before."""


async def bind(
    runner: Any, source: Any, handed: Transcript, *, before: Callable[[Binding], None]
) -> Binding:
    """Makes a new session with the conversation the one of the chat; calls `before` that.

    A copy, never the session itself: that may be in another home, it may be open in a terminal, and
    it stays as it is if the handoff fails. `SessionDB.import_sessions` (hermes_state.py:6114) keeps
    the parent if it is in the same home, so that `hermes --resume` of the original goes on with the
    copy (`resolve_resume_session_id`, hermes_state.py:4753). The rest is what Hermes's own handoff
    does (`GatewayRunner._process_handoff`, gateway/run.py:8188): `get_or_create_session` and
    `switch_session` of `async_session_store` (gateway/session.py:1850, 2404), then
    `_evict_cached_agent` (gateway/run.py:18052), because a kept agent has the old conversation.
    """
    database, store = runner._session_db, runner.async_session_store
    if database is None:
        raise NotBoundError("it has no database of sessions")
    previous = (await store.get_or_create_session(source)).session_id
    copy = f"{time.strftime('%Y%m%d_%H%M%S')}_{uuid.uuid4().hex[:8]}"
    binding = Binding(str(runner._session_key_for_source(source)), copy, str(previous))
    before(binding)
    # A title is unique in a home; the newest of its lineage is what `/resume TITLE` opens.
    title = await database.get_next_title_in_lineage(handed.title) if handed.title else None
    session = {
        "id": copy,
        "source": source.platform.value,
        "user_id": source.user_id,
        "title": title,
        "parent_session_id": handed.session_id,
        "messages": [dict(message) for message in handed.messages],
    }
    result = await database.import_sessions([session])
    if not result["ok"]:
        raise NotBoundError("; ".join(str(error.get("error")) for error in result["errors"]))
    if await store.switch_session(binding.session_key, copy) is None:
        await database.delete_session(copy)
        raise NotBoundError("it does not know the chat")
    runner._evict_cached_agent(binding.session_key)
    return binding


async def unbind(runner: Any, binding: Binding) -> None:
    """Gives the chat its conversation back, and forgets the other."""
    await runner.async_session_store.switch_session(binding.session_key, binding.previous)
    runner._evict_cached_agent(binding.session_key)
    await runner._session_db.delete_session(binding.session_id)


async def open_session(runner: Any, source: Any) -> str:
    """The id of the chat's session; its next turn reads the conversation anew.

    `get_or_create_session` (gateway/session.py:1850), which follows compressions, and
    `_evict_cached_agent` (gateway/run.py:18052).
    """
    entry = await runner.async_session_store.get_or_create_session(source)
    runner._evict_cached_agent(str(runner._session_key_for_source(source)))
    return str(entry.session_id)


async def reopen_session(runner: Any, session_id: str) -> None:
    """Undoes that a CLI ended the session when it was closed.

    A chat whose session has ended gets a new one (gateway/session.py:1945). `reopen_session`
    (hermes_state.py:2377), of the session in which the conversation goes on after a compression
    (`get_compression_tip`, hermes_state.py:3585).
    """
    database = runner._session_db
    await database.reopen_session(await database.get_compression_tip(session_id) or session_id)


async def has_answer(runner: Any, binding: Binding) -> bool:
    """Whether the agent has answered in the conversation: `SessionDB.get_messages`
    (hermes_state.py:4505)."""
    messages = await runner._session_db.get_messages(binding.session_id)
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and not last.get("tool_calls")


def take_requests(runner: Any, platform: str, *, within: float, every: float = 0.5) -> None:
    """Leaves what Hermes's own `/handoff PLATFORM` asks for to the bridge, which finds it in the
    database, and waits for the end that the bridge notes there.

    `GatewayRunner._process_handoff` (gateway/run.py:8188) would run the agent outside of the
    plugin's turns and lose its answer, and call that completed. It raises for a handoff that
    failed, and `_handoff_watcher` (run.py:8138) notes why. `SessionDB.get_handoff_state`
    (hermes_state.py:7738).
    """
    process = type(runner)._process_handoff

    async def wait(row: Any) -> None:
        if str(row.get("handoff_platform") or "").strip().lower() != platform:
            await process(runner, row)
            return
        for _ in range(int(within / every)):
            known = await runner._session_db.get_handoff_state(row["id"]) or {}
            if known.get("state") == "failed":
                raise RuntimeError(known.get("error") or "the handoff failed")
            if known.get("state") == "completed":
                return
            await asyncio.sleep(every)
        raise RuntimeError("no bridge has taken the conversation")

    runner._process_handoff = wait


def leave_requests(runner: Any) -> None:
    """Undoes `take_requests`."""
    vars(runner).pop("_process_handoff", None)
