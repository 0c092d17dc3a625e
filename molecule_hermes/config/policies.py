"""What agents and peers have in common: toolsets, models, approvals, limits and URLs."""

from __future__ import annotations

from typing import Any

from molecule_hermes.config.agents import Limits
from molecule_hermes.config.fields import MODEL_NAME
from molecule_hermes.config.values import Value
from molecule_hermes.net import urls

__all__ = ["MODEL", "approvals", "deliveries", "limits", "model_names", "plain_url", "toolsets"]

MODEL = rf"(?!$){MODEL_NAME}"
_TOOLSET = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}"


def toolsets(value: Value) -> tuple[str, ...]:
    return value.names("names of toolsets", _TOOLSET)


def model_names(value: Value) -> tuple[str, ...]:
    return value.names("names of models", MODEL)


def approvals(value: Value) -> Any:
    return value.choice("ask", "deny")


def deliveries(value: Value) -> Any:
    return value.choice("allow", "deny")


def limits(value: Value) -> Limits:
    found = value.fields(("running", "waiting"))
    return Limits(**{key: each.whole(0, 100_000) for key, each in found.items()})


def plain_url(value: Value) -> str:
    """A URL with nothing in it but where something is."""
    takes = "a URL with http:// or https:// and a host, without a user, a query or a fragment"
    try:
        return urls.plain_url(value.text(takes))
    except ValueError:
        raise value.invalid(takes) from None
