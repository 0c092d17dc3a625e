"""google-adk: `RemoteA2aAgent`, alone, as a tool and as a sub-agent of a parent agent."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import AsyncGenerator
from typing import Any

warnings.filterwarnings("ignore")

from driving import drive  # noqa: E402
from google.adk.agents import LlmAgent, RunConfig  # noqa: E402
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent  # noqa: E402
from google.adk.agents.run_config import StreamingMode  # noqa: E402
from google.adk.models.base_llm import BaseLlm  # noqa: E402
from google.adk.models.llm_request import LlmRequest  # noqa: E402
from google.adk.models.llm_response import LlmResponse  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.adk.tools.agent_tool import AgentTool  # noqa: E402
from google.genai.types import Blob, Content, FunctionResponse, Part  # noqa: E402

CARD = "/.well-known/agent-card.json"


class Driver:
    def __init__(self, url: str) -> None:
        self._url = url

    async def send(self, text: str) -> dict[str, Any]:
        events = await Conversation(self._remote()).say(Part(text=text))
        return {"text": reply(events)}

    async def stream(self, text: str) -> dict[str, Any]:
        events = await Conversation(self._remote()).say(Part(text=text))
        pieces = [texts(event) for event in events if event.partial]
        return {"pieces": pieces, "text": reply(events)}

    async def context(self, first: str, second: str) -> dict[str, Any]:
        conversation = Conversation(self._remote())
        await conversation.say(Part(text=first))
        return {"text": reply(await conversation.say(Part(text=second)))}

    async def answer(self, text: str, answer: str) -> dict[str, Any]:
        conversation = Conversation(self._remote())
        (call,) = calls(await conversation.say(Part(text=text)))
        response = FunctionResponse(id=call.id, name=call.name, response={"result": answer})
        done = await conversation.say(Part(function_response=response))
        return {"question": str(call.args), "text": reply(done)}

    async def attach(self, text: str, name: str, content: str) -> dict[str, Any]:
        blob = Blob(data=content.encode(), mime_type="application/octet-stream", display_name=name)
        conversation = Conversation(self._remote())
        return {"text": reply(await conversation.say(Part(text=text), Part(inline_data=blob)))}

    async def receive(self, text: str) -> dict[str, Any]:
        events = await Conversation(self._remote()).say(Part(text=text))
        parts = [part for event in events if event.content for part in event.content.parts]
        blobs = [part.inline_data for part in parts if part.inline_data]
        return {"files": {blob.display_name: blob.data.decode() for blob in blobs}}

    async def fail(self, text: str) -> dict[str, Any]:
        events = await Conversation(self._remote()).say(Part(text=text))
        return {"text": reply(events) or str(events[-1].error_message)}

    async def as_tool(self, text: str) -> dict[str, Any]:
        parent = LlmAgent(
            name="parent", model=CallsItsTool(model="fake"), tools=[AgentTool(self._remote())]
        )
        return {"text": reply(await Conversation(parent).say(Part(text=text)))}

    async def as_sub_agent(self, text: str) -> dict[str, Any]:
        parent = LlmAgent(name="parent", model=Transfers(model="fake"), sub_agents=[self._remote()])
        return {"text": reply(await Conversation(parent).say(Part(text=text)))}

    def _remote(self) -> RemoteA2aAgent:
        return RemoteA2aAgent(name="hermes", agent_card=self._url + CARD)


class Conversation:
    def __init__(self, agent: Any) -> None:
        self._runner = InMemoryRunner(agent=agent, app_name="tests")
        self._session = ""

    async def say(self, *parts: Part) -> list[Any]:
        if not self._session:
            service = self._runner.session_service
            session = await service.create_session(app_name="tests", user_id="user")
            self._session = session.id
        run = self._runner.run_async(
            user_id="user",
            session_id=self._session,
            new_message=Content(role="user", parts=list(parts)),
            run_config=RunConfig(streaming_mode=StreamingMode.SSE),
        )
        return [event async for event in run]


class CallsItsTool(BaseLlm):
    """A parent's model: it passes the user's text to its tool, then repeats the tool's answer."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            yield said(f"The tool said: {last.function_response.response['result']}")
        else:
            yield said_call("hermes", request=last.text)


class Transfers(BaseLlm):
    """A parent's model: it hands the conversation over to its sub-agent."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield said_call("transfer_to_agent", agent_name="hermes")


def said(text: str) -> LlmResponse:
    return LlmResponse(content=Content(role="model", parts=[Part(text=text)]))


def said_call(name: str, **arguments: str) -> LlmResponse:
    call = Part.from_function_call(name=name, args=arguments)
    call.function_call.id = str(uuid.uuid4())
    return LlmResponse(content=Content(role="model", parts=[call]))


def reply(events: list[Any]) -> str:
    """The text of the last event that is not partial: what ADK takes for the answer."""
    whole = [event for event in events if not event.partial and texts(event)]
    return texts(whole[-1]) if whole else ""


def texts(event: Any) -> str:
    parts = event.content.parts if event.content else []
    return "".join(part.text for part in parts if part.text and not part.thought)


def calls(events: list[Any]) -> list[Any]:
    return [call for event in events for call in event.get_function_calls()]


drive(Driver)
