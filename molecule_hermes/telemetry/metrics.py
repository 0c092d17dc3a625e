"""Metrics for operators in the Prometheus format. They contain no peer's name and no text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from molecule_hermes.wire import Usage

__all__ = ["CONTENT_TYPE", "CountResponses", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MAX_MODELS = 64
_OTHER_MODELS = "other"
"""Stands for all further models: a provider chooses their names, and each is a series."""
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Has its own registry, because several bridges may run in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._turns = Counter(
            "molecule_hermes_turns",
            "Turns that ended, by agent, their task's state and the kind of failure",
            ["agent", "state", "kind"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "molecule_hermes_turn_seconds",
            "From a peer's message to the end of its turn, by agent",
            ["agent"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._first_text = Histogram(
            "molecule_hermes_first_text_seconds",
            "From a peer's message to the first text of the reply",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._responses = Counter(
            "molecule_hermes_http_responses",
            "HTTP responses, by status",
            ["status"],
            registry=self._registry,
        )
        self._dropped = Counter(
            "molecule_hermes_dropped_subscribers",
            "Streams that were ended because their peer did not keep up",
            registry=self._registry,
        )

        self._closed = Counter(
            "molecule_hermes_closed_connections",
            "Connections that the server closed or refused on its own account, by reason",
            ["reason"],
            registry=self._registry,
        )

        self._deliveries = Counter(
            "molecule_hermes_deliveries",
            "Deliveries that were stored, by agent and cause",
            ["agent", "cause"],
            registry=self._registry,
        )
        self._refused_deliveries = Counter(
            "molecule_hermes_refused_deliveries",
            "Deliveries that were not taken, also those that came again later, by agent and kind",
            ["agent", "kind"],
            registry=self._registry,
        )
        self._calls = Counter(
            "molecule_hermes_outbound_calls",
            "What agents asked of other agents, by action and outcome",
            ["action", "outcome"],
            registry=self._registry,
        )

        self._models: set[str] = set()
        self._tokens = Counter(
            "molecule_hermes_tokens",
            "Tokens that turns used, by agent, model and kind; cached is part of input, "
            "reasoning of output",
            ["agent", "model", "kind"],
            registry=self._registry,
        )
        self._cost = Counter(
            "molecule_hermes_cost_usd",
            "What turns cost in US dollars by agent and model, as far as Hermes knows the prices",
            ["agent", "model"],
            registry=self._registry,
        )

    def spent(self, agent: str, usage: Usage) -> None:
        """Counts what a turn of the agent used."""
        for part in usage.models or (usage,):
            model = self._label(part.model)
            kinds = {
                "input": part.input_tokens,
                "output": part.output_tokens,
                "cached": part.cached_tokens,
                "reasoning": part.reasoning_tokens,
            }
            for kind, tokens in kinds.items():
                self._tokens.labels(agent, model, kind).inc(tokens)
            if part.cost_usd is not None:
                self._cost.labels(agent, model).inc(part.cost_usd)

    def _label(self, model: str) -> str:
        if model not in self._models and len(self._models) >= _MAX_MODELS:
            return _OTHER_MODELS
        self._models.add(model)
        return model

    def turn_ended(
        self, agent: str, state: str, kind: str, seconds: float, first_text: float | None
    ) -> None:
        self._turns.labels(agent, state, kind).inc()
        self._seconds.labels(agent).observe(seconds)
        if first_text is not None:
            self._first_text.observe(first_text)

    def delivery_received(self, agent: str, cause: str) -> None:
        self._deliveries.labels(agent, cause).inc()

    def delivery_refused(self, agent: str, kind: str) -> None:
        self._refused_deliveries.labels(agent, kind).inc()

    def called(self, action: str, outcome: str) -> None:
        """Counts a call of another agent."""
        self._calls.labels(action, outcome).inc()

    def responded(self, status: int) -> None:
        self._responses.labels(str(status)).inc()

    def subscriber_dropped(self) -> None:
        self._dropped.inc()

    def connection_closed(self, reason: str) -> None:
        self._closed.labels(reason).inc()

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Adds a gauge whose value is read on each scrape."""
        gauge = Gauge(f"molecule_hermes_{name}", description, registry=self._registry)
        gauge.set_function(read)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class CountResponses:
    """The outermost middleware, so that it also counts what the others refuse."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responded(message["status"])
            await send(message)

        return self._app(scope, receive, count)
