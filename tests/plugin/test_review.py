"""Hermes's background review, made to end before the turn that it reviews."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gateway import callback_server, running_hermes

pytestmark = pytest.mark.hermes

# A plugin of the operator's: the end of each turn waits until the turn's review has ended.
PATIENT = """
import threading
from pathlib import Path

from tools.skill_provenance import is_background_review

reviewed = threading.Event()


def answered(**given):
    if is_background_review():
        Path(__file__).with_name("reviewed").write_text(given["assistant_response"])
        reviewed.set()


def ended(**given):
    if not is_background_review():
        reviewed.wait(20)


def register(ctx):
    ctx.register_hook("post_llm_call", answered)
    ctx.register_hook("on_session_end", ended)
"""


async def test_a_review_that_ends_before_its_turn_is_not_the_answer(tmp_path: Path) -> None:
    plugin = tmp_path / "plugins" / "patient"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text("name: patient\nversion: 1.0.0\ndescription: waits\n")
    (plugin / "__init__.py").write_text(PATIENT)
    over = {
        "plugins": {"enabled": ["patient", "molecule-a2a"]},
        "skills": {"creation_nudge_interval": 1},
    }
    async with running_hermes(tmp_path, over=over) as hermes, callback_server() as callbacks:
        message = await hermes.say(callbacks, "demo:run echo hi")
        callback, final = await callbacks.final(message)
    assert "Review the conversation" in (plugin / "reviewed").read_text()
    assert callback.content.startswith("The tool answered:")
    assert final.usage is not None
    assert final.usage.input_tokens == 20, "two calls of the agent, none of the review"
