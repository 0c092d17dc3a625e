"""The actions of peers, well-behaved or not."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from a2a.client import A2AClientError, Client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import A2AError

from molecule_hermes.client.connection import message
from tests.support.peers import Turn, peer

from .books import ENDS, Books, Record
from .world import World

Act = Callable[["Peer", str], Awaitable[list[Record]]]
FAULTS = frozenset({"interrupted", "draining"})
"""Failure kinds that kills and stops explain."""
LOST = (A2AClientError, httpx.HTTPError)
"""Errors that mean that the connection broke, or that the bridge is being restarted."""
PATIENCE = 120.0


class Peer:
    """One of several peers, with its own token and conversations."""

    def __init__(
        self,
        name: str,
        books: Books,
        world: World,
        dice: random.Random,
        folder: Path,
        *,
        acts: Mapping[Act, float],
    ) -> None:
        self.name = name
        self.acts = acts
        self.books = books
        self.world = world
        self.dice = dice
        self.folder = folder
        self.streaming: Client
        self.blocking: Client
        self._contexts = 0

    @asynccontextmanager
    async def connected(self, token: str) -> AsyncIterator[Peer]:
        async with AsyncExitStack() as stack:
            for attribute, streaming in (("streaming", True), ("blocking", False)):
                client = peer(self.world.url, token=token, streaming=streaming)
                setattr(self, attribute, await stack.enter_async_context(client))
            yield self

    async def act(self, until: float) -> None:
        """Runs one action after another, in one conversation until one of its turns fails."""
        context = self.new_context()
        while time.monotonic() < until:
            act = self.dice.choices(list(self.acts), list(self.acts.values()))[0]
            records = await act(self, context)
            if any("COMPLETED" not in record.told for record in records):
                context = self.new_context()
            if any("REJECTED" in record.told for record in records):
                await asyncio.sleep(1.0)

    @property
    def excuses(self) -> frozenset[str]:
        """Failure kinds that are acceptable for any turn. A flooding peer may harm only itself."""
        return FAULTS | {"busy"} if floods in self.acts else FAULTS

    def new_context(self) -> str:
        self._contexts += 1
        return f"{self.name}-{self._contexts}"

    def new(self, act: str, context: str, **more: object) -> Record:
        record = self.books.new(act, self.name, context)
        record.answered = lambda text: "" if record.mark in text else "not its own answer"
        for name, value in more.items():
            setattr(record, name, value)
        return record

    async def send(
        self, record: Record, request: SendMessageRequest, *, blocking: bool = False
    ) -> Turn:
        """Sends the same message until there is an answer."""
        client = self.blocking if blocking else self.streaming
        limit = time.monotonic() + PATIENCE
        while True:
            turn = Turn()
            try:
                async with aclosing(client.send_message(request)) as events:
                    await read(events, turn)
                self.saw(record, turn)
                return turn
            except LOST as error:
                if turn.events:
                    self.saw(record, turn)
                if time.monotonic() > limit:
                    raise
                if "401" in str(error):
                    raise
                await asyncio.sleep(0.2)

    def saw(self, record: Record, turn: Turn) -> None:
        record.task_ids.add(turn.task_id)
        record.told |= {end for end in turn.states if end in ENDS}
        if turn.states[-1] == "COMPLETED":
            record.text = turn.text

    async def get(self, task_id: str) -> Task:
        limit = time.monotonic() + PATIENCE
        while True:
            try:
                return await self.blocking.get_task(GetTaskRequest(id=task_id))
            except LOST:
                if time.monotonic() > limit:
                    raise
                await asyncio.sleep(0.2)

    async def all_tasks(self) -> list[str]:
        found: list[str] = []
        request = ListTasksRequest(page_size=100)
        while True:
            page = await self.blocking.list_tasks(request)
            found += [task.id for task in page.tasks]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token


async def read(events: AsyncIterator[StreamResponse], turn: Turn) -> None:
    async for event in events:
        copy = StreamResponse()
        copy.CopyFrom(event)
        turn.add(copy)


def failure_of(task: Task) -> dict[str, Any]:
    turn = Turn()
    turn.add(StreamResponse(task=task))
    return turn.failure if turn.states[-1] in ("FAILED", "REJECTED") else {}


# Each action returns the turns that it sent.


async def says(me: Peer, context: str) -> list[Record]:
    record = me.new("plain", context)
    await me.send(record, message(record.mark, context))
    return [record]


async def waits(me: Peer, context: str) -> list[Record]:
    record = me.new("blocking", context)
    await me.send(record, message(record.mark, context), blocking=True)
    return [record]


async def streams(me: Peer, context: str) -> list[Record]:
    record = me.new("streamed", context)
    await me.send(record, message(f"demo:slow=0.05 {record.mark} and on and on", context))
    return [record]


async def uses_a_tool(me: Peer, context: str) -> list[Record]:
    record = me.new("tool", context, may_ask_model=2)
    await me.send(record, message(f"demo:run echo {record.mark}", context))
    return [record]


async def fails(me: Peer, context: str) -> list[Record]:
    record = me.new("failing", context, allowed=frozenset({"FAILED"}))
    await me.send(record, message(f"demo:fail=401 {record.mark}", context))
    return [record]


async def says_nothing(me: Peer, context: str) -> list[Record]:
    record = me.new("empty", context, allowed=frozenset({"REJECTED"}), may_ask_model=0)
    await me.send(record, message(" ", context))
    return [record]


async def in_a_row(me: Peer, context: str) -> list[Record]:
    """Sends several messages at once in one conversation; they are queued."""
    records = [me.new("in line", context) for _ in range(3)]
    requests = (me.send(r, message(f"demo:slow=0.02 {r.mark}", context)) for r in records)
    await asyncio.gather(*requests)
    return records


async def floods(me: Peer, context: str) -> list[Record]:
    records = [me.new("flood", me.new_context()) for _ in range(24)]
    await asyncio.gather(*(me.send(r, message(r.mark, r.context)) for r in records))
    return records


async def repeats(me: Peer, context: str) -> list[Record]:
    """Sends the same message twice at once, and again after its end."""
    record = me.new("repeated", context)
    request = message(f"demo:slow=0.02 {record.mark}", context)
    await asyncio.gather(me.send(record, request), me.send(record, request, blocking=True))
    await me.send(record, request)
    return [record]


async def cancels(me: Peer, context: str) -> list[Record]:
    allowed = frozenset({"COMPLETED", "CANCELED"})
    tool = me.dice.random() < 0.5
    record = me.new("canceled", context, allowed=allowed, may_ask_model=2)
    said = f"demo:run echo {record.mark} && sleep 5" if tool else f"demo:slow=0.3 {record.mark} a b"
    sending = asyncio.create_task(me.send(record, message(said, context)))
    await asyncio.sleep(me.dice.uniform(0, 1.5))
    with contextlib.suppress(A2AError, *LOST):
        for task_id in list(record.task_ids) or await _ids_of(me, context):
            await me.blocking.cancel_task(CancelTaskRequest(id=task_id))
    await sending
    return [record]


async def _ids_of(me: Peer, context: str) -> list[str]:
    """Returns the newest task of the conversation, whose stream has not ended yet."""
    listed = await me.blocking.list_tasks(ListTasksRequest(context_id=context, page_size=1))
    return [task.id for task in listed.tasks]


async def leaves_and_comes_back(me: Peer, context: str) -> list[Record]:
    """Disconnects after a few events, then subscribes again or just fetches the task."""
    record = me.new("left", context)
    request = message(f"demo:slow=0.1 {record.mark} and on", context)
    turn = Turn()
    stay = me.dice.randrange(1, 5)
    with contextlib.suppress(*LOST):
        async with aclosing(me.streaming.send_message(request)) as events:
            async for event in events:
                copy = StreamResponse()
                copy.CopyFrom(event)
                turn.add(copy)
                if len(turn.events) >= stay:
                    break
    if not turn.events:  # the bridge was down
        await me.send(record, request)
        return [record]
    me.saw(record, turn)
    if me.dice.random() < 0.5:
        await _subscribe(me, record, turn.task_id)
    await _until_ended(me, record, turn.task_id)
    return [record]


async def _subscribe(me: Peer, record: Record, task_id: str) -> None:
    rest = Turn()
    with contextlib.suppress(A2AError, *LOST):
        async with aclosing(me.streaming.subscribe(SubscribeToTaskRequest(id=task_id))) as events:
            await read(events, rest)
    if rest.events:
        me.saw(record, rest)


async def _until_ended(me: Peer, record: Record, task_id: str) -> None:
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        turn = Turn()
        turn.add(StreamResponse(task=await me.get(task_id)))
        if turn.states[-1] in ENDS:
            me.saw(record, turn)
            return
        await asyncio.sleep(0.2)


async def is_asked(me: Peer, context: str) -> list[Record]:
    """Sends a dangerous command, which is approved, denied or left unanswered."""
    record = me.new("asked", me.new_context(), may_ask_model=2)
    victim = me.folder / record.mark
    victim.mkdir()
    answer = me.dice.choice(["yes", "no", ""])
    asked = await me.send(record, message(f"demo:run rm -rf {victim}", record.context))
    if asked.states[-1] != "INPUT_REQUIRED":
        return [record]
    approved = False
    if answer:
        with contextlib.suppress(A2AError):  # the task has ended meanwhile
            turn = await me.send(record, message(answer, task_id=asked.task_id))
            given = [data["answered"] for data in turn.data if "answered" in data]
            approved = any(each["answer"] == "once" for each in given)
    await _until_ended(me, record, asked.task_id)

    def obeyed(text: str) -> str:
        done = not victim.exists()
        return "" if done is approved else f"approved: {approved}, and done: {done}"

    record.answered = obeyed
    return [record]


ACTS: Mapping[Act, float] = {
    says: 8,
    waits: 4,
    streams: 6,
    uses_a_tool: 4,
    fails: 1,
    says_nothing: 1,
    in_a_row: 2,
    repeats: 3,
    cancels: 4,
    leaves_and_comes_back: 4,
}
WITH_QUESTIONS = {**ACTS, is_asked: 4}
FLOOD: Mapping[Act, float] = {floods: 1, says: 8}
