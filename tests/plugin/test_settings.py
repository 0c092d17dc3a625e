from __future__ import annotations

from typing import Any

import pytest

from molecule_hermes.plugin import PluginSettings, hermes_settings, settings
from molecule_hermes.plugin.kept_files import Bounds


def test_config_yaml_takes_precedence_over_the_environment() -> None:
    env = {
        "MOLECULE_A2A_PLATFORM_HOST": "0.0.0.0",
        "MOLECULE_A2A_PLATFORM_PORT": "9000",
        "MOLECULE_A2A_PLATFORM_SHARED_SECRET": "s3cret",
    }
    from_env = PluginSettings.from_extra({}, env)
    assert (from_env.host, from_env.port, from_env.secret) == ("0.0.0.0", 9000, "s3cret")
    given_both = PluginSettings.from_extra({"port": 9001, "max_chats": 7}, env)
    assert (given_both.host, given_both.port, given_both.max_chats) == ("0.0.0.0", 9001, 7)
    assert PluginSettings.from_extra({}, {}) == PluginSettings()
    assert "s3cret" not in repr(from_env)


@pytest.mark.parametrize(
    "extra",
    [
        {"port": "x"},
        {"port": 70000},
        {"port": True},
        {"max_body": -1},
        {"journal_for": "x"},
        {"host": "0.0.0.0"},
    ],
)
def test_an_invalid_setting_is_named(extra: dict[str, Any]) -> None:
    (name,) = extra
    with pytest.raises(ValueError, match=name):
        PluginSettings.from_extra(extra, {})


@pytest.mark.parametrize(
    ("env", "enabled"),
    [
        ({}, False),
        ({"MOLECULE_A2A_PLATFORM_ENABLED": "true"}, True),
        ({"MOLECULE_A2A_PLATFORM_PORT": "9000"}, True),
        ({"MOLECULE_A2A_PLATFORM_ENABLED": "false", "MOLECULE_A2A_PLATFORM_PORT": "1"}, False),
    ],
)
def test_the_environment_can_enable_the_platform(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], enabled: bool
) -> None:
    for name in ("MOLECULE_A2A_PLATFORM_ENABLED", "MOLECULE_A2A_PLATFORM_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    seed = settings.enabled_by_env()
    assert bool(seed) is enabled
    # Hermes lays it over config.yaml: it must not carry a host or a port.
    assert not seed or set(seed) == {"enabled_by_env"}


def test_files_may_be_kept_for_no_days_but_not_in_no_bytes() -> None:
    read = settings.PluginSettings.from_extra
    assert read({}, {}).kept == Bounds()
    given = {"keep_files_days": 0, "keep_files_bytes": 9, "keep_files_bytes_of_chat": "8"}
    assert read(given, {}).kept == Bounds(days=0, in_all=9, of_chat=8)
    for bad in ({"keep_files_days": -1}, {"keep_files_days": "nan"}, {"keep_files_bytes": 0}):
        with pytest.raises(ValueError, match="keep_files_"):
            read(bad, {})


def test_hermess_settings_contain_what_the_plugin_needs_and_no_secret() -> None:
    made = hermes_settings("127.0.0.1", 9000)
    assert made["plugins"]["enabled"] == ["molecule-a2a"]
    stanza = made["platforms"]["molecule_a2a"]
    assert stanza["enabled"] is True
    assert stanza["extra"] == {"host": "127.0.0.1", "port": 9000}
    assert stanza["home_channel"]["platform"] == "molecule_a2a"
