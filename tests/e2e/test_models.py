"""The model that the real Hermes calls for each choice of settings."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from molecule_hermes.config import Settings
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import configure
from molecule_hermes.hermes.model_choice import choose_model
from tests.support.peers import ask, peer
from tests.support.serving import serve
from tests.support.stack import environment, up


class Recorder:
    """A model server that answers "recorded" and remembers what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[tuple[str, str, dict[str, Any]]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        self.calls.append((request.path, request.headers.get("Authorization", ""), body))
        if not request.path.endswith("/chat/completions"):
            return web.json_response({"error": {"message": "not here"}}, status=404)
        choice = {"index": 0, "delta": {"content": "recorded"}, "finish_reason": "stop"}
        chunk = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
        text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    def chats(self) -> list[tuple[str, str, dict[str, Any]]]:
        return [call for call in self.calls if "messages" in call[2]]


@asynccontextmanager
async def recorder() -> AsyncIterator[Recorder]:
    recorder = Recorder()
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", recorder.answer)
    async with serve(app) as url:
        recorder.url = f"{url}/v1"
        yield recorder


@pytest.mark.parametrize("way", ["plugin", "chat"])
async def test_a_custom_server_receives_the_model_the_key_and_the_system_prompt(
    tmp_path: Path, way: str
) -> None:
    async with recorder() as llm:
        environ = environment(
            tmp_path,
            HERMES_CUSTOM_BASE_URL=llm.url,
            HERMES_CUSTOM_API_KEY="the-custom-key",
            HERMES_INFERENCE_MODEL="the-model",
            MOLECULE_HERMES_SYSTEM_PROMPT="Answer in rhymes.",
        )
        async with up(environ, "--transport", way) as stack, peer(stack.url) as client:
            turn = await ask(client, "hi")
            output = stack.output
    assert turn.text == "recorded"
    path, authorization, body = llm.chats()[0]
    assert path == "/v1/chat/completions"
    assert authorization == "Bearer the-custom-key"
    assert body["model"] == "the-model"
    assert "Answer in rhymes." in str(body["messages"][0])
    assert "HERMES_CUSTOM_API_KEY (set)" in output
    written = (tmp_path / "hermes" / "config.yaml").read_text()
    assert "the-custom-key" not in written + output


async def test_an_openai_key_alone_reaches_chat_completions(tmp_path: Path) -> None:
    async with recorder() as llm:
        environ = environment(
            tmp_path, OPENAI_API_KEY="sk-the-openai-key-123456", OPENAI_BASE_URL=llm.url
        )
        async with up(environ) as stack, peer(stack.url) as client:
            turn = await ask(client, "hi")
            output = stack.output
    assert turn.text == "recorded"
    assert llm.chats()[0][:2] == ("/v1/chat/completions", "Bearer sk-the-openai-key-123456")
    assert "OPENAI_API_KEY is set" in output
    assert "demo model" not in output


async def test_the_older_model_setting_and_its_prefix_reach_the_server(tmp_path: Path) -> None:
    async with recorder() as llm:
        environ = environment(
            tmp_path,
            HERMES_DEFAULT_MODEL="openai/the-model",
            OPENAI_API_KEY="sk-the-openai-key-123456",
            OPENAI_BASE_URL=llm.url,
        )
        async with up(environ) as stack, peer(stack.url) as client:
            turn = await ask(client, "hi")
    assert turn.text == "recorded"
    path, authorization, body = llm.chats()[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer sk-the-openai-key-123456")
    assert body["model"] == "the-model"


async def test_the_demo_model_answers_beyond_loopback_if_it_is_asked_for(tmp_path: Path) -> None:
    environ = environment(
        tmp_path,
        MOLECULE_HERMES_HOST="0.0.0.0",
        MOLECULE_HERMES_PEER_TOKENS="alice:token-0123456789abcdef",
        MOLECULE_HERMES_DEMO="always",
        OPENROUTER_API_KEY="sk-or-v1-not-used",
    )
    # The card's URL has this machine's name, which need not resolve.
    environ["MOLECULE_HERMES_PUBLIC_URL"] = f"http://127.0.0.1:{environ['MOLECULE_HERMES_PORT']}"
    async with up(environ) as stack, peer(stack.url, token="token-0123456789abcdef") as client:
        turn = await ask(client, "hi")
        report = await stack.until_ready()
        output = stack.output
    assert turn.text.startswith("Demo model here")
    assert report["demo"] is True
    assert "MOLECULE_HERMES_DEMO=always" in output


_RESOLVE = """
import json
from hermes_cli.runtime_provider import resolve_runtime_provider
runtime = resolve_runtime_provider(requested=None)
print(json.dumps({k: runtime.get(k) for k in ("provider", "api_mode", "base_url", "api_key")}))
"""


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("OPENAI_API_KEY", ("openai-api", "chat_completions", "api.openai.com")),
        ("OPENROUTER_API_KEY", ("openrouter", "chat_completions", "openrouter.ai")),
        ("ANTHROPIC_API_KEY", ("anthropic", "anthropic_messages", "api.anthropic.com")),
        ("GEMINI_API_KEY", ("gemini", "chat_completions", "generativelanguage.googleapis.com")),
        ("DEEPSEEK_API_KEY", ("deepseek", "chat_completions", "api.deepseek.com")),
        ("NOUS_API_KEY", ("custom", "chat_completions", "inference-api.nousresearch.com")),
        ("XAI_API_KEY", ("xai", None, "api.x.ai")),
    ],
)
def test_hermes_itself_understands_what_was_written_for_a_key(
    tmp_path: Path, variable: str, expected: tuple[str, str | None, str]
) -> None:
    runtime = _resolve(tmp_path, {variable: _KEY})
    provider, api_mode, host = expected
    assert runtime["provider"] == provider
    assert api_mode in (None, runtime["api_mode"])
    assert host in runtime["base_url"]


@pytest.mark.parametrize(
    ("model", "variable", "expected"),
    [
        ("openai/gpt-5.4", "OPENAI_API_KEY", ("custom", "api.openai.com")),
        ("openai/gpt-5.4", "OPENROUTER_API_KEY", ("openrouter", "openrouter.ai")),
        ("nousresearch/hermes-4", "HERMES_API_KEY", ("custom", "inference-api.nousresearch.com")),
        ("ai-gateway/openai/gpt", "AI_GATEWAY_API_KEY", ("custom", "ai-gateway.vercel.sh")),
        ("qwen/qwen3.7-plus", "DASHSCOPE_API_KEY", ("alibaba", "dashscope")),
        ("nim/meta/llama", "NVIDIA_API_KEY", ("nvidia", "api.nvidia.com")),
    ],
)
def test_hermes_itself_understands_what_was_written_for_a_prefix(
    tmp_path: Path, model: str, variable: str, expected: tuple[str, str]
) -> None:
    runtime = _resolve(tmp_path, {variable: _KEY, "HERMES_INFERENCE_MODEL": model})
    assert runtime["provider"] == expected[0]
    assert expected[1] in runtime["base_url"]
    assert runtime["api_key"] == _KEY


_KEY = "sk-or-v1-0123456789abcdef0123456789"


def _resolve(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """What Hermes makes of the `model:` block that is written for these variables."""
    environ = environment(folder, **variables)
    settings = Settings.from_env(environ)
    home = HermesHome(settings.home)
    configure(home, settings, choose_model(settings, environ))
    ended = subprocess.run(
        [sys.executable, "-c", _RESOLVE],
        env=environ | {"HERMES_HOME": str(home.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    runtime: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return runtime
