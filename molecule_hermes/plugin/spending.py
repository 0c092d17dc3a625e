"""What the model calls of a turn used, by model. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from molecule_hermes.plugin.hermes_api import cost_of
from molecule_hermes.wire import MAX_MODELS, Usage

__all__ = ["Spending", "model_of", "usage_of"]

_LONGEST_NAME = 200
_OTHERS = ("other", "")


class Spending:
    """Adds up the calls of a turn's agent and of its subagents."""

    def __init__(self) -> None:
        self._by_model: dict[tuple[str, str], Usage] = {}
        self._model = ("", "")

    def uses(self, model: str, provider: str = "") -> None:
        """The turn's agent calls this model now, whatever comes of it."""
        if model:
            self._model = (model, provider)

    def add(self, usage: Usage, *, of_agent: bool) -> None:
        """Adds a call. The turn's model is the one that its agent called last."""
        name = (usage.model, usage.provider)
        if of_agent:
            self._model = name
        if name not in self._by_model and len(self._by_model) >= MAX_MODELS - 1:
            name = _OTHERS
        before = self._by_model.get(name, Usage())
        self._by_model[name] = replace(before + usage, model=name[0], provider=name[1])

    def total(self) -> Usage | None:
        """The sum; None if no model was called."""
        if not self._by_model and not self._model[0]:
            return None
        parts = tuple(self._by_model.values())
        total = replace(sum(parts, Usage()), model=self._model[0], provider=self._model[1])
        return replace(total, models=parts) if len(parts) > 1 else total


def model_of(given: Mapping[str, Any]) -> tuple[str, str]:
    """The model and the provider that a hook names."""
    return _name(given.get("model")), _name(given.get("provider"))


def usage_of(given: Mapping[str, Any]) -> Usage | None:
    """What the call used that the hook post_api_request reports; None if the model did not say."""
    usage = given.get("usage")
    if not isinstance(usage, Mapping):
        return None
    model, provider = model_of(given)
    return Usage(
        _count(usage, "prompt_tokens"),
        _count(usage, "output_tokens"),
        _count(usage, "total_tokens"),
        _name(given.get("response_model")) or model,
        cached_tokens=_count(usage, "cache_read_tokens"),
        reasoning_tokens=_count(usage, "reasoning_tokens"),
        provider=provider,
        cost_usd=cost_of(model, provider, str(given.get("base_url") or ""), usage),
    )


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return min(max(0, value), 2**53 - 1) if isinstance(value, int) else 0


def _name(value: object) -> str:
    """A name that the wire takes."""
    text = value if isinstance(value, str) else ""
    return "".join(char for char in text if char.isprintable())[:_LONGEST_NAME]
