"""Which message is where, and what its turn has come to. No I/O, no clock, one thread.

A message is waiting, then running, then finished; of each chat at most one runs. Whatever
Hermes does, `Ledger.finish` hands out the final of a message once.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import re
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from molecule_hermes.errors import (
    Busy,
    Draining,
    EmptyReply,
    InternalFailure,
    Interrupted,
    TurnFailure,
)
from molecule_hermes.provider_errors import failure_from_model_error
from molecule_hermes.wire import Body, Callback, Delta, Final, Inbound, Problem, Usage

__all__ = ["Chat", "Ledger", "Question", "Turn"]

# How Hermes words a turn that came to nothing, when no hook said so
# (agent/conversation_loop.py returns these as `final_response` of a failed turn).
_APOLOGY = re.compile(
    r"\s*(?:⚠|❌|⏳|⚡|API call failed|Invalid API response|First response truncated"
    r"|Context (?:overflow|length)|Request payload|Sorry, I encountered an error)"
)
# run_agent.py:3142, put in the place of an empty answer or after a fragment.
_NO_REPLY = "⚠️ No reply: "
_EMPTY = "(empty)"
# gateway/response_filters.py: the whole reply means "say nothing".
_SILENCE = frozenset({"[SILENT]", "SILENT", "NO_REPLY", "NO REPLY"})
_EDGES = ".,;:!?*_`'\"-–—()"


@dataclass(slots=True)
class Question:
    """A question of Hermes that waits for the peer."""

    question_id: str
    session_key: str
    choices: tuple[str, ...]
    approval: bool
    answer: str = ""


@dataclass(slots=True, eq=False)
class Turn:
    """One message of a peer, from its arrival to its final."""

    inbound: Inbound
    session_key: str = ""
    began: float = 0.0
    """When Hermes got the message, in seconds since 1970."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    files: list[Path] = field(default_factory=list)
    """Saved for the agent, to be removed at the end."""
    has_files: bool = False
    """Whether the answer has files, so that it may have no text."""
    refused: list[str] = field(default_factory=list)
    """Why files of the answer did not reach the peer."""
    questions: dict[str, Question] = field(default_factory=dict)
    started: bool = False
    canceled: bool = False
    interrupted: bool = False
    agent_ran: bool = False
    answer: str | None = None
    reply: str | None = None
    failure: TurnFailure | None = None
    usage: Usage | None = None
    _draft: object = None
    _streamed: str = ""

    @property
    def message_id(self) -> str:
        return self.inbound.message_id

    @property
    def chat_id(self) -> str:
        return self.inbound.chat_id

    def callback(self, body: Body, content: str = "") -> Callback:
        return Callback(self.chat_id, self.message_id, _encodable(content), body)

    def draft(self, draft_id: object, text: str) -> Callback | None:
        """What a cumulative draft adds. Text of a new segment takes the place of the old."""
        # After a tool Hermes begins the next segment with a blank line.
        text = text.lstrip("\n")
        first = not self._streamed
        grows = draft_id == self._draft and text.startswith(self._streamed)
        added = text[len(self._streamed) :] if grows else text
        self._draft, self._streamed = draft_id, text
        return self.callback(Delta(replace=not (grows or first)), added) if added else None

    def segment(self, text: str) -> Callback | None:
        """The end of a streamed segment; the next draft begins a new one."""
        callback = self.draft(self._draft, text)
        self._draft = object()
        return callback

    def answered(self, text: str) -> None:
        """Hermes's agent finished with this text (hook post_llm_call)."""
        self.answer, self.failure = text, None

    def model_failed(self, text: str, status: int | None) -> None:
        """A call of the model failed; the turn fails if none succeeds later."""
        self.failure = failure_from_model_error(_readable(text), status)

    def model_called(self, usage: Usage | None) -> None:
        self.agent_ran, self.failure = True, None
        if usage is not None:
            self.usage = (self.usage or Usage()) + usage

    def final(self) -> Callback:  # noqa: PLR0911 - one line for each ending
        """The verdict, from what the hooks and the sends said."""
        if self.canceled:
            return self._final(Final("canceled", usage=self.usage))
        if self.answer is not None:
            return self._verdict(self.answer)
        if self.failure is not None:
            return self._failed(self.failure)
        if self.interrupted:
            return self._failed(Interrupted())
        if not self.reply:
            return self._failed(Interrupted("Hermes ended the turn without an answer"))
        if not self.agent_ran:
            return self._failed(_refusal(self.reply))
        if _APOLOGY.match(self.reply):
            return self._failed(failure_from_model_error(self.reply.strip()))
        return self._verdict(self.reply)

    def forget(self) -> None:
        """Keeps only what a push needs: the names, the address and the counter."""
        self.inbound = replace(self.inbound, content="", attachments=())
        self.answer = self.reply = None
        self._streamed = ""
        self.questions.clear()

    def _verdict(self, text: str) -> Callback:
        if _is_silence(text):
            return self._final(Final(usage=self.usage, silent=True))
        if not text.strip() and self.has_files:
            return self._final(Final(usage=self.usage, silent=True))
        if not text.strip() or text.strip() == _EMPTY:
            return self._failed(EmptyReply())
        head, apology, reason = text.partition(_NO_REPLY)
        if apology and not head.strip():
            return self._failed(EmptyReply(reason.strip().partition(". ")[0]))
        if apology and head.endswith("\n\n"):
            return self._failed(Interrupted(reason.strip().partition(". ")[0]))
        return self._final(Final(usage=self.usage), text)

    def _failed(self, failure: TurnFailure) -> Callback:
        return self._final(Final("failed", error=Problem.of(failure), usage=self.usage))

    def _final(self, final: Final, text: str = "") -> Callback:
        return self.callback(final, text)


@dataclass(slots=True)
class Chat:
    """A conversation: the turn that runs, the ones that wait, and where the last came from."""

    waiting: deque[Turn] = field(default_factory=deque)
    running: Turn | None = None
    last: Turn | None = None

    @property
    def idle(self) -> bool:
        return self.running is None and not self.waiting


class Ledger:
    """Every message the plugin knows. Bounded in chats, in waiting messages and in memory."""

    def __init__(
        self,
        *,
        max_chats: int = 1024,
        max_waiting: int = 64,
        max_bytes: int = 256 * 2**20,
        remember: int = 4096,
    ) -> None:
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

    def accept(self, inbound: Inbound) -> Turn | None:
        """Queues a message. None: it is known already. Raises Busy over the bounds."""
        message_id = inbound.message_id
        if message_id in self._turns or message_id in self._finished:
            return None
        chat = self._chat(inbound.chat_id)
        if len(chat.waiting) >= self._max_waiting:
            raise Busy("too many messages wait in this conversation")
        if self._turns and self._bytes + _size(inbound) > self._max_bytes:
            raise Busy("too many large messages wait")
        turn = Turn(inbound)
        chat.waiting.append(turn)
        self._turns[message_id] = turn
        self._bytes += _size(inbound)
        return turn

    def begin(self, chat_id: str) -> Turn | None:
        """The next message of a chat, now running; None while one runs or none waits."""
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

    def running(self, chat_id: str) -> Turn | None:
        chat = self._chats.get(chat_id)
        return chat.running if chat else None

    def last(self, chat_id: str) -> Turn | None:
        """Where a push is sent: the chat's latest message that ended; it is none of the next."""
        chat = self._chats.get(chat_id)
        return (chat.last or chat.running) if chat else None

    def unfinished(self) -> list[Turn]:
        return list(self._turns.values())

    def waiting(self, chat_id: str) -> list[Turn]:
        chat = self._chats.get(chat_id)
        return list(chat.waiting) if chat else []

    def finish(self, turn: Turn) -> Callback | None:
        """The final of a message, once; None ever after."""
        if self._turns.pop(turn.message_id, None) is None:
            return None
        self._bytes -= _size(turn.inbound)
        final = turn.final()
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
        return final

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


def _refusal(text: str) -> TurnFailure:
    """What Hermes means by a reply for which it did not run the agent (run.py:11122, 11372)."""
    if re.search(r"drain|restart|shutting down|maintenance", text, re.IGNORECASE):
        return Draining()
    if re.search(r"too many|limit|concurrent|maximum", text, re.IGNORECASE):
        return Busy(text.strip())
    return InternalFailure(text.strip())


def _size(inbound: Inbound) -> int:
    return len(inbound.content) + sum(len(item.data) for item in inbound.attachments)


def _readable(error: str) -> str:
    """What the provider said, out of `Error code: 401 - {'error': {'message': …}}`."""
    _, dash, quoted = error.partition(" - {")
    try:
        said = ast.literal_eval("{" + quoted) if dash else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return error
    told = said.get("error", said) if isinstance(said, dict) else None
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return error
    code = told.get("code") or told.get("type")
    return f"{told['message']} ({code})" if code else str(told["message"])


def _encodable(text: str) -> str:
    """The text with halves of a character joined, as a model may stream them; a lone one is �."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _is_silence(text: str) -> bool:
    words = " ".join(text.split()).upper()
    return words in _SILENCE or words.strip(_EDGES) in _SILENCE
