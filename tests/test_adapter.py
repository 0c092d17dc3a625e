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

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.plugin_setup import enable
from tests.support.fakes import KEY, FakeHermes, fake_hermes
from tests.support.peers import ask, peer
from tests.support.serving import free_port
from tests.support.workspace_platform import AdapterConfig, platform

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
    async with platform(config) as workspace, peer(workspace.url) as client:
        turn = await ask(client, "ping")
    assert turn.states[-1] == "COMPLETED"
    assert turn.text == "pong"
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
    async with platform(AdapterConfig()) as workspace, peer(workspace.url) as client:
        assert (await ask(client, "ping")).text == "pong"


async def test_setup_waits_for_a_hermes_that_starts_later(environ: Callable[..., None]) -> None:
    port = free_port()
    environ(HERMES_API_BASE=f"http://127.0.0.1:{port}/v1", API_SERVER_KEY=KEY)
    waiting = asyncio.create_task(_adapter().setup(AdapterConfig()))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    async with fake_hermes(port):
        async with asyncio.timeout(20):
            await waiting


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
    async with platform(AdapterConfig()) as workspace, peer(workspace.url) as client:
        turn = await ask(client, "ping")
    assert turn.states[-1] == "FAILED"
    assert turn.failure["kind"] == "unreachable"
    assert "MOLECULE_SMOKE_MODE" in turn.failure["hint"]


async def test_a_config_needs_only_a_model_and_a_prompt(
    hermes: FakeHermes, environ: Callable[..., None]
) -> None:
    environ(HERMES_API_BASE=hermes.base_url, API_SERVER_KEY=KEY)
    config = SimpleNamespace(model=None, system_prompt=None)
    executor = await _adapter().create_executor(config)
    await executor.check()
    await executor.stop()
