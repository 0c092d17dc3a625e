"""The transport to our plugin inside Hermes: `POST /a2a/inbound`, answered by callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn, Self

import aiohttp

from molecule_hermes.backoff import Backoff
from molecule_hermes.errors import (
    Draining,
    InternalFailure,
    Interrupted,
    TurnFailure,
)
from molecule_hermes.transports.base import (
    BACKOFF,
    Attached,
    NotSentError,
    QuestionGoneError,
)
from molecule_hermes.transports.deliveries import Receiver
from molecule_hermes.transports.plugin.callback_server import ReplyServer
from molecule_hermes.transports.plugin.client import CONNECTIONS, PluginClient
from molecule_hermes.transports.plugin.lending import Lent, lent
from molecule_hermes.transports.plugin.messages import inbound_of
from molecule_hermes.transports.plugin.openings import Openings
from molecule_hermes.transports.plugin.replies import Replies, Reply
from molecule_hermes.transports.plugin.served import Served
from molecule_hermes.transports.plugin.steering import NOT_THERE, steered_of, until
from molecule_hermes.transports.plugin.watcher import Watcher
from molecule_hermes.turns.features import features_of
from molecule_hermes.turns.model import (
    Canceled,
    Completed,
    Failed,
    Notice,
    Place,
    Turn,
    TurnEvent,
    is_last,
)
from molecule_hermes.wire import (
    ANSWER_PATH,
    ATTACH_PATH,
    CANCEL_PATH,
    INBOUND_PATH,
    STEER_PATH,
    Answer,
    Attach,
    Cancel,
    Steer,
    Steered,
)

__all__ = ["PluginTransport"]

logger = logging.getLogger(__name__)

_SENDS = 5


class _TooOld(Interrupted):
    """The plugin cannot send a turn's callbacks to another address."""


class PluginTransport:
    """One HTTP client and one callback server for the life of the process."""

    features = features_of("plugin")

    def __init__(
        self,
        base_url: str,
        *,
        secret: str = "",
        callback_host: str = "127.0.0.1",
        callback_port: int = 0,
        patient: bool = False,
        attach_for: float = 30.0,
        silent_for: float = 60.0,
        watch_every: float = 0.5,
        tell_every: float = 2.0,
        backoff: Backoff = BACKOFF,
        profile: str = "",
    ) -> None:
        """With `patient`, turns wait for a Hermes that is not there: it is being restarted.
        `attach_for` is how long a turn of an earlier bridge waits for Hermes, in seconds, and
        `silent_for` how long Hermes may show no sign of life before its turns are given up.
        `tell_every` is how soon a Hermes that was restarted knows whether deliveries are taken.
        `profile` is the profile of Hermes that `check` asks for."""
        self._client = PluginClient(base_url, secret)
        self._name = secrets.token_urlsafe(16)
        """Sent with each message, so that only this bridge can answer or cancel for it."""
        self._names: dict[str, str] = {}
        """The names under which an earlier bridge sent messages that this one has attached to."""
        self._replies = Replies()
        self._openings = Openings(self._replies, lambda: self._place_of(self._name))
        self._server = ReplyServer(
            self._replies, callback_host, callback_port, secret, openings=self._openings
        )
        self._is_secret = bool(secret)
        self._patient = patient
        self._attach_for = attach_for
        self._profile = profile
        self._served = Served(
            self._client,
            lambda: self._server.url,
            bridge=self._name,
            deliveries=lambda: self._openings.wanted,
        )
        self._tell_every = tell_every
        self._backoff = backoff
        self._accepted: dict[str, str] = {}
        """The plugin instance that accepted each message."""
        self._watcher = Watcher(
            self._client, self._replies, self._accepted, every=watch_every, silent_for=silent_for
        )
        self._leaves_turns = False
        self._sending = asyncio.Semaphore(CONNECTIONS)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pending(self) -> int:
        return len(self._replies)

    @property
    def accepted(self) -> int:
        """Turns that the plugin has accepted and not ended."""
        return len(self._accepted)

    def __repr__(self) -> str:
        return f"PluginTransport({self._client.base_url!r})"

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        await self._client.__aenter__()
        telling = self._served.keep_told(self._profile, self._tell_every)
        self._tasks = [
            asyncio.create_task(self._watcher.run(), name="plugin-watcher"),
            asyncio.create_task(telling, name="plugin-teller"),
        ]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._replies.end_all(Draining())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._openings.aclose()
        await self._server.__aexit__(*error)
        await self._client.__aexit__(*error)

    async def check(self) -> None:
        """Checks the plugin's health, and whether it would accept a message of this bridge."""
        try:
            health = await self._client.health(timeout=3.0)
            await self._served.check(self._profile)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._client.unreachable() from error
        if not health.get("ready", True):  # older plugins report `ok` alone
            raise Draining("Hermes is starting or shutting down")
        if not health.get("warm", True):
            raise Draining("Hermes is warming up")

    async def run(self, turn: Turn) -> AsyncGenerator[TurnEvent, None]:
        """Registers for the callbacks, sends the message and yields the events.

        The message is sent in a separate task, because callbacks can arrive before the POST is
        answered.
        """
        reply = self._replies.register(turn.message_id, agent=turn.agent)
        if self._is_secret:  # else any process could ask in the turn's name
            reply.let_ask(turn)
        sender = asyncio.create_task(self._send(turn, reply), name=f"plugin:{turn.message_id}")
        try:
            async with contextlib.aclosing(self._follow(turn, reply)) as events:
                async for event in events:
                    yield event
        finally:
            sender.cancel()
            await asyncio.wait({sender})

    def place(self, turn: Turn) -> Place:
        return self._place_of(self._name_for(turn), self._accepted.get(turn.message_id, ""))

    def _place_of(self, bridge: str, instance: str = "") -> Place:
        return Place(self._client.base_url, instance or self._client.instance, bridge)

    def take_deliveries(self, receiver: Receiver) -> None:
        self._openings.receiver = receiver
        self._served.wake()

    async def attach(self, turn: Turn, place: Place) -> Attached:
        if place.address != self._client.base_url:
            raise Interrupted("the turn ran in another Hermes before the agent was restarted")
        if opened := self._openings.pop(turn.message_id):
            self._accepted[turn.message_id] = place.instance
            return Attached(self._follow(turn, opened))
        self._names[turn.message_id] = place.bridge
        reply = self._replies.register(turn.message_id, place.seq, turn.agent)
        if self._is_secret:
            reply.let_ask(turn)
        try:
            body = await self._post_attach(turn, reply) or await self._missing(place)
        except BaseException:
            self._forget(turn, reply)
            raise
        self._accepted[turn.message_id] = str(body.get("instance", ""))
        questions = body.get("questions")
        open_ones = frozenset(map(str, questions)) if isinstance(questions, list) else frozenset()
        return Attached(self._follow(turn, reply), open_ones)

    def lent(self, turn: Turn) -> AbstractAsyncContextManager[Lent]:
        return lent(self._client, turn)

    def leave_turns(self) -> None:
        self._leaves_turns = True

    async def _follow(self, turn: Turn, reply: Reply) -> AsyncGenerator[TurnEvent, None]:
        self._watcher.wake()
        completed = False
        try:
            while True:
                event = await reply.next()
                completed = isinstance(event, Completed)
                yield event
                if is_last(event):
                    return
        finally:
            if reply.calls is not None:
                await reply.calls.close(completed=completed)
            try:
                if not reply.final and not self._leaves_turns:
                    await self._post_cancel(turn)
            finally:
                self._forget(turn, reply)

    def _forget(self, turn: Turn, reply: Reply) -> None:
        reply.forget()
        self._accepted.pop(turn.message_id, None)
        self._names.pop(turn.message_id, None)

    def _name_for(self, turn: Turn) -> str:
        return self._names.get(turn.message_id, self._name)

    async def _post_attach(self, turn: Turn, reply: Reply) -> dict[str, Any] | None:
        """The plugin's answer; None if it does not know the message.

        A bridge that the plugin refuses keeps trying: the turn is not lost, and the bridge is not
        ready until its operator has mended that.
        """
        attach = Attach(turn.message_id, self._server.url, reply.last_seq, self._name_for(turn))
        patience = self._backoff.delays(within=self._attach_for)
        for delay in self._backoff.delays():
            try:
                status, body = await self._client.post(ATTACH_PATH, attach)
            except (aiohttp.ClientError, TimeoutError):
                status, body = 503, {}
            if status == 200:
                return body
            if status == 404 and body.get("kind") != "not_found":
                raise _TooOld("the plugin inside Hermes is too old to go on with the turn")
            if status == 404:
                return None
            if status not in (401, 403, 429, 503):
                raise self._client.refusal(status, body)
            if status not in (401, 403) and next(patience, None) is None:
                break
            await asyncio.sleep(delay)
        raise Interrupted("Hermes did not answer after the agent was restarted")

    async def _attach_to_earlier(self, turn: Turn, reply: Reply) -> None:
        """An earlier request with the message arrived, perhaps that of an earlier bridge."""
        with contextlib.suppress(_TooOld):
            if await self._post_attach(turn, reply) is None:
                raise Interrupted("the result of the turn is no longer known")

    async def _missing(self, place: Place) -> NoReturn:
        """Raises what it means that the plugin does not know a message that was to be sent."""
        try:
            instance = str((await self._client.health(timeout=3.0)).get("instance", ""))
        except (aiohttp.ClientError, TimeoutError, ValueError):
            instance = ""
        if instance and instance == place.instance:
            raise NotSentError
        raise Interrupted("Hermes was restarted during the turn")

    async def cancel(self, turn: Turn) -> None:
        reply = self._replies.get(turn.message_id)
        if reply is None or reply.ended:
            return
        # If the plugin cancels the turn, its final callback ends it: then the tools have stopped.
        if turn.message_id not in self._accepted or not await self._post_cancel(turn):
            reply.add(Canceled())

    async def answer(self, turn: Turn, question_id: str, answer: str) -> None:
        message = Answer(turn.message_id, question_id, answer, self._name_for(turn))
        for attempt in range(1, _SENDS + 1):
            try:
                status, body = await self._client.post(ANSWER_PATH, message)
                break
            except (aiohttp.ClientError, TimeoutError) as error:
                if attempt == _SENDS:
                    raise self._client.unreachable() from error
                await asyncio.sleep(self._backoff.delay(attempt))
        if status == 404:
            raise QuestionGoneError(question_id)
        if status != 200:
            raise self._client.refusal(status, body)

    async def steer(self, turn: Turn, text: str) -> Steered:
        """The text is sent only once: if its response is lost, it may have arrived."""
        reply = self._replies.get(turn.message_id)
        if reply is None or not await until(
            lambda: turn.message_id in self._accepted or reply.ended
        ):
            return NOT_THERE
        try:
            status, body = await self._client.post(
                STEER_PATH, Steer(turn.message_id, text, self._name_for(turn))
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._client.unreachable() from error
        if status not in (200, 404):
            raise self._client.refusal(status, body)
        return steered_of(status, body)

    async def _send(self, turn: Turn, reply: Reply) -> None:
        try:
            await self._deliver(turn, reply)
        except TurnFailure as failure:
            reply.add(Failed(failure))
        except Exception:
            logger.exception("message %s could not be sent", turn.message_id)
            reply.add(Failed(InternalFailure()))

    async def _deliver(self, turn: Turn, reply: Reply) -> None:
        """Returns when the plugin has accepted the message.

        A POST that timed out may have arrived. It is safe to repeat: the plugin runs each
        message_id once.
        """
        asks = reply.calls is not None
        message = inbound_of(turn, self._server.url, self._name_for(turn), asks=asks)
        sends = 0
        for delay in self._backoff.delays():
            try:
                # Waiting here takes less memory than waiting inside aiohttp for a connection.
                async with self._sending:
                    await self._served.require(turn)
                    status, body = await self._client.post(INBOUND_PATH, message)
            except aiohttp.ClientConnectorError as error:
                if sends or not self._patient:
                    raise self._lost(sends) from error
                reply.add(
                    Notice(f"Hermes is not running; trying again in {delay:g} s", kind="retrying")
                )
            except (aiohttp.ClientError, TimeoutError) as error:
                sends += 1
                if sends == _SENDS:
                    raise self._lost(sends) from error
            else:
                if status in (200, 202):  # older plugins answer 200
                    self._client.instance = str(body.get("instance", ""))
                    self._accepted[turn.message_id] = self._client.instance
                    self._served.accepted(turn, body)
                    if body.get("duplicate"):
                        await self._attach_to_earlier(turn, reply)
                    return
                if status not in (429, 503):
                    raise self._client.refusal(status, body)
                reply.add(
                    Notice(
                        f"Hermes is busy or starting; trying again in {delay:g} s", kind="retrying"
                    )
                )
            await asyncio.sleep(delay)

    def _lost(self, sends: int) -> TurnFailure:
        """Once something was sent, it may have arrived, and the turn may run."""
        if not sends:
            return self._client.unreachable()
        return Interrupted("Hermes stopped answering while the message was sent")

    async def _post_cancel(self, turn: Turn) -> bool:
        """Returns whether the plugin knows the message and will end its turn."""

        cancel = Cancel(turn.message_id, self._name_for(turn))
        try:
            async with asyncio.timeout(3.0):
                return (await self._client.post(CANCEL_PATH, cancel))[0] == 200
        except (aiohttp.ClientError, TimeoutError, TurnFailure):
            return False
