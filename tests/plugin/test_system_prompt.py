"""System prompts of messages, in the real Hermes gateway."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from a2a.server.tasks import InMemoryTaskStore

from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.transports.plugin.transport import PluginTransport
from tests.support.gateway import SECRET, callback_server, running_hermes
from tests.support.peers import ask, peer
from tests.support.recorded_model import RecordedModel, recorded_model
from tests.support.workspace_platform import served

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


async def test_two_executors_with_prompts_of_their_own_share_a_conversation(
    tmp_path: Path,
) -> None:
    sent = [("the first", PIRATE), ("the second", POET), ("the third", PIRATE)]
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(recorded_model())
        over = {"model": {"base_url": model.url}}
        hermes = await stack.enter_async_context(running_hermes(tmp_path, over=over))
        clients = {}
        for prompt in (PIRATE, POET):
            transport = PluginTransport(hermes.url(""), secret=SECRET)
            await stack.enter_async_context(transport)
            executor = HermesAgentProxyExecutor(transport, system_prompt=prompt)
            url = await stack.enter_async_context(served(executor, InMemoryTaskStore()))
            clients[prompt] = await stack.enter_async_context(peer(url))
        for text, prompt in sent:
            turn = await ask(clients[prompt], text, "one conversation")
            assert turn.states[-1] == "COMPLETED"
    for text, prompt in sent:
        assert prompts_of(model, text) == {prompt}, text
    earlier = turn.text.partition("Earlier in this conversation")[2]
    assert "the first" in earlier
    assert "the second" in earlier


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
