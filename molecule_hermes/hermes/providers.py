"""Chooses Hermes's model: the one in the settings, else that of a provider whose key is set.

Only the names of variables are shown, never their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from molecule_hermes.config import Settings
from molecule_hermes.errors import ConfigError
from molecule_hermes.hermes.demo_model import DEMO_MODEL

__all__ = [
    "PROVIDERS",
    "ModelChoice",
    "Provider",
    "choose_model",
    "demo_choice",
    "keys_that_are_set",
]


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider as Hermes 0.19 names it, the variables for its key, and a default model."""

    name: str
    variables: tuple[str, ...]
    model: str
    extra: Mapping[str, str] = field(default_factory=dict)


# In order of preference. Without api_mode, Hermes uses the Responses API for OpenAI's own endpoint
# (agent/agent_init.py:508).
PROVIDERS: tuple[Provider, ...] = (
    Provider("openrouter", ("OPENROUTER_API_KEY",), "z-ai/glm-5.2"),
    Provider("anthropic", ("ANTHROPIC_API_KEY", "ANTHROPIC_TOKEN"), "claude-sonnet-5"),
    Provider("openai-api", ("OPENAI_API_KEY",), "gpt-5.4", {"api_mode": "chat_completions"}),
    Provider("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-3.1-pro-preview"),
    Provider(
        "custom",
        ("NOUS_API_KEY",),
        "z-ai/glm-5.2",
        {
            "base_url": "https://inference-api.nousresearch.com/v1",
            "api_key": "${NOUS_API_KEY}",
            "api_mode": "chat_completions",
        },
    ),
    Provider("deepseek", ("DEEPSEEK_API_KEY",), "deepseek-v4-flash"),
    Provider("xai", ("XAI_API_KEY",), "grok-build-0.1"),
    Provider("zai", ("GLM_API_KEY", "ZAI_API_KEY", "Z_AI_API_KEY"), "glm-5.2"),
    Provider("kimi-coding", ("KIMI_API_KEY", "KIMI_CODING_API_KEY"), "kimi-k3"),
    Provider("kimi-coding-cn", ("KIMI_CN_API_KEY",), "kimi-k3"),
    Provider("minimax", ("MINIMAX_API_KEY",), "MiniMax-M3"),
    Provider("minimax-cn", ("MINIMAX_CN_API_KEY",), "MiniMax-M3"),
    Provider("alibaba", ("DASHSCOPE_API_KEY",), "qwen3.7-plus"),
    Provider("alibaba-coding-plan", ("ALIBABA_CODING_PLAN_API_KEY",), "qwen3.7-plus"),
    Provider("stepfun", ("STEPFUN_API_KEY",), "step-3.5-flash"),
    Provider("arcee", ("ARCEEAI_API_KEY",), "trinity-large-thinking"),
    Provider("gmi", ("GMI_API_KEY",), "zai-org/GLM-5.1-FP8"),
    Provider("nvidia", ("NVIDIA_API_KEY",), "nvidia/nemotron-3-super-120b-a12b"),
    Provider("opencode-zen", ("OPENCODE_ZEN_API_KEY",), "kimi-k2.6"),
    Provider("opencode-go", ("OPENCODE_GO_API_KEY",), "kimi-k3"),
    Provider("kilocode", ("KILOCODE_API_KEY",), "anthropic/claude-sonnet-4.6"),
    Provider("xiaomi", ("XIAOMI_API_KEY",), "mimo-v2.5"),
    Provider("tencent-tokenhub", ("TOKENHUB_API_KEY",), "hy3-preview"),
    Provider("ollama-cloud", ("OLLAMA_API_KEY",), "glm-5.2"),
    Provider("deepinfra", ("DEEPINFRA_API_KEY",), "deepseek-ai/DeepSeek-V4-Flash"),
    Provider("fireworks", ("FIREWORKS_API_KEY",), "accounts/fireworks/models/glm-5p2"),
    Provider("novita", ("NOVITA_API_KEY",), "moonshotai/kimi-k2.5"),
    Provider("upstage", ("UPSTAGE_API_KEY",), "solar-pro3"),
    Provider("huggingface", ("HF_TOKEN",), "moonshotai/Kimi-K2.5"),
)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The `model:` block for Hermes's config.yaml, and its source as a text for people."""

    block: Mapping[str, Any]
    source: str

    @property
    def label(self) -> str:
        provider = self.block.get("provider")
        name = self.block.get("default", "")
        return f"{name} ({provider})" if provider else str(name)

    @property
    def is_demo(self) -> bool:
        return self.block.get("default") == DEMO_MODEL


def choose_model(settings: Settings, environ: Mapping[str, str]) -> ModelChoice | None:
    """The model that the settings or the keys select; None if there are neither."""
    if settings.custom_base_url:
        return _custom(settings)
    if settings.inference_provider or settings.inference_model:
        return _named(settings, environ)
    for provider in PROVIDERS:
        for variable in provider.variables:
            if environ.get(variable, "").strip():
                return ModelChoice(_block(provider, provider.model), f"{variable} is set")
    return None


def demo_choice(base_url: str) -> ModelChoice:
    block = {
        "default": DEMO_MODEL,
        "provider": "custom",
        "base_url": base_url,
        "api_key": "demo",
        "api_mode": "chat_completions",
        "context_length": 200_000,
        # Otherwise Hermes describes images instead of passing them on (agent/image_routing.py:161).
        "supports_vision": True,
    }
    return ModelChoice(block, "no model key is set")


def keys_that_are_set(environ: Mapping[str, str]) -> list[str]:
    """The names of the model keys in the environment."""
    names = {variable for provider in PROVIDERS for variable in provider.variables}
    names |= {"HERMES_CUSTOM_API_KEY"}
    return sorted(name for name in names if environ.get(name, "").strip())


def _custom(settings: Settings) -> ModelChoice:
    if not settings.inference_model:
        raise ConfigError(
            "HERMES_CUSTOM_BASE_URL is set, but no model is named",
            "set HERMES_INFERENCE_MODEL to a model of that server",
        )
    block = {
        "default": settings.inference_model,
        "provider": "custom",
        "base_url": settings.custom_base_url,
        # Hermes expands the variable itself (hermes_cli/config.py:6664), so the file has no key.
        "api_key": "${HERMES_CUSTOM_API_KEY}" if settings.custom_api_key else "none",
        "api_mode": settings.custom_api_mode,
    }
    return ModelChoice(block, "HERMES_CUSTOM_BASE_URL")


def _named(settings: Settings, environ: Mapping[str, str]) -> ModelChoice:
    """The provider in the settings, or the first one with a key if only a model is named."""
    known = {p.name: p for p in PROVIDERS if p.name != "custom"} | {
        "nous": next(p for p in PROVIDERS if "NOUS_API_KEY" in p.variables)
    }
    if settings.inference_provider:
        provider = known.get(settings.inference_provider)
        if provider is None:
            # Hermes knows providers that need no key in the environment (a login, AWS).
            provider = Provider(settings.inference_provider, (), "")
        source = "HERMES_INFERENCE_PROVIDER"
    else:
        set_ = (p for p in PROVIDERS if any(environ.get(v, "").strip() for v in p.variables))
        found = next(set_, None)
        if found is None:
            raise ConfigError(
                f"HERMES_INFERENCE_MODEL={settings.inference_model!r} is set, but no provider",
                "set HERMES_INFERENCE_PROVIDER, a provider's API key, or HERMES_CUSTOM_BASE_URL",
            )
        provider, source = found, "HERMES_INFERENCE_MODEL"
    model = settings.inference_model or provider.model
    if not model:
        raise ConfigError(
            f"HERMES_INFERENCE_PROVIDER={provider.name!r} needs a model",
            "set HERMES_INFERENCE_MODEL",
        )
    return ModelChoice(_block(provider, model), source)


def _block(provider: Provider, model: str) -> dict[str, Any]:
    return {"default": model, "provider": provider.name, **provider.extra}
