from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from molecule_hermes.config import Settings
from molecule_hermes.server.bridge import Bridge
from molecule_hermes.transports.base import Transport
from molecule_hermes.transports.chat.transport import ChatTransport
from tests.support.fakes import KEY, FakeHermes, fake_hermes
from tests.support.postgres import Postgres, postgres

# Machines are noisy: how long an example takes says nothing.
hypothesis_settings.register_profile(
    "noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("noisy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--image", action="store_true", help="build and run the image, too (root, or docker)"
    )


def _slowness(item: pytest.Item) -> int:
    if item.get_closest_marker("image"):
        return 2
    return int("/e2e/" in item.path.as_posix() or "/plugin/" in item.path.as_posix())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The image runs only when it is asked for. Alone, tests go from quick to slow; side by side,
    the slow files begin first."""
    items.sort(key=_slowness, reverse=hasattr(config, "workerinput"))
    for item in items:
        if item.get_closest_marker("image") and not config.getoption("--image"):
            item.add_marker(pytest.mark.skip(reason="needs --image"))


@pytest.fixture(autouse=True)
def _no_real_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing here may read or write the user's own Hermes or state."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("HERMES_HOME", raising=False)
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
async def hermes() -> AsyncIterator[FakeHermes]:
    async with fake_hermes() as hermes:
        yield hermes


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def make(**variables: Any) -> Settings:
        environ = {"MOLECULE_HERMES_PORT": "0", "MOLECULE_HERMES_STATE_DIR": str(tmp_path)}
        environ |= {"MOLECULE_HERMES_" + k: str(v) for k, v in variables.items()}
        return Settings.from_env(environ)

    return make


StartBridge = Callable[..., AbstractAsyncContextManager[Bridge]]


@pytest.fixture
def bridge(settings: Callable[..., Settings]) -> StartBridge:
    """Starts a real bridge on a free port: `async with bridge(transport, HOST=…) as b`."""

    @asynccontextmanager
    async def start(transport: Transport | FakeHermes, **variables: Any) -> AsyncIterator[Bridge]:
        if isinstance(transport, FakeHermes):
            transport = ChatTransport(transport.base_url, KEY)
        variables = {"DRAIN_TIMEOUT": 2} | variables
        async with asyncio.timeout(60), Bridge(settings(**variables), transport) as running:
            yield running

    return start
