"""Every feature on the real Hermes, over each transport that has it (`turns/features.py`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from a2a.client import Client
from a2a.helpers import new_data_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    StreamResponse,
    SubscribeToTaskRequest,
)
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError

from molecule_hermes.client.connection import message
from molecule_hermes.turns.features import Feature, TransportName
from tests.support.features import skip_unless_the_table_says_so
from tests.support.peers import Turn, ask, peer, reply_text, send, state
from tests.support.stack import Stack, environment, processes, up
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"


@pytest.fixture(scope="module", params=["plugin", "chat"])
def way(request: pytest.FixtureRequest) -> TransportName:
    found: TransportName = request.param
    return found


@pytest.fixture(autouse=True)
def _as_the_table_says(request: pytest.FixtureRequest, way: TransportName) -> None:
    skip_unless_the_table_says_so(request, way)


def settings(folder: Path, way: TransportName, **more: str) -> dict[str, str]:
    environ = environment(
        folder,
        MOLECULE_HERMES_PEER_TOKENS=f"alice:{ALICE},bob:{BOB}",
        MOLECULE_A2A_PLATFORM_ENABLED="true" if way == "plugin" else "false",
        **more,
    )
    # One retry less: a provider's 500 is told in three seconds instead of eight.
    home = Path(environ["MOLECULE_HERMES_STATE_DIR"]) / "hermes"
    home.mkdir()
    (home / "config.yaml").write_text("agent:\n  api_max_retries: 2\n")
    return environ


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tmp_path_factory: pytest.TempPathFactory, way: TransportName, outside: Path
) -> AsyncIterator[Stack]:
    writable = {"MOLECULE_HERMES_WRITABLE": str(outside)}
    async with up(settings(tmp_path_factory.mktemp("stack"), way, **writable)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def alice(stack: Stack) -> AsyncIterator[Client]:
    async with peer(stack.url, token=ALICE) as client, asyncio.timeout(60):
        yield client


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the agent may write to besides its own."""
    return tmp_path_factory.mktemp("outside")


@pytest.fixture
def victim(outside: Path, tmp_path: Path) -> Path:
    """A folder that a dangerous command would remove."""
    folder = outside / tmp_path.name
    folder.mkdir()
    (folder / "precious").write_text("x")
    return folder


@pytest.mark.feature(Feature.TEXT)
@pytest.mark.parametrize(
    "said",
    [
        "demo:slow=0.02 Grüße, 世界, 👩‍👩‍👧‍👦 and e\u0301 in many small pieces",
        "demo:words=3000",
        "demo:slow=0.02 demo:run echo between",
    ],
)
async def test_updates_stored_artifact_and_reply_have_the_same_text(
    alice: Client, said: str
) -> None:
    turn = await ask(alice, said)
    task = await alice.get_task(GetTaskRequest(id=turn.task_id))
    assert turn.states[-1] == "COMPLETED"
    assert turn.text == reply_text(task)
    assert turn.updates > 1
    if "Grüße" in said:
        assert "Grüße, 世界, 👩‍👩‍👧‍👦 and e\u0301 in many small pieces" in turn.text
    if "words" in said:
        assert turn.text.split() == [f"word{i}" for i in range(3000)]


@pytest.mark.feature(Feature.CORRECTIONS)
async def test_interim_text_is_shown_and_then_replaced(alice: Client) -> None:
    turn = await ask(alice, "demo:run echo hi")
    updates = [e.artifact_update for e in turn.events if e.HasField("artifact_update")]
    shown = "".join(u.artifact.parts[0].text for u in updates)
    assert "I will run that now." in shown
    assert any(not u.append for u in updates[1:-1])
    assert turn.text.startswith("The tool answered:")


@pytest.mark.feature(Feature.TOOLS)
async def test_a_tool_shows_when_it_starts_and_when_it_ends(alice: Client) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz123456"
    turn = await ask(alice, f"demo:run echo {secret} {'long ' * 100}")
    tools = [data["tool"] for data in turn.data if "tool" in data]
    assert [(t["tool"], t["phase"]) for t in tools] == [("terminal", "start"), ("terminal", "end")]
    assert tools[0]["preview"].startswith("echo")
    assert len(tools[0]["preview"]) <= 200
    assert secret not in str(tools)
    assert secret not in " ".join(turn.progress)
    assert any(line.startswith("terminal: echo") for line in turn.progress)


@pytest.mark.feature(Feature.TOOL_FIGURES)
async def test_a_tools_end_says_how_long_it_took_and_whether_it_worked(alice: Client) -> None:
    turn = await ask(alice, "demo:run sleep 0.3")
    (end,) = [d["tool"] for d in turn.data if d.get("tool", {}).get("phase") == "end"]
    assert end["ok"] is True
    assert end["duration"] >= 0.3


@pytest.mark.feature(Feature.NOTICES)
async def test_retries_of_hermes_are_reported(alice: Client) -> None:
    turn = await ask(alice, "demo:fail=429")
    notices = [data["notice"] for data in turn.data if "notice" in data]
    assert "the model call failed (rate_limit); retry 1 of 1" in notices, turn.progress
    assert turn.failure["kind"] == "rate_limit"
    assert turn.failure["retryable"] is True


@pytest.mark.feature(Feature.APPROVALS)
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_a_dangerous_command_runs_only_when_the_peer_says_yes(
    stack: Stack, victim: Path, answer: str, streaming: bool
) -> None:
    async with peer(stack.url, token=ALICE, streaming=streaming) as client, asyncio.timeout(60):
        asked = await ask(client, f"demo:run rm -rf {victim}")
        assert asked.question["kind"] == "approval"
        assert asked.question["choices"] == ["once", "session", "deny"]
        assert asked.question["command"] == f"rm -rf {victim}"
        assert victim.exists()
        done = await ask(client, answer, task_id=asked.task_id)
        task = await client.get_task(GetTaskRequest(id=asked.task_id))
    assert done.task_id == asked.task_id
    assert done.states[-1] == state(task) == "COMPLETED"
    assert victim.exists() is (answer == "no")
    assert reply_text(task).startswith("The tool answered:")


@pytest.mark.feature(Feature.APPROVALS)
async def test_neither_an_unknown_choice_nor_another_peer_approves_a_command(
    stack: Stack, alice: Client, victim: Path
) -> None:
    asked = await ask(alice, f"demo:run rm -rf {victim}")
    again = await ask(alice, "always", task_id=asked.task_id)
    assert again.question["questionId"] == asked.question["questionId"]
    assert "not one of the choices" in again.question["remark"]
    async with peer(stack.url, token=BOB) as bob:
        with pytest.raises(TaskNotFoundError):
            await ask(bob, "yes", task_id=asked.task_id)
    request = message("", task_id=asked.task_id)
    del request.message.parts[:]
    answer = {"questionId": asked.question["questionId"], "answer": "deny"}
    request.message.parts.append(new_data_part(answer))
    assert (await send(alice, request)).states[-1] == "COMPLETED"
    assert victim.exists()


@pytest.mark.feature(Feature.APPROVALS)
async def test_a_task_that_asks_can_be_canceled_and_the_command_never_runs(
    alice: Client, victim: Path
) -> None:
    asked = await ask(alice, f"demo:run rm -rf {victim}", "cancel-question")
    task = await alice.cancel_task(CancelTaskRequest(id=asked.task_id))
    after = await ask(alice, "yes", "cancel-question")
    assert state(task) == "CANCELED"
    assert after.states[-1] == "INPUT_REQUIRED" or after.states[-1] == "COMPLETED"
    assert victim.exists()
    if after.states[-1] == "INPUT_REQUIRED":
        # Hermes puts the canceled message in front of the next: the demo model obeys it again.
        await alice.cancel_task(CancelTaskRequest(id=after.task_id))


@pytest.mark.without(Feature.APPROVALS)
async def test_where_nobody_can_be_asked_a_dangerous_command_does_not_run(
    alice: Client, victim: Path
) -> None:
    turn = await ask(alice, f"demo:run rm -rf {victim}")
    assert turn.states[-1] == "COMPLETED"
    assert "approval" in turn.text
    assert victim.exists()


@pytest.mark.feature(Feature.APPROVALS)
async def test_an_operator_can_deny_all_approvals_and_no_answer_is_a_denial(
    tmp_path: Path, way: TransportName, outside: Path, victim: Path
) -> None:
    environ = settings(
        tmp_path / "stack",
        way,
        MOLECULE_HERMES_WRITABLE=str(outside),
        MOLECULE_HERMES_APPROVALS="deny",
        MOLECULE_HERMES_QUESTION_TIMEOUT="1",
    )
    async with up(environ) as strict, peer(strict.url, token=ALICE) as client:
        denied = await ask(client, f"demo:run rm -rf {victim}", "ctx")
        assert "INPUT_REQUIRED" not in denied.states
        assert denied.states[-1] == "COMPLETED"
        assert victim.exists()
        asked = await ask(client, "demo:ask Which colour?", "ctx")
        assert asked.question["kind"] == "clarify"
        waited = await _watch(client, asked.task_id)
        assert waited.states[-1] == "COMPLETED"
        assert "Nobody can be asked" in waited.text


@pytest.mark.feature(Feature.CLARIFICATIONS)
@pytest.mark.parametrize("answer", ["blue", "rather green"])
async def test_a_question_of_the_agent_is_answered_in_words(alice: Client, answer: str) -> None:
    asked = await ask(alice, "demo:ask=red|blue Which colour?")
    assert "Which colour?" in asked.progress[-1]
    assert asked.question["kind"] == "clarify"
    assert asked.question["choices"] == ["red", "blue"]
    done = await ask(alice, answer, task_id=asked.task_id)
    assert done.states[-1] == "COMPLETED"
    assert answer in done.text


@pytest.mark.feature(Feature.CANCEL)
@pytest.mark.parametrize("when", ["before the first event", "while it writes", "in line"])
async def test_a_cancel_keeps_the_text_and_frees_the_conversation(alice: Client, when: str) -> None:
    context = f"cancel {when}"
    first = task = None
    if when == "in line":
        first = asyncio.create_task(ask(alice, "demo:slow=0.2 a b c d e f g h", context))

        async def has_begun() -> bool:
            tasks = (await alice.list_tasks(ListTasksRequest(context_id=context))).tasks
            return any(state(task) == "WORKING" for task in tasks)

        await until(has_begun)
    turn = Turn()
    said = "demo:hang" if when == "before the first event" else "demo:slow=0.1 a b c d e f g h i j"
    async for event in alice.send_message(message(said, context)):
        turn.add(event)
        now = turn.updates == 3 if when == "while it writes" else len(turn.events) == 2
        if now and not task:
            task = await alice.cancel_task(CancelTaskRequest(id=turn.task_id))
            with pytest.raises(TaskNotCancelableError):
                await alice.cancel_task(CancelTaskRequest(id=turn.task_id))
    assert task is not None
    assert turn.states[-1] == state(task) == "CANCELED"
    assert turn.text == reply_text(task)
    assert bool(turn.text) is (when == "while it writes")
    if first is not None:
        assert (await first).states[-1] == "COMPLETED"
    after = await ask(alice, "demo:words=1 still there?", f"{context}, after")
    assert after.states[-1] == "COMPLETED"


@pytest.mark.feature(Feature.CANCEL_TOOLS)
async def test_a_cancel_kills_the_tool_and_the_conversation_goes_on_at_once(alice: Client) -> None:
    seconds = f"{600 + os.getpid() % 1000}.25"
    stream = alice.send_message(message(f"demo:run sleep {seconds}", "kill"))
    task_id = (await anext(stream)).task.id
    running = await until(lambda: processes(seconds))
    await alice.cancel_task(CancelTaskRequest(id=task_id))
    await until(lambda: not any(process.is_running() for process in running), 3.0)
    after = await ask(alice, "demo:words=2", "kill")
    assert after.states[-1] == "COMPLETED"
    task = await alice.get_task(GetTaskRequest(id=task_id))
    assert state(task) == "CANCELED"
    # Hermes passes its text and its tools on separately: the cancel may come between them.
    assert reply_text(task) in ("I will run that now.", "")


@pytest.mark.feature(Feature.TOKENS)
async def test_the_end_reports_the_usage(alice: Client) -> None:
    turn = await ask(alice, "demo:words=7")
    task = await alice.get_task(GetTaskRequest(id=turn.task_id))
    assert task.metadata["usage"]["outputTokens"] == 7
    assert task.metadata["usage"]["totalTokens"] >= 17
    assert task.metadata["durationSeconds"] >= task.metadata["firstTextSeconds"] > 0


@pytest.mark.feature(Feature.MODEL)
async def test_the_end_names_the_model(alice: Client) -> None:
    turn = await ask(alice, "demo:words=1")
    task = await alice.get_task(GetTaskRequest(id=turn.task_id))
    assert task.metadata["usage"]["model"] == "molecule-demo"


@pytest.mark.feature(Feature.SUBSCRIBE)
async def test_a_peer_that_reconnects_gets_the_state_so_far_and_then_the_rest(
    stack: Stack, alice: Client
) -> None:
    async with peer(stack.url, token=ALICE) as first:
        stream = first.send_message(message("demo:slow=0.1 one two three four five six seven"))
        turn = Turn()
        async for event in stream:
            turn.add(event)
            if turn.updates == 2:
                break
    watches = [_watch(alice, turn.task_id) for _ in range(3)]
    seen = await asyncio.gather(*watches)
    task = await alice.get_task(GetTaskRequest(id=turn.task_id))
    for watched in seen:
        assert watched.states[0] == "WORKING"
        assert watched.states[-1] == "COMPLETED"
        assert watched.text == reply_text(task)
        assert watched.events[0].task.artifacts[0].parts[0].text.startswith("Demo")


async def _watch(client: Client, task_id: str) -> Turn:
    turn = Turn()
    async for event in client.subscribe(SubscribeToTaskRequest(id=task_id)):
        copy = StreamResponse()
        copy.CopyFrom(event)
        turn.add(copy)
    return turn


@pytest.mark.feature(Feature.FAILURES)
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("demo:fail=401", "auth"),
        ("demo:fail=404", "model_not_found"),
        ("demo:fail=429", "rate_limit"),
        ("demo:fail=quota", "quota"),
        ("demo:fail=500", "internal"),
        ("demo:fail=page", "internal"),
        ("demo:fail=context", "context_overflow"),
        ("demo:empty", "empty_reply"),
    ],
)
async def test_each_failure_has_its_kind_and_a_hint(alice: Client, said: str, kind: str) -> None:
    turn = await ask(alice, said)
    assert turn.states[-1] == "FAILED"
    assert turn.failure["kind"] == kind
    assert turn.failure["hint"]
    assert "<" not in turn.failure["message"]
    assert "sk-" not in str(turn.events)


@pytest.mark.feature(Feature.FAILURES)
async def test_an_answer_that_reads_like_a_failure_is_an_answer(alice: Client) -> None:
    answers = [
        "Quota exceeded",
        "HTTP 429: rate limit reached",
        "API call failed after 3 retries: Error code: 401",
        "Sorry, I encountered an error (unauthorized).",
        "⚠️ No reply: the shop is closed. Come back tomorrow.",
    ]
    for answer in answers:
        turn = await ask(alice, f"demo:say {answer}")
        assert (turn.states[-1], turn.text) == ("COMPLETED", answer)


@pytest.mark.feature(Feature.FAILURES)
async def test_a_spent_quota_differs_from_a_limit_per_minute(alice: Client) -> None:
    expected = {
        "400: Your credit balance is too low to access the API.": "quota",
        "429:quota_exceeded You have exceeded your monthly quota.": "quota",
        "429:usage_limit_exceeded The usage limit has been reached.": "quota",
        "429: plan limit reached": "quota",
        "403:quota_exceeded Quota exceeded": "quota",
        "403: credits exhausted": "quota",
        "429: You have reached the limit of messages": "quota",
        "429: You have used up your usage": "quota",
        "400: The name x does not match any known model": "model_not_found",
        "429: Quota exceeded: 10 requests per minute. Please retry in 32s.": "rate_limit",
    }
    turns = await asyncio.gather(*(ask(alice, f"demo:fail={error}") for error in expected))
    failures = [(turn.failure["kind"], turn.failure["retryable"]) for turn in turns]
    assert failures == [(kind, kind == "rate_limit") for kind in expected.values()]
