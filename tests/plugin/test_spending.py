from __future__ import annotations

from molecule_hermes.plugin.spending import Spending
from molecule_hermes.wire import MAX_MODELS, Usage


def call(model: str, cost: float | None = None) -> Usage:
    return Usage(10, 5, 15, model, 4, 2, "p", cost)


def test_a_turn_that_called_no_model_has_no_usage() -> None:
    assert Spending().total() is None


def test_a_model_that_never_answered_is_named() -> None:
    spending = Spending()
    spending.uses("m", "p")
    assert spending.total() == Usage(model="m", provider="p")


def test_the_cost_of_one_model_is_known_although_that_of_another_is_not() -> None:
    spending = Spending()
    spending.add(call("a", 0.25), of_agent=True)
    spending.add(call("a", 0.25), of_agent=True)
    assert spending.total() == Usage(20, 10, 30, "a", 8, 4, "p", 0.5)
    spending.add(call("b"), of_agent=False)
    total = spending.total()
    assert total is not None
    assert (total.model, total.total_tokens, total.cost_usd) == ("a", 45, None)
    assert [(part.model, part.cost_usd) for part in total.models] == [("a", 0.5), ("b", None)]


def test_the_number_of_models_is_bounded_and_nothing_is_lost() -> None:
    spending = Spending()
    for number in range(100):
        spending.add(call(f"m{number}"), of_agent=True)
    total = spending.total()
    assert total is not None
    assert len(total.models) == MAX_MODELS
    assert sum(part.total_tokens for part in total.models) == total.total_tokens == 1500
    assert total.model == "m99"
    assert Usage.parse(total.to_json()) == total
