"""Settings from the environment, and the messages about bad values."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.config import Settings, unknown_variables
from molecule_hermes.errors import ConfigError
from molecule_hermes.text import is_loopback


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = Settings.from_env({})
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.hermes_api_base == "http://127.0.0.1:8642/v1"
    assert (settings.turn_timeout, settings.max_running) == (600, 10)
    assert (settings.max_body, settings.compat_v03) == (16 * 2**20, True)
    assert settings.ready_budget == 120
    settings.require_safe_exposure()


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.from_env({"MOLECULE_HERMES_PORT": " "}).port == 8000


def test_the_models_that_may_be_chosen_are_a_list() -> None:
    environ = {"MOLECULE_HERMES_MODELS": "openai/gpt-5-mini, llama3:70b,"}
    assert Settings.from_env(environ).models == ("openai/gpt-5-mini", "llama3:70b")
    assert Settings.from_env({}).models == ()


def test_an_option_wins_over_the_environment() -> None:
    assert Settings.from_env({"MOLECULE_HERMES_PORT": "1"}, port="2", host=None).port == 2


@pytest.mark.parametrize(
    ("variable", "value", "takes"),
    [
        ("MOLECULE_HERMES_PORT", "http", "0 to 65535"),
        ("MOLECULE_HERMES_PORT", "70000", "0 to 65535"),
        ("MOLECULE_HERMES_TURN_TIMEOUT", "-1", "seconds"),
        ("MOLECULE_HERMES_TURN_TIMEOUT", "nan", "seconds"),
        ("MOLECULE_HERMES_MAX_RUNNING", "0", "1 to 100000"),
        ("MOLECULE_HERMES_ALLOW_ANONYMOUS", "perhaps", "true or false"),
        ("MOLECULE_HERMES_MAX_FILES", "17", "0 to 16"),
        ("MOLECULE_HERMES_MAX_FILE", "10485761", "1 to 10485760"),
        ("MOLECULE_HERMES_FILE_HOSTS", "http://files.example/", "host,host:port"),
        ("MOLECULE_HERMES_PUBLIC_URL", "example.com", "URL"),
        ("MOLECULE_HERMES_LOG_LEVEL", "loud", "debug, info"),
        ("MOLECULE_HERMES_DEMO", "perhaps", "always"),
        ("MOLECULE_HERMES_MODELS", "gpt-5, $SECRET", "name,name"),
        ("HERMES_API_BASE", "ftp://x/v1", "URL"),
        ("HERMES_CUSTOM_API_MODE", "x", "chat_completions"),
    ],
)
def test_a_bad_value_is_reported_with_what_the_variable_takes(
    variable: str, value: str, takes: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({variable: value})
    line = str(caught.value)
    assert variable in line
    assert repr(value) in line
    assert takes in line
    assert "\n" not in line


@pytest.mark.parametrize("name", ["${OPENROUTER_API_KEY}", "a b", "a\nb", "-x", "x" * 201, "ü"])
def test_a_models_name_holds_nothing_that_hermes_would_expand_or_misread(name: str) -> None:
    with pytest.raises(ConfigError, match="HERMES_INFERENCE_MODEL"):
        Settings.from_env({"HERMES_INFERENCE_MODEL": name})


def test_a_providers_name_may_have_capitals() -> None:
    settings = Settings.from_env({"HERMES_INFERENCE_PROVIDER": "OpenRouter"})
    assert settings.inference_provider == "openrouter"


@pytest.mark.parametrize("value", ["soon", "-1", "0", "nan", "inf", "1e9", "120 s", "٣"])
def test_a_bad_ready_budget_is_a_warning_and_the_default_is_used(
    value: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.from_env({"HERMES_GATEWAY_READY_BUDGET_SEC": value})
    assert settings.ready_budget == 120
    assert f"HERMES_GATEWAY_READY_BUDGET_SEC={value!r}" in caplog.text
    caplog.clear()
    settings = Settings.from_env({"HERMES_GATEWAY_READY_BUDGET_SEC": "2.5"})
    assert settings.ready_budget == 2.5
    assert not caplog.text


def test_the_older_name_of_the_model_setting_works() -> None:
    assert Settings.from_env({"HERMES_DEFAULT_MODEL": "m"}).inference_model == "m"
    both = {"HERMES_DEFAULT_MODEL": "old", "HERMES_INFERENCE_MODEL": "new"}
    assert Settings.from_env(both).inference_model == "new"
    assert Settings.from_env(both, inference_model="newest").inference_model == "newest"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("API_SERVER_KEY", "short-secret"),
        ("MOLECULE_HERMES_PEER_TOKENS", "justasecret"),
        ("MOLECULE_HERMES_PEER_TOKENS", "a:secret1-0123456789,a:secret2-0123456789"),
        ("MOLECULE_HERMES_PEER_TOKENS", "a:secret1-0123456789,b:secret1-0123456789"),
        ("MOLECULE_HERMES_PEER_TOKENS", "a b:secret1-0123456789"),
        ("MOLECULE_HERMES_PEER_TOKENS", "a:s"),
        ("MOLECULE_HERMES_PEER_TOKENS", "a:fifteen-letters"),
    ],
)
def test_a_bad_secret_is_reported_but_not_shown(variable: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({variable: value})
    assert variable in str(caught.value)
    assert "secret1" not in str(caught.value)
    assert value not in str(caught.value)


def test_a_prompt_that_is_too_long_is_reported_in_a_short_message() -> None:
    with pytest.raises(ConfigError, match="at most 65536 characters") as raised:
        Settings.from_env({"MOLECULE_HERMES_SYSTEM_PROMPT": "x" * 65_537})
    assert len(str(raised.value)) < 400


def test_hosts_to_fetch_files_from_are_a_list() -> None:
    hosts = "files.example, 10.0.0.7:9000,::1 ,[fd00::1]:80,"
    read = Settings.from_env({"MOLECULE_HERMES_FILE_HOSTS": hosts}).file_hosts
    assert read == ("files.example", "10.0.0.7:9000", "::1", "[fd00::1]:80")


def test_peer_tokens_are_named_and_masked() -> None:
    settings = Settings.from_env(
        {"MOLECULE_HERMES_PEER_TOKENS": "a:top:secret-0123456789, b:other-0123456789"}
    )
    assert {n: t.get_secret_value() for n, t in settings.peer_tokens.items()} == {
        "a": "top:secret-0123456789",
        "b": "other-0123456789",
    }
    assert "top" not in repr(settings)
    assert "other" not in str(settings)


@given(st.text())
def test_any_peer_tokens_parse_or_are_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        settings = Settings.from_env({"MOLECULE_HERMES_PEER_TOKENS": text})
        assert all(name and t.get_secret_value() for name, t in settings.peer_tokens.items())


@given(st.sampled_from([str(f.alias) for f in Settings.model_fields.values()]), st.text())
def test_any_value_of_any_variable_parses_or_is_refused(variable: str, value: str) -> None:
    with contextlib.suppress(ConfigError):
        Settings.from_env({variable: value})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"])
def test_loopback_is_open_without_tokens(host: str) -> None:
    assert is_loopback(host)
    Settings.from_env({"MOLECULE_HERMES_HOST": host}).require_safe_exposure()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com"])
def test_a_host_beyond_loopback_needs_tokens_or_permission(host: str) -> None:
    environ = {"MOLECULE_HERMES_HOST": host}
    with pytest.raises(ConfigError, match=r"PEER_TOKENS.*ALLOW_ANONYMOUS"):
        Settings.from_env(environ).require_safe_exposure()
    Settings.from_env(environ | {"MOLECULE_HERMES_ALLOW_ANONYMOUS": "true"}).require_safe_exposure()
    Settings.from_env(
        environ | {"MOLECULE_HERMES_PEER_TOKENS": "a:" + 16 * "b"}
    ).require_safe_exposure()


def test_a_mistyped_variable_is_reported() -> None:
    assert unknown_variables({"MOLECULE_HERMES_PROT": "1", "PATH": "x"}) == {
        "MOLECULE_HERMES_PROT": "MOLECULE_HERMES_PORT"
    }


def test_only_variables_in_the_table_count() -> None:
    assert Settings.from_env({"host": "0.0.0.0", "port": "junk", "name": "x"}) == Settings.from_env(
        {}
    )


def test_a_state_dir_may_begin_with_the_users_home() -> None:
    settings = Settings.from_env({"MOLECULE_HERMES_STATE_DIR": "~/state"})
    assert settings.state_dir == Path.home() / "state"
