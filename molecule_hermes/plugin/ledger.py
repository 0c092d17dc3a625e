"""Which message is where. No I/O, no clock, one thread.

A message waits, then runs, then is finished; at most one message of each chat runs.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from molecule_hermes.errors import Busy
from molecule_hermes.plugin.journal import Journal, Journals
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import Inbound

__all__ = ["Chat", "Ledger"]

_NOTES = 16


@dataclass(slots=True)
class Chat:
    """The turns of a conversation: the running one, the waiting ones and the last that ended."""

    waiting: deque[Turn] = field(default_factory=deque)
    running: Turn | None = None
    last: Turn | None = None
    notes: list[str] = field(default_factory=list)
    """What the agent is to be told with the next message."""

    @property
    def idle(self) -> bool:
        return self.running is None and not self.waiting


class Ledger:
    """Every message that the plugin knows. Chats, waiting messages and bytes are bounded."""

    def __init__(
        self,
        journals: Journals | None = None,
        *,
        max_chats: int = 1024,
        max_waiting: int = 64,
        max_bytes: int = 256 * 2**20,
        remember: int = 4096,
    ) -> None:
        self.journals = Journals() if journals is None else journals
        self._max_chats = max_chats
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._remember = remember
        self._bytes = 0
        self._chats: OrderedDict[str, Chat] = OrderedDict()
        self._turns: dict[str, Turn] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """How many messages are not finished."""
        return len(self._turns)

    def accept(self, inbound: Inbound, *, delivery: bool = False) -> Turn | None:
        """Queues a message; None if it is known already. Raises `Busy` beyond the bounds."""
        message_id = inbound.message_id
        if message_id in self._turns or message_id in self._finished:
            return None
        chat = self._chat(inbound.chat_id)
        if len(chat.waiting) >= self._max_waiting:
            raise Busy("too many messages wait in this conversation")
        if self._turns and self._bytes + _size(inbound) > self._max_bytes:
            raise Busy("too many large messages wait")
        journal = self.begin_journal(inbound, delivery=delivery)
        turn = Turn(inbound, journal, is_handoff=inbound.handoff is not None)
        chat.waiting.append(turn)
        self._turns[message_id] = turn
        self._bytes += _size(inbound)
        return turn

    def begin_journal(self, inbound: Inbound, *, delivery: bool = False) -> Journal:
        ids = (inbound.message_id, inbound.chat_id)
        return self.journals.begin(*ids, inbound.callback_url, inbound.bridge, delivery=delivery)

    def begin(self, chat_id: str) -> Turn | None:
        """Starts the next message of a chat; None while one runs or if none waits."""
        chat = self._chats.get(chat_id)
        if chat is None or chat.running is not None or not chat.waiting:
            return None
        chat.running = chat.waiting.popleft()
        return chat.running

    def find(self, message_id: str) -> Turn | None:
        """The message, unless it is finished or unknown."""
        return self._turns.get(message_id)

    def knows(self, message_id: str) -> bool:
        return message_id in self._turns or message_id in self._finished

    def is_busy(self, chat_id: str) -> bool:
        """Whether a message of the chat waits or runs."""
        chat = self._chats.get(chat_id)
        return chat is not None and not chat.idle

    def running(self, chat_id: str) -> Turn | None:
        chat = self._chats.get(chat_id)
        return chat.running if chat else None

    def last(self, chat_id: str) -> Turn | None:
        """The latest turn that ended, else the running one."""
        chat = self._chats.get(chat_id)
        return (chat.last or chat.running) if chat else None

    def note(self, chat_id: str, text: str) -> None:
        """Keeps something that the agent is to be told with the chat's next message."""
        with contextlib.suppress(Busy):
            notes = self._chat(chat_id).notes
            if text not in notes and len(notes) < _NOTES:
                notes.append(text)

    def take_notes(self, chat_id: str) -> list[str]:
        chat = self._chats.get(chat_id)
        notes = list(chat.notes) if chat else []
        if chat:
            chat.notes.clear()
        return notes

    def unfinished(self) -> list[Turn]:
        return list(self._turns.values())

    def waiting(self, chat_id: str) -> list[Turn]:
        chat = self._chats.get(chat_id)
        return list(chat.waiting) if chat else []

    def finish(self, turn: Turn) -> bool:
        """Ends a message; True once, False if it had ended before."""
        if self._turns.pop(turn.message_id, None) is None:
            return False
        self._bytes -= _size(turn.inbound)
        turn.forget()
        self._finished[turn.message_id] = None
        while len(self._finished) > self._remember:
            self._finished.popitem(last=False)
        chat = self._chats[turn.chat_id]
        if chat.running is turn:
            chat.running, chat.last = None, turn
        else:
            chat.waiting.remove(turn)
        turn.ended.set()
        return True

    def _chat(self, chat_id: str) -> Chat:
        chat = self._chats.setdefault(chat_id, Chat())
        self._chats.move_to_end(chat_id)
        if len(self._chats) > self._max_chats:
            self._forget_one(keep=chat_id)
        return chat

    def _forget_one(self, keep: str) -> None:
        for chat_id, chat in self._chats.items():
            if chat.idle and chat_id != keep:
                del self._chats[chat_id]
                return
        del self._chats[keep]
        raise Busy("too many conversations at once")


def _size(inbound: Inbound) -> int:
    handed = inbound.handoff.size if inbound.handoff is not None else 0
    return len(inbound.content) + sum(len(item.data) for item in inbound.attachments) + handed
