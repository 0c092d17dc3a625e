#!/usr/bin/env python3
"""Measures what the plugin's journal costs: CPU and memory per turn.

    .venv/bin/python scripts/bench_journal.py [--turns 500]

A turn streams its text in pieces, runs some tools and ends. The bridge acknowledges after every
few callbacks, as it does with a quick callback server. The cost of the same callbacks without a
journal (they are only numbered and encoded) stands beside it.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator

from molecule_hermes.plugin.journal import Journals
from molecule_hermes.wire import Callback, Delta, Final, Tool

SHAPES = {"short": (10, 0), "usual": (100, 4), "long": (2000, 20)}
"""Pieces of text, and tools."""
_EVERY = 4


def callbacks(pieces: int, tools: int) -> Iterator[Callback]:
    for number in range(pieces):
        yield Callback("chat", "message", f"word{number} and some more ", Delta())
        if tools and number % (pieces // tools) == 0:
            yield Callback("chat", "message", "", Tool("terminal", "start", "ls -la /tmp"))
    yield Callback("chat", "message", "the whole answer " * pieces, Final())


def plain(shape: tuple[int, int], turns: int) -> None:
    for _ in range(turns):
        for number, callback in enumerate(callbacks(*shape)):
            json.dumps(callback.numbered(number).to_json())


def journaled(shape: tuple[int, int], turns: int) -> Journals:
    journals = Journals(max_bytes=2**40, max_ended=turns)
    for turn in range(turns):
        journal = journals.begin(f"message-{turn}", "chat", "http://127.0.0.1:1/")
        for number, callback in enumerate(callbacks(*shape), 1):
            journals.add(journal, callback)
            if number % _EVERY == 0 or isinstance(callback.body, Final):
                for sent in journal.unsent():
                    json.dumps(sent.to_json())
                journal.take(journal.last_seq)
        journals.acknowledge(journal)
    return journals


def microseconds(work: Callable[[], object], turns: int) -> float:
    best = min(_cpu(work) for _ in range(3))
    return best / turns * 1e6


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def kept_bytes(shape: tuple[int, int], turns: int) -> float:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    journals = journaled(shape, turns)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return kept / max(1, len(journals))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=500, help="turns per measurement")
    turns = parser.parse_args().turns
    print(
        f"{'turn':8} {'callbacks':>9} {'µs plain':>9} {'µs kept':>9} {'ratio':>6} {'KiB kept':>9}"
    )
    for name, shape in SHAPES.items():
        count = sum(1 for _ in callbacks(*shape))
        rounds = max(5, turns * 100 // count) if count > 100 else turns
        without = microseconds(lambda s=shape, n=rounds: plain(s, n), rounds)  # type: ignore[misc]
        with_it = microseconds(lambda s=shape, n=rounds: journaled(s, n), rounds)  # type: ignore[misc]
        kib = kept_bytes(shape, rounds) / 1024
        ratio = with_it / without
        print(f"{name:8} {count:9} {without:9.0f} {with_it:9.0f} {ratio:6.2f} {kib:9.1f}")


if __name__ == "__main__":
    main()
