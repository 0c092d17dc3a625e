"""Gives the conversation of a chat to another platform of this Hermes."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from molecule_hermes.plugin.hermes_api.handoffs import NotBoundError
from molecule_hermes.plugin.hermes_api.sessions import said_in
from molecule_hermes.plugin.settings import PLATFORM

__all__ = ["NotConnectedError", "Passing", "has_passed", "pass_on", "take_back"]

log = logging.getLogger(__name__)

_STOPPED_WITHIN = 2.0


class NotConnectedError(NotBoundError):
    """Hermes has no such platform."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A conversation on its way to another platform."""

    session_key: str
    """Of the chat that had it."""
    session_id: str
    """The session that the chat had."""
    copy: str
    """The session that the platform gets."""
    before: dict[str, str]
    """By key: the sessions of the platform's home channel before."""


async def pass_on(
    runner: Any, source: Any, platform: str, *, seconds: float, before: Callable[[Passing], None]
) -> None:
    """Has Hermes go on with the conversation there, and gives the chat a new one; calls `before`
    before anything changes. Raises `NotBoundError`, and everything is as before.

    The platform gets a copy: what its turn writes is gone with it if that fails. It is not marked
    as pending in the database, so that no gateway does it later.
    `GatewayRunner._process_handoff` (gateway/run.py:8188) raises if the platform did not take the
    answer. `reset_session` and `list_sessions` (gateway/session.py:2333, 2473) are public.
    """
    home = _home_channel(runner, platform)
    database, store = runner._session_db, runner.async_session_store
    if database is None:
        raise NotBoundError("it has no database of sessions")
    session_id = str((await store.get_or_create_session(source)).session_id)
    messages = said_in(await database.get_messages(session_id))
    if not messages:
        raise NotBoundError("the conversation has no messages")
    key = str(runner._session_key_for_source(source))
    copy = f"{time.strftime('%Y%m%d_%H%M%S')}_{uuid.uuid4().hex[:8]}"
    passing = Passing(key, session_id, copy, await _sessions_of(store, platform, home))
    await asyncio.to_thread(before, passing)
    try:
        title = await _import(database, passing, platform, messages)
        row = {"id": copy, "title": title, "handoff_platform": platform}
        await _within(seconds, runner, passing, runner._process_handoff(row))
        await _require_answer(database, copy)
        await store.reset_session(key)
    except BaseException as error:
        await asyncio.shield(asyncio.ensure_future(take_back(runner, passing)))
        if isinstance(error, NotBoundError) or not isinstance(error, Exception):
            raise
        raise NotBoundError(str(error)) from error
    runner._evict_cached_agent(key)


async def take_back(runner: Any, passing: Passing) -> None:
    """Gives the home channel the conversation back that it had, and deletes the copy."""
    store = runner.async_session_store
    for key in await _keys(runner, passing):
        if previous := passing.before.get(key):
            await store.switch_session(key, previous)
        else:
            await store.reset_session(key)
        runner._evict_cached_agent(key)
    await runner._session_db.delete_session(passing.copy)


async def has_passed(runner: Any, passing: Passing) -> bool:
    """Whether the chat has begun a new one: `peek_session_id` (gateway/session.py:2498)."""
    current = await runner.async_session_store.peek_session_id(passing.session_key)
    return bool(current != passing.session_id)


def _home_channel(runner: Any, name: str) -> str:
    """The chat's id. `GatewayRunner.adapters` are the platforms that are connected."""
    platforms = {each.value: each for each in runner.adapters if each.value != PLATFORM}
    homes = {
        known: str(home.chat_id)
        for known, each in platforms.items()
        if (home := runner.config.get_home_channel(each)) is not None and home.chat_id
    }
    if name in homes:
        return homes[name]
    if name in platforms:
        raise NotBoundError(f"platform {name!r} has no home channel; set one with /sethome there")
    known = ", ".join(sorted(homes)) or "none"
    raise NotConnectedError(
        f"its Hermes has no platform {name!r} connected; connected with a home channel: {known}"
    )


async def _sessions_of(store: Any, platform: str, home: str) -> dict[str, str]:
    return {
        str(entry.session_key): str(entry.session_id)
        for entry in await store.list_sessions()
        if entry.platform is not None
        and entry.platform.value == platform
        and entry.origin is not None
        and str(entry.origin.chat_id) == home
    }


async def _keys(runner: Any, passing: Passing) -> list[str]:
    """Of the chats that have the copy, or that in which it goes on after a compression."""
    tip = await runner._session_db.get_compression_tip(passing.copy)
    return [
        str(entry.session_key)
        for entry in await runner.async_session_store.list_sessions()
        if entry.session_id in (passing.copy, tip)
    ]


async def _import(
    database: Any, passing: Passing, platform: str, messages: tuple[dict[str, Any], ...]
) -> str:
    """Makes the copy, and returns its title."""
    title = str((await database.get_session(passing.session_id) or {}).get("title") or "")
    title = str(await database.get_next_title_in_lineage(title)) if title else ""
    session = {
        "id": passing.copy,
        "source": platform,
        "title": title or None,
        "parent_session_id": passing.session_id,
        "messages": list(messages),
    }
    result = await database.import_sessions([session])
    if not result["ok"]:
        raise NotBoundError("; ".join(str(error.get("error")) for error in result["errors"]))
    return title


async def _within(
    seconds: float, runner: Any, passing: Passing, work: Coroutine[Any, Any, None]
) -> None:
    running = asyncio.ensure_future(work)
    try:
        if not (await asyncio.wait({running}, timeout=seconds))[0]:
            raise NotBoundError(f"the platform did not take it within {seconds:g} s")
        running.result()
    finally:
        if not running.done():
            if await _interrupt(runner, passing):
                await asyncio.wait({running}, timeout=_STOPPED_WITHIN)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _interrupt(runner: Any, passing: Passing) -> bool:
    """Stops the agent that works on the copy, as `_interrupt_and_clear_session` does
    (gateway/run.py:17790)."""
    agents = [runner._running_agents.get(key) for key in await _keys(runner, passing)]
    found = [agent for agent in agents if hasattr(agent, "interrupt")]
    for agent in found:
        agent.interrupt("the handoff took too long")
    return bool(found)


async def _require_answer(database: Any, copy: str) -> None:
    """Hermes calls a handoff completed also if the model has failed, and sends an apology."""
    messages = await database.get_messages(await database.get_compression_tip(copy) or copy)
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        raise NotBoundError("the agent did not answer there")
