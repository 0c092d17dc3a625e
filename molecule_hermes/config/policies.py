"""What agents and peers have in common: toolsets, models, approvals and limits."""

from __future__ import annotations

from typing import Any

from molecule_hermes.config.agents import Limits
from molecule_hermes.config.fields import MODEL_NAME
from molecule_hermes.config.values import Value

__all__ = ["MODEL", "approvals", "deliveries", "limits", "model_names", "toolsets"]

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
