"""The results of cron jobs in the real gateway."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from molecule_hermes.wire import File, Origin, Push
from tests.support.deliveries import (
    assert_each_is_whole,
    call,
    delivery,
    look_for_cron_jobs_every_second,
    make_cron_job,
    pushes,
    take,
    until_there_is,
)
from tests.support.gateway import CallbackServer, Hermes, running_hermes

pytestmark = [pytest.mark.hermes, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hermes]:
    home = tmp_path_factory.mktemp("hermes")
    async with running_hermes(home, over=look_for_cron_jobs_every_second(home)) as running:
        yield running


def soon() -> str:
    return (datetime.now(UTC) + timedelta(seconds=1)).isoformat()


def job(prompt: str, **more: Any) -> str:
    """What has the demo model make a cron job."""
    fields = {"schedule": soon(), "name": "the report", "deliver": "origin", **more}
    return call("cronjob", action="create", prompt=prompt, **fields)


def jobs(hermes: Hermes) -> list[dict[str, Any]]:
    """As Hermes stores them."""
    path = hermes.home / "cron" / "jobs.json"
    return list(json.loads(path.read_text())["jobs"]) if path.exists() else []


async def run_at_once(hermes: Hermes, callbacks: CallbackServer, chat: str, making: str) -> str:
    """Has the agent make a job and run it; returns why its result was not delivered."""
    before = {each["id"] for each in jobs(hermes)}
    await callbacks.final(await hermes.say(callbacks, making, chat=chat))
    ((job_id, name),) = [(j["id"], j["name"]) for j in jobs(hermes) if j["id"] not in before]
    run = await hermes.say(callbacks, call("cronjob", action="run", job_id=job_id), chat=chat)
    final, _ = await callbacks.final(run, 60)
    assert '"execution_success": true' in final.content, name
    (ran,) = [each for each in jobs(hermes) if each["id"] == job_id]
    return str(ran.get("last_delivery_error") or "")


async def test_a_cron_job_is_a_delivery_without_what_hermes_puts_around_it(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    origin = Origin("a2a-m", "a2a-t", "a2a-c")
    asked = job("demo:say All is well")
    await callbacks.final(await hermes.say(callbacks, asked, chat=chat, metadata=origin))
    push_id = await delivery(callbacks, chat)
    push, last = callbacks.of(push_id)
    assert push.body == Push(push_id, "cron", origin, "the report")
    assert (push.agent, push.seq) == ("main", 0)
    assert last.content == "All is well"
    assert_each_is_whole(callbacks)


async def test_a_cron_job_speaks_while_its_chat_is_busy_and_not_in_that_turn(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    await callbacks.final(await hermes.say(callbacks, job("demo:say On time"), chat=chat))
    sign = hermes.work / chat
    busy = await hermes.say(callbacks, until_there_is(sign), chat=chat)
    push_id = await delivery(callbacks, chat)
    assert callbacks.finals(busy) == [], "the chat was not busy"
    sign.touch()
    assert callbacks.finals(push_id)[0].content == "On time"
    await callbacks.final(busy)
    assert "On time" not in "".join(callback.content for callback in callbacks.of(busy))
    assert_each_is_whole(callbacks)


async def test_the_files_of_a_cron_job_are_in_its_delivery(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    (hermes.work / "figures.csv").write_text("1,2")
    prompt = f"demo:say Here it is. MEDIA:{hermes.work}/figures.csv"
    await callbacks.final(await hermes.say(callbacks, job(prompt), chat=chat))
    push_id = await delivery(callbacks, chat)
    push, file, last = callbacks.of(push_id)
    assert isinstance(push.body, Push)
    assert file.body == File("figures.csv", "text/csv", b"1,2")
    assert last.content == "Here it is."
    assert_each_is_whole(callbacks)


async def test_a_job_that_the_agent_runs_at_once_is_a_delivery_too(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    (hermes.work / "at-once.csv").write_text("3")
    prompt = f"demo:say Right away. MEDIA:{hermes.work}/at-once.csv"
    await run_at_once(hermes, callbacks, chat, job(prompt, schedule="every 30m", name="at once"))
    push_id = await delivery(callbacks, chat)
    assert [callback.body.type for callback in callbacks.of(push_id)] == ["push", "file", "final"]
    assert callbacks.finals(push_id)[0].content == "Right away."
    assert_each_is_whole(callbacks)


async def test_a_job_can_speak_in_a_conversation_that_hermes_has_not_heard_of(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    chat = f"c-{uuid.uuid4().hex}"
    body = {"name": "a", "prompt": "demo:say Hello", "schedule": soon()}
    body["deliver"] = f"molecule_a2a:{chat}"
    await make_cron_job(hermes, body)
    push_id = await delivery(callbacks, chat)
    push, last = callbacks.of(push_id)
    assert push.body == Push(push_id, "cron", Origin(), "a")
    assert (push.agent, last.content) == ("", "Hello")


async def test_the_job_of_one_peer_cannot_speak_in_the_conversation_of_another(
    hermes: Hermes, callbacks: CallbackServer
) -> None:
    await take(hermes, callbacks)
    victim, chat = f"c-{uuid.uuid4().hex}", f"c-{uuid.uuid4().hex}"
    await callbacks.final(await hermes.say(callbacks, "hello", chat=victim, peer_id="victim"))
    elsewhere = {"deliver": f"molecule_a2a:{victim}", "schedule": "every 30m"}
    attack = job("demo:say Pay me", name="attack", **elsewhere)
    error = await run_at_once(hermes, callbacks, chat, attack)
    assert "another peer's conversation" in error
    assert pushes(callbacks, victim) == []
    # A peer's own conversations may.
    await callbacks.final(await hermes.say(callbacks, "hello", chat=victim))
    error = await run_at_once(hermes, callbacks, chat, attack.replace("attack", "report"))
    assert error == ""
    assert callbacks.finals(await delivery(callbacks, victim))[0].content == "Pay me"
