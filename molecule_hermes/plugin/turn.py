"""One message of a peer inside Hermes, and what was observed of its turn. No I/O."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from molecule_hermes.errors import TurnFailure
from molecule_hermes.plugin.journal import Journal
from molecule_hermes.plugin.reasoning import ReasoningText
from molecule_hermes.plugin.spending import Spending
from molecule_hermes.wire import Body, Callback, Context, Delta, Inbound, Usage

__all__ = ["Question", "Turn"]


@dataclass(slots=True)
class Question:
    """A question of Hermes that waits for the peer's answer."""

    question_id: str
    session_key: str
    choices: tuple[str, ...]
    approval: bool
    answer: str = ""
    command: str = ""
    description: str = ""
    shown: tuple[str, str] = ("", "")
    """The command and the description of an approval as Hermes shows them."""


@dataclass(slots=True, eq=False)
class Turn:
    """A message from its arrival to its final."""

    inbound: Inbound
    journal: Journal = field(default_factory=lambda: Journal("", "", ""))
    """What the bridge is told of it. The ledger keeps it."""
    session_key: str = ""
    """The chat's session as the platform's base class names it."""
    agent_key: str = ""
    """The same session as Hermes names it among its agents: another name for a profile's."""
    event: Any = None
    """Hermes's own event that begins the turn of a delivery; None for a peer's message."""
    began: float = 0.0
    """When Hermes got the message, in seconds since 1970."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    has_attachments: bool = False
    has_files: bool = False
    """Whether the answer comes with files, so that it may have no text."""
    refused: list[str] = field(default_factory=list)
    """Why files of the answer did not reach the peer."""
    questions: dict[str, Question] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    """By question: what the peer answered."""
    started: bool = False
    canceled: bool = False
    interrupted: bool = False
    agent_ran: bool = False
    answer: str | None = None
    """What the agent ended with (hook post_llm_call)."""
    written: bool = False
    """Whether the model itself wrote the answer, so that Hermes has put nothing in its place."""
    reply: str | None = None
    """What Hermes sent as the reply, which may be an apology of its own."""
    failure: TurnFailure | None = None
    runtime: tuple[str, ...] = ()
    """The model and its provider with which the turn began. Set by the agent's thread."""
    spending: Spending = field(default_factory=Spending)
    context: Context | None = None
    is_handoff: bool = False
    """Whether it begins with a conversation that was handed over."""
    failed: bool = False
    """Whether its final says that it failed or was canceled."""
    incomplete: bool = False
    """Whether the agent spent all its model calls, so that the answer is a summary."""
    reasoning: ReasoningText = field(default_factory=ReasoningText)
    fell_back: bool = False
    """Whether Hermes changed to a fallback model."""
    steers: int = 0
    """How many texts it was steered with."""
    unheard: list[str] = field(default_factory=list)
    """Those that the agent is not known to have read."""
    interim: list[str] = field(default_factory=list)
    """Answers after which the agent went on, because it was steered."""
    _calls: tuple[str, str, str] = ("", "", "")
    _draft: object = None
    _streamed: str = ""

    def __str__(self) -> str:
        kind = "delivery" if self.journal.delivery else "message"
        return f"{kind} {self.message_id} to agent {self.inbound.agent!r}"

    @property
    def message_id(self) -> str:
        return self.inbound.message_id

    @property
    def chat_id(self) -> str:
        return self.inbound.chat_id

    @property
    def usage(self) -> Usage | None:
        return self.spending.total()

    def wants(self, name: str) -> bool:
        """Whether the bridge takes this, which not every bridge and not every peer does."""
        return name in self.inbound.wants

    def callback(self, body: Body, content: str = "") -> Callback:
        text, agent = _encodable(content), self.inbound.agent
        return Callback(self.chat_id, self.message_id, text, body, agent=agent)

    def draft(self, draft_id: object, text: str) -> Callback | None:
        """What a cumulative draft adds. The text of a new segment replaces the old one."""
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

    def answered(self, text: str, *, written: bool = False) -> None:
        """The agent ended with this text."""
        self.answer, self.written, self.failure = text, written, None

    def steered(self, text: str) -> None:
        self.steers += 1
        self.unheard.append(text)

    def heard(self, words: str) -> None:
        """The agent has read these words."""
        self.unheard = [text for text in self.unheard if text not in words]

    def runs_again(self, prompt: str) -> bool:
        """Whether the agent, after an answer, runs again with what it was steered by. That answer
        is then an interim one."""
        if self.answer is None or not any(text in prompt for text in self.unheard):
            return False
        self.heard(prompt)
        self.interim.append(self.answer)
        self.answer = self.reply = None
        self._draft = object()
        return True

    def continues(self, text: str, answer: str) -> bool:
        """Whether a text that names no message is the end of a streamed segment, or the answer as
        it is shown: Hermes does not name the message when the agent runs again."""
        if not self.interim:
            return False
        streamed = bool(self._streamed) and text.lstrip("\n").startswith(self._streamed)
        return streamed or text.strip() == answer.strip()

    def is_kept(self, text: str) -> bool:
        """Whether the text is the answer after which the agent is about to run again."""
        return bool(self.unheard) and text == self.answer

    def model_failed(self, failure: TurnFailure) -> None:
        """A call of the model failed. The turn fails unless a later call succeeds."""
        self.failure = failure

    def calls_model(self, model: str, provider: str, run: str) -> tuple[str, str] | None:
        """The agent calls this model now. Returns both models if it is another one than before in
        the same run: Hermes has changed to a fallback."""
        before_run, before, before_provider = self._calls
        self._calls = (run, model, provider)
        self.spending.uses(model, provider)
        self.reasoning.begin_call()
        if before_run != run or (before, before_provider) == (model, provider):
            return None
        self.fell_back = True
        if before != model:
            return before, model
        return f"{before} ({before_provider})", f"{model} ({provider})"

    def model_called(self, usage: Usage | None) -> None:
        """A call of the model succeeded."""
        self.agent_ran, self.failure = True, None
        if usage is not None:
            self.spending.add(usage, of_agent=True)

    def forget(self) -> None:
        """Keeps only the names and the journal."""
        self.has_attachments = bool(self.inbound.attachments)
        self.inbound = replace(
            self.inbound,
            content="",
            attachments=(),
            system_prompt="",
            response_format=None,
            handoff=None,
        )
        self.answer = self.reply = self.event = None
        self._streamed = ""
        self.unheard, self.interim = [], []
        self.questions.clear()
        self.answers.clear()


def _encodable(text: str) -> str:
    """The text with surrogate pairs joined, as a model may stream them; a lone one becomes �."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
