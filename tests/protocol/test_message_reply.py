"""The reply as one Message: under the SDK's request handler, and from our own server."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from a2a.helpers import get_text_parts
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import (
    CancelTaskRequest,
    ListTasksRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    Task,
)
from google.protobuf import json_format

from molecule_hermes.client.connection import message
from molecule_hermes.errors import Unreachable
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.turns.model import (
    Completed,
    Failed,
    FileProduced,
    Question,
    TextDelta,
    ToolProgress,
    TurnEvent,
    Usage,
)
from tests.conftest import StartBridge
from tests.support.fakes import Answered, ScriptedTransport
from tests.support.peers import peer
from tests.support.waiting import until
from tests.support.workspace_platform import Workspace, served

pytestmark = pytest.mark.timeout(60)

APPROVAL = Question("q1", "approval", "recursive delete\n\nrm -rf /data", ("once", "deny"))
SCRIPT = (
    TextDelta("I look. "),
    ToolProgress("terminal", "start", "ls -l"),
    ToolProgress("terminal", "end", "ls -l", duration=0.1, ok=True, output="a.txt"),
    FileProduced("a.txt", "text/plain", b"file", caption="here"),
    TextDelta("The answer", replace=True),
    TextDelta(" is 42."),
    Completed("The answer is 42.", Usage(1, 2, 3, "m")),
)
Script = TurnEvent | float | asyncio.Event | Exception | Answered


def executor(*script: Script, **options: Any) -> HermesAgentProxyExecutor:
    transport = ScriptedTransport(*script)
    return HermesAgentProxyExecutor(transport, asks=False, replies_with_message=True, **options)


async def reply(url: str, request: SendMessageRequest, *, streaming: bool) -> Message:
    """The one event that a peer gets."""
    async with peer(url, streaming=streaming) as client:
        events: list[StreamResponse] = [event async for event in client.send_message(request)]
    assert [event.WhichOneof("payload") for event in events] == ["message"]
    return events[0].message


def metadata(reply: Message) -> dict[str, Any]:
    return dict(json_format.MessageToDict(reply.metadata))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("server", ["the SDK's", "ours"])
async def test_a_turn_is_answered_by_exactly_one_message(
    server: str, streaming: bool, bridge: StartBridge
) -> None:
    request = message("go", "ctx")
    if server == "ours":
        async with bridge(ScriptedTransport(*SCRIPT), REPLY="message") as b:
            got = await reply(b.url, request, streaming=streaming)
    else:
        async with served(executor(*SCRIPT)) as url:
            got = await reply(url, request, streaming=streaming)
    assert get_text_parts(got.parts) == ["The answer is 42."]
    assert [part.WhichOneof("content") for part in got.parts] == ["text", "raw"]
    assert (got.parts[1].raw, got.parts[1].filename) == (b"file", "a.txt")
    assert got.context_id == "ctx"
    about = metadata(got)
    assert about["usage"]["totalTokens"] == 3
    trace = {"tool": "terminal", "input": "ls -l", "output_preview": "a.txt"}
    assert about["tool_trace"] == [trace]


async def test_a_failure_is_text_with_its_kind_and_hint_and_keeps_what_was_streamed() -> None:
    failed = Failed(Unreachable("Hermes is away", hint="start it"))
    async with served(executor(TextDelta("half an answer"), failed)) as url:
        got = await reply(url, message("go"), streaming=True)
    (text,) = get_text_parts(got.parts)
    assert text.startswith("half an answer\n\n")
    assert all(word in text for word in ("unreachable", "Hermes is away", "start it"))
    assert got.parts[1].data.struct_value["kind"] == "unreachable"


async def test_a_file_that_the_client_does_not_accept_is_named_in_the_text() -> None:
    request = message("go")
    request.configuration.accepted_output_modes.append("text/plain")
    script = FileProduced("cat.png", "image/png", b"meow"), Completed("Here.")
    async with served(executor(*script)) as url:
        got = await reply(url, request, streaming=False)
    (text,) = get_text_parts(got.parts)
    assert len(got.parts) == 1
    assert text.startswith("Here.\n\n")
    assert "cat.png (image/png) was not sent" in text


async def test_an_empty_prompt_is_answered_in_words() -> None:
    async with served(executor()) as url:
        got = await reply(url, message("  "), streaming=False)
    assert get_text_parts(got.parts) == ["(empty prompt — nothing to do)"]


async def test_a_command_that_needs_approval_is_denied_and_the_reply_says_so() -> None:
    clarify = Question("q2", "clarify", "which one?", ("a", "b"))
    script = (APPROVAL, Answered(), clarify, Answered(), Completed("I did not delete anything."))
    transport = ScriptedTransport(*script)
    asked = HermesAgentProxyExecutor(transport, asks=False, replies_with_message=True)
    async with served(asked) as url:
        got = await reply(url, message("go"), streaming=False)
    (text,) = get_text_parts(got.parts)
    assert text.startswith("I did not delete anything.\n\n(denied")
    assert "rm -rf /data" in text
    assert "which one" not in text
    assert transport.answers[0] == ("q1", "deny")
    assert len(transport.answers) == 2


async def test_a_turn_that_takes_too_long_is_stopped_and_answered() -> None:
    transport = ScriptedTransport(TextDelta("so far"), asyncio.Event())
    slow = HermesAgentProxyExecutor(
        transport, asks=False, replies_with_message=True, turn_timeout=0.3
    )
    async with served(slow) as url:
        got = await reply(url, message("go"), streaming=False)
    assert "so far" in got.parts[0].text
    assert "timeout" in got.parts[0].text
    assert slow.turns == 0


async def test_a_canceled_turn_stops_hermes_and_is_answered() -> None:
    transport = ScriptedTransport(TextDelta("so far"), asyncio.Event())
    running = HermesAgentProxyExecutor(transport, asks=False, replies_with_message=True)
    async with served(running) as url:
        waiting = asyncio.create_task(reply(url, message("go"), streaming=False))
        await until(lambda: bool(transport.turns))
        context = RequestContext(ServerCallContext(), task_id=transport.turns[0].task_id)
        await running.cancel(context, _Nowhere())
        got = await waiting
    assert got.parts[0].text == "so far\n\n(canceled)"
    assert transport.all_canceled()


class _Nowhere:
    async def enqueue_event(self, event: object) -> None:
        raise AssertionError("the reply goes to the queue of its own request")


async def test_a_streamed_task_ends_as_one_text_part_in_the_sdks_store() -> None:
    transport = ScriptedTransport(TextDelta("a"), 0.1, TextDelta("b"), 0.1, Completed("ab"))
    async with (
        served(HermesAgentProxyExecutor(transport)) as url,
        peer(url, streaming=False) as client,
    ):
        (event,) = [e async for e in client.send_message(message("go"))]
    assert [part.text for part in event.task.artifacts[0].parts] == ["ab"]


# Our own server keeps the task behind the message.


async def test_a_message_that_is_sent_again_gets_the_same_reply(bridge: StartBridge) -> None:
    transport = ScriptedTransport(Completed("once"))
    request = message("go", "ctx")
    async with bridge(transport, REPLY="message") as b:
        first = await reply(b.url, request, streaming=False)
        again = await reply(b.url, request, streaming=True)
    assert first.parts == again.parts
    assert len(transport.turns) == 1


async def test_the_task_behind_a_message_can_be_listed_and_canceled(bridge: StartBridge) -> None:
    transport = ScriptedTransport(TextDelta("so far"), asyncio.Event())
    async with bridge(transport, REPLY="message") as b, peer(b.url) as client:
        waiting = asyncio.create_task(reply(b.url, message("go", "ctx"), streaming=True))
        tasks: list[Task] = []

        async def listed() -> bool:
            page = await client.list_tasks(ListTasksRequest(context_id="ctx"))
            tasks[:] = page.tasks
            return bool(tasks)

        await until(listed)
        await client.cancel_task(CancelTaskRequest(id=tasks[0].id))
        got = await waiting
    assert got.parts[0].text.endswith("(canceled)")
    assert transport.all_canceled()


async def test_a_0_3_client_of_our_server_reads_the_first_part(bridge: StartBridge) -> None:
    transport = ScriptedTransport(APPROVAL, Answered(), Completed("done without it"))
    async with bridge(transport, REPLY="message") as b, httpx.AsyncClient(timeout=30) as http:
        got = await Workspace(b.url, http).send("go")
    assert got.text.startswith("done without it")
    assert "rm -rf /data" in got.text
    assert got.kinds == ["text"]
