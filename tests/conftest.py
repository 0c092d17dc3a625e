"""Fixtures for every test: settings, a bridge, a fake Hermes, a PostgreSQL server."""

from __future__ import annotations

import asyncio
import os
import tempfile
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

_TESTS = Path(__file__).parent
_HERMES = tempfile.TemporaryDirectory(prefix="hermes-of-the-tests-", ignore_cleanup_errors=True)
# Some of Hermes's modules write to its folder when they are imported, before any fixture.
os.environ["HERMES_HOME"] = _HERMES.name
# Markers of tests that run only with the option of the same name.
_ON_REQUEST = ("image", "clients")
_LONGEST = (
    "e2e/test_workers.py",
    "e2e/test_up.py",
    "deployment/test_image.py",
    "e2e/test_not_bound.py",
    "e2e/test_full_chain.py",
    "e2e/test_hostile_agent.py",
    "e2e/test_isolation.py",
    "clients/test_clients.py",
    "e2e/test_models.py",
    "e2e/test_message_options.py",
    "e2e/test_faults.py",
    "e2e/test_kept_worker.py",
    "attacks/test_shared_memory.py",
    "attacks/test_secrets.py",
    "e2e/test_soak.py",
    "e2e/test_truth.py",
)
"""The files with the most time in the real Hermes, the longest first."""

# On a loaded machine the duration of an example says nothing.
hypothesis_settings.register_profile(
    "noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("noisy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--image", action="store_true", help="also build and run the image (needs root or docker)"
    )
    parser.addoption(
        "--clients", action="store_true", help="also install other A2A clients and try them"
    )


def _cost(item: pytest.Item) -> int:
    """Rises with the time that the file of the test takes, roughly."""
    file = item.path.relative_to(_TESTS).as_posix()
    if file in _LONGEST:
        return 1 + len(_LONGEST) - _LONGEST.index(file)
    return int(item.get_closest_marker("hermes") is not None)


# Before `-m` selects by the marker that it adds.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what needs the real Hermes, skips what needs an option, and orders tests.

    One process runs tests from quick to slow; parallel workers start the slow files first.
    """
    for item in items:
        if item.path.is_relative_to(_TESTS / "e2e") or item.get_closest_marker("image"):
            item.add_marker("hermes")
    items.sort(key=_cost, reverse=hasattr(config, "workerinput"))
    for item in items:
        for name in _ON_REQUEST:
            if item.get_closest_marker(name) and not config.getoption(f"--{name}"):
                item.add_marker(pytest.mark.skip(reason=f"needs --{name}"))


@pytest.fixture(autouse=True)
def _no_real_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps the tests away from the user's own Hermes, state and keys."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("HERMES_HOME", raising=False)
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    """A PostgreSQL server for the whole run; each test takes a database of its own from it."""
    with postgres() as server:
        yield server


@pytest.fixture
async def hermes() -> AsyncIterator[FakeHermes]:
    async with fake_hermes() as hermes:
        yield hermes


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    """Makes settings from variables without their prefix: `settings(MAX_RUNNING=2)`."""

    def make(**variables: Any) -> Settings:
        environ = {"MOLECULE_HERMES_PORT": "0", "MOLECULE_HERMES_STATE_DIR": str(tmp_path)}
        environ |= {"MOLECULE_HERMES_" + k: str(v) for k, v in variables.items()}
        return Settings.from_env(environ)

    return make


StartBridge = Callable[..., AbstractAsyncContextManager[Bridge]]


@pytest.fixture
def bridge(settings: Callable[..., Settings]) -> StartBridge:
    """Starts a real bridge on a free port: `async with bridge(transport, MAX_RUNNING=2) as b`."""

    @asynccontextmanager
    async def start(transport: Transport | FakeHermes, **variables: Any) -> AsyncIterator[Bridge]:
        if isinstance(transport, FakeHermes):
            transport = ChatTransport(transport.base_url, KEY)
        variables = {"DRAIN_TIMEOUT": 2} | variables
        async with asyncio.timeout(60), Bridge(settings(**variables), transport) as running:
            yield running

    return start
