from __future__ import annotations

import os
from pathlib import Path

import pytest

from molecule_hermes.hermes.providers import (
    PROVIDERS,
    PROVIDERS_BY_NAME,
    Provider,
    keys_that_are_set,
    look_alikes,
    provider_of_prefix,
)

ALL = [variable for provider in PROVIDERS for variable in provider.variables]


def test_no_variable_belongs_to_two_providers() -> None:
    assert len(ALL) == len(set(ALL))


def test_only_the_names_of_keys_are_shown() -> None:
    assert keys_that_are_set({"XAI_API_KEY": "v", "OPENAI_API_KEY": " ", "PATH": "x"}) == [
        "XAI_API_KEY"
    ]


@pytest.mark.parametrize("provider", PROVIDERS_BY_NAME.values(), ids=lambda p: p.name)
def test_hermes_knows_every_provider_and_its_keys(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the installed Hermes, so that a renamed provider or variable is noticed."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    from hermes_cli.auth import PROVIDER_REGISTRY, resolve_provider

    assert resolve_provider(provider.hermes_name) == provider.hermes_name
    registered = PROVIDER_REGISTRY.get(provider.hermes_name)
    if registered is not None and registered.api_key_env_vars:
        assert set(provider.variables) <= set(registered.api_key_env_vars)


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        *((p.name, p.name) for p in PROVIDERS_BY_NAME.values()),
        ("dashscope", "alibaba"),
        ("qwen", "alibaba"),
        ("mimo", "xiaomi"),
        ("arcee-ai", "arcee"),
        ("nim", "nvidia"),
        ("hf", "huggingface"),
        ("grok", "xai"),
        ("aws", "bedrock"),
        ("Anthropic", "anthropic"),
    ],
)
def test_a_prefix_names_its_provider(prefix: str, name: str) -> None:
    provider = provider_of_prefix(prefix)
    assert provider is not None
    assert provider.name == name


def test_every_prefix_of_the_platform_is_known() -> None:
    prefixes = """
        minimax minimax-cn anthropic gemini deepseek zai kimi-coding kimi-coding-cn alibaba
        dashscope qwen xiaomi mimo arcee arcee-ai nvidia nim ollama-cloud huggingface hf
        ai-gateway kilocode opencode-zen opencode-go xai grok bedrock aws openrouter copilot
        lmstudio
    """
    assert [prefix for prefix in prefixes.split() if provider_of_prefix(prefix) is None] == []
    assert provider_of_prefix("no-such-vendor") is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("OPENROUTER_KEY", "OPENROUTER_API_KEY"),
        ("OPEN_ROUTER_API_KEY", "OPENROUTER_API_KEY"),
        ("OPENROUTER_APIKEY", "OPENROUTER_API_KEY"),
        ("openrouter_api_key", "OPENROUTER_API_KEY"),
        ("OPENROUTER_TOKEN", "OPENROUTER_API_KEY"),
        ("OPENROTUER_API_KEY", "OPENROUTER_API_KEY"),
        ("ANTHROPIC_KEY", "ANTHROPIC_API_KEY"),
        ("CLAUDE_API_KEY", "ANTHROPIC_API_KEY"),
        ("HUGGINGFACE_TOKEN", "HF_TOKEN"),
        ("HF_API_KEY", "HF_TOKEN"),
        ("QWEN_API_KEY", "DASHSCOPE_API_KEY"),
        ("GROK_API_KEY", "XAI_API_KEY"),
        ("MOONSHOT_API_KEY", "KIMI_API_KEY"),
        ("OPENAI_TOKEN", "OPENAI_API_KEY"),
    ],
)
def test_a_look_alike_of_a_key_is_recognised(given: str, meant: str) -> None:
    assert look_alikes(ALL, {given: "value", "PATH": "/bin"}) == {given: meant}


def test_other_variables_are_no_look_alikes() -> None:
    environ = dict.fromkeys(
        [
            "API_SERVER_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "GH_TOKEN",
            "GITHUB_TOKEN",
            "HERMES_CUSTOM_API_KEY",
            "MOLECULE_A2A_PLATFORM_SHARED_SECRET",
            "MOLECULE_HERMES_PEER_TOKENS",
            "MOLECULE_HERMES_TOKEN",
            "MONKEY",
            "NPM_TOKEN",
            "OPENROUTER_MODEL",
            "SECRET_KEY",
            "SLACK_BOT_TOKEN",
            "TELEGRAM_BOT_TOKEN",
        ],
        "value",
    )
    assert look_alikes(ALL, environ) == {}
    assert look_alikes(ALL, {"OPENROUTER_KEY": " "}) == {}
    assert look_alikes(ALL, dict(os.environ) | {"XAI_API_KEY": "v"}) == {}
