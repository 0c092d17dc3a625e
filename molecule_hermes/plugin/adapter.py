"""The platform adapter: what Hermes calls, and what is called in Hermes. Only for its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web
from gateway.config import Platform
from gateway.platforms.base import (
    BasePlatformAdapter,
    MessageEvent,
    MessageType,
    ProcessingOutcome,
    get_document_cache_dir,
)

from molecule_hermes.errors import InternalFailure
from molecule_hermes.plugin import hermes_api, prompts, warm_up
from molecule_hermes.plugin.agent_watch import AgentWatch
from molecule_hermes.plugin.asking import Asking
from molecule_hermes.plugin.cron_deliveries import CronDeliveries
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.endpoints import application
from molecule_hermes.plugin.file_delivery import FileDelivery, not_available
from molecule_hermes.plugin.handoffs import Handoffs
from molecule_hermes.plugin.hardening import forbid_inspection
from molecule_hermes.plugin.hermes_api import current_cron_run, current_message_id
from molecule_hermes.plugin.hooks import Effect, Hooks
from molecule_hermes.plugin.interim import interim_files
from molecule_hermes.plugin.journal import Journals
from molecule_hermes.plugin.kept_files import KeptFiles
from molecule_hermes.plugin.late_output import LateOutput, is_status
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.plugin.lent_chats import LentChats
from molecule_hermes.plugin.outbox import Outbox
from molecule_hermes.plugin.profiles import ProfilesOffError, UnknownProfileError
from molecule_hermes.plugin.send_results import sent
from molecule_hermes.plugin.settings import PLATFORM, SECRETS, PluginSettings
from molecule_hermes.plugin.shown_types import shown_type
from molecule_hermes.plugin.sweeper import Sweeper
from molecule_hermes.plugin.threads import widen_default_executor
from molecule_hermes.plugin.tools.peers import PeerTools
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.plugin.work_folders import WorkFolders
from molecule_hermes.wire import MAIN_AGENT, Context, HandOn, Lend

__all__ = ["MoleculeAdapter"]

log = logging.getLogger(__name__)

_HANDOFFS = "molecule-a2a-handoffs"
_HANDED_ON = "molecule-a2a-handed-on"
"""Folders in Hermes's home."""
_FREE_WITHIN = 10.0
_CLOCK = 0.1
"""Seconds by which the clock of a file system may lag behind."""


class MoleculeAdapter(FileDelivery, Asking, LateOutput, BasePlatformAdapter):  # type: ignore[misc]
    # The default of 4096 splits streamed text into messages.
    MAX_MESSAGE_LENGTH = 10_000_000
    splits_long_messages = True
    interactive_resume = False
    # The bridge has authenticated the peer. Otherwise Hermes answers with a pairing code.
    authorization_is_upstream = True

    def __init__(self, config: Any, hooks: Hooks, peer_tools: PeerTools) -> None:
        super().__init__(config, Platform(PLATFORM))
        self._hooks = hooks
        self._peer_tools = peer_tools
        self._settings = PluginSettings()
        self._outbox = Outbox()
        self._dispatcher = Dispatcher(self, Ledger(), self._outbox)
        self._watch = AgentWatch(None, self._dispatcher, self)
        self._site: web.AppRunner | None = None
        self._folders: WorkFolders | None = None
        self._kept = KeptFiles(Path(get_document_cache_dir()))
        self._sweeper = Sweeper(self._kept.sweep)
        self._handoffs = Handoffs(None, Path())
        self._lent = LentChats(self, Path())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cron = CronDeliveries(self._dispatcher.deliveries)

    # Hermes opens and closes the platform.

    async def connect(self, *, is_reconnect: bool = False) -> bool:
        try:
            self._settings = settings = PluginSettings.from_extra(self.config.extra or {})
        except ValueError as error:
            hermes_api.report_fatal(self, "config", str(error))
            return False
        self._loop = asyncio.get_running_loop()
        journals = Journals(keep_for=settings.journal_for, max_bytes=settings.journal_bytes)
        self._outbox = Outbox(journals, secret=settings.secret)
        bounds = {"max_chats": settings.max_chats, "max_waiting": settings.max_waiting}
        ledger = Ledger(journals, **bounds)
        self._dispatcher = Dispatcher(
            self,
            ledger,
            self._outbox,
            max_of_chat=settings.max_deliveries_of_chat,
            max_in_all=settings.max_deliveries,
        )
        self._handoffs = Handoffs(self.gateway_runner, hermes_api.hermes_home() / _HANDOFFS)
        self._lent = LentChats(self, hermes_api.hermes_home() / _HANDED_ON)
        if not is_reconnect:
            await self._handoffs.restore()
            await self._lent.restore()
        self._handoffs.attach()
        if not await self._listen(settings):
            return False
        hermes_api.widen_executor(self.gateway_runner, settings.max_threads)
        widen_default_executor(self._loop, settings.max_threads)
        warm_up.begin()
        # The launcher has done both already, but an operator's own Hermes runs without it.
        forbid_inspection()
        hermes_api.strip_from_tools(SECRETS)
        self._open_folders(settings)
        self._kept = KeptFiles(Path(get_document_cache_dir()), settings.kept)
        self._sweeper = Sweeper(self._kept.sweep)
        self._sweeper.open()
        self._watch = AgentWatch(self.gateway_runner, self._dispatcher, self)
        self._watch.attach()
        self.follow_late_output()
        self._outbox.open()
        self._peer_tools.open(self, settings.secret)
        self._hooks.attach(self)
        hermes_api.report_connected(self)
        return True

    async def disconnect(self) -> None:
        # Hermes allows 5 s for this (run.py:70). It calls it once more for each profile.
        hermes_api.report_disconnected(self)
        self._hooks.detach(self)
        self._watch.detach()
        self._handoffs.detach()
        self.leave_late_output()
        if self._folders is not None:
            self._folders.detach(self.gateway_runner)
        await self._dispatcher.close()
        await self._peer_tools.close()
        if self._site is not None:
            await self._site.cleanup()
            self._site = None
        await self._sweeper.close()
        await self._outbox.close(self._settings.flush_for)

    async def _listen(self, settings: PluginSettings) -> bool:
        app = application(
            self._dispatcher,
            secret=settings.secret,
            max_body=settings.max_body,
            callbacks=settings.callbacks,
        )
        site = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await site.setup()
        try:
            await web.TCPSite(site, settings.host, settings.port).start()
        except OSError as error:
            await site.cleanup()
            where = f"{settings.host}:{settings.port}"
            reason = f"cannot listen on {where} ({error.strerror or error}); set another port in"
            keys = f"platforms.{PLATFORM}.extra.port or MOLECULE_A2A_PLATFORM_PORT"
            hermes_api.report_fatal(self, "port_in_use", f"{reason} {keys}")
            return False
        self._site = site
        return True

    def _open_folders(self, settings: PluginSettings) -> None:
        if settings.folder_per_chat:
            self._folders = WorkFolders(hermes_api.working_directory())
            self._folders.attach(self.gateway_runner)

    # The dispatcher calls these (`dispatcher.Gateway`).

    def state(self) -> hermes_api.State:
        return hermes_api.state(self.gateway_runner)

    def busy(self, turn: Turn) -> bool:
        if not turn.session_key:
            source = self._source(turn)
            turn.session_key = hermes_api.session_key_of(source)
            turn.agent_key = hermes_api.agent_key_of(self.gateway_runner, source)
        return hermes_api.has_session(self, turn.session_key)

    def stoppable(self, turn: Turn) -> bool:
        return self.busy(turn) and hermes_api.has_agent(self.gateway_runner, turn.agent_key)

    def require_profile(self, profile: str) -> None:
        if profile and not hermes_api.has_profiles(self.gateway_runner):
            raise ProfilesOffError(profile)
        if profile and profile not in hermes_api.profiles():
            raise UnknownProfileError(profile)

    def warm(self) -> bool:
        return warm_up.is_done()

    async def start(self, turn: Turn) -> None:
        if profile := turn.inbound.profile:
            self.require_profile(profile)  # it may have been removed while the message waited
            hermes_api.answer_for_profile(self.gateway_runner, profile, self)
        self._hooks.policy.begin(turn.message_id, turn.inbound.toolsets)
        self._peer_tools.offer(turn)
        await self.close_session(turn.chat_id)
        if (handed := turn.inbound.handoff) is not None:
            await self._handoffs.begin(turn.message_id, self._source(turn), handed)
        log.info("%s from %s begins", turn, turn.inbound.peer_id)
        turn.began = time.time() - _CLOCK
        notes = self._dispatcher.notes_before(turn)
        self._kept.enter(turn.chat_id)
        if turn.event is None:
            event = await asyncio.to_thread(self._event, turn, notes)
        else:
            event = self.late_event(turn, notes, self._prompt(turn))
        await self.pass_on(event)

    async def stop(self, turn: Turn) -> None:
        hermes_api.clear_questions(turn.agent_key)
        # Only this command also kills the running tool; `cancel_session_processing` does not.
        event = MessageEvent("/stop", MessageType.COMMAND, self._source(turn))
        await self.pass_on(event)

    async def open_session(self, lend: Lend) -> str:
        return await self._lent.open(lend)

    async def close_session(self, chat_id: str) -> None:
        await self._lent.close(chat_id)

    async def hand_on(self, request: HandOn) -> None:
        await self._lent.hand_on(request)

    async def conclude(self, turn: Turn) -> None:
        if turn.is_handoff:
            async with asyncio.timeout(_FREE_WITHIN):
                while self.busy(turn):  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.05)
            await self._handoffs.conclude(turn.message_id, failed=turn.failed)

    def release(self, turn: Turn) -> None:
        self._kept.leave(turn.chat_id)
        if turn.has_attachments:
            self._sweeper.wake()

    def approvals(self, session_key: str) -> Sequence[tuple[str, str]]:
        return hermes_api.open_approvals(session_key)

    def context(self, turn: Turn) -> Context | None:
        return self._watch.context(turn)

    def approve(self, session_key: str, choice: str) -> bool:
        return hermes_api.resolve_approval(session_key, choice)

    def clarify(self, question_id: str, answer: str) -> bool:
        return hermes_api.resolve_clarify(question_id, answer)

    def steer(self, turn: Turn, text: str) -> bool:
        return hermes_api.steer(self.gateway_runner, turn.agent_key, text)

    def take_unheard(self, turn: Turn) -> str:
        return hermes_api.take_unheard(self.gateway_runner, turn.agent_key)

    def shown(self, answer: str) -> str:
        return str(self.strip_media_directives_for_display(answer))

    def _source(self, turn: Turn) -> Any:
        if turn.event is not None:
            return self.late_source(turn)
        inbound = turn.inbound
        name = inbound.peer_name or inbound.peer_id
        source = self.build_source(
            chat_id=inbound.chat_id,
            chat_name=name if inbound.agent == MAIN_AGENT else f"{name} to {inbound.agent}",
            chat_type="dm",
            user_id=inbound.peer_id,
            user_name=name,
            message_id=inbound.message_id,
        )
        # Hermes's own `gateway.profile_routes` count for messages that name no profile.
        return replace(source, profile=inbound.profile) if inbound.profile else source

    def _event(self, turn: Turn, notes: Sequence[str]) -> Any:
        items = turn.inbound.attachments
        paths = self._kept.save(turn.chat_id, items)
        shown = [shown_type(item, path) for item, path in zip(items, paths, strict=True)]
        earlier = self._kept.earlier(turn.chat_id, but=paths)
        folder = hermes_api.path_for_tools(earlier.folder)
        kept = prompts.kept_files(folder, earlier.names, earlier.more)
        text = prompts.with_notes(turn.inbound.content, [*kept, *notes])
        return MessageEvent(
            text=prompts.neutralized(text),
            # Not TEXT, which Hermes rewrites ("restart gateway" → /restart, base.py:1880).
            message_type=MessageType.DOCUMENT,
            source=self._source(turn),
            message_id=turn.message_id,
            media_urls=[str(path) for path in paths],
            media_types=shown,
            metadata={"agent": turn.inbound.agent, **turn.inbound.metadata.to_json()},
            channel_prompt=self._prompt(turn),
        )

    def _prompt(self, turn: Turn) -> str | None:
        return turn.inbound.system_prompt or self._settings.system_prompt or None

    # Hermes calls these during and after a turn.

    def on_hook(self, message_id: str, effect: Effect) -> None:
        if self._loop is None:
            return
        # The loop is closed when Hermes exits; every message has its final by then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._apply, message_id, effect)

    def find(self, message_id: str) -> Turn | None:
        return self._dispatcher.find(message_id)

    def on_agent_start(self, message_id: str) -> None:
        self._watch.begin(message_id)

    def _apply(self, message_id: str, effect: Effect) -> None:
        if turn := self._dispatcher.find(message_id):
            effect(self._dispatcher, turn)

    async def on_processing_complete(self, event: Any, outcome: Any) -> None:
        """The end of a turn (base.py:5396). The outcome is about delivery, not about the answer."""
        turn = self._dispatcher.find(event.message_id or "")
        if turn is None:
            return
        for path in interim_files(self, turn):  # Hermes delivers those of the last answer only
            await self.send_document(turn.chat_id, path)
        self._strip_directives(turn)
        if self._folders is not None:
            self._folders.leave(turn.chat_id)
        turn.interrupted |= outcome is ProcessingOutcome.CANCELLED
        crashed = outcome is ProcessingOutcome.FAILURE and turn.reply is None
        self._dispatcher.finish(turn, InternalFailure() if crashed else None)

    def _strip_directives(self, turn: Turn) -> None:
        """Removes the directives from the answer by which the agent delivers files.

        Hermes silently drops files that its own rules protect (base.py:3618); the peer gets a
        notice for each of them.
        """
        if turn.answer is None:
            return
        for path, _ in self.extract_media(turn.answer)[0]:
            turn.has_files = True
            if self.validate_media_delivery_path(path) is None:
                self._dispatcher.refuse(turn, not_available(path))
        turn.answer = self.strip_media_directives_for_display(turn.answer)

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Any = None
    ) -> Any:
        if (run := current_cron_run()) and not self.is_elsewhere():
            return self.send_for_cron(run, chat_id, content)
        current = current_message_id()
        turn = self.owner(chat_id, current, reply_to)
        if turn is None or (not current and is_status(content)):
            return self.without_turn(reply_to)
        answer = self.shown(turn.answer or "")
        if reply_to != turn.message_id and not turn.continues(content, answer):
            self._dispatcher.remark(turn, content)
            return sent()
        turn.reply = content
        # Inside the turn this is the end of a streamed segment; after it, the reply itself.
        if current == turn.message_id:
            self._dispatcher.emit(turn, turn.segment(content))
        return sent()

    def supports_draft_streaming(self, chat_type: Any = None, metadata: Any = None) -> bool:
        return True

    async def send_draft(
        self, chat_id: str, draft_id: int, content: str, metadata: Any = None
    ) -> Any:
        if turn := self.owner(chat_id, current_message_id()):
            self._dispatcher.end_reasoning(turn)
            self._dispatcher.emit(turn, turn.draft(draft_id, content))
        return sent()

    async def send_typing(self, chat_id: str, metadata: Any = None) -> None:
        """Does nothing: a peer sees WORKING for as long as the turn runs."""

    async def get_chat_info(self, chat_id: str) -> dict[str, Any]:
        return {"name": chat_id, "type": "dm", "chat_id": chat_id}
