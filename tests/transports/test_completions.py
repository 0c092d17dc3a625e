"""Each parser parses, or raises `StreamError`, and nothing else."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.transports.chat.completions import (
    EventStream,
    StreamError,
    parse_chunk,
    parse_tool,
)

_keys = st.sampled_from(
    [
        *("choices", "delta", "content", "finish_reason", "usage", "error", "message"),
        *("hermes", "tool", "label", "status", "prompt_tokens", "total_tokens"),
    ]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(_keys, inner),
    max_leaves=20,
)
_lines = st.one_of(st.text(), _json.map(json.dumps), st.dictionaries(_keys, _json).map(json.dumps))


@given(_lines)
def test_a_chunk_parses_or_is_refused(data: str) -> None:
    with contextlib.suppress(StreamError):
        chunk = parse_chunk(data)
        assert isinstance(chunk.text, str)
        assert chunk.usage is None or chunk.usage.total_tokens >= 0


@given(_lines)
def test_a_tool_event_parses_or_is_refused(data: str) -> None:
    with contextlib.suppress(StreamError):
        progress = parse_tool(data)
        assert progress.tool
        assert len(progress.preview) <= 200


def test_json_that_nests_too_deeply_is_refused() -> None:
    with contextlib.suppress(StreamError):
        parse_chunk("[" * 200_000)


def test_a_tools_label_is_truncated_and_redacted() -> None:
    label = "curl -H 'Authorization: Bearer abcdefghijkl' " + "x" * 500
    progress = parse_tool(json.dumps({"tool": "terminal", "label": label, "status": "running"}))
    assert "abcdefghijkl" not in progress.preview
    assert len(progress.preview) <= 200


STREAM = (
    ": keep-alive\r\n\r\n"
    'data: {"a": "ä\u2028"}\n\n'
    "event: hermes.tool.progress\ndata:one\ndata: two\nid: 7\n\n"
    "event: nothing\n\n"
    "data:\n\n"
    "data: [DONE]\r\n\r\n"
    "data: cut off"
).encode()
EVENTS = [
    ("message", '{"a": "ä\u2028"}'),
    ("hermes.tool.progress", "one\ntwo"),
    ("message", ""),
    ("message", "[DONE]"),
]


@given(st.sets(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_how_the_bytes_are_chunked(cuts: set[int]) -> None:
    stream, events, start = EventStream(), [], 0
    for end in (*sorted(cuts), len(STREAM)):
        events += stream.feed(STREAM[start:end])
        start = end
    assert events == EVENTS


@given(st.lists(st.binary()))
def test_any_bytes_parse_or_raise_the_stream_error(pieces: list[bytes]) -> None:
    stream = EventStream()
    for piece in pieces:
        assert all(name for name, _ in stream.feed(piece))


@pytest.mark.parametrize(
    "endless", [b"x" * 2**20, b"data: " + b"x" * 2**20 + b"\n", b"data:\n" * 2**18]
)
def test_an_event_that_never_ends_is_refused(endless: bytes) -> None:
    stream = EventStream()
    with pytest.raises(StreamError, match="too large"):
        for _ in range(20):
            list(stream.feed(endless))
