from __future__ import annotations

import pytest

from molecule_hermes.config import Settings
from molecule_hermes.errors import ConfigError
from molecule_hermes.hermes.providers import (
    PROVIDERS,
    ModelChoice,
    choose_model,
    demo_choice,
    keys_that_are_set,
)


def choose(**environ: str) -> ModelChoice | None:
    return choose_model(Settings.from_env(environ), environ)


def test_without_a_key_the_demo_model_is_used() -> None:
    assert choose() is None
    demo = demo_choice("http://127.0.0.1:1/v1")
    assert demo.is_demo
    assert demo.block["base_url"] == "http://127.0.0.1:1/v1"


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: f"{p.name}-{p.variables[0]}")
def test_each_key_alone_chooses_its_provider(provider: object) -> None:
    for variable in provider.variables:  # type: ignore[attr-defined]
        choice = choose(**{variable: "value-of-the-key"})
        assert choice is not None
        assert choice.block["provider"] == provider.name  # type: ignore[attr-defined]
        assert choice.block["default"]
        assert variable in choice.source
        assert "value-of-the-key" not in str(choice)


def test_no_variable_belongs_to_two_providers() -> None:
    variables = [v for p in PROVIDERS for v in p.variables]
    assert len(variables) == len(set(variables))


def test_a_key_of_openai_alone_selects_chat_completions() -> None:
    choice = choose(OPENAI_API_KEY="k")
    assert choice is not None
    assert choice.block["provider"] == "openai-api"
    assert choice.block["api_mode"] == "chat_completions"


def test_a_custom_server_wins_over_every_key_and_keeps_its_key_out_of_the_file() -> None:
    choice = choose(
        HERMES_CUSTOM_BASE_URL="http://llm/v1",
        HERMES_CUSTOM_API_KEY="top-secret",
        HERMES_INFERENCE_MODEL="m",
        OPENROUTER_API_KEY="k",
    )
    assert choice is not None
    assert choice.block["base_url"] == "http://llm/v1"
    assert "top-secret" not in str(choice)


def test_a_named_model_uses_the_provider_with_a_key() -> None:
    choice = choose(HERMES_INFERENCE_MODEL="some/model", DEEPSEEK_API_KEY="k")
    assert choice is not None
    assert choice.block == {"default": "some/model", "provider": "deepseek"}


def test_a_named_provider_wins_over_keys() -> None:
    choice = choose(HERMES_INFERENCE_PROVIDER="anthropic", OPENROUTER_API_KEY="k")
    assert choice is not None
    assert choice.block["provider"] == "anthropic"


@pytest.mark.parametrize(
    "environ",
    [
        {"HERMES_CUSTOM_BASE_URL": "http://llm/v1"},
        {"HERMES_INFERENCE_MODEL": "m"},
        {"HERMES_INFERENCE_PROVIDER": "bedrock"},
    ],
)
def test_an_incomplete_choice_says_what_is_missing(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="set HERMES_INFERENCE"):
        choose(**environ)


def test_only_the_names_of_keys_are_shown() -> None:
    assert keys_that_are_set({"XAI_API_KEY": "v", "OPENAI_API_KEY": " ", "PATH": "x"}) == [
        "XAI_API_KEY"
    ]
