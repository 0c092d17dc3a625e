"""What a turn has used: tokens, cost, and the model's context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from molecule_hermes.wire.fields import Fields
from molecule_hermes.wire.limits import MAX_MODELS

__all__ = ["Context", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens a turn used, and the model that used them.

    `input_tokens` include the cached ones, `output_tokens` those of the reasoning. `cost_usd` is
    None if the price of any call is unknown.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    model: str = ""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    provider: str = ""
    cost_usd: float | None = None
    models: tuple[Usage, ...] = ()
    """The same by model, if the turn used several."""

    def __add__(self, later: Usage) -> Usage:
        """The sum of both; the model is the later one's, where it is known."""
        named = later if later.model else self
        return Usage(
            self.input_tokens + later.input_tokens,
            self.output_tokens + later.output_tokens,
            self.total_tokens + later.total_tokens,
            named.model,
            self.cached_tokens + later.cached_tokens,
            self.reasoning_tokens + later.reasoning_tokens,
            named.provider,
            _cost(self, later),
        )

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "usage")
        models = fields.items("models", MAX_MODELS)
        return cls(
            input_tokens=fields.count("input_tokens") or 0,
            output_tokens=fields.count("output_tokens") or 0,
            total_tokens=fields.count("total_tokens") or 0,
            model=fields.label("model", default=""),
            cached_tokens=fields.count("cached_tokens") or 0,
            reasoning_tokens=fields.count("reasoning_tokens") or 0,
            provider=fields.label("provider", default=""),
            cost_usd=fields.amount("cost_usd"),
            models=tuple(Usage._parse_model(model) for model in models),
        )

    @classmethod
    def _parse_model(cls, data: object) -> Self:
        """One of `models`, which has none itself."""
        return cls.parse({**Fields(data, "usage.models").data, "models": None})

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "total_tokens": self.total_tokens,
            "model": self.model,
            "cached_tokens": self.cached_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "provider": self.provider,
        }
        if self.cost_usd is not None:
            data["cost_usd"] = self.cost_usd
        if self.models:
            data["models"] = [model.to_json() for model in self.models]
        return data


@dataclass(frozen=True, slots=True)
class Context:
    """How many tokens of the model's context window the conversation takes."""

    used: int
    window: int

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "context")
        return cls(used=fields.count("used") or 0, window=fields.count("window") or 0)

    def to_json(self) -> dict[str, object]:
        return {"used": self.used, "window": self.window}


def _cost(*parts: Usage) -> float | None:
    """The sum of the costs; None if one of those that used tokens is unknown."""
    costs = [part.cost_usd for part in parts if part.total_tokens or part.cost_usd is not None]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None
