"""Questions and answers keep to the JSON Schema in docs/extensions.md."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Message, Role
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import ValidationError

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.extensions import QUESTIONS, extensions
from molecule_hermes.protocol.questions import NotAnAnswerError, read_answer
from molecule_hermes.protocol.status import Asked
from molecule_hermes.turns.features import features_of
from molecule_hermes.turns.model import Completed, Question
from molecule_hermes.turns.run import MAX_OPEN
from tests.conftest import StartBridge
from tests.protocol.test_several_questions import COLOUR, FIRST, SECOND, shown_questions
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import ask, peer, send
from tests.support.question_schema import (
    check_answer,
    check_question,
    check_questions,
    published_schema,
)


async def test_what_a_peer_is_asked_and_what_it_answers_keeps_to_the_schema(
    bridge: StartBridge,
) -> None:
    script = (FIRST, SECOND, COLOUR, Answered(), Answered(), Answered(), Completed("done"))
    transport = ScriptedTransport(*script)
    async with bridge(transport) as b, peer(b.url) as client:
        asked = await ask(client, "go")
        check_question(asked.question)
        check_questions(await shown_questions(client, asked.task_id, 3))
        wrong = await ask(client, "perhaps", task_id=asked.task_id)
        check_questions(wrong.data[-1]["questions"])
        assert "remark" in wrong.question
        answers: list[dict[str, Any]] = [
            {"questionId": "q3", "answer": "Red"},
            {"questionId": "q2", "answer": True},
            {"answer": "deny"},
        ]
        for answer in answers:
            check_answer(answer)
            request = message("", task_id=asked.task_id)
            del request.message.parts[:]
            request.message.parts.append(new_data_part(answer))
            done = await send(client, request)
    assert done.states[-1] == "COMPLETED"
    assert transport.answers == [("q3", "Red"), ("q2", "once"), ("q1", "deny")]


_approvals = st.builds(
    Question,
    st.text(min_size=1),
    st.just("approval"),
    st.text(),
    st.sampled_from([("once", "session", "deny"), ("once", "deny")]),
    st.text(),
    st.text(),
)
_clarifications = st.builds(
    Question, st.text(min_size=1), st.just("clarify"), st.text(), st.lists(st.text()).map(tuple)
)


@given(_approvals | _clarifications, st.text())
def test_any_question_keeps_to_the_schema(question: Question, remark: str) -> None:
    check_question(Asked(question, "2026-01-02T03:04:05.678Z", remark).describe())


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@given(st.dictionaries(st.sampled_from(["questionId", "answer", "other"]), _json))
def test_an_answer_that_keeps_to_the_schema_is_taken_for_a_clarification(
    data: dict[str, Any],
) -> None:
    said = Message(message_id="m", role=Role.ROLE_USER, parts=[new_data_part(data)])
    question = Question(str(data.get("questionId") or "q"), "clarify", "?")
    try:
        check_answer(data)
    except ValidationError:
        return
    try:
        assert read_answer(question, said)
    except NotAnAnswerError:
        assert not str(data["answer"]).strip()


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"questionId": "q", "kind": "other", "choices": [], "expiresAt": "2026-01-02T03:04:05Z"},
        {"questionId": "q", "kind": "approval", "choices": [], "expiresAt": "2026-01-02T03:04:05Z"},
        {"questionId": "", "kind": "clarify", "choices": [], "expiresAt": "2026-01-02T03:04:05Z"},
    ],
)
def test_the_schema_refuses_what_is_no_question(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        check_question(bad)


def test_the_schema_has_the_name_and_the_limits_of_the_code() -> None:
    schema = published_schema()
    assert schema["$id"] == QUESTIONS
    assert schema["$defs"]["questions"]["maxItems"] == MAX_OPEN


def test_the_extension_is_declared_where_questions_can_be_asked() -> None:
    assert QUESTIONS in [extension.uri for extension in extensions(features_of("plugin"))]
    assert QUESTIONS not in [extension.uri for extension in extensions(features_of("chat"))]
