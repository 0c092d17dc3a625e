"""Each request reaches its agent, and no other, on every binding."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from a2a.client import A2AClientError, Client
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from hypothesis import given, settings
from hypothesis import strategies as st

from molecule_hermes.client.connection import message
from tests.agents.conftest import StartAgents
from tests.support.agents import TOKENS, Agents, two_agents
from tests.support.peers import Turn, ask, card_of, peer, reply_text, send
from tests.support.waiting import until

BINDINGS = [
    (binding, version) for version in ("1.0", "0.3") for binding in ("JSONRPC", "HTTP+JSON")
]
V10 = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0")]


def speaking(text: str, skill: str = "", tenant: str = "", **more: Any) -> SendMessageRequest:
    request = message(text, **more)
    if skill:
        request.message.metadata.update({"skillId": skill})
    request.tenant = tenant
    return request


async def begin(client: Client, request: SendMessageRequest) -> str:
    """Sends a message; returns the id of its task at once."""
    request.configuration.return_immediately = True
    turn = Turn()
    async for event in client.send_message(request):
        turn.add(event)
        break
    return turn.task_id


@pytest.mark.parametrize(("binding", "version"), BINDINGS)
async def test_an_agents_card_leads_to_the_agent(
    start: StartAgents, agents: Agents, binding: str, version: str
) -> None:
    async with start() as bridge:
        for name in ("main", "research"):
            for streaming in (True, False):
                url = f"{bridge.url}/agents/{name}"
                options: Any = {"binding": binding, "version": version, "streaming": streaming}
                async with peer(url, token=TOKENS["ann"], **options) as client:
                    seen = await ask(client, "hi")
                    task = await client.get_task(GetTaskRequest(id=seen.task_id))
                assert (seen.text, reply_text(task)) == (name, name)
                turn = agents[name].turns[-1]
                assert (turn.agent, turn.peer) == (name, "ann")


@pytest.mark.parametrize(("binding", "version"), BINDINGS)
async def test_without_a_tenant_the_routes_choose(
    start: StartAgents, binding: str, version: str
) -> None:
    options: Any = {"binding": binding, "version": version}
    async with start() as bridge, AsyncExitStack() as stack:
        ann, bob, eve = [
            await stack.enter_async_context(peer(bridge.url, token=TOKENS[name], **options))
            for name in ("ann", "bob", "eve")
        ]
        assert (await ask(ann, "hi")).text == "main"
        assert (await send(ann, speaking("hi", skill="dig"))).text == "research"
        assert (await ask(ann, "hi", "lab-7")).text == "research"
        assert (await ask(bob, "hi")).text == "research"
        assert (await ask(eve, "hi")).text == "main"
        if (binding, version) != ("HTTP+JSON", "0.3"):
            with pytest.raises(InvalidParamsError, match="no agent here takes this request"):
                await send(eve, speaking("hi", skill="dig"))


@pytest.mark.parametrize(("binding", "version"), V10)
async def test_a_tenant_is_an_agent_or_that_of_a_route(
    start: StartAgents, binding: str, version: str
) -> None:
    async with (
        start() as bridge,
        peer(bridge.url, token=TOKENS["ann"], binding=binding, version=version) as ann,
    ):
        for tenant, name in (("research", "research"), ("main", "main"), ("ops", "main")):
            seen = await send(ann, speaking("hi", tenant=tenant))
            assert seen.text == name
            task = await ann.get_task(GetTaskRequest(id=seen.task_id, tenant=tenant))
            assert reply_text(task) == name


@pytest.mark.parametrize(("binding", "version"), V10)
async def test_an_agent_that_a_peer_may_not_reach_looks_like_one_that_does_not_exist(
    start: StartAgents, binding: str, version: str
) -> None:
    async with (
        start() as bridge,
        peer(bridge.url, token=TOKENS["eve"], binding=binding, version=version) as eve,
    ):
        said = []
        for tenant in ("research", "nobody"):
            with pytest.raises(InvalidParamsError) as caught:
                await send(eve, speaking("hi", tenant=tenant))
            said.append(str(caught.value).replace(tenant, "X"))
            with pytest.raises(InvalidParamsError):
                await eve.list_tasks(ListTasksRequest(tenant=tenant))
            with pytest.raises(InvalidParamsError):
                await eve.get_task(GetTaskRequest(id="t", tenant=tenant))
    assert said[0] == said[1]
    assert "unknown tenant 'X'" in said[0]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_path_that_names_an_agent_beyond_reach_is_an_unknown_tenant(
    start: StartAgents, agents: Agents, version: str
) -> None:
    for binding in ("JSONRPC", "HTTP+JSON"):
        async with (
            start() as bridge,
            peer(
                f"{bridge.url}/agents/research",
                token=TOKENS["eve"],
                binding=binding,
                version=version,
                streaming=False,
            ) as eve,
        ):
            # The SDK's client for REST in A2A 0.3 keeps only the status of an error.
            expected = "unknown tenant 'research'|400 Bad Request"
            with pytest.raises((InvalidParamsError, A2AClientError), match=expected):
                await ask(eve, "hi")
    assert not agents["research"].turns


async def test_a_path_and_a_tenant_that_differ_are_refused(start: StartAgents) -> None:
    async with (
        start() as bridge,
        peer(f"{bridge.url}/agents/main", token=TOKENS["ann"]) as ann,
    ):
        with pytest.raises(InvalidParamsError, match="more than one tenant"):
            await send(ann, speaking("hi", tenant="research"))


async def test_a_peer_without_an_agent_is_told_so(start: StartAgents) -> None:
    configuration = two_agents(routes=())
    async with start(configuration) as bridge, peer(bridge.url, token=TOKENS["bob"]) as bob:
        with pytest.raises(InvalidParamsError, match="no agent here takes this request"):
            await ask(bob, "hi")
        # The tasks of the agent that bob may reach by its name.
        assert not (await bob.list_tasks(ListTasksRequest())).tasks
        assert (await send(bob, speaking("hi", tenant="research"))).text == "research"


HOOK = "http://127.0.0.1:9/hook"


@pytest.mark.parametrize(("binding", "version"), V10)
async def test_a_task_exists_only_for_its_peer_under_its_agent(
    start: StartAgents, agents: Agents, binding: str, version: str
) -> None:
    options: Any = {"binding": binding, "version": version}
    async with start(PUSH_HOSTS="127.0.0.1") as bridge, AsyncExitStack() as stack:
        ann, bob = [
            await stack.enter_async_context(peer(bridge.url, token=TOKENS[name], **options))
            for name in ("ann", "bob")
        ]
        task_id = await begin(ann, speaking("wait", tenant="research"))
        mine = TaskPushNotificationConfig(task_id=task_id, url=HOOK, id="h", tenant="research")
        await ann.create_task_push_notification_config(mine)
        for client, tenant in ((ann, "main"), (bob, ""), (bob, "research")):
            for attempt in _attempts(client, task_id, tenant):
                with pytest.raises(TaskNotFoundError):
                    await attempt
            assert not (await client.list_tasks(ListTasksRequest(tenant=tenant))).tasks
        configs = await ann.list_task_push_notification_configs(
            ListTaskPushNotificationConfigsRequest(task_id=task_id)
        )
        assert [config.url for config in configs.configs] == [HOOK]
        # Its own peer finds it by the tenant, and without one.
        for tenant in ("research", ""):
            task = await ann.get_task(GetTaskRequest(id=task_id, tenant=tenant))
            assert task.id == task_id
        await ann.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="h")
        )
        canceled = await ann.cancel_task(CancelTaskRequest(id=task_id))
        assert canceled.id == task_id
        assert [turn.task_id for turn in agents["research"].canceled] == [task_id]


def _attempts(client: Client, task_id: str, tenant: str) -> list[Any]:
    named: Any = {"task_id": task_id, "tenant": tenant}
    config = TaskPushNotificationConfig(url=HOOK, **named)
    return [
        client.get_task(GetTaskRequest(id=task_id, tenant=tenant)),
        client.cancel_task(CancelTaskRequest(id=task_id, tenant=tenant)),
        _drain(client.subscribe(SubscribeToTaskRequest(id=task_id, tenant=tenant))),
        send(client, speaking("more", tenant=tenant, task_id=task_id)),
        client.create_task_push_notification_config(config),
        client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(id="h", **named)
        ),
        client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(**named)),
        client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(id="h", **named)
        ),
    ]


async def _drain(events: Any) -> None:
    async for _ in events:
        pass


async def test_the_agent_of_a_task_is_found_without_its_tenant(
    start: StartAgents, agents: Agents
) -> None:
    async with start() as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        task_id = await begin(ann, speaking("wait", tenant="research"))
        await until(lambda: agents["research"].turns)
        following = asyncio.create_task(_follow(ann, task_id))
        await begin(ann, speaking("also this", task_id=task_id))
        agents.go.set()
        assert (await following).text == "research"
    assert agents["research"].steers == ["also this"]
    assert not agents["main"].turns


async def _follow(client: Client, task_id: str) -> Turn:
    seen = Turn()
    async for event in client.subscribe(SubscribeToTaskRequest(id=task_id)):
        seen.add(event)
    return seen


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_listing_shows_all_agents_tasks_in_pages_or_those_of_one(
    start: StartAgents, store: str
) -> None:
    async with (
        start(STORE=store) as bridge,
        peer(bridge.url, token=TOKENS["ann"]) as ann,
        peer(bridge.url, token=TOKENS["bob"]) as bob,
    ):
        await ask(bob, "hi")
        sent = [
            (await send(ann, speaking("hi", tenant=("main", "research")[number % 2]))).task_id
            for number in range(5)
        ]
        listed, token = [], ""
        while not listed or token:
            page = await ann.list_tasks(ListTasksRequest(page_size=2, page_token=token))
            assert page.total_size == 5
            listed += [task.id for task in page.tasks]
            token = page.next_page_token
        assert listed == sent[::-1]
        for tenant, own in (("main", sent[0::2]), ("research", sent[1::2])):
            page = await ann.list_tasks(ListTasksRequest(tenant=tenant))
            assert [task.id for task in page.tasks] == own[::-1]


async def test_the_text_of_active_tasks_of_all_agents_is_listed(start: StartAgents) -> None:
    async with start(CHECKPOINT=60) as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        for tenant in ("main", "research"):
            await begin(ann, speaking("wait", tenant=tenant))
        page = await ann.list_tasks(ListTasksRequest(include_artifacts=True))
    assert len(page.tasks) == 2


async def test_the_same_context_under_two_agents_is_two_conversations(
    start: StartAgents, agents: Agents
) -> None:
    async with start() as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        for tenant in ("main", "research"):
            await begin(ann, speaking("wait", tenant=tenant, context_id="same"))
        # They run side by side: within a conversation, the second would wait for the first.
        await until(lambda: agents["main"].turns and agents["research"].turns)
        agents.go.set()
        turns = [agents[name].turns[0] for name in ("main", "research")]
        assert turns[0].conversation != turns[1].conversation
        for tenant in ("main", "research"):
            page = await ann.list_tasks(ListTasksRequest(context_id="same", tenant=tenant))
            assert len(page.tasks) == 1


async def test_a_message_that_is_sent_again_runs_once_for_each_agent(
    start: StartAgents, agents: Agents
) -> None:
    async with start() as bridge, peer(bridge.url, token=TOKENS["ann"]) as ann:
        request = speaking("hi", tenant="main", context_id="c")
        first, again = await send(ann, request), await send(ann, request)
        request.tenant = "research"
        other, other_again = await send(ann, request), await send(ann, request)
    assert first.task_id == again.task_id
    assert other.task_id == other_again.task_id != first.task_id
    assert [len(agents[name].turns) for name in ("main", "research")] == [1, 1]


async def test_cards_are_public_and_tell_the_agents_apart(start: StartAgents) -> None:
    async with start(NAME="House") as bridge:
        main, research, root = [
            await card_of(bridge.url + path) for path in ("/agents/main", "/agents/research", "")
        ]
        async with httpx.AsyncClient() as http:
            older = await http.get(f"{bridge.url}/agents/research/.well-known/agent.json")
            unknown = await http.get(f"{bridge.url}/agents/nobody/.well-known/agent-card.json")
            closed = await http.post(f"{bridge.url}/agents/research", json={})
    assert (main.name, research.name, root.name) == ("House", "Researcher", "House")
    assert research.description == "Finds things."
    assert (older.json()["name"], unknown.status_code, closed.status_code) == (
        "Researcher",
        404,
        401,
    )
    at = f"{bridge.url}/agents/research"
    assert [(i.url, i.tenant, i.protocol_version) for i in research.supported_interfaces] == [
        (f"{at}/", "research", "1.0"),
        (at, "research", "1.0"),
        (f"{at}/", "", "0.3"),
        (at, "", "0.3"),
    ]
    assert {(i.url, i.tenant) for i in root.supported_interfaces} == {(bridge.url, "")}


@pytest.mark.parametrize("kept", ["", "/hermes"])
async def test_agents_are_served_below_the_path_of_the_public_url(
    start: StartAgents, kept: str
) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['ann']}", "A2A-Version": "1.0"}
    params = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    async with (
        start(PUBLIC_URL="https://a.example/hermes") as bridge,
        httpx.AsyncClient(headers=headers, base_url=f"{bridge.local_url}{kept}") as http,
    ):
        card = await http.get("/agents/research/.well-known/agent-card.json")
        answers = [
            (await http.post(path, json=body)).json()["result"]
            for path in ("/agents/research", "/agents/research/")
        ]
        answers.append((await http.post("/agents/research/message:send", json=params)).json())
        bad = await http.post(
            "/agents/research", content="{", headers={"Content-Type": "application/json"}
        )
        large = await http.post("/agents/research", json={"x": "y" * 21_000_000})
    url = "https://a.example/hermes/agents/research"
    assert card.json()["supportedInterfaces"][0]["url"] == f"{url}/"
    assert {a["task"]["artifacts"][0]["parts"][0]["text"] for a in answers} == {"research"}
    assert bad.json()["error"]["code"] == -32700
    assert large.status_code == 413


TENANTS = st.one_of(
    st.text(max_size=50),
    st.sampled_from(
        [
            "..",
            "../research",
            "research/",
            "research\0",
            "RESEARCH",
            "%72esearch",
            "x" * 1000,
            "*",
        ]
    ),
    st.text(alphabet="./%*?[]research\u202e\ud7ff🙂\n", max_size=30),
)


async def test_no_other_tenant_reaches_an_agent(start: StartAgents, agents: Agents) -> None:
    """A property of JSON-RPC and of REST paths: an unknown tenant is invalid params, or no path."""
    headers = {"Authorization": f"Bearer {TOKENS['eve']}", "A2A-Version": "1.0"}
    async with (
        start() as bridge,
        httpx.AsyncClient(headers=headers, base_url=bridge.url, timeout=30) as http,
    ):
        loop = asyncio.get_running_loop()

        @settings(max_examples=30)
        @given(tenant=TENANTS.filter(lambda t: t not in ("", "main", "ops")))
        def check(tenant: str) -> None:
            asyncio.run_coroutine_threadsafe(_is_unknown(http, tenant), loop).result(30)

        await asyncio.to_thread(check)
    assert not agents["research"].turns
    assert not agents["main"].turns


async def test_a_tenant_of_10_kb_is_refused(start: StartAgents) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['eve']}", "A2A-Version": "1.0"}
    async with start() as bridge, httpx.AsyncClient(headers=headers, base_url=bridge.url) as http:
        params = {"id": "t", "tenant": "x" * 10_240}
        body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": params}
        rpc = await http.post("/", json=body)
        rest = await http.get(f"/{'x' * 10_240}/tasks/t")
    assert (rpc.json()["error"]["code"], rest.status_code) == (-32700, 400)
    assert max(len(rpc.content), len(rest.content)) < 1000


async def _is_unknown(http: httpx.AsyncClient, tenant: str) -> None:
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    params = {"message": said, "tenant": tenant}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    response = await http.post("/", json=body)
    error = response.json()["error"]
    assert error["code"] == -32602, response.text
    assert len(response.content) < 2000
    assert "research" not in error["message"].replace(repr(tenant), "")
    quoted = "".join(f"%{byte:02X}" for byte in tenant.encode())
    for path in (f"/{quoted}/message:send", f"/agents/{quoted}/message:send"):
        if len(path) < 8_000:
            response = await http.post(path, json={"message": said})
            assert response.status_code in (400, 404, 405), response.text
            assert len(response.content) < 2000


async def test_a_tenant_that_is_no_text_is_refused(start: StartAgents) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['eve']}"}
    said = {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
    async with start() as bridge, httpx.AsyncClient(headers=headers) as http:
        for method, version in (("SendMessage", "1.0"), ("message/send", "0.3")):
            body = {"jsonrpc": "2.0", "id": 1, "method": method}
            body["params"] = {"message": said, "tenant": {"a": ["research"]}}
            answer = await http.post(bridge.url, json=body, headers={"A2A-Version": version})
            # A2A 0.3 has no tenants, and ignores what it does not know.
            result = answer.json()
            assert (
                "error" in result or result["result"]["artifacts"][0]["parts"][0]["text"] == "main"
            )
