"""Hands conversations of the operator's Hermes over to peers, and those of peers to platforms.

A handoff is a task in the peer's context that no message began: its turn carries the conversation,
the plugin puts it into the peer's chat, and the answer is what the peer gets. As a task it survives
the bridge as others do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Self

from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import Task, TaskState

from molecule_hermes.agents.fleet_transport import FleetTransport
from molecule_hermes.agents.request_handler import Chooses
from molecule_hermes.agents.roster import Agent, Roster
from molecule_hermes.config import Settings
from molecule_hermes.errors import BadRequest, Interrupted, StorageFailure, TurnFailure
from molecule_hermes.hermes import session_source
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.protocol.caller import Caller
from molecule_hermes.protocol.states import TERMINAL, state_name
from molecule_hermes.protocol.task_log import TaskLog
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.webhooks import Arrivals, PushSender
from molecule_hermes.server.conversations import ANONYMOUS, Conversations, NoConversation
from molecule_hermes.server.handoff_records import Handoff, HandoffRecords
from molecule_hermes.server.handoff_requests import find_request
from molecule_hermes.transports.plugin.lending import NotConnected
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.features import Feature, why_not
from molecule_hermes.wire import Transcript

__all__ = ["Handoffs", "create_handoffs"]

logger = logging.getLogger(__name__)

_WATCH_EVERY = 1.0
_PAUSE = 5.0
"""Seconds between a request that failed and the next."""
_OF_THE_TIME = 0.9
"""What a platform may take, so that its Hermes still says how it went."""

_Work = Callable[["Handoff"], Coroutine[None, None, None]]


class Handoffs:
    """An async context manager. On exit, what has not ended is left to the next bridge."""

    def __init__(
        self,
        records: HandoffRecords,
        roster: Roster,
        tasks: TaskRegistry,
        push: PushSender,
        conversations: Conversations,
        *,
        known: Callable[[], tuple[Collection[str], Chooses]],
        timeout: float,
    ) -> None:
        self.records = records
        self._roster = roster
        self._tasks = tasks
        self._push = push
        self._conversations = conversations
        self._known = known
        self._timeout = timeout
        self._running: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._open: list[Handoff] = []
        self._left: dict[str, Arrivals] = {}
        self._watches = contextlib.ExitStack()
        """Of the webhooks of tasks that an earlier bridge has left."""
        self._closing = False
        self._never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def recall(self) -> None:
        """Looks for what an earlier bridge has left, before its tasks are taken over."""
        found = await asyncio.to_thread(list, self.records)
        self._open = [handoff for handoff in found if not handoff.is_over]
        known = {task.id for task in await self._push.configs.untold()}
        for handoff in self._open:
            task = (
                await self._tasks.get(handoff.task_id, _call(handoff)) if handoff.task_id else None
            )
            # A webhook that knows the end is not told again.
            if task is not None and (task.status.state not in TERMINAL or task.id in known):
                self._left[task.id] = self._watches.enter_context(self._push.watching(task.id))

    async def __aenter__(self) -> Self:
        """Goes on with what an earlier bridge has left; its tasks have been taken over."""
        for handoff in self._open:
            self._start(handoff, self._go_on)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._closing = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        running = list(self._running.values())
        if running:
            # Their tasks have ended by now, unless they are left to Hermes.
            await asyncio.wait(running, timeout=2.0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._watches.close()

    def follow(self, home: Path, to: str) -> None:
        """Does what Hermes's own command asks for in this home, from now on. `to` is the peer, and
        the context if it is given."""
        self._following = asyncio.create_task(self._follow(home, to), name="handoff-requests")

    async def _follow(self, home: Path, to: str) -> None:
        peer, _, context_id = to.partition("/")
        while True:
            await asyncio.sleep(_WATCH_EVERY)
            if (session := await find_request(home)) is None:
                continue
            handoff = Handoff(
                session, peer, "", context_id or str(uuid.uuid4()), str(home), requested=True
            )
            try:
                await self.begin(handoff)
            except OSError as error:
                logger.warning("a handoff cannot be recorded: %s", error)
            # One at a time, and not at once after one that failed: the agent's tools can write such
            # requests, too.
            if running := self._running.get(handoff.id):
                await asyncio.wait({running})
            if handoff.state != "completed":
                await asyncio.sleep(_PAUSE)

    async def begin(self, handoff: Handoff) -> None:
        """Returns when the handoff is recorded. A peer's name comes before that of a platform."""
        if not handoff.requested and handoff.peer not in self._peers():
            handoff.to_platform, handoff.context_id = True, handoff.session
        await self._save(handoff)
        self._start(handoff, self._hand_on if handoff.to_platform else self._hand_over)

    def _start(self, handoff: Handoff, work: _Work) -> None:
        running = asyncio.create_task(self._conduct(handoff, work), name=f"handoff:{handoff.id}")
        self._running[handoff.id] = running
        running.add_done_callback(lambda _: self._running.pop(handoff.id, None))

    async def _conduct(self, handoff: Handoff, work: _Work) -> None:
        reason = ""
        try:
            async with asyncio.timeout(self._timeout):
                await work(handoff)
        except TimeoutError:
            reason = f"it took longer than {self._timeout:g} s"
        except TurnFailure as failure:
            reason = failure.message
        except Exception:
            logger.exception("handoff %s failed", handoff.id)
            reason = "an internal error; the bridge's log has more"
        await self._end(handoff, reason)

    async def _end(self, handoff: Handoff, reason: str) -> None:
        """The session first: a bridge that dies in between does it again."""
        home = Path(handoff.home)
        if handoff.claimed:
            try:
                await session_source.settle(home, handoff.target, reason)
                if handoff.requested and reason:  # it may not have been claimed
                    await session_source.settle(home, PLATFORM, reason, handoff.session)
            except TurnFailure as failure:
                logger.warning("the end of handoff %s is not marked: %s", handoff.id, failure)
        handoff.end(reason)
        await self._save(handoff)
        await asyncio.to_thread(self.records.prune)
        logger.info("handoff %s of %s: %s", handoff.id, handoff.session, reason or "completed")

    async def _save(self, handoff: Handoff) -> None:
        await asyncio.to_thread(self.records.save, handoff)

    # From the session to the peer.

    async def _hand_over(self, handoff: Handoff) -> None:
        # The command waits for what is noted with the session, so that is claimed first.
        handed = await self._claim(handoff) if handoff.requested else None
        agent = self._agent_for(handoff)
        with agent.in_use():
            if Feature.HANDOFF not in agent.transport.features:
                reason = why_not(Feature.HANDOFF, "chat").removeprefix("no: ")
                raise BadRequest(f"the agent is reached over chat completions: {reason}", hint="")
            await agent.transport.check()
            handed = handed or await self._claim(handoff)
            handoff.agent, handoff.task_id = agent.name, str(uuid.uuid4())
            handoff.state = "running"
            await self._save(handoff)
            call = _call(handoff)
            ids = (handoff.task_id, handoff.context_id)
            request = RequestContext(call, None, *ids)

            def begin() -> TaskLog:
                return self._tasks.begin(Task(id=ids[0], context_id=ids[1]), call)

            with self._push.watching(handoff.task_id) as arrivals:
                await self._push.follow_delivery(handoff.task_id, "", call)
                await self._turn(agent, request, agent.executor.hand_over(request, handed, begin))
                await self._require_arrived(handoff, call, arrivals)

    async def _claim(self, handoff: Handoff) -> Transcript:
        handoff.claimed = True
        await self._save(handoff)
        home = Path(handoff.home)
        handed = await session_source.claim(home, handoff.session, handoff.target)
        handoff.session_id = handed.session_id
        return handed

    # From the peer to a platform of Hermes.

    async def _hand_on(self, handoff: Handoff) -> None:
        ends = asyncio.get_running_loop().time() + self._timeout
        of_context = (handoff.context_id, handoff.owner, handoff.agent)
        try:
            async with self._conversations.held(*of_context) as (turn, transport):
                if not isinstance(transport, FleetTransport | PluginTransport):
                    raise BadRequest("the agent is reached over chat completions", hint="")
                if turn.profile:
                    raise BadRequest("a profile of Hermes has no platforms of its own", hint="")
                handoff.agent, handoff.owner = turn.agent, turn.peer or ANONYMOUS
                async with transport.lent(turn) as lent:
                    handoff.session_id, handoff.state = lent.session_id, "running"
                    await self._save(handoff)
                    left = ends - asyncio.get_running_loop().time()
                    await lent.hand_on(handoff.peer, left * _OF_THE_TIME)
        except (NoConversation, NotConnected) as failure:
            reason = f"{self._unknown(handoff.peer)}; {failure.message}"
            raise BadRequest(reason, hint="") from failure

    # The tasks of handoffs to peers.

    async def _turn(
        self, agent: Agent, request: RequestContext, work: Coroutine[None, None, None]
    ) -> None:
        """Stops the turn if the time is over, but not if the bridge is closed: that decides itself
        what becomes of its turns."""
        running = asyncio.ensure_future(work)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            log = self._tasks.log(request.task_id or "", request.call_context)
            if log is not None and not self._closing:
                await agent.executor.cancel(request, log)
            raise
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _go_on(self, handoff: Handoff) -> None:
        """Follows the task of a handoff that an earlier bridge began."""
        if handoff.to_platform:
            raise Interrupted(
                "the bridge was restarted meanwhile, so it is not known whether "
                f"{handoff.peer} has the conversation; look there"
            )
        call = _call(handoff)
        if not handoff.task_id or await self._tasks.get(handoff.task_id, call) is None:
            raise Interrupted("the bridge was restarted before the conversation was handed over")
        log = self._tasks.log(handoff.task_id, call)
        agent = self._roster.agents.get(handoff.agent)
        if log is not None and agent is not None:
            request = RequestContext(call, None, handoff.task_id, handoff.context_id)
            with agent.in_use():
                await self._turn(agent, request, _until_ended(log))
        await self._require_arrived(handoff, call, self._left.get(handoff.task_id))

    async def _require_arrived(
        self, handoff: Handoff, call: ServerCallContext, arrivals: Arrivals | None
    ) -> None:
        """Raises a `TurnFailure` unless the task has completed and its webhooks have taken that."""
        log = self._tasks.log(handoff.task_id, call)
        if log is not None and log.left_open:
            await self._never  # the next bridge goes on with it
        task = await self._tasks.get(handoff.task_id, call)
        if task is None:
            raise StorageFailure()
        if task.status.state != TaskState.TASK_STATE_COMPLETED:
            said = " ".join(part.text for part in task.status.message.parts if part.text)
            raise Interrupted(said or f"the task ended as {state_name(task.status.state)}")
        if arrivals is not None and not await arrivals.all_taken():
            raise Interrupted("the answer is stored, but a webhook of the peer did not accept it")

    def _peers(self) -> Collection[str]:
        return self._known()[0] or {ANONYMOUS}

    def _unknown(self, peer: str) -> str:
        return f"unknown peer {peer!r}; known are {', '.join(sorted(self._peers()))}"

    def _agent_for(self, handoff: Handoff) -> Agent:
        peer, peers, (_, routes) = handoff.peer, self._peers(), self._known()
        if not peer:
            hint = "set it and restart the bridge, or use `molecule-hermes handoff`"
            raise BadRequest(f"MOLECULE_HERMES_HANDOFF_TO names no peer; {hint}", hint="")
        if peer not in peers:
            raise BadRequest(self._unknown(peer), hint="")
        if handoff.owner:
            raise BadRequest("--peer is for what goes to a platform, not to a peer", hint="")
        name = handoff.agent
        chosen = name or routes.choose(_name(peer), "", handoff.context_id, "")
        agents = self._roster.agents
        if chosen is None or chosen not in agents or not routes.allows(_name(peer), chosen):
            message = f"peer {peer!r} does not reach the agent {name or 'main'!r}"
            raise BadRequest(f"{message}; `molecule-hermes agents` lists the agents", hint="")
        return agents[chosen]


def create_handoffs(
    settings: Settings,
    roster: Roster,
    tasks: TaskRegistry,
    push: PushSender,
    *,
    conversations: Conversations,
    known: Callable[[], tuple[Collection[str], Chooses]],
) -> Handoffs:
    """`known` are the peers and the routes of the configuration as it is now."""
    records = HandoffRecords(settings.handoffs_dir)
    rooms = (records, roster, tasks, push, conversations)
    return Handoffs(*rooms, known=known, timeout=settings.handoff_timeout)


def _name(peer: str) -> str:
    return "" if peer == ANONYMOUS else peer


def _call(handoff: Handoff) -> ServerCallContext:
    return ServerCallContext(user=Caller(_name(handoff.peer), handoff.agent))


async def _until_ended(log: TaskLog) -> None:
    while not log.terminal and not log.left_open:
        await log.wait(after=log.version)
