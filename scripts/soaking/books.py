"""Records every turn that was sent and its outcome, and checks that they are consistent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from a2a.types import Task

from tests.support.peers import reply_text, state

ENDS = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
SWEPT = "the agent was restarted during the turn"
_MARK = re.compile(r"mk\d{6}x")


def marks(text: str) -> list[str]:
    return _MARK.findall(text)


@dataclass(eq=False)
class Record:
    """A turn that a peer sent, identified by its mark, a word that no other turn contains."""

    act: str
    peer: str
    context: str
    mark: str
    may_ask_model: int = 1
    allowed: frozenset[str] = frozenset({"COMPLETED"})
    """Final states that are correct, besides those that an injected fault explains."""
    answered: Callable[[str], str] | None = None
    """Describes what is wrong with an answer; empty if it is correct."""
    task_ids: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    """Final states that the peer received."""
    text: str | None = None
    """The answer that the peer received with COMPLETED."""
    state: str = ""
    kind: str = ""
    ended: float = 0.0
    """When the turn itself ended the task; 0 if the next bridge ended it during recovery."""

    def settle(self, task: Task, failure: Mapping[str, Any]) -> None:
        self.state, self.kind = state(task), str(failure.get("kind", ""))
        if failure.get("message") != SWEPT:
            self.ended = task.status.timestamp.ToNanoseconds() / 1e9


class Books:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.problems: list[str] = []
        self.model: Counter[str] = Counter()
        self._contexts: dict[str, tuple[str, str]] = {}

    def new(self, act: str, peer: str, context: str) -> Record:
        record = Record(act, peer, context, f"mk{len(self.records):06d}x")
        self._contexts[record.mark] = (peer, context)
        self.records.append(record)
        return record

    def heard(self, text: str) -> None:
        """Counts a request to the model, except Hermes's requests for a conversation's title."""
        if not text.startswith("User: ") and (found := marks(text)):
            self.model[found[-1]] += 1

    def wrong(self, record: Record, what: str) -> None:
        self.problems.append(f"{record.mark} ({record.act} of {record.peer}): {what}")

    def check(self, record: Record, task: Task, faults: frozenset[str]) -> None:
        """Checks the turn's final state. `faults` are failure kinds that faults explain."""
        if len(record.task_ids) != 1:
            self.wrong(record, f"has {len(record.task_ids)} tasks")
        if record.state not in ENDS:
            self.wrong(record, f"has no end: {record.state}")
        elif record.state not in record.allowed and record.kind not in faults:
            self.wrong(record, f"ended {record.state} {record.kind}".rstrip())
        if record.told - {record.state}:
            self.wrong(record, f"was told {sorted(record.told)}, and is {record.state}")
        if record.state == "COMPLETED":
            self._check_answer(record, reply_text(task))
        asked = self.model[record.mark]
        if asked > record.may_ask_model:
            self.wrong(record, f"asked the model {asked} times, not {record.may_ask_model}")

    def _check_answer(self, record: Record, text: str) -> None:
        if record.text not in (None, text):
            self.wrong(record, f"was told {record.text!r}, and stored is {text!r}")
        if record.answered is not None and (wrong := record.answered(text)):
            self.wrong(record, f"{wrong}: {text[:300]!r}")
        mine = (record.peer, record.context)
        if foreign := [mark for mark in marks(text) if self._contexts.get(mark) != mine]:
            self.wrong(record, f"holds {foreign} of another conversation")

    def ends(self, since: float) -> Counter[tuple[str, str]]:
        """How turns ended since that time, which is what `/metrics` of one bridge counts."""
        return Counter((r.state, r.kind) for r in self.records if r.ended >= since)


def table(books: Books) -> str:
    """Turns by act and end; the last line is the sum."""
    rows = []
    for act in [*sorted({record.act for record in books.records}), "all"]:
        mine = [r for r in books.records if act in (r.act, "all")]
        found = Counter(record.state for record in mine)
        rows.append((act, len(mine), *(found[end] for end in ENDS)))
    heads = ("turns", "sent", *(end.lower() for end in ENDS))
    lines = [f"{heads[0]:12}" + "".join(f"{head:>11}" for head in heads[1:])]
    lines += [f"{row[0]:12}" + "".join(f"{figure:>11}" for figure in row[1:]) for row in rows]
    return "\n".join(lines)
