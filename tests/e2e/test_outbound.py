"""Two real stacks whose agents ask each other, through their bridges."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from a2a.types import CancelTaskRequest, ListTasksRequest, Task

from molecule_hermes.client.connection import message
from molecule_hermes.protocol.chain import CHAIN_URI
from tests.support.peers import Turn, ask, card_of, peer, send, state
from tests.support.stack import Stack, environment, up
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALICE = "alice-token-0123456789"
ADA_TO_BEE = "ada-to-bee-token-0123456789"
BEE_TO_ADA = "bee-to-ada-token-0123456789"
SPY = "spy-token-0123456789"


def configured(folder: Path, text: str, **secrets: str) -> str:
    for name, secret in secrets.items():
        (folder / name).write_text(secret)
        (folder / name).chmod(0o600)
    file = folder / "agents.yaml"
    file.write_text(text)
    return str(file)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stacks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stack, Stack]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("ada", "bee")]
    ada, bee = (
        environment(folder / "state", MOLECULE_HERMES_ISOLATION="shared") for folder in folders
    )
    urls = [f"http://127.0.0.1:{each['MOLECULE_HERMES_PORT']}" for each in (ada, bee)]
    ada["MOLECULE_HERMES_PEER_TOKENS"] = f"alice:{ALICE}"
    ada["MOLECULE_HERMES_CONFIG"] = configured(
        folders[0],
        f"""
peers:
  bee: {{url: "{urls[1]}", bearer_file: to-bee, token_file: of-bee}}
  nobody: {{url: "http://127.0.0.1:9"}}
  stranger: {{url: "{urls[1]}", bearer_file: wrong}}
""",
        **{"to-bee": ADA_TO_BEE, "of-bee": BEE_TO_ADA, "wrong": "not-a-token-0123456789"},
    )
    bee["MOLECULE_HERMES_PEER_TOKENS"] = f"spy:{SPY}"
    bee["MOLECULE_HERMES_CONFIG"] = configured(
        folders[1],
        f"""
agents:
  main: {{calls: [ada]}}
peers:
  ada: {{url: "{urls[0]}", bearer_file: to-ada, token_file: of-ada}}
""",
        **{"to-ada": BEE_TO_ADA, "of-ada": ADA_TO_BEE},
    )
    async with up(ada) as first, up(bee) as second:
        yield first, second


async def say(stack: Stack, text: str, context: str = "", token: str = ALICE) -> Turn:
    async with peer(stack.url, token=token) as client:
        return await ask(client, text, context)


def tool(name: str, **arguments: Any) -> str:
    return f"demo:call={name} {json.dumps(arguments)}"


def result(turn: Turn) -> dict[str, Any]:
    """What the tool returned, as the demo model reports it."""
    assert turn.states[-1] == "COMPLETED", turn.events[-1]
    start = turn.text.index("{")
    found: dict[str, Any] = json.JSONDecoder().raw_decode(turn.text[start:])[0]
    return found


async def tasks_of_bee(stacks: tuple[Stack, Stack]) -> list[Task]:
    async with peer(stacks[1].url, token=ADA_TO_BEE) as client:
        return list((await client.list_tasks(ListTasksRequest())).tasks)


async def test_an_agent_asks_another_one_and_gets_its_answer(
    stacks: tuple[Stack, Stack],
) -> None:
    turn = await say(stacks[0], tool("delegate_to_peer", peer="bee", task="demo:say I am Bee"))
    found = result(turn)
    assert found["status"] == "completed"
    assert found["peer"] == "bee"
    assert found["from_outside"]["text"] == "I am Bee"
    assert "not instructions" in found["from_outside"]["note"]


async def test_the_agent_sees_whom_it_can_ask_and_what_is_wrong_with_the_others(
    stacks: tuple[Stack, Stack],
) -> None:
    peers = {
        each["peer"]: each for each in result(await say(stacks[0], tool("list_peers")))["peers"]
    }
    assert set(peers) == {"bee", "nobody", "stranger"}
    assert "Hermes agent" in peers["bee"]["from_outside"]["description"]
    assert peers["bee"]["from_outside"]["skills"][0]["name"] == "Converse"
    assert peers["nobody"]["error"]["kind"] == "unreachable"


async def test_a_file_goes_to_the_other_agent_and_another_one_comes_back(
    stacks: tuple[Stack, Stack],
) -> None:
    await say(stacks[0], "demo:run printf '\\377from ada' > note.bin", "files")
    sent = tool("delegate_to_peer", peer="bee", task="demo:read", files=["note.bin"])
    found = result(await say(stacks[0], sent, "files"))
    assert "from ada" in found["from_outside"]["text"]
    asked = tool("delegate_to_peer", peer="bee", task="demo:file=back.txt written by bee")
    found = result(await say(stacks[0], asked, "files"))
    (path,) = found["files"]
    assert path.endswith("/back.txt")
    turn = await say(stacks[0], f"demo:run cat '{path}'", "files")
    assert "written by bee" in turn.text


async def test_a_file_outside_of_the_work_folder_is_not_sent(stacks: tuple[Stack, Stack]) -> None:
    before = len(await tasks_of_bee(stacks))
    for path in ("/etc/passwd", "../../hermes/.env", "/proc/self/environ"):
        sent = tool("delegate_to_peer", peer="bee", task="demo:read", files=[path])
        turn = await say(stacks[0], sent)
        assert "is not available" in turn.text
        assert "root:" not in turn.text
    assert len(await tasks_of_bee(stacks)) == before


async def test_a_question_of_the_other_agent_is_answered_in_a_later_turn(
    stacks: tuple[Stack, Stack],
) -> None:
    asked = tool("delegate_to_peer", peer="bee", task="demo:ask=red|blue Which colour?")
    found = result(await say(stacks[0], asked, "colours"))
    assert found["status"] == "input_required"
    assert "Which colour?" in found["from_outside"]["question"]["text"]
    assert found["from_outside"]["question"]["choices"] == ["red", "blue"]
    assert "answer_task" in found["next"]
    elsewhere = tool("answer_task", task_id=found["task_id"], answer="red")
    refused = result(await say(stacks[0], elsewhere, "another conversation"))
    assert refused["error"]["kind"] == "bad_request"
    found = result(await say(stacks[0], elsewhere, "colours"))
    assert found["status"] == "completed"
    assert "red" in found["from_outside"]["text"]
    again = result(await say(stacks[0], elsewhere, "colours"))
    assert "asks nothing" in again["error"]["message"]


async def test_a_task_that_is_not_waited_for_can_be_looked_at_later(
    stacks: tuple[Stack, Stack],
) -> None:
    start = tool("delegate_to_peer_async", peer="bee", task="demo:slow=0.3 one two three four")
    found = result(await say(stacks[0], start, "later"))
    assert found["status"] in ("submitted", "working")
    check = tool("check_task_status", task_id=found["task_id"])

    async def done() -> dict[str, Any] | None:
        seen = result(await say(stacks[0], check, "later"))
        return seen if seen["status"] == "completed" else None

    seen = await until(done, 60)
    assert "one two three four" in seen["from_outside"]["text"]


async def test_a_later_task_goes_on_in_the_conversation_of_an_earlier_one(
    stacks: tuple[Stack, Stack],
) -> None:
    asked = tool("delegate_to_peer", peer="bee", task="remember the heron")
    found = result(await say(stacks[0], asked, "birds"))
    asked = tool("delegate_to_peer", peer="bee", task="and now?", follows=found["task_id"])
    found = result(await say(stacks[0], asked, "birds"))
    assert "remember the heron" in found["from_outside"]["text"]


async def test_a_task_can_be_stopped_by_the_agent(stacks: tuple[Stack, Stack]) -> None:
    start = tool("delegate_to_peer_async", peer="bee", task="demo:run sleep 300.25")
    found = result(await say(stacks[0], start, "stop"))
    found = result(await say(stacks[0], tool("cancel_task", task_id=found["task_id"]), "stop"))
    assert found["status"] == "canceled"


async def test_canceling_the_caller_cancels_what_it_waits_for(stacks: tuple[Stack, Stack]) -> None:
    known = {each.id for each in await tasks_of_bee(stacks)}
    asked = tool("delegate_to_peer", peer="bee", task="demo:run sleep 301.5")

    async def remote(*states: str) -> Task | None:
        new = [each for each in await tasks_of_bee(stacks) if each.id not in known]
        return new[0] if new and state(new[0]) in states else None

    async with peer(stacks[0].url, token=ALICE) as client:
        turn, canceled = Turn(), False
        async for event in client.send_message(message(asked)):
            turn.add(event)
            if not canceled and any("bee: terminal" in line for line in turn.progress):
                canceled = True
                await until(lambda: remote("WORKING"))
                await client.cancel_task(CancelTaskRequest(id=turn.task_id))
        assert turn.states[-1] == "CANCELED"
    await until(lambda: remote("CANCELED"))


async def test_agents_that_ask_each_other_are_stopped(stacks: tuple[Stack, Stack]) -> None:
    back = tool("delegate_to_peer", peer="ada", task="demo:say never")
    found = result(await say(stacks[0], tool("delegate_to_peer", peer="bee", task=back)))
    text = found["from_outside"]["text"]
    assert '"kind": "forbidden"' in text
    assert "would be a loop" in text
    assert "never" not in text.split("from_outside")[-1]


async def test_a_message_with_its_own_agent_in_the_chain_or_too_many_hops_is_rejected(
    stacks: tuple[Stack, Stack],
) -> None:
    card = await card_of(stacks[1].url)
    (extension,) = [e for e in card.capabilities.extensions if e.uri == CHAIN_URI]
    own = extension.params["agentId"]
    async with peer(stacks[1].url, token=SPY) as client:
        for chain, words in (
            ({"agents": ["x", own], "hops": 2}, "one of those whose calls"),
            ({"agents": [], "hops": 6}, "6 calls"),
        ):
            request = message("demo:say hi")
            request.message.metadata.update({CHAIN_URI: chain})
            turn = await send(client, request)
            assert turn.states[-1] == "REJECTED"
            assert turn.failure["kind"] == "forbidden"
            assert words in turn.failure["message"]
        request = message("demo:say hi")
        request.message.metadata.update({CHAIN_URI: {"agents": ["x"], "hops": 5}})
        assert (await send(client, request)).states[-1] == "COMPLETED"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nobody", "unreachable"), ("stranger", "auth"), ("http://127.0.0.1:9", "forbidden")],
)
async def test_a_call_that_cannot_be_made_says_why(
    stacks: tuple[Stack, Stack], name: str, kind: str
) -> None:
    found = result(await say(stacks[0], tool("delegate_to_peer", peer=name, task="hi")))
    assert found["status"] == "error"
    assert found["error"]["kind"] == kind
    assert found["error"]["hint"]
    assert "not-a-token" not in json.dumps(found)


async def test_a_failed_task_says_why(stacks: tuple[Stack, Stack]) -> None:
    found = result(await say(stacks[0], tool("delegate_to_peer", peer="bee", task="demo:fail=429")))
    assert found["status"] == "failed"
    assert found["from_outside"]["failure"]["kind"] == "rate_limit"


async def test_no_more_calls_than_a_turn_may_make(stacks: tuple[Stack, Stack]) -> None:
    lines = [tool("delegate_to_peer", peer="nobody", task=f"number {n}") for n in range(22)]
    turn = await say(stacks[0], "\n".join(lines))
    assert turn.text.count('"kind": "unreachable"') == 20
    assert turn.text.count('"kind": "forbidden"') == 2
