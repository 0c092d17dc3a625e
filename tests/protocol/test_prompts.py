from __future__ import annotations

from typing import Any

import pytest
from a2a.types import Message
from hypothesis import given

from molecule_hermes.errors import BadRequest
from molecule_hermes.protocol.prompts import chosen_model
from tests.protocol.test_json_answers import json_values

OFFERED = ("large", "small")


def choosing(model: Any) -> Message:
    message = Message()
    message.metadata.update({"model": model})
    return message


def test_a_message_that_names_no_model_chooses_none() -> None:
    for message in (None, Message(), choosing(None), choosing("")):
        assert chosen_model(message, OFFERED) == chosen_model(message, None) == ""


def test_only_an_offered_model_is_chosen() -> None:
    assert chosen_model(choosing("large"), OFFERED) == "large"
    for models, hint in ((OFFERED, "choose one of large, small, or leave"), ((), "leave")):
        with pytest.raises(BadRequest, match="'huge' is not offered") as caught:
            chosen_model(choosing("huge"), models)
        assert caught.value.hint.startswith(hint)
    with pytest.raises(BadRequest, match="'large' cannot be chosen"):
        chosen_model(choosing("large"), None)


@given(model=json_values)
def test_any_other_value_is_refused(model: Any) -> None:
    try:
        assert chosen_model(choosing(model), OFFERED) in ("", *OFFERED)
    except BadRequest as failure:
        assert len(failure.message) < 300
