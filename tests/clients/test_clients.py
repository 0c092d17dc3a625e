"""Other people's A2A clients against the real Hermes; `docs/clients.md` has the results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from operator import attrgetter
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients.clients import CLIENTS, Client
from tests.clients.driver import Driver, driving
from tests.support.stack import Stack, environment, up

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.clients,
    pytest.mark.hermes,
]

StartDriver = Callable[[Client], Awaitable[Driver]]

SENTENCE = "A reply of a few words, written one by one"


def each_client(ability: str) -> pytest.MarkDecorator:
    """Runs a test with each client that has the ability."""
    return _with([client for client in CLIENTS if client.can(ability)])


def only(name: str) -> pytest.MarkDecorator:
    return _with([client for client in CLIENTS if client.name == name])


def _with(clients: list[Client]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("driver", clients, indirect=True, ids=attrgetter("name"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folder: Path) -> AsyncIterator[Stack]:
    environ = environment(
        folder,
        MOLECULE_A2A_PLATFORM_ENABLED="true",
        # One client leaves a question without an answer: do not wait for it at the end.
        MOLECULE_HERMES_DRAIN_TIMEOUT="1",
    )
    async with up(environ) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def start_driver(stack: Stack, folder: Path) -> AsyncIterator[StartDriver]:
    """Starts a client's driver when it is first used, and keeps it: imports take seconds."""
    running: dict[str, Driver] = {}
    async with AsyncExitStack() as drivers:

        async def start(client: Client) -> Driver:
            if client.name not in running:
                started = driving(client, stack.url, folder)
                running[client.name] = await drivers.enter_async_context(started)
            return running[client.name]

        yield start


@pytest_asyncio.fixture(loop_scope="module")
async def driver(request: pytest.FixtureRequest, start_driver: StartDriver) -> Driver:
    return await start_driver(request.param)


@each_client("send")
async def test_a_message_gets_its_reply(driver: Driver) -> None:
    shown = await driver("send", text=f"demo:say {SENTENCE}")
    assert shown["text"] == SENTENCE


@each_client("stream")
async def test_a_reply_is_shown_while_it_is_written_and_is_whole_at_the_end(
    driver: Driver,
) -> None:
    shown = await driver("stream", text=f"demo:slow=0.1\ndemo:say {SENTENCE}")
    assert len(shown["pieces"]) > 3
    assert len(shown["pieces"][0]) < len(SENTENCE) / 2
    assert shown["text"] == SENTENCE


@each_client("stream")
async def test_a_tools_progress_is_no_part_of_the_reply(driver: Driver) -> None:
    shown = await driver("stream", text="demo:run echo ready")
    assert shown["text"].startswith("The tool answered:")
    assert shown["text"].count("ready") == 1


@each_client("context")
async def test_the_second_message_of_a_conversation_continues_it(driver: Driver) -> None:
    shown = await driver("context", first="My name is Ada", second="What is my name?")
    assert "Earlier in this conversation you said: My name is Ada" in shown["text"]


@each_client("cancel")
async def test_a_running_task_is_canceled(driver: Driver) -> None:
    shown = await driver("cancel", text="demo:slow=0.2 demo:words=300")
    assert shown["states"] == ["canceled", "canceled"]


@each_client("answer")
async def test_a_question_is_shown_as_text_and_answered(driver: Driver) -> None:
    shown = await driver("answer", text="demo:ask=red|blue Which colour?", answer="blue")
    assert "Which colour?" in shown["question"]
    assert "questionId" not in shown["question"]
    assert "<data>" not in shown["question"]
    assert '"user_response": "blue"' in shown["text"]


@each_client("attach")
async def test_a_file_reaches_the_agent(driver: Driver) -> None:
    shown = await driver("attach", text="Read it", name="note.txt", content="the inside of a note")
    assert "the inside of a note" in shown["text"]


@each_client("receive")
async def test_a_file_from_the_agent_arrives_with_its_name(driver: Driver) -> None:
    shown = await driver("receive", text="demo:file=notes.txt Hello")
    assert shown["files"] == {"notes.txt": "Hello"}


@each_client("fail")
async def test_a_failure_is_shown_with_its_reason_as_text(driver: Driver) -> None:
    shown = await driver("fail", text="demo:fail=401")
    assert "Incorrect API key provided" in shown["text"]
    assert "retryable" not in shown["text"]
    assert "<data>" not in shown["text"]


@only("google-adk")
async def test_an_adk_parent_calls_the_agent_as_a_tool(driver: Driver) -> None:
    shown = await driver("as_tool", text=f"demo:slow=0.05\ndemo:say {SENTENCE}")
    assert shown["text"] == f"The tool said: {SENTENCE}"


@only("google-adk")
async def test_an_adk_parent_transfers_to_the_agent(driver: Driver) -> None:
    shown = await driver("as_sub_agent", text=f"demo:slow=0.05\ndemo:say {SENTENCE}")
    assert shown["text"] == SENTENCE


@only("litellm")
async def test_litellm_takes_the_agent_for_a_model(driver: Driver) -> None:
    shown = await driver("complete", text=f"demo:say {SENTENCE}")
    assert shown["text"] == SENTENCE


# The limits of clients that docs/clients.md names: a newer version may lift them.


@only("strands")
async def test_strands_shows_a_question_and_cannot_answer_it(driver: Driver) -> None:
    shown = await driver("ask", text="demo:ask=red|blue Which colour?")
    assert "Which colour?" in shown["question"]
    assert shown["stopped"] == "interrupt"


@only("agent-framework")
async def test_agent_framework_hides_the_reason_of_a_failure_unless_it_streams(
    driver: Driver,
) -> None:
    shown = await driver("send", text="demo:fail=401")
    assert "Incorrect API key provided" not in shown["text"]


@only("litellm")
async def test_litellms_client_waits_for_the_whole_reply_even_to_stream(driver: Driver) -> None:
    shown = await driver("stream_with_client", text=f"demo:slow=0.1\ndemo:say {SENTENCE}")
    assert shown["kinds"] == ["task"]


@only("litellm")
async def test_litellm_repeats_a_reply_that_it_streams_as_a_completion(driver: Driver) -> None:
    shown = await driver("complete_streaming", text=f"demo:slow=0.1\ndemo:say {SENTENCE}")
    assert shown["text"] == SENTENCE * 2
    shown = await driver("complete_streaming", text="demo:run echo ready")
    assert "terminal: echo ready" in shown["text"]
