"""Why a plugin is not bound, from what a folder and Hermes say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from molecule_hermes.config import Settings
from molecule_hermes.hermes.api import platform_state
from molecule_hermes.hermes.diagnosis import Hermes, diagnose
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.plugin_setup import enable
from tests.support.serving import serve

FATAL = {"state": "fatal", "error_code": "port_in_use", "error_message": "cannot listen"}
CONNECTED = {"state": "connected"}
LOAD_ERROR = "WARNING Failed to load plugin 'molecule-a2a': No module named 'x'\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HermesHome:
    home = HermesHome(tmp_path / "hermes")
    enable(home, Settings.from_env({}))
    monkeypatch.setattr(HermesHome, "running_gateway", lambda self: os.getpid())
    return home


def cause(home: HermesHome, state: Mapping[str, Any] | None, **environ: str) -> str:
    log = home.path / "gateway.log"
    hermes = Hermes(home, environ, logs=[log], url="http://127.0.0.1:8645")
    return diagnose(hermes, state).cause


def test_a_load_error_of_an_earlier_process_does_not_hide_the_current_cause(
    home: HermesHome,
) -> None:
    (home.path / "gateway.log").write_text(LOAD_ERROR)
    assert cause(home, {}) == "load_error"
    assert cause(home, FATAL) == "port_taken"
    home.merge_config({"platforms": {"molecule_a2a": {"enabled": False}}})
    assert cause(home, {}) == "no_stanza"


def test_a_hermes_that_is_not_running_is_a_cause(
    home: HermesHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.path / "gateway.log").write_text(LOAD_ERROR)
    monkeypatch.setattr(HermesHome, "running_gateway", lambda self: None)
    assert cause(home, None) == "not_running"


def test_hermes_own_env_file_counts(home: HermesHome) -> None:
    home.merge_env({"HERMES_SAFE_MODE": "1"})
    assert cause(home, {}) == "safe_mode"


def test_a_platform_that_the_environment_disables_has_no_stanza(home: HermesHome) -> None:
    home.config_file.write_text("plugins: {enabled: [molecule-a2a]}\n")
    port = {"MOLECULE_A2A_PLATFORM_PORT": "8645"}
    assert cause(home, {}, **port) == "unknown"
    assert cause(home, {}, MOLECULE_A2A_PLATFORM_ENABLED="false", **port) == "no_stanza"


def test_a_plugin_on_another_port_than_the_bridge_expects_is_a_cause(home: HermesHome) -> None:
    home.merge_config({"platforms": {"molecule_a2a": {"extra": {"port": 9999}}}})
    assert cause(home, CONNECTED) == "elsewhere"


@pytest.mark.parametrize(("hours", "known"), [(0, True), (-10_000, False)])
async def test_a_state_that_an_earlier_process_left_is_ignored(hours: int, known: bool) -> None:
    """After kill -9 its file says `connected` for ever."""
    state = {**CONNECTED, "updated_at": (datetime.now(UTC) + timedelta(hours=hours)).isoformat()}

    async def detailed(request: web.Request) -> web.Response:
        answer = {"gateway_state": "running", "pid": os.getpid()}
        return web.json_response({**answer, "platforms": {"molecule_a2a": state}})

    app = web.Application()
    app.router.add_get("/health/detailed", detailed)
    async with serve(app) as url:
        reported = await platform_state(f"{url}/v1", "key")
    assert reported == (state if known else {}), json.dumps(reported)
