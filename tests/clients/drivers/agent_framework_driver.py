"""agent-framework-a2a: Microsoft's `A2AAgent`."""

from __future__ import annotations

import warnings
from typing import Any

warnings.filterwarnings("ignore")

import httpx  # noqa: E402
from a2a.client import A2ACardResolver  # noqa: E402
from a2a.types import CancelTaskRequest, GetTaskRequest, Task, TaskState  # noqa: E402
from agent_framework import AgentSession, Content, Message  # noqa: E402
from agent_framework_a2a import A2AAgent  # noqa: E402
from driving import drive  # noqa: E402


class Driver:
    def __init__(self, url: str) -> None:
        self._url = url

    async def send(self, text: str) -> dict[str, Any]:
        return {"text": (await (await self._agent()).run(text)).text}

    async def stream(self, text: str) -> dict[str, Any]:
        run = (await self._agent()).run(text, stream=True)
        pieces = [update.text async for update in run if update.text]
        return {"pieces": pieces, "text": (await run.get_final_response()).text}

    async def context(self, first: str, second: str) -> dict[str, Any]:
        agent, session = await self._agent(), AgentSession()
        await agent.run(first, session=session)
        return {"text": (await agent.run(second, session=session)).text}

    async def cancel(self, text: str) -> dict[str, Any]:
        agent = await self._agent()
        token: Any = None
        states: list[str] = []
        async for update in agent.run(text, stream=True, background=True):
            token = update.continuation_token or token
            if update.text and not states:
                # The agent itself has no cancel; the SDK's client that it wraps is public.
                request = CancelTaskRequest(id=token["task_id"])
                states.append(state(await agent.client.cancel_task(request)))
        ended = await agent.client.get_task(GetTaskRequest(id=token["task_id"]))
        return {"states": [*states, state(ended)]}

    async def answer(self, text: str, answer: str) -> dict[str, Any]:
        agent, session = await self._agent(), AgentSession()
        (question,) = (await agent.run(text, session=session)).user_input_requests
        done = await agent.run(answer, session=session)
        return {"question": question.text, "text": done.text}

    async def attach(self, text: str, name: str, content: str) -> dict[str, Any]:
        file = Content.from_data(data=content.encode(), media_type="application/octet-stream")
        message = Message(role="user", contents=[Content.from_text(text), file])
        return {"text": (await (await self._agent()).run(message)).text}

    async def receive(self, text: str) -> dict[str, Any]:
        response = await (await self._agent()).run(text)
        contents = [c for message in response.messages for c in message.contents]
        files = [c for c in contents if c.type == "data"]
        return {"files": {str(f.raw_representation.filename): data(f) for f in files}}

    async def fail(self, text: str) -> dict[str, Any]:
        run = (await self._agent()).run(text, stream=True)
        return {"text": (await run.get_final_response()).text}

    async def _agent(self) -> A2AAgent:
        async with httpx.AsyncClient() as http:
            card = await A2ACardResolver(http, self._url).get_agent_card()
        return A2AAgent(name="hermes", agent_card=card)


def state(task: Task) -> str:
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


def data(content: Content) -> str:
    return content.raw_representation.raw.decode()


drive(Driver)
