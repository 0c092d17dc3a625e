from __future__ import annotations

import pytest

from molecule_hermes.config import Settings
from molecule_hermes.errors import ConfigError
from molecule_hermes.hermes.model_choice import (
    ModelChoice,
    choose_model,
    demo_choice,
    require_demo_allowed,
    why_demo,
)
from molecule_hermes.hermes.providers import PROVIDERS, Provider


def choose(**environ: str) -> ModelChoice | None:
    return choose_model(Settings.from_env(environ), environ)


def chosen(**environ: str) -> tuple[str, str]:
    choice = choose(**environ)
    assert choice is not None
    return choice.block["provider"], choice.block["default"]


def test_without_a_key_the_demo_model_is_used() -> None:
    assert choose() is None
    demo = demo_choice("http://127.0.0.1:1/v1")
    assert demo.is_demo
    assert demo.block["base_url"] == "http://127.0.0.1:1/v1"


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: f"{p.name}-{p.variables[0]}")
def test_each_key_alone_chooses_its_provider(provider: Provider) -> None:
    for variable in provider.variables:
        choice = choose(**{variable: "value-of-the-key"})
        assert choice is not None
        assert choice.block["provider"] == provider.hermes_name
        assert choice.block["default"]
        assert variable in choice.source
        assert "value-of-the-key" not in str(choice)
        if provider.endpoint:
            assert choice.block["base_url"] == provider.endpoint
            assert choice.block["api_key"] == f"${{{variable}}}"


@pytest.mark.parametrize("variable", ["GH_TOKEN", "GITHUB_TOKEN", "AWS_PROFILE", "LM_API_KEY"])
def test_a_variable_with_other_uses_chooses_no_provider(variable: str) -> None:
    assert choose(**{variable: "value"}) is None


def test_a_key_of_openai_alone_selects_chat_completions() -> None:
    choice = choose(OPENAI_API_KEY="k")
    assert choice is not None
    assert choice.block["provider"] == "openai-api"
    assert choice.block["api_mode"] == "chat_completions"


def test_a_custom_server_wins_over_every_key_and_keeps_its_key_out_of_the_file() -> None:
    choice = choose(
        HERMES_CUSTOM_BASE_URL="http://llm/v1",
        HERMES_CUSTOM_API_KEY="top-secret",
        HERMES_INFERENCE_MODEL="custom/m",
        OPENROUTER_API_KEY="k",
    )
    assert choice is not None
    assert choice.block["base_url"] == "http://llm/v1"
    assert choice.block["default"] == "m"
    assert "top-secret" not in str(choice)


@pytest.mark.parametrize(
    ("model", "variable", "expected"),
    [
        ("minimax/MiniMax-M3", "MINIMAX_API_KEY", ("minimax", "MiniMax-M3")),
        ("minimax-cn/MiniMax-M3", "MINIMAX_CN_API_KEY", ("minimax-cn", "MiniMax-M3")),
        ("anthropic/claude-x", "ANTHROPIC_API_KEY", ("anthropic", "claude-x")),
        ("gemini/gemini-x", "GOOGLE_API_KEY", ("gemini", "gemini-x")),
        ("deepseek/deepseek-chat", "DEEPSEEK_API_KEY", ("deepseek", "deepseek-chat")),
        ("zai/glm-5", "GLM_API_KEY", ("zai", "glm-5")),
        ("kimi-coding/kimi-k3", "KIMI_API_KEY", ("kimi-coding", "kimi-k3")),
        ("kimi-coding-cn/kimi-k3", "KIMI_CN_API_KEY", ("kimi-coding-cn", "kimi-k3")),
        ("alibaba/qwen3", "DASHSCOPE_API_KEY", ("alibaba", "qwen3")),
        ("dashscope/qwen3", "DASHSCOPE_API_KEY", ("alibaba", "qwen3")),
        ("qwen/qwen3", "DASHSCOPE_API_KEY", ("alibaba", "qwen3")),
        ("xiaomi/mimo-v2", "XIAOMI_API_KEY", ("xiaomi", "mimo-v2")),
        ("mimo/mimo-v2", "XIAOMI_API_KEY", ("xiaomi", "mimo-v2")),
        ("arcee/trinity", "ARCEEAI_API_KEY", ("arcee", "trinity")),
        ("arcee-ai/trinity", "ARCEEAI_API_KEY", ("arcee", "trinity")),
        ("nvidia/nemotron", "NVIDIA_API_KEY", ("nvidia", "nvidia/nemotron")),
        ("nim/meta/llama", "NVIDIA_API_KEY", ("nvidia", "meta/llama")),
        ("ollama-cloud/glm-5", "OLLAMA_API_KEY", ("ollama-cloud", "glm-5")),
        ("huggingface/org/m", "HF_TOKEN", ("huggingface", "org/m")),
        ("hf/org/m", "HF_TOKEN", ("huggingface", "org/m")),
        ("ai-gateway/openai/gpt", "AI_GATEWAY_API_KEY", ("custom", "openai/gpt")),
        ("kilocode/anthropic/claude", "KILOCODE_API_KEY", ("kilocode", "anthropic/claude")),
        ("opencode-zen/kimi", "OPENCODE_ZEN_API_KEY", ("opencode-zen", "kimi")),
        ("opencode-go/kimi", "OPENCODE_GO_API_KEY", ("opencode-go", "kimi")),
        ("xai/grok-4", "XAI_API_KEY", ("xai", "grok-4")),
        ("grok/grok-4", "XAI_API_KEY", ("xai", "grok-4")),
        ("bedrock/nova", "AWS_PROFILE", ("bedrock", "nova")),
        ("aws/nova", "AWS_PROFILE", ("bedrock", "nova")),
        ("openrouter/anthropic/claude", "OPENROUTER_API_KEY", ("openrouter", "anthropic/claude")),
        ("copilot/gpt-5", "GH_TOKEN", ("copilot", "gpt-5")),
        ("lmstudio/local", "LM_API_KEY", ("lmstudio", "local")),
        ("nousresearch/hermes-4", "NOUS_API_KEY", ("custom", "nousresearch/hermes-4")),
        ("nousresearch/hermes-4", "HERMES_API_KEY", ("custom", "nousresearch/hermes-4")),
        ("nousresearch/hermes-4", "OPENROUTER_API_KEY", ("openrouter", "nousresearch/hermes-4")),
        ("openai/gpt-5.4", "OPENROUTER_API_KEY", ("openrouter", "openai/gpt-5.4")),
        ("openai/gpt-5.4", "OPENAI_API_KEY", ("custom", "gpt-5.4")),
        ("some/model", "DEEPSEEK_API_KEY", ("deepseek", "some/model")),
        ("plain-name", "XAI_API_KEY", ("xai", "plain-name")),
    ],
)
def test_the_prefix_of_a_model_selects_its_provider(
    model: str, variable: str, expected: tuple[str, str]
) -> None:
    environ = {variable: "value-of-the-key"}
    assert chosen(HERMES_INFERENCE_MODEL=model, **environ) == expected
    assert chosen(HERMES_DEFAULT_MODEL=model, **environ) == expected


def test_a_prefix_wins_over_the_order_of_keys() -> None:
    keys = {"OPENROUTER_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "NOUS_API_KEY": "k"}
    assert chosen(HERMES_INFERENCE_MODEL="anthropic/claude-x", **keys)[0] == "anthropic"
    assert chosen(HERMES_INFERENCE_MODEL="nousresearch/h", **keys)[0] == "custom"
    assert chosen(HERMES_INFERENCE_MODEL="openai/gpt", OPENAI_API_KEY="k", **keys) == (
        "openrouter",
        "openai/gpt",
    )


def test_openrouter_serves_a_vendor_whose_own_key_is_missing() -> None:
    environ = {"HERMES_INFERENCE_MODEL": "anthropic/claude-x", "OPENROUTER_API_KEY": "k"}
    assert chosen(**environ) == ("openrouter", "anthropic/claude-x")


def test_the_newer_name_of_the_model_setting_wins() -> None:
    environ = {"HERMES_INFERENCE_MODEL": "xai/new", "HERMES_DEFAULT_MODEL": "xai/old"}
    assert chosen(XAI_API_KEY="k", **environ) == ("xai", "new")


def test_openais_own_server_can_be_replaced() -> None:
    environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    choice = choose(HERMES_INFERENCE_MODEL="openai/gpt-5.4", **environ)
    assert choice is not None
    assert choice.block == {
        "default": "gpt-5.4",
        "provider": "custom",
        "base_url": "http://127.0.0.1:1/v1",
        "api_key": "${OPENAI_API_KEY}",
        "api_mode": "chat_completions",
    }


def test_a_named_provider_wins_over_keys_and_prefixes() -> None:
    environ = {"HERMES_INFERENCE_PROVIDER": "anthropic", "OPENROUTER_API_KEY": "k"}
    assert chosen(**environ, ANTHROPIC_API_KEY="k")[0] == "anthropic"
    environ |= {"HERMES_INFERENCE_PROVIDER": "openrouter", "ANTHROPIC_API_KEY": "k"}
    environ |= {"HERMES_INFERENCE_MODEL": "anthropic/claude-x"}
    assert chosen(**environ) == ("openrouter", "anthropic/claude-x")


def test_a_provider_that_only_hermes_knows_is_passed_on() -> None:
    environ = {"HERMES_INFERENCE_PROVIDER": "openai-codex", "HERMES_INFERENCE_MODEL": "gpt"}
    assert chosen(**environ) == ("openai-codex", "gpt")


def test_a_login_of_hermes_replaces_a_key() -> None:
    def with_login(*logins: str, **environ: str) -> tuple[str, str]:
        choice = choose_model(Settings.from_env(environ), environ, logins)
        assert choice is not None
        return choice.block["provider"], choice.block["default"]

    assert with_login("nous", HERMES_INFERENCE_MODEL="nousresearch/h") == (
        "nous",
        "nousresearch/h",
    )
    assert with_login("nous", HERMES_INFERENCE_MODEL="some/model") == ("nous", "some/model")
    assert with_login("qwen-oauth", HERMES_INFERENCE_MODEL="some/model") == ("auto", "some/model")
    with pytest.raises(ConfigError, match="XAI_API_KEY"):
        with_login("nous", HERMES_INFERENCE_MODEL="xai/grok-4")


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


@pytest.mark.parametrize(
    "environ",
    [{"HERMES_INFERENCE_MODEL": "custom/m"}, {"HERMES_INFERENCE_PROVIDER": "custom"}],
)
def test_a_custom_model_needs_its_server(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="set HERMES_CUSTOM_BASE_URL"):
        choose(OPENROUTER_API_KEY="k", **environ)


@pytest.mark.parametrize(
    ("environ", "looked_for", "not_looked_for"),
    [
        ({"HERMES_INFERENCE_MODEL": "zai/glm-5"}, "ZAI_API_KEY", "OPENROUTER_API_KEY"),
        ({"HERMES_DEFAULT_MODEL": "zai/glm-5"}, "ZAI_API_KEY", "OPENROUTER_API_KEY"),
        ({"HERMES_INFERENCE_MODEL": "anthropic/x"}, "OPENROUTER_API_KEY", "XAI_API_KEY"),
        ({"HERMES_INFERENCE_MODEL": "x"}, "OPENROUTER_API_KEY", "GH_TOKEN"),
        ({"HERMES_INFERENCE_PROVIDER": "xai"}, "XAI_API_KEY", "OPENROUTER_API_KEY"),
    ],
)
@pytest.mark.parametrize("demo", ["auto", "never"])
def test_a_named_model_without_a_key_that_fits_stops_the_start(
    environ: dict[str, str], looked_for: str, not_looked_for: str, demo: str
) -> None:
    keys = {"DEEPINFRA_KEY": "top-secret", "MOLECULE_HERMES_DEMO": demo}
    with pytest.raises(ConfigError) as caught:
        choose(**environ, **keys)
    line = str(caught.value)
    assert "\n" not in line
    assert looked_for in line
    assert not_looked_for not in line
    assert "top-secret" not in line


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"MOLECULE_HERMES_HOST": "0.0.0.0"}, "on loopback only"),
        ({"MOLECULE_HERMES_PUBLIC_URL": "https://agents.example"}, "on loopback only"),
        ({"MOLECULE_HERMES_DEMO": "never"}, "MOLECULE_HERMES_DEMO=never"),
    ],
)
def test_the_demo_model_does_not_stand_in_for_a_missing_key(
    environ: dict[str, str], why: str
) -> None:
    environ = environ | {"OPENROUTER_KEY": "top-secret", "ANTHROPIC_API_KEY": ""}
    with pytest.raises(ConfigError) as caught:
        require_demo_allowed(Settings.from_env(environ), environ)
    line = str(caught.value)
    assert "\n" not in line
    assert why in line
    assert "OPENROUTER_KEY is set: did you mean OPENROUTER_API_KEY?" in line
    assert "ANTHROPIC_API_KEY is empty" in line
    assert "looked for OPENROUTER_API_KEY, ANTHROPIC_API_KEY, " in line
    assert "top-secret" not in line


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MOLECULE_HERMES_HOST": "::1", "MOLECULE_HERMES_PUBLIC_URL": "http://localhost:1"},
        {"MOLECULE_HERMES_HOST": "0.0.0.0", "MOLECULE_HERMES_DEMO": "always"},
    ],
)
def test_the_demo_model_answers_on_loopback_or_if_it_is_asked_for(environ: dict[str, str]) -> None:
    require_demo_allowed(Settings.from_env(environ), environ)


def test_the_demo_model_names_a_misspelled_key() -> None:
    environ = {"OPENROUTER_KEY": "top-secret", "HOME": "/home/you"}
    assert why_demo(environ) == (
        "no model key is set; OPENROUTER_KEY is set: did you mean OPENROUTER_API_KEY?"
    )
    assert why_demo({}) == "no model key is set"
