"""The adapter, driven as the orchestration platform drives it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.plugin_setup import enable
from tests.support.fakes import KEY, FakeHermes, fake_hermes
from tests.support.older_plugin import older_plugin
from tests.support.serving import free_port, serve
from tests.support.waiting import until
from tests.support.workspace_platform import AdapterConfig, platform, workspace_file

ADAPTER = "molecule_hermes.adapter"


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def put(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    put(MOLECULE_HERMES_STATE_DIR=tmp_path, HERMES_GATEWAY_READY_BUDGET_SEC=10)
    return put


@dataclass(frozen=True)
class RuntimeCapabilities:
    provides_native_heartbeat: bool = False
    provides_native_session: bool = False


class BaseAdapter(ABC):
    @staticmethod
    @abstractmethod
    def name() -> str: ...

    @abstractmethod
    async def setup(self, config: Any) -> None: ...

    @abstractmethod
    async def create_executor(self, config: Any) -> Any: ...

    def memory_filename(self) -> str:
        return "inherited from the platform"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An installed `molecule_runtime`, with the names that adapters import from it."""
    folder = tmp_path / "site" / "molecule_runtime" / "adapters"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "base.py").write_text(
        f"from {__name__} import AdapterConfig, BaseAdapter, RuntimeCapabilities\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    _reload()
    yield
    monkeypatch.undo()
    for name in [n for n in sys.modules if n.split(".")[0] == "molecule_runtime"]:
        del sys.modules[name]
    _reload()


def _reload() -> ModuleType:
    return importlib.reload(importlib.import_module(ADAPTER))


def _adapter() -> Any:
    return importlib.import_module(ADAPTER).Adapter()


def test_it_introduces_itself() -> None:
    adapter = _adapter()
    assert adapter.name() == "hermes"
    assert adapter.display_name()
    assert adapter.description()
    assert {"model", "system_prompt"} <= set(adapter.get_config_schema())
    assert adapter.capabilities().provides_native_session is True
    assert adapter.idle_timeout_override() == 900


async def test_a_platform_runs_a_turn_over_chat_completions(
    hermes: FakeHermes, environ: Callable[..., None]
) -> None:
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY=KEY)
    config = AdapterConfig(model="the-platforms", system_prompt="Be kind.")
    async with platform(config) as workspace:
        reply = await workspace.send("ping")
    assert reply.text == "pong"
    assert hermes.requests[0]["model"] == "the-platforms"
    assert hermes.requests[0]["messages"][0]["content"] == "Be kind."


@pytest.mark.usefixtures("runtime")
async def test_with_the_platform_installed_it_is_a_base_adapter(
    hermes: FakeHermes, environ: Callable[..., None]
) -> None:
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY=KEY)
    adapter = _adapter()
    assert isinstance(adapter, BaseAdapter)
    assert adapter.memory_filename() == "inherited from the platform"
    assert adapter.capabilities() == RuntimeCapabilities(provides_native_session=True)
    async with platform(AdapterConfig()) as workspace:
        assert (await workspace.send("ping")).text == "pong"


async def test_setup_waits_for_a_hermes_that_starts_later(environ: Callable[..., None]) -> None:
    port = free_port()
    environ(HERMES_API_BASE=f"http://127.0.0.1:{port}/v1", API_SERVER_KEY=KEY)
    waiting = asyncio.create_task(_adapter().setup(AdapterConfig()))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    async with fake_hermes(port):
        async with asyncio.timeout(20):
            await waiting


async def test_setup_explains_what_hermes_api_key_is_for(
    hermes: FakeHermes, environ: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "molecule_hermes")
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY=KEY, HERMES_API_KEY="the-value")
    await _adapter().setup(AdapterConfig())
    assert "HERMES_API_KEY is used as a key of Nous's inference API" in caplog.text
    assert "the-value" not in caplog.text


async def test_a_bad_ready_budget_does_not_stop_the_platform(
    hermes: FakeHermes, environ: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY=KEY)
    environ(HERMES_GATEWAY_READY_BUDGET_SEC="soon")
    await _adapter().setup(AdapterConfig())
    assert "HERMES_GATEWAY_READY_BUDGET_SEC='soon'" in caplog.text


async def test_the_error_names_the_url_the_attempts_and_the_log(
    environ: Callable[..., None], tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    environ(HERMES_API_BASE=url, API_SERVER_KEY=KEY, HERMES_GATEWAY_READY_BUDGET_SEC=0.5)
    with pytest.raises(RuntimeError) as raised:
        await _adapter().setup(AdapterConfig())
    assert isinstance(raised.value, StartError)
    reported = str(raised.value)
    assert url in reported
    assert re.search(r"after \d+ attempts in", reported)
    assert str(tmp_path / "hermes" / "logs" / "gateway.log") in reported
    assert KEY not in reported


async def test_a_refused_key_is_reported_at_once(
    hermes: FakeHermes, environ: Callable[..., None]
) -> None:
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY="not-the-right-one-at-all")
    with pytest.raises(RuntimeError, match=r"after 1 attempts.*API_SERVER_KEY"):
        await _adapter().setup(AdapterConfig())


async def test_a_plugin_that_is_not_bound_is_reported_with_its_cause(
    environ: Callable[..., None], tmp_path: Path
) -> None:
    environ(
        MOLECULE_A2A_PLATFORM_ENABLED="true",
        MOLECULE_A2A_PLATFORM_PORT=free_port(),
        MOLECULE_A2A_CALLBACK_PORT=0,
        HERMES_API_BASE=f"http://127.0.0.1:{free_port()}/v1",
        HERMES_GATEWAY_READY_BUDGET_SEC=0.2,
    )
    home = HermesHome(tmp_path / "hermes")
    enable(home, Settings.from_env())
    home.change_list(("plugins", "enabled"), remove="molecule-a2a")
    with pytest.raises(RuntimeError, match="does not list molecule-a2a in plugins"):
        await _adapter().setup(AdapterConfig())


async def test_only_the_names_of_keys_are_logged(
    hermes: FakeHermes, environ: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY=KEY, OPENROUTER_API_KEY="sk-or-hidden")
    with caplog.at_level(logging.DEBUG):
        await _adapter().setup(AdapterConfig())
    assert "API_SERVER_KEY, OPENROUTER_API_KEY" in caplog.text
    assert KEY not in caplog.text
    assert "sk-or-hidden" not in caplog.text


async def test_smoke_mode_needs_no_hermes(environ: Callable[..., None]) -> None:
    environ(MOLECULE_SMOKE_MODE=1, HERMES_API_BASE=f"http://127.0.0.1:{free_port()}/v1")
    async with platform(AdapterConfig()) as workspace:
        reply = await workspace.send("ping")
        transcript = await workspace.adapter.transcript_lines()
    assert "unreachable" in reply.text
    assert "MOLECULE_SMOKE_MODE" in reply.text
    assert reply.failure["kind"] == "unreachable"
    assert transcript["supported"] is False


async def test_a_config_needs_only_a_model_and_a_prompt(
    hermes: FakeHermes, environ: Callable[..., None]
) -> None:
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY=KEY)
    config = SimpleNamespace(model=None, system_prompt=None)
    executor = await _adapter().create_executor(config)
    await executor.check()
    await executor.stop()


# How the platform talks: without a contextId, and to readers of one text part.


@pytest.fixture
def chat(hermes: FakeHermes, environ: Callable[..., None]) -> FakeHermes:
    """A Hermes that the adapter reaches over chat completions."""
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY=KEY)
    return hermes


def _sessions(hermes: FakeHermes) -> list[str]:
    return [headers["X-Hermes-Session-Id"] for headers in hermes.headers]


def _prompts(hermes: FakeHermes) -> list[str]:
    return [request["messages"][-1]["content"] for request in hermes.requests]


async def test_messages_without_a_context_are_one_conversation_for_each_sender(
    chat: FakeHermes,
) -> None:
    async with platform(AdapterConfig(workspace_id="w1")) as workspace:
        await workspace.send("one")
        await workspace.send("two")
        await workspace.send("three", metadata={"source_workspace_id": "w2"})
        await workspace.send("four", metadata={"peer_id": "w2"})
        await workspace.send("five", metadata={"peer_name": "Ada"})
        reply = await workspace.send("six", context_id="a-context-of-its-own")
    async with platform(AdapterConfig(workspace_id="another")) as workspace:
        await workspace.send("seven")
    one, two, three, four, five, six, seven = _sessions(chat)
    assert one == two
    assert three == four
    assert len({one, three, five, six, seven}) == 5
    assert reply.result["contextId"] == "a-context-of-its-own"


async def test_the_workspaces_name_comes_from_the_environment_too(
    chat: FakeHermes, environ: Callable[..., None]
) -> None:
    for name in ("w1", "w1", "w2"):
        environ(WORKSPACE_ID=name)
        async with platform(AdapterConfig(workspace_id="")) as workspace:
            await workspace.send("hello")
    one, two, three = _sessions(chat)
    assert one == two != three


async def test_earlier_turns_are_replayed_once_to_a_hermes_that_does_not_know_them(
    chat: FakeHermes,
) -> None:
    history = [
        {"role": "user", "parts": [{"kind": "text", "text": "my fruit is a quince"}]},
        {"role": "agent", "parts": [{"kind": "text", "text": "noted"}]},
        {"role": "system", "parts": [{"kind": "text", "text": "not a turn"}]},
        "not a turn either",
    ]
    async with platform(AdapterConfig()) as workspace:
        await workspace.send("which fruit?", metadata={"history": history})
        await workspace.send("and now?", metadata={"history": history})
    first, second = _prompts(chat)
    assert "user: my fruit is a quince\nagent: noted\n" in first
    assert first.endswith("which fruit?")
    assert "not a turn" not in first
    assert second == "and now?"


async def test_only_the_newest_earlier_turns_are_replayed(chat: FakeHermes) -> None:
    history = [
        {"role": "user", "parts": [{"kind": "text", "text": f"<{n}>" + "x" * 4000}]}
        for n in range(30)
    ]
    async with platform(AdapterConfig()) as workspace:
        await workspace.send("go", metadata={"history": history})
    (prompt,) = _prompts(chat)
    assert "<29>" in prompt
    assert "<10>" not in prompt
    assert len(prompt) < 40_000


async def test_prompt_files_are_the_system_prompt(chat: FakeHermes, tmp_path: Path) -> None:
    folder = tmp_path / "configs"
    (folder / "prompts").mkdir(parents=True)
    (folder / "SOUL.md").write_text("Be kind.\n")
    (folder / "prompts" / "rules.md").write_text("Be brief — always.")
    config = AdapterConfig(
        model="m", config_path=str(folder), prompt_files=["SOUL.md", "prompts/rules.md"]
    )
    async with platform(config) as workspace:
        await workspace.send("hello")
    assert chat.requests[0]["model"] == "m"
    system = {"role": "system", "content": "Be kind.\n\nBe brief — always."}
    assert chat.requests[0]["messages"][0] == system


@pytest.mark.usefixtures("chat")
@pytest.mark.parametrize("name", ["missing.md", "../secret", "link", "binary", "", "large"])
async def test_a_prompt_file_that_cannot_be_read_stops_the_start(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    (tmp_path / "secret").write_text("the secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "binary").write_bytes(b"\xff\xfe")
    (folder / "large").write_text("x" * 70_000)
    with pytest.raises(RuntimeError, match=r"prompt file|characters") as raised:
        await _adapter().setup(AdapterConfig(config_path=str(folder), prompt_files=[name]))
    assert isinstance(raised.value, StartError)
    assert "the secret" not in str(raised.value)


async def test_files_of_the_workspace_are_read_and_no_others(
    chat: FakeHermes, environ: Callable[..., None], tmp_path: Path
) -> None:
    folder = tmp_path / "workspace"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "my notes.txt").write_text("a quince")
    (folder / "inside").symlink_to("data")
    (folder / "outside").symlink_to(tmp_path)
    (tmp_path / "secret.txt").write_text("hunter2")
    environ(MOLECULE_HERMES_WORKSPACE=folder)
    good = [
        "/data/my notes.txt",
        "/data/my%20notes.txt",
        f"{folder}/data/my notes.txt",
        "/inside/my notes.txt",
    ]
    bad = ["/../secret.txt", "/outside/secret.txt", "/data", "/", "/none.txt", "//etc/passwd"]
    async with platform(AdapterConfig()) as workspace:
        for path in good:
            assert (await workspace.send("read", workspace_file(path))).text == "pong"
        for path in bad:
            reply = await workspace.send("read", workspace_file(path))
            assert reply.failure["kind"] == "bad_request"
            assert "hunter2" not in str(reply.result)
    assert len(chat.requests) == len(good)
    assert all("a quince" in prompt and "my notes.txt" in prompt for prompt in _prompts(chat))


async def test_the_transcript_continues_after_its_cursor(
    environ: Callable[..., None],
) -> None:
    messages = [{"id": n, "role": "user", "content": f"line {n}"} for n in (7, 8, 12)]
    messages.append({"id": 13, "role": "tool", "content": "api_key=abcdefgh1234", "tool_name": "t"})

    async def sessions(request: web.Request) -> web.Response:
        assert request.query["source"] == "api_server"
        return web.json_response({"data": [{"id": "s1"}]})

    async def of_session(request: web.Request) -> web.Response:
        return web.json_response({"data": messages})

    app = web.Application()
    app.router.add_get("/api/sessions", sessions)
    app.router.add_get("/api/sessions/s1/messages", of_session)
    async with serve(app) as url:
        environ(HERMES_API_BASE=f"{url}/v1", API_SERVER_KEY=KEY)
        first = await _adapter().transcript_lines(limit=3)
        rest = await _adapter().transcript_lines(since=first["cursor"])
        none = await _adapter().transcript_lines(since=rest["cursor"])
    assert (first["runtime"], first["supported"], first["more"]) == ("hermes", True, True)
    assert [line["content"] for line in first["lines"]] == ["line 7", "line 8", "line 12"]
    assert first["source"] == f"{url}/api/sessions/s1"
    assert [line["tool_name"] for line in rest["lines"]] == ["t"]
    assert "abcdefgh1234" not in str(rest)
    assert (none["lines"], none["cursor"], none["more"]) == ([], 13, False)


async def test_a_hermes_that_is_away_has_an_empty_transcript(environ: Callable[..., None]) -> None:
    environ(HERMES_API_BASE=f"http://127.0.0.1:{free_port()}/v1", API_SERVER_KEY=KEY)
    transcript = await _adapter().transcript_lines(since=4)
    assert transcript == {
        "runtime": "hermes",
        "supported": True,
        "lines": [],
        "cursor": 4,
        "more": False,
        "source": None,
    }


async def test_a_platform_may_ask_for_tasks(chat: FakeHermes, environ: Callable[..., None]) -> None:
    environ(MOLECULE_HERMES_REPLY="task")
    async with platform(AdapterConfig()) as workspace:
        response = await workspace.call("message/send", "ping")
    assert response["result"]["kind"] == "task"
    assert response["result"]["status"]["state"] == "completed"


async def test_an_older_plugin_is_served(environ: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a quince")
    async with older_plugin("a-shared-secret-of-the-tests") as plugin:
        environ(
            MOLECULE_A2A_PLATFORM_ENABLED="true",
            MOLECULE_A2A_PLATFORM_PORT=plugin.url.rpartition(":")[2],
            MOLECULE_A2A_PLATFORM_SHARED_SECRET=plugin.secret,
            MOLECULE_A2A_CALLBACK_PORT=0,
            MOLECULE_HERMES_WORKSPACE=tmp_path,
        )
        history = [{"role": "user", "parts": [{"kind": "text", "text": "long ago"}]}]
        async with platform(AdapterConfig(system_prompt="Be kind.")) as workspace:
            first = await workspace.send("ping", metadata={"history": history})
            second = await workspace.send("ping", workspace_file("/notes.txt"))
            empty = await workspace.send(" ")
            plugin.may_answer.clear()
            waiting = asyncio.create_task(workspace.send("too long"))
            await until(lambda: len(plugin.received) == 3)
            await workspace.cancel()
            canceled = await waiting
    assert first.text == "You said: ping"
    assert "a quince" in second.text
    assert empty.text == "(empty prompt — nothing to do)"
    assert canceled.text == "(canceled)"
    chats = {message["chat_id"] for message in plugin.received}
    assert len(chats) == 1, "one conversation, which Hermes keeps itself"
