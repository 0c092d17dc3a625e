"""The JSON between bridge and plugin: it parses, or raises the documented error."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes import wire
from molecule_hermes.errors import FAILURES, RateLimited
from molecule_hermes.wire import (
    Answer,
    Approval,
    Attachment,
    Callback,
    Called,
    Cancel,
    Check,
    Clarify,
    Context,
    Delta,
    File,
    Final,
    HandOn,
    Inbound,
    Lend,
    Notice,
    Origin,
    PeerCall,
    Problem,
    Push,
    Reasoning,
    Spent,
    Steer,
    Steered,
    Subagent,
    Tool,
    Transcript,
    Usage,
    WireError,
)

PARSERS = (
    Inbound,
    Transcript,
    HandOn,
    Lend,
    Check,
    Cancel,
    Answer,
    Steer,
    Steered,
    Callback,
    PeerCall,
    Called,
)

ids = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=256)
labels = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=256)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
urls = st.sampled_from(["http://127.0.0.1:8646/a2a/reply", "https://bridge.example/cb?x=1"])
media_types = st.sampled_from(["text/plain", "application/pdf", "image/svg+xml"])
blobs = st.binary(max_size=200)
counts = st.integers(0, 2**53 - 1)
choices = st.lists(texts, max_size=5).map(tuple)
problems = st.builds(Problem, st.sampled_from(sorted(FAILURES)), texts, texts, st.booleans())
amounts = st.none() | st.floats(0, 1e6)
of_model = st.builds(
    Usage, counts, counts, counts, labels, counts, counts, labels, amounts, st.just(())
)
spent = st.builds(
    Usage,
    counts,
    counts,
    counts,
    labels,
    counts,
    counts,
    labels,
    amounts,
    st.lists(of_model, max_size=3).map(tuple),
)
contexts = st.builds(Context, counts, counts)
phases = st.sampled_from(["start", "end"])
kinds = st.sampled_from(["retrying", "compressed", "fallback", "waiting", "other"])
arguments = st.dictionaries(
    texts, st.one_of(texts, st.integers(-1000, 1000), st.booleans(), st.none()), max_size=5
)
attached = st.lists(st.builds(Attachment, labels, media_types, blobs), max_size=3).map(tuple)
bodies = st.one_of(
    st.builds(Delta, st.booleans()),
    st.builds(
        Tool,
        labels,
        phases,
        texts,
        amounts,
        st.none() | st.booleans(),
        texts,
        labels,
        arguments,
        texts,
        texts,
    ),
    st.builds(Subagent, labels, texts, phases, amounts, st.none() | st.booleans()),
    st.builds(
        Notice,
        labels,
        kinds,
        st.none() | counts,
        st.none() | counts,
        labels,
        labels,
        texts,
        st.booleans(),
        st.booleans(),
    ),
    st.just(Reasoning()),
    st.builds(Spent, spent, st.none() | contexts),
    st.just(Push()),
    st.builds(
        Push, ids, st.sampled_from(wire.CAUSES), st.builds(Origin, labels, labels, labels), labels
    ),
    st.builds(File, labels, media_types, blobs),
    st.builds(File, labels, media_types, st.none(), urls),
    st.builds(Approval, ids, choices, texts, texts),
    st.builds(Clarify, ids, choices),
    st.builds(
        Final,
        st.sampled_from(["completed", "failed", "canceled"]),
        st.none() | problems,
        st.none() | spent,
        st.booleans(),
        st.none() | contexts,
        st.booleans(),
    ),
)
transcripts = st.builds(
    Transcript,
    ids,
    st.lists(
        st.fixed_dictionaries({"role": texts}, optional={"content": texts | st.lists(st.none())}),
        max_size=3,
    ).map(tuple),
    labels,
)
values = st.one_of(
    st.builds(
        Inbound,
        chat_id=ids,
        peer_id=ids,
        message_id=ids,
        callback_url=urls,
        content=texts,
        peer_name=labels,
        attachments=st.lists(st.builds(Attachment, labels, media_types, blobs), max_size=3).map(
            tuple
        ),
        metadata=st.builds(Origin, labels, labels, labels),
        system_prompt=texts,
        model=labels,
        response_format=st.none() | st.dictionaries(texts, texts | st.lists(st.booleans())),
        wants=st.lists(texts, max_size=3).map(tuple),
        agent=ids,
        profile=labels,
        toolsets=st.none() | st.lists(texts, max_size=3).map(tuple),
        handoff=st.none() | transcripts,
    ),
    st.builds(Check, urls, labels),
    st.builds(Lend, ids, ids, ids, st.integers(0, wire.MAX_LEND), labels, labels),
    st.builds(HandOn, ids, ids, ids, ids, st.integers(1, wire.MAX_HAND_ON), labels),
    st.builds(Cancel, ids),
    st.builds(Answer, ids, ids, texts),
    st.builds(Steer, ids, texts, labels),
    st.builds(Steered, st.booleans(), texts),
    st.builds(PeerCall, ids, ids, st.sampled_from(wire.ACTIONS), labels, texts, texts, attached),
    st.builds(Called, st.dictionaries(texts, texts | st.integers(-1000, 1000)), attached),
    st.builds(Callback, ids, ids, texts, bodies, st.none() | counts, labels),
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=10,
)


@given(values)
def test_every_message_is_read_back_as_it_was_written(value: Any) -> None:
    body = json.dumps(value.to_json())
    assert type(value).parse(body) == value
    assert type(value).parse(body.encode()) == value
    assert type(value).parse(json.loads(body)) == value


@given(st.binary(max_size=300) | st.text(max_size=300) | junk)
def test_anything_parses_or_raises_the_wire_error(data: Any) -> None:
    for parser in PARSERS:
        _parses_or_refuses(parser, data)


@given(values, st.data())
def test_a_body_with_one_changed_part_parses_or_raises_the_wire_error(
    value: Any, data: st.DataObject
) -> None:
    body = json.loads(json.dumps(value.to_json()))
    _spoil(body, data)
    for parser in PARSERS:
        _parses_or_refuses(parser, body)


@pytest.mark.parametrize("form", ["text", [], 3, {"x": "y" * wire.MAX_RESPONSE_FORMAT}])
def test_a_response_format_is_a_bounded_object(form: object) -> None:
    body = Inbound("c", "p", "m", "http://127.0.0.1/").to_json()
    assert Inbound.parse(body | {"response_format": None}).response_format is None
    with pytest.raises(WireError, match="`response_format`"):
        Inbound.parse(body | {"response_format": form})


def test_a_system_prompt_is_bounded() -> None:
    inbound = Inbound(
        "c", "p", "m", "http://127.0.0.1/", system_prompt="x" * wire.MAX_SYSTEM_PROMPT
    )
    body = inbound.to_json()
    assert Inbound.parse(body) == inbound
    with pytest.raises(WireError, match="`system_prompt` is longer than 65536 characters"):
        Inbound.parse(body | {"system_prompt": f"{inbound.system_prompt}x"})


callbacks = st.builds(Callback, ids, ids, texts, bodies, st.none() | counts, labels)


@given(st.lists(callbacks, min_size=1, max_size=4))
def test_a_batch_is_read_back_in_order(batch: list[Callback]) -> None:
    body = json.dumps({"batch": [callback.to_json() for callback in batch]}).encode()
    assert Callback.parse_batch(body) == tuple(batch)
    assert Callback.parse_batch(json.dumps(batch[0].to_json())) == (batch[0],)


@given(st.lists(callbacks.map(Callback.to_json) | junk, max_size=4) | junk | st.binary())
def test_any_batch_parses_or_raises_the_wire_error(batch: Any) -> None:
    for data in (batch, {"batch": batch}):
        try:
            parsed = Callback.parse_batch(data)
        except WireError as error:
            assert str(error)
        else:
            again = {"batch": [callback.to_json() for callback in parsed]}
            assert Callback.parse_batch(again) == parsed


def test_the_size_of_a_batch_is_bounded() -> None:
    one = {"reply_to": "m", "content": "x"}
    assert len(Callback.parse_batch({"batch": [one] * wire.MAX_BATCH})) == wire.MAX_BATCH
    with pytest.raises(WireError, match="batch"):
        Callback.parse_batch({"batch": [one] * (wire.MAX_BATCH + 1)})


def _spoil(body: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(body)))
    inner = body[name]
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        _spoil(inner, data)
    else:
        body[name] = data.draw(junk)


def _parses_or_refuses(parser: Any, data: Any) -> None:
    try:
        value = parser.parse(data)
    except WireError as error:
        assert str(error)
    else:
        assert parser.parse(value.to_json()) == value


def inbound(**over: Any) -> dict[str, Any]:
    body = {
        "chat_id": "c",
        "peer_id": "p",
        "message_id": "m",
        "callback_url": "http://127.0.0.1:1/x",
        "content": "hi",
    }
    return {**body, **over}


@pytest.mark.parametrize(
    ("over", "field"),
    [
        ({"chat_id": ""}, "chat_id"),
        ({"chat_id": "x" * 257}, "chat_id"),
        ({"chat_id": "a\nb"}, "chat_id"),
        ({"message_id": True}, "message_id"),
        ({"message_id": 7}, "message_id"),
        ({"peer_id": None}, "peer_id"),
        ({"peer_id": "\u2028"}, "peer_id"),
        ({"content": None}, "content"),
        ({"content": "\ud800"}, "content"),
        ({"callback_url": "ftp://x/y"}, "callback_url"),
        ({"callback_url": "http://"}, "callback_url"),
        ({"callback_url": "http://h:99999/"}, "callback_url"),
        ({"callback_url": "http://[::1/"}, "callback_url"),
        ({"callback_url": "http://a b/"}, "callback_url"),
        ({"callback_url": "/a2a/reply"}, "callback_url"),
        ({"attachments": {}}, "attachments"),
        ({"attachments": [{}] * 17}, "attachments"),
        ({"attachments": [{"name": "x"}]}, "attachment"),
        ({"attachments": ["x"]}, "attachment"),
        ({"metadata": [1]}, "metadata"),
        ({"metadata": {"a2a_task_id": 1}}, "a2a_task_id"),
    ],
)
def test_an_invalid_message_is_refused_with_the_name_of_its_field(over: Any, field: str) -> None:
    with pytest.raises(WireError, match=field):
        Inbound.parse(inbound(**over))


def test_an_attachment_over_the_limit_is_refused() -> None:
    data = base64.b64encode(bytes(wire.MAX_FILE_BYTES + 3)).decode()
    attachment = {"name": "x", "media_type": "text/plain", "data": data}
    with pytest.raises(WireError, match=r"attachment\.data"):
        Inbound.parse(inbound(attachments=[attachment]))


def test_unknown_keys_and_nulls_are_ignored() -> None:
    parsed = Inbound.parse(inbound(new="thing", attachments=None, metadata=None, peer_name=None))
    assert parsed == Inbound("c", "p", "m", "http://127.0.0.1:1/x", "hi")


def test_a_callback_without_a_type_is_the_answer() -> None:
    absent: tuple[dict[str, Any], ...] = ({}, {"metadata": None}, {"metadata": {"notify": True}})
    for metadata in absent:
        callback = Callback.parse({"content": "done", "reply_to": "m", **metadata})
        assert callback == Callback("", "m", "done", Final("completed"), None)


@pytest.mark.parametrize(
    "metadata",
    [
        {"type": "dlta"},
        {"type": 1},
        {"type": "delta", "seq": True},
        {"type": "delta", "seq": -1},
        {"type": "delta", "replace": "yes"},
        {"type": "tool", "tool": "t"},
        {"type": "tool", "tool": "t", "phase": "middle"},
        {"type": "tool", "tool": "t", "phase": "end", "duration": True},
        {"type": "tool", "tool": "t", "phase": "end", "duration": -1},
        {"type": "tool", "tool": "t", "phase": "end", "ok": 1},
        {"type": "file", "name": "n", "media_type": "text/plain"},
        {"type": "file", "name": "n", "media_type": "text/plain", "data": "*"},
        {"type": "file", "name": "n", "media_type": "text", "data": ""},
        {"type": "file", "name": "n", "media_type": "a/b", "data": "", "url": "http://x/"},
        {"type": "approval", "choices": []},
        {"type": "approval", "question_id": "q", "choices": [1]},
        {"type": "final", "status": "done"},
        {"type": "final", "status": "failed", "error": "oh"},
        {"type": "final", "status": "completed", "usage": {"input_tokens": 1.5}},
    ],
)
def test_an_invalid_callback_is_refused(metadata: Any) -> None:
    with pytest.raises(WireError):
        Callback.parse({"chat_id": "c", "content": "", "reply_to": "m", "metadata": metadata})


@pytest.mark.parametrize("missing", ["reply_to", "content"])
def test_a_callback_needs_a_message_id_and_content(missing: str) -> None:
    body = {"chat_id": "c", "content": "x", "reply_to": "m"}
    del body[missing]
    with pytest.raises(WireError, match=missing):
        Callback.parse(body)


@pytest.mark.parametrize("body", [b"", b"NaN", b"[]", b"1", b"[" * 100_000, b"\xff", "\ud800"])
def test_a_body_that_is_not_a_json_object_is_refused(body: Any) -> None:
    with pytest.raises(WireError):
        wire.decode(body)


def test_a_failure_survives_the_wire() -> None:
    failure = Problem.of(RateLimited("slow down")).failure()
    assert (type(failure), failure.message, failure.retryable) == (RateLimited, "slow down", True)


@pytest.mark.parametrize(
    ("over", "field"),
    [
        ({"action": "exec"}, "action"),
        ({"action": None}, "action"),
        ({"call_id": ""}, "call_id"),
        ({"message_id": 7}, "message_id"),
        ({"peer": "x" * 257}, "peer"),
        ({"text": "x" * (wire.MAX_CALL_TEXT + 1)}, "text"),
        ({"task_id": "x" * 1025}, "task_id"),
        ({"files": [{}]}, "name"),
        ({"files": [{"name": "a", "media_type": "a/b", "data": ""}] * 17}, "files"),
    ],
)
def test_an_invalid_call_is_refused_with_the_name_of_its_field(over: Any, field: str) -> None:
    call = {"message_id": "m", "call_id": "c", "action": "list"}
    with pytest.raises(WireError, match=f"`.*{field}`"):
        PeerCall.parse({**call, **over})


def test_the_public_names_are_pinned() -> None:
    assert wire.SECRET_HEADER == "X-Molecule-A2A-Secret"
    assert (wire.DEFAULT_PLATFORM_PORT, wire.DEFAULT_CALLBACK_PORT) == (8645, 8646)
    assert all(hasattr(wire, name) for name in wire.__all__)


def test_a_sum_of_costs_is_known_only_if_each_is() -> None:
    priced, free = Usage(1, 1, 2, "a", cost_usd=0.25), Usage(0, 0, 0)
    assert (free + priced + priced).cost_usd == 0.5
    assert (priced + Usage(1, 1, 2, "b")).cost_usd is None
    assert (free + free).cost_usd is None


def test_a_kind_of_notice_that_is_not_known_yet_is_another() -> None:
    assert Notice.parse({"kind": "levitating"}) == Notice(kind="other")


def test_a_message_without_an_agent_is_for_the_main_one_and_may_use_all_tools() -> None:
    inbound = Inbound.parse(Inbound("c", "p", "m", "http://127.0.0.1/").to_json())
    assert (inbound.agent, inbound.profile, inbound.toolsets) == ("main", "", None)
    assert not {"agent", "profile", "toolsets"} & set(inbound.to_json())


def test_no_toolsets_at_all_are_not_the_same_as_toolsets_that_are_not_named() -> None:
    body = Inbound("c", "p", "m", "http://127.0.0.1/", toolsets=()).to_json()
    assert body["toolsets"] == []
    assert Inbound.parse(body).toolsets == ()


@pytest.mark.parametrize("form", ["terminal", {}, [1], ["x"] * (wire.MAX_TOOLSETS + 1)])
def test_toolsets_that_cannot_be_read_refuse_the_message(form: object) -> None:
    body = Inbound("c", "p", "m", "http://127.0.0.1/").to_json()
    with pytest.raises(WireError, match="`toolsets`"):
        Inbound.parse(body | {"toolsets": form})
