"""Journals: what a bridge that attaches gets, and how much is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.plugin import journal as module
from molecule_hermes.plugin.journal import Journal, Journals
from molecule_hermes.wire import Body, Callback, Delta, File, Final, Notice, Tool


def callback(body: Body, content: str = "") -> Callback:
    return Callback("c", "m", content, body)


@dataclass
class Seen:
    """What a bridge knows after some callbacks."""

    text: str = ""
    events: list[str] = field(default_factory=list)
    seq: int = -1

    def take(self, item: Callback) -> None:
        assert item.seq is not None
        assert item.seq > self.seq
        self.seq = item.seq
        if isinstance(item.body, Delta):
            self.text = item.content if item.body.replace else self.text + item.content
        else:
            self.events.append(f"{item.body.type} {item.content}")

    def copy(self) -> Seen:
        return Seen(self.text, list(self.events), self.seq)


texts = st.text("ab ", min_size=1, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("delta"), texts),
        st.tuples(st.just("replace"), texts),
        st.tuples(st.just("tool"), texts),
        st.tuples(st.just("sent"), st.integers(0, 20)),
        st.tuples(st.just("attach"), st.integers(0, 1000)),
    ),
    max_size=80,
)


@given(steps, st.integers(1, 4), st.integers(4, 12))
def test_attaching_at_any_number_equals_the_undisturbed_sequence(
    script: list[tuple[str, object]], loose: int, unsent: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LOOSE", loose)
        patch.setattr(module, "_LOOSE_UNSENT", unsent)
        whole = Seen()
        journal = Journal("m", "c", "url")
        bridge = Seen()
        stored = [bridge.copy()]
        numbers = 0
        for word, value in [*script, ("final", "end"), ("sent", 10_000)]:
            if word == "sent":
                assert isinstance(value, int)
                for item in list(journal.unsent())[:value]:
                    bridge.take(item)
                    stored.append(bridge.copy())
                journal.take(bridge.seq)
            elif word == "attach":
                assert isinstance(value, int)
                bridge = stored[value % len(stored)].copy()
                stored = [seen for seen in stored if seen.seq <= bridge.seq]
                journal.attach("another", bridge.seq)
            else:
                body: Body = Tool("t", "start")
                if word in ("delta", "replace"):
                    body = Delta(replace=word == "replace")
                elif word == "final":
                    body = Final()
                added = callback(body, str(value))
                journal.add(added)
                whole.take(added.numbered(numbers))
                numbers += 1
        assert (bridge.text, bridge.events) == (whole.text, whole.events)
        assert bridge.seq == journal.last_seq
        assert journal.acknowledged


def test_text_that_was_not_sent_is_added_to_the_text_before() -> None:
    journal = Journal("m", "c", "url")
    for word in ("a", "b"):
        journal.add(callback(Delta(), word))
    assert [(c.content, c.seq) for c in journal.unsent()] == [("ab", 0)]
    journal.add(callback(Delta(), "c"))
    assert [(c.content, c.seq) for c in journal.unsent()] == [("ab", 0), ("c", 1)]


def test_long_text_is_kept_once() -> None:
    journal = Journal("m", "c", "url")
    for number in range(5000):
        journal.add(callback(Delta(), f"word{number} "))
        for item in journal.unsent():
            journal.take(item.seq or 0)
    length = len("".join(f"word{number} " for number in range(5000)))
    assert journal.size < length + 70 * 300
    journal.attach("another", -1)
    assert sum(len(item.content) for item in journal.unsent()) == length


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ended(journals: Journals, name: str, size: int = 0, *, taken: bool = True) -> Journal:
    journal = journals.begin(name, "c", "url")
    journals.add(journal, callback(Final(), "x" * size))
    if taken:
        journal.take(0)
        journals.acknowledge(journal)
    return journal


def test_an_acknowledged_end_is_kept_for_its_time_and_any_other_for_longer() -> None:
    clock = Clock()
    journals = Journals(keep_for=60, clock=clock)
    ended(journals, "known")
    ended(journals, "unknown", taken=False)
    clock.now = 59
    ended(journals, "later")
    assert journals.find("known")
    clock.now = 61
    journals.begin("next", "c", "url")
    assert {journal.message_id for journal in journals} == {"unknown", "later", "next"}


def test_there_is_a_limit_to_the_number_of_ended_journals() -> None:
    journals = Journals(max_ended=3)
    for number in range(10):
        ended(journals, str(number))
    assert [journal.message_id for journal in journals] == ["7", "8", "9"]


def test_for_want_of_room_what_is_known_goes_first_and_text_never() -> None:
    journals = Journals(max_bytes=10_000)
    ended(journals, "known", 2000)
    ended(journals, "unknown", 2000, taken=False)
    running = journals.begin("running", "c", "url")
    journals.add(running, callback(File("f", "a/b", data=bytes(5000))))
    assert len(journals) == 3
    journals.add(running, callback(Delta(), "y" * 3000))
    assert journals.find("known") is None
    assert journals.find("unknown") is not None
    journals.add(running, callback(Notice(), "n" * 3000))
    kinds = [item.body.type for item in running.unsent()]
    assert kinds == ["notice", "delta", "notice"], "the file became a notice"
    journals.add(running, callback(Notice(), "n" * 3000))
    assert journals.find("unknown") is None
    journals.add(running, callback(Notice(), "n" * 3000))
    assert [item.body.type for item in running.unsent()].count("delta") == 1
    assert journals.size <= 10_000
    assert journals.size == running.size


def test_what_comes_after_a_journal_was_forgotten_is_not_counted() -> None:
    journals = Journals(max_ended=1)
    gone = ended(journals, "gone")
    ended(journals, "kept")
    before = journals.size
    journals.add(gone, callback(Notice(), "late"))
    assert journals.size == before
