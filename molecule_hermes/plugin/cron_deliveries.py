"""The results of cron jobs: one delivery for the text and the files of each run and chat."""

from __future__ import annotations

from molecule_hermes.plugin.deliveries import Deliveries, NotDeliveredError
from molecule_hermes.plugin.hermes_api import CronRun
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.plugin.turn import Turn

__all__ = ["CronDeliveries"]


class CronDeliveries:
    """Hermes sends the text first, then the files; then the run ends. On the event loop only."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._open: dict[tuple[CronRun, str], Turn] = {}
        self._texts: dict[Turn, str] = {}

    def turn(self, run: CronRun, chat_id: str) -> Turn:
        """The delivery of this run to this chat. Raises `NotDeliveredError` if it was dropped."""
        if (turn := self._open.get((run, chat_id))) is not None:
            return turn
        self._require_allowed(run, chat_id)
        turn = self._deliveries.open(chat_id, "cron", job=run.name, job_id=run.job_id)
        self._open[run, chat_id] = turn
        return turn

    def add(self, run: CronRun, chat_id: str, text: str) -> None:
        turn = self.turn(run, chat_id)
        self._texts[turn] = run.unwrapped(text)

    def end(self, run: CronRun) -> None:
        for key, turn in list(self._open.items()):
            if key[0] is run:
                del self._open[key]
                self._deliveries.close(turn, self._texts.pop(turn, ""))

    def _require_allowed(self, run: CronRun, chat_id: str) -> None:
        """A job that was made in one conversation must not speak in another peer's."""
        platform, chat = run.origin
        here = platform != PLATFORM or chat == chat_id
        if not here and not self._deliveries.origins.same_peer(chat, chat_id):
            raise NotDeliveredError("the job was made in another peer's conversation")
