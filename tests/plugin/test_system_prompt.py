"""System prompts of messages, in the real Hermes gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from molecule_hermes.plugin.settings import PLATFORM
from tests.support.gateway import callback_server, running_hermes
from tests.support.recorded_model import RecordedModel, recorded_model

pytestmark = pytest.mark.hermes

PIRATE, POET, OPERATOR = "Talk like a pirate.", "Answer in verse.", "The operator's own prompt."


def prompts_of(model: RecordedModel, text: str) -> set[str]:
    """Which of the prompts the model was given with this message."""
    return {
        prompt
        for request in model.requests
        if text in str(request["messages"][-1]["content"])
        for message in request["messages"]
        if message["role"] == "system" and request.get("tools")
        for prompt in (PIRATE, POET, OPERATOR)
        if prompt in str(message["content"])
    }


async def test_each_message_has_its_own_system_prompt(tmp_path: Path) -> None:
    async with recorded_model() as model, callback_server() as callbacks:
        over = {
            "model": {"base_url": model.url},
            "platforms": {PLATFORM: {"extra": {"system_prompt": OPERATOR}}},
        }
        async with running_hermes(tmp_path, over=over) as hermes:
            sent = [
                ("first in one", "one", PIRATE),
                ("first in two", "two", POET),
                ("second in one", "one", PIRATE),
                ("third in one", "one", POET),
                ("fourth in one", "one", ""),
            ]
            for text, chat, prompt in sent:
                message = await hermes.say(callbacks, text, chat=chat, system_prompt=prompt)
                assert (await callbacks.final(message))[1].status == "completed"
    for text, _, prompt in sent:
        assert prompts_of(model, text) == {prompt or OPERATOR}, text
