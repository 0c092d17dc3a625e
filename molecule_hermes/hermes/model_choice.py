"""Chooses Hermes's model: the one in the settings, else that of a provider whose key is set."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from molecule_hermes.config import Settings
from molecule_hermes.errors import ConfigError
from molecule_hermes.hermes.demo_model import DEMO_MODEL
from molecule_hermes.hermes.providers import (
    OPENAI,
    OPENROUTER,
    OPENROUTER_VENDORS,
    PROVIDERS,
    PROVIDERS_BY_NAME,
    Provider,
    look_alikes,
    provider_of_prefix,
)
from molecule_hermes.text import is_loopback

__all__ = ["ModelChoice", "choose_model", "demo_choice", "require_demo_allowed", "why_demo"]

_AUTO = Provider("auto", ())
"""Hermes chooses the provider itself, among its logins."""


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


def choose_model(
    settings: Settings, environ: Mapping[str, str], logins: Collection[str] = ()
) -> ModelChoice | None:
    """The model that the settings or the keys select; None if there are neither.

    `logins` are the providers that Hermes has a login for, which replaces a key. Raises
    `ConfigError` if a model or a provider is named, but no key fits.
    """
    if settings.custom_base_url:
        return _custom(settings)
    if settings.inference_provider:
        return _of_provider(settings, environ, logins)
    if settings.inference_model:
        return _of_model(settings.inference_model, environ, logins)
    for provider in PROVIDERS:
        if variable := provider.key_in(environ):
            return ModelChoice(_block(provider, provider.model, environ), f"{variable} is set")
    return None


def why_demo(environ: Mapping[str, str]) -> str:
    """Why the demo model answers on loopback, with keys that may be misspelled."""
    variables = [variable for provider in PROVIDERS for variable in provider.variables]
    return "; ".join(["no model key is set", *_misspelled(variables, environ)])


def demo_choice(base_url: str, source: str = "no model key is set") -> ModelChoice:
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
    return ModelChoice(block, source)


def require_demo_allowed(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raises `ConfigError` if no key is set and the demo model must not answer instead."""
    if settings.demo == "always":
        return
    if settings.demo == "never":
        why = "MOLECULE_HERMES_DEMO=never excludes the demo model"
    elif beyond := _beyond_loopback(settings):
        why = f"the demo model answers on loopback only, not at {beyond}"
    else:
        return
    raise _missing_key(f"no model key is set, and {why}", PROVIDERS, environ)


def _beyond_loopback(settings: Settings) -> str:
    """The setting that makes the bridge reachable beyond loopback; "" if there is none."""
    if not is_loopback(settings.host):
        return f"MOLECULE_HERMES_HOST={settings.host}"
    public_host = urlsplit(settings.public_url or "").hostname
    if public_host and not is_loopback(public_host):
        return f"MOLECULE_HERMES_PUBLIC_URL={settings.public_url}"
    return ""


def _custom(settings: Settings) -> ModelChoice:
    if not settings.inference_model:
        raise ConfigError(
            "HERMES_CUSTOM_BASE_URL is set, but no model is named",
            "set HERMES_INFERENCE_MODEL to a model of that server",
        )
    block = {
        "default": settings.inference_model.removeprefix("custom/"),
        "provider": "custom",
        "base_url": settings.custom_base_url,
        # Hermes expands the variable itself (hermes_cli/config.py:6664), so the file has no key.
        "api_key": "${HERMES_CUSTOM_API_KEY}" if settings.custom_api_key else "none",
        "api_mode": settings.custom_api_mode,
    }
    return ModelChoice(block, "HERMES_CUSTOM_BASE_URL")


def _of_provider(
    settings: Settings, environ: Mapping[str, str], logins: Collection[str]
) -> ModelChoice:
    """The provider that the settings name, with their model or its default model."""
    name = settings.inference_provider
    setting = f"HERMES_INFERENCE_PROVIDER={name!r}"
    if name == "custom":
        raise ConfigError(f"{setting} needs a server", "set HERMES_CUSTOM_BASE_URL to its URL")
    # Hermes knows providers that need no key in the environment, such as those with a login.
    provider = PROVIDERS_BY_NAME.get(name) or Provider(name, (), needs_key=False)
    model = settings.inference_model or provider.model
    if not model:
        raise ConfigError(f"{setting} needs a model", "set HERMES_INFERENCE_MODEL")
    if not _is_usable(provider, environ, logins):
        raise _missing_key(f"{setting} is set, but no key for it", [provider], environ)
    return _choice(provider, model, environ, "HERMES_INFERENCE_PROVIDER")


def _of_model(name: str, environ: Mapping[str, str], logins: Collection[str]) -> ModelChoice:
    """The provider that the model's prefix selects, or with another prefix any with a key."""
    candidates = _candidates(name)
    logins = {*logins, _AUTO.name} if logins else ()
    for provider, model in candidates:
        if _is_usable(provider, environ, logins):
            return _choice(provider, model, environ, "HERMES_INFERENCE_MODEL")
    providers = [provider for provider, _ in candidates]
    raise _missing_key(
        f"HERMES_INFERENCE_MODEL={name!r} is set, but no key for it", providers, environ
    )


def _candidates(name: str) -> list[tuple[Provider, str]]:
    """The providers that may serve the model, each with the name that it has there."""
    prefix, slash, rest = name.partition("/")
    prefix = prefix.lower() if slash else ""
    if prefix == "custom":
        raise ConfigError(
            f"HERMES_INFERENCE_MODEL={name!r} needs a server",
            "set HERMES_CUSTOM_BASE_URL to its URL",
        )
    if prefix == "openai":
        return [(OPENROUTER, name), (OPENAI, rest)]
    if prefix == "nousresearch":
        return [(PROVIDERS_BY_NAME["nous"], name), (OPENROUTER, name)]
    provider = provider_of_prefix(prefix)
    if provider is None:
        return [(provider, name) for provider in (*PROVIDERS, _AUTO)]
    keeps = provider.own_prefix and prefix == provider.name
    on_openrouter = [(OPENROUTER, name)] if prefix in OPENROUTER_VENDORS else []
    return [(provider, name if keeps else rest), *on_openrouter]


def _is_usable(provider: Provider, environ: Mapping[str, str], logins: Collection[str]) -> bool:
    return not provider.needs_key or bool(provider.key_in(environ)) or provider.name in logins


def _choice(
    provider: Provider, model: str, environ: Mapping[str, str], setting: str
) -> ModelChoice:
    variable = provider.key_in(environ)
    source = f"{setting}, with {variable}" if variable else setting
    return ModelChoice(_block(provider, model, environ), source)


def _block(provider: Provider, model: str, environ: Mapping[str, str]) -> dict[str, Any]:
    variable = provider.key_in(environ)
    if not provider.endpoint or not variable:
        mode = {"api_mode": provider.api_mode} if provider.api_mode else {}
        return {"default": model, "provider": provider.name, **mode}
    return {
        "default": model,
        "provider": provider.hermes_name,
        "base_url": environ.get(provider.endpoint_variable, "").strip() or provider.endpoint,
        "api_key": f"${{{variable}}}",
        "api_mode": "chat_completions",
    }


def _misspelled(variables: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    return [
        f"{name} is set: did you mean {meant}?"
        for name, meant in look_alikes(variables, environ).items()
    ]


def _missing_key(
    problem: str, providers: Sequence[Provider], environ: Mapping[str, str]
) -> ConfigError:
    """One line: what is missing, what resembles it, and the variables that were looked for."""
    variables = list(dict.fromkeys(v for p in providers for v in p.variables))
    remarks = _misspelled(variables, environ)
    remarks += [f"{v} is empty" for v in variables if v in environ and not environ[v].strip()]
    noticed = f" ({'; '.join(remarks)})" if remarks else ""
    return ConfigError(
        f"{problem}{noticed}: looked for {', '.join(variables)}",
        "set one of these keys, or set HERMES_INFERENCE_PROVIDER or HERMES_CUSTOM_BASE_URL for "
        "another provider (docs/models.md); MOLECULE_HERMES_DEMO=always asks for the demo model",
    )
