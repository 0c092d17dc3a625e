"""The model providers that Hermes 0.19 knows, with their model prefixes and keys.

Only the names of variables are shown, never their values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = [
    "HERMES_API_KEY_NOTE",
    "OPENAI",
    "OPENROUTER",
    "OPENROUTER_VENDORS",
    "PROVIDERS",
    "PROVIDERS_BY_NAME",
    "Provider",
    "keys_that_are_set",
    "look_alikes",
    "provider_of_prefix",
]


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider as Hermes names it, and the variables that may contain its key."""

    name: str
    variables: tuple[str, ...]
    model: str = ""
    """The model that is used if only the key is set."""
    prefixes: tuple[str, ...] = ()
    """Model prefixes that select the provider, in addition to its name."""
    api_mode: str = ""
    endpoint: str = ""
    """The URL of a provider that is not one of Hermes's own; Hermes calls it `custom`."""
    endpoint_variable: str = ""
    """A variable that replaces the URL."""
    needs_key: bool = True
    """False if the provider also works without a variable, such as with an AWS role."""
    own_prefix: bool = False
    """Whether the provider's own model names begin with its name, which must then be kept."""

    @property
    def hermes_name(self) -> str:
        return "custom" if self.endpoint else self.name

    def key_in(self, environ: Mapping[str, str]) -> str:
        """The first of its variables that is set; "" if there is none."""
        return next((v for v in self.variables if environ.get(v, "").strip()), "")


HERMES_API_KEY_NOTE = (
    "HERMES_API_KEY is used as a key of Nous's inference API (NOUS_API_KEY); the key of Hermes's "
    "own API server is API_SERVER_KEY"
)
OPENROUTER = Provider("openrouter", ("OPENROUTER_API_KEY",), "z-ai/glm-5.2")

# A key alone selects its provider, in this order. Without api_mode, Hermes uses the Responses API
# for OpenAI's own endpoint (agent/agent_init.py:508).
PROVIDERS: tuple[Provider, ...] = (
    OPENROUTER,
    Provider(
        "anthropic",
        ("ANTHROPIC_API_KEY", "ANTHROPIC_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
        "claude-sonnet-5",
    ),
    Provider("openai-api", ("OPENAI_API_KEY",), "gpt-5.4", api_mode="chat_completions"),
    Provider("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-3.1-pro-preview"),
    Provider(
        "nous",
        # The platform's older templates call the key of Nous's inference API HERMES_API_KEY.
        ("NOUS_API_KEY", "HERMES_API_KEY"),
        "z-ai/glm-5.2",
        endpoint="https://inference-api.nousresearch.com/v1",
    ),
    Provider("deepseek", ("DEEPSEEK_API_KEY",), "deepseek-v4-flash"),
    Provider("xai", ("XAI_API_KEY",), "grok-build-0.1", ("grok",)),
    Provider("zai", ("GLM_API_KEY", "ZAI_API_KEY", "Z_AI_API_KEY"), "glm-5.2"),
    Provider("kimi-coding", ("KIMI_API_KEY", "KIMI_CODING_API_KEY"), "kimi-k3"),
    Provider("kimi-coding-cn", ("KIMI_CN_API_KEY",), "kimi-k3"),
    Provider("minimax", ("MINIMAX_API_KEY",), "MiniMax-M3"),
    Provider("minimax-cn", ("MINIMAX_CN_API_KEY",), "MiniMax-M3"),
    Provider("alibaba", ("DASHSCOPE_API_KEY",), "qwen3.7-plus", ("dashscope", "qwen")),
    Provider("alibaba-coding-plan", ("ALIBABA_CODING_PLAN_API_KEY",), "qwen3.7-plus"),
    Provider("stepfun", ("STEPFUN_API_KEY",), "step-3.5-flash"),
    Provider("arcee", ("ARCEEAI_API_KEY",), "trinity-large-thinking", ("arcee-ai",)),
    Provider("gmi", ("GMI_API_KEY",), "zai-org/GLM-5.1-FP8"),
    Provider(
        "nvidia",
        ("NVIDIA_API_KEY",),
        "nvidia/nemotron-3-super-120b-a12b",
        ("nim",),
        own_prefix=True,
    ),
    Provider("opencode-zen", ("OPENCODE_ZEN_API_KEY",), "kimi-k2.6"),
    Provider("opencode-go", ("OPENCODE_GO_API_KEY",), "kimi-k3"),
    Provider("kilocode", ("KILOCODE_API_KEY",), "anthropic/claude-sonnet-4.6"),
    Provider("xiaomi", ("XIAOMI_API_KEY",), "mimo-v2.5", ("mimo",)),
    Provider("tencent-tokenhub", ("TOKENHUB_API_KEY",), "hy3-preview"),
    Provider("ollama-cloud", ("OLLAMA_API_KEY",), "glm-5.2"),
    Provider("deepinfra", ("DEEPINFRA_API_KEY",), "deepseek-ai/DeepSeek-V4-Flash"),
    Provider("fireworks", ("FIREWORKS_API_KEY",), "accounts/fireworks/models/glm-5p2"),
    Provider("novita", ("NOVITA_API_KEY",), "moonshotai/kimi-k2.5"),
    Provider("upstage", ("UPSTAGE_API_KEY",), "solar-pro3"),
    Provider("huggingface", ("HF_TOKEN",), "moonshotai/Kimi-K2.5", ("hf",)),
    Provider(
        "ai-gateway",
        ("AI_GATEWAY_API_KEY",),
        "anthropic/claude-sonnet-4.6",
        endpoint="https://ai-gateway.vercel.sh/v1",
    ),
)

# OpenAI's chat completions, for a model with the prefix openai/.
OPENAI = Provider(
    "openai",
    ("OPENAI_API_KEY",),
    endpoint="https://api.openai.com/v1",
    endpoint_variable="OPENAI_BASE_URL",
)
# Selected by a prefix or by HERMES_INFERENCE_PROVIDER only: their variables have other uses, too.
_SELECTED_BY_NAME: tuple[Provider, ...] = (
    Provider("copilot", ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")),
    Provider(
        "bedrock",
        ("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
        prefixes=("aws",),
        needs_key=False,
    ),
    Provider("lmstudio", ("LM_API_KEY",), needs_key=False),
)
PROVIDERS_BY_NAME: Mapping[str, Provider] = {p.name: p for p in (*PROVIDERS, *_SELECTED_BY_NAME)}
_BY_PREFIX: Mapping[str, Provider] = {
    prefix: p for p in PROVIDERS_BY_NAME.values() for prefix in (p.name, *p.prefixes)
}
OPENROUTER_VENDORS = frozenset(
    {"anthropic", "arcee-ai", "deepseek", "minimax", "nvidia", "qwen", "xiaomi"}
)
"""Prefixes of providers above that are also the names of vendors on OpenRouter."""


def provider_of_prefix(prefix: str) -> Provider | None:
    return _BY_PREFIX.get(prefix.lower())


def keys_that_are_set(environ: Mapping[str, str]) -> list[str]:
    """The names of the model keys in the environment."""
    names = {variable for provider in PROVIDERS for variable in provider.variables}
    names |= {"HERMES_CUSTOM_API_KEY", "COPILOT_GITHUB_TOKEN", "LM_API_KEY"}
    return sorted(name for name in names if environ.get(name, "").strip())


def look_alikes(variables: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that are set and resemble one of `variables`, each with the one that it resembles.

    `OPENROUTER_KEY` resembles `OPENROUTER_API_KEY`, and `CLAUDE_API_KEY` `ANTHROPIC_API_KEY`.
    """
    wanted = list(variables)
    known = {v for p in PROVIDERS_BY_NAME.values() for v in p.variables}
    stems = {_stem(v): v for v in reversed(wanted)}
    for provider in PROVIDERS_BY_NAME.values():
        if provider.variables and (first := provider.variables[0]) in wanted:
            names = (provider.name, *provider.prefixes, *_NICKNAMES.get(provider.name, ()))
            stems = {_stem(name): first for name in names} | stems
    found = {}
    for name, value in environ.items():
        if name in known or not value.strip() or not _LOOKS_LIKE_A_KEY.search(name):
            continue
        close = get_close_matches(name.upper(), wanted, 1, cutoff=0.88)
        if meant := stems.get(_stem(name)) or next(iter(close), ""):
            found[name] = meant
    return dict(sorted(found.items()))


_LOOKS_LIKE_A_KEY = re.compile(r"key|token|secret", re.IGNORECASE)
_NICKNAMES: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("claude",),
    "gemini": ("google-ai", "google-gemini"),
    "kimi-coding": ("moonshot",),
    "openai-api": ("openai", "gpt"),
    "zai": ("zhipu",),
}


def _stem(name: str) -> str:
    """What names of the same key have in common: OPENROUTER of OPEN_ROUTER_KEY."""
    letters = re.sub(r"[^A-Z0-9]", "", name.upper())
    return re.sub(r"(API)?(KEY|TOKEN|SECRET)?$", "", letters)
