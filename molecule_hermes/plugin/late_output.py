"""What Hermes says outside of any turn. Imported inside Hermes only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from molecule_hermes.plugin import hermes_api, prompts
from molecule_hermes.plugin.cron_deliveries import CronDeliveries
from molecule_hermes.plugin.deliveries import NotDeliveredError
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.hermes_api import CronRun, current_cron_run, current_message_id
from molecule_hermes.plugin.send_results import not_sent, sent
from molecule_hermes.plugin.turn import Turn

__all__ = ["LateOutput", "is_status"]


class LateOutput:
    """The part of the adapter that makes deliveries of the ends of jobs."""

    _dispatcher: Dispatcher
    _cron: CronDeliveries
    _loop: asyncio.AbstractEventLoop | None
    gateway_runner: Any
    _unfollow: Callable[[], None] | None = None

    @property
    def supports_async_delivery(self) -> bool:
        """Whether tools may promise a result after the turn. Hermes asks at the beginning of each
        turn (gateway/run.py:16374)."""
        return self._dispatcher.deliveries.receiver.takes

    def follow_late_output(self) -> None:
        self.leave_late_output()
        self._cron = CronDeliveries(self._dispatcher.deliveries)
        loop = asyncio.get_running_loop()
        self._unfollow = hermes_api.follow_cron(self.gateway_runner, loop, self._cron_ended)

    def leave_late_output(self) -> None:
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None

    async def handle_message(self, event: Any) -> None:
        """Takes the end of a job, which Hermes announces by an event of its own.

        Hermes runs such an event within the turn that is running in the chat, which would take its
        final. As a delivery it waits until the chat is free.
        """
        # An event without text resumes a turn that a restart of Hermes has cut.
        if not event.internal or not event.text:
            await self.pass_on(event)
            return
        if (state := self._dispatcher.state()) != "ready":
            # Hermes keeps what it could not pass on, and tries again, some also after a restart.
            raise RuntimeError(f"Hermes is {state}")
        with contextlib.suppress(NotDeliveredError):
            self._dispatcher.deliveries.run(event.source.chat_id, event)

    async def pass_on(self, event: Any) -> None:
        await super().handle_message(event)  # type: ignore[misc]

    def late_event(self, turn: Turn, notes: Sequence[str], prompt: str | None) -> Any:
        """Hermes's event as one of this turn. Its source is shared, so it is copied."""
        text = prompts.neutralized("\n\n".join([turn.event.text, *notes]))
        metadata = {"agent": turn.inbound.agent, **turn.inbound.metadata.to_json()}
        return replace(
            turn.event,
            text=text,
            source=self.late_source(turn),
            message_id=turn.message_id,
            channel_prompt=prompt,
            metadata={**(turn.event.metadata or {}), **metadata},
        )

    def late_source(self, turn: Turn) -> Any:
        source = replace(turn.event.source, message_id=turn.message_id)
        profile = turn.inbound.profile
        return replace(source, profile=profile) if profile else source

    def owner(self, chat_id: str, *message_ids: str | None) -> Turn | None:
        """The turn to which something that Hermes sends belongs: the delivery of a cron job, else
        a turn that runs."""
        if self.is_elsewhere():
            return None
        if (run := current_cron_run()) is None:
            return self._dispatcher.owner(chat_id, *message_ids)
        with contextlib.suppress(NotDeliveredError):
            return self._cron.turn(run, chat_id)
        return None

    def send_for_cron(self, run: CronRun, chat_id: str, text: str) -> Any:
        try:
            self._cron.add(run, chat_id, text)
        except NotDeliveredError as error:
            return not_sent(str(error))
        return sent()

    def without_turn(self, *message_ids: str | None) -> Any:
        """The result of sending something for which there is no turn."""
        # What a turn says after its end is of no use to anybody, but Hermes must not repeat it.
        if self._dispatcher.is_late(current_message_id(), *message_ids):
            return sent()
        return not_sent("no message of this conversation is being answered")

    def is_elsewhere(self) -> bool:
        """Whether this is not the gateway's loop: the tool that sends messages runs on one of its
        own (tools/send_message_tool.py:728), from which nothing of ours may be called."""
        return self._loop not in (None, asyncio.get_running_loop())

    def _cron_ended(self, run: CronRun) -> None:
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed when Hermes exits
            self._loop.call_soon_threadsafe(self._cron.end, run)


def is_status(text: str) -> bool:
    """Whether this is Hermes's own report on a background process, whose result the agent has read
    (gateway/run.py:17221, 17250). After a restart of Hermes it names no message."""
    return text.startswith("[Background process ")
