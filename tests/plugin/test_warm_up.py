"""What is loaded before the first turn, in Hermes and without it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from molecule_hermes.errors import Draining
from molecule_hermes.plugin import hermes_api, warm_up
from molecule_hermes.transports.plugin.transport import PluginTransport
from tests.support.gateway import SECRET, running_hermes
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up.begin.cache_clear()
    monkeypatch.setattr(hermes_api, "MODULES", ("json",))


async def test_hermes_is_warm_when_all_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = threading.Event()
    monkeypatch.setattr(hermes_api, "probe_environment", lambda: probed.wait(20))
    assert not warm_up.is_done()
    probed.set()
    await until(warm_up.is_done)


async def test_what_cannot_be_loaded_is_logged_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hermes_api, "MODULES", ("no_such_module_of_hermes",))
    warm_up.begin()
    await until(warm_up.is_done)
    assert "could not be warmed up" in caplog.text


async def test_hermes_counts_as_warm_after_a_while_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = threading.Event()
    monkeypatch.setattr(hermes_api, "probe_environment", lambda: never.wait(20))
    monkeypatch.setattr(warm_up, "_LONGEST", 0.05)
    await until(warm_up.is_done)
    never.set()


@pytest.mark.hermes
async def test_the_bridge_is_ready_once_hermes_is_warm(tmp_path: Path) -> None:
    async with (
        running_hermes(tmp_path) as hermes,
        PluginTransport(hermes.url(""), secret=SECRET) as transport,
    ):
        refusals = []

        async def ready() -> bool:
            warm = (await hermes.health())["warm"]
            try:
                await transport.check()
            except Draining as failure:
                refusals.append((warm, failure.message))
                return False
            return True

        await until(ready, 40, every=0.05)
        assert (await hermes.health())["warm"]
        assert all(message == "Hermes is warming up" for _, message in refusals)
        assert refusals, "the gateway was warm before it was ready"
