"""Which message late output comes from, which bridge gets it, and what a tool has begun."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.plugin.jobs import begun_job
from molecule_hermes.plugin.origins import Origins, job_named_in
from molecule_hermes.plugin.receiver import Receiver
from molecule_hermes.wire import Attachment, Check, Inbound, Origin

ORIGIN = Origin("am", "at", "ac")


def message(message_id: str = "m", chat: str = "c", **more: Any) -> Inbound:
    given: dict[str, Any] = {"content": "hi", "metadata": ORIGIN, "toolsets": ("web",), **more}
    return Inbound(chat, "p", message_id, "http://127.0.0.1:1/", **given)


def test_a_job_has_the_settings_of_the_message_that_began_it() -> None:
    origins = Origins()
    origins.spoken(message("later", toolsets=None))
    given = message(
        attachments=(Attachment("a", "text/plain", b"x"),), response_format={"type": "json_object"}
    )
    origins.started("proc_1234", "make test", given)
    job = origins.of("c", "proc_1234")
    assert job is not None
    assert (job.label, job.inbound.toolsets, job.inbound.metadata) == (
        "make test",
        ("web",),
        ORIGIN,
    )
    # What was only for that message's own turn is not kept.
    kept = job.inbound
    assert (kept.content, kept.attachments, kept.response_format) == ("", (), None)


def test_a_job_is_also_known_by_the_message_that_began_it() -> None:
    origins = Origins()
    origins.started("proc_1234", "make test", message())
    job = origins.of("c", "", "m")
    assert job is not None
    assert (job.inbound.message_id, job.label) == ("m", "")
    assert origins.of("c", "proc_9", "n") is None


def test_a_job_does_not_lend_its_settings_to_another_conversation() -> None:
    origins = Origins()
    origins.started("proc_1234", "make test", message())
    assert origins.of("other", "proc_1234", "m") is None


def test_a_result_of_an_unknown_job_has_the_settings_that_its_chat_had_last() -> None:
    origins = Origins()
    origins.spoken(message("1", toolsets=None))
    origins.spoken(message("2"))
    settings = origins.settings("c")
    assert (settings.toolsets, settings.agent) == (("web",), "main")
    # It is not that message's result.
    assert settings.metadata == Origin(a2a_context_id="ac")


def test_a_chat_that_nobody_has_spoken_to_gets_no_tools() -> None:
    settings = Origins().settings("c")
    assert (settings.toolsets, settings.agent, settings.metadata) == ((), "", Origin())


def test_what_is_remembered_is_bounded_and_the_oldest_is_forgotten() -> None:
    origins = Origins(max_jobs=2, max_chats=2)
    for number in range(5):
        origins.started(f"proc_{number}", "", message(f"m{number}", f"c{number}"))
        origins.spoken(message(f"m{number}", f"c{number}"))
    known = [n for n in range(5) if origins.of(f"c{n}", f"proc_{n}", f"m{n}")]
    spoken = [n for n in range(5) if origins.settings(f"c{n}").peer_id]
    assert (known, spoken) == ([3, 4], [3, 4])


def test_two_chats_are_one_peers_only_if_both_are_known() -> None:
    origins = Origins()
    origins.spoken(message(chat="a"))
    assert not origins.same_peer("a", "b")
    origins.spoken(message(chat="b"))
    assert origins.same_peer("a", "b")
    origins.spoken(message(chat="b", agent="research"))
    assert not origins.same_peer("a", "b")


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("[IMPORTANT: Background process proc_0a1b2c exited (exit code 1).\n…]", "proc_0a1b2c"),
        ("[ASYNC DELEGATION BATCH COMPLETE — deleg_0a1b2c]\n…", "deleg_0a1b2c"),
        ("[IMPORTANT: something else]", ""),
        ("x" * 500 + " proc_0a1b2c", ""),
    ],
)
def test_an_event_names_its_job_at_its_beginning(text: str, job_id: str) -> None:
    assert job_named_in(text) == job_id


@pytest.mark.parametrize(
    ("tool", "args", "result", "job"),
    [
        ("terminal", {"command": "make\ntest"}, {"session_id": "proc_1"}, ("proc_1", "make test")),
        ("terminal", {"command": "ls"}, {"output": "a"}, None),
        (
            "delegate_task",
            {},
            {"delegation_id": "deleg_1", "goals": ["add", "sub"]},
            ("deleg_1", "add; sub"),
        ),
        ("delegate_task", {"goal": "add"}, {"delegation_id": "d"}, ("d", "add")),
        ("cronjob", {}, {"job_id": "j", "name": "daily"}, ("j", "daily")),
        ("process", {}, {"session_id": "proc_1"}, None),
        ("terminal", None, [1], None),
    ],
)
def test_a_tools_result_says_which_job_it_has_begun(
    tool: str, args: Any, result: Any, job: tuple[str, str] | None
) -> None:
    given = {"tool_name": tool, "args": args, "result": json.dumps(result)}
    assert begun_job(given) == job


@given(st.text() | st.none() | st.integers(), st.sampled_from(["terminal", "cronjob", "x"]))
def test_any_result_of_a_tool_is_read(result: Any, tool: str) -> None:
    assert begun_job({"tool_name": tool, "result": result, "args": 1}) is None


def check(url: str = "http://h:1/a?to=1", bridge: str = "b", *, deliveries: bool = True) -> Check:
    return Check(url, bridge=bridge, deliveries=deliveries)


def test_the_last_bridge_that_says_so_takes_deliveries() -> None:
    receiver = Receiver()
    assert (receiver.takes, receiver.declined) == (False, False)
    assert receiver.hear(check())
    assert receiver.hear(check("http://h:2/a", "c"))
    assert (receiver.url, receiver.bridge) == ("http://h:2/a", "c")


@pytest.mark.parametrize(
    "again",
    [
        check("http://h:9/a", "b", deliveries=False),
        # After a restart it has another name, and its address another query.
        check("http://h:1/a?to=2", "c", deliveries=False),
    ],
    ids=["the same bridge", "the same address"],
)
def test_a_bridge_takes_back_that_it_takes_deliveries(again: Check) -> None:
    now = 0.0
    receiver = Receiver(lambda: now)
    receiver.hear(check())
    assert not receiver.hear(again)
    # It may be a bridge that is about to take them.
    assert (receiver.takes, receiver.declined) == (False, False)
    now = 59.0
    receiver.hear(again)
    assert not receiver.declined
    now = 60.0
    assert (receiver.takes, receiver.declined) == (False, True)
    receiver.hear(check())
    assert (receiver.takes, receiver.declined) == (True, False)


def test_a_bridge_does_not_take_it_back_for_another() -> None:
    receiver = Receiver()
    receiver.hear(check())
    assert not receiver.hear(check("http://h:9/a", "c", deliveries=False))
    assert receiver.takes
    # Two bridges without a name are not the same.
    receiver.hear(check("http://h:1/a", ""))
    receiver.hear(check("http://h:9/a", "", deliveries=False))
    assert receiver.takes
