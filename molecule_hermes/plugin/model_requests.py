"""Changes the requests that Hermes sends to the model during a turn.

A message may choose the model, and the form of the answer (`response_format`). Both are put into
each request of its turn and nowhere else, so that Hermes's agent, which it keeps for the next turn
of the chat, does not change.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from molecule_hermes.plugin.settings import PLATFORM
from molecule_hermes.plugin.turn import Turn

__all__ = ["ModelRequests", "ResponseFormatRefused"]

log = logging.getLogger(__name__)

_REMEMBERED = 256
_REFUSALS = (
    "response_format",
    "response format",
    "json_schema",
    "json_object",
    "structured output",
)


class ResponseFormatRefused(ConnectionError):
    """The provider does not accept the `response_format`. Hermes repeats a request after a
    ConnectionError (agent/error_classifier.py), and then it is sent without."""


class ModelRequests:
    """A middleware around each model call (`llm_execution`, hermes_cli/middleware.py:173).

    Hermes calls it in the agent's thread. The middleware for requests (`llm_request`) could not
    tell what the provider refuses, and has Hermes copy each request twice.
    """

    def __init__(self, current_turn: Callable[[], Turn | None]) -> None:
        self._current_turn = current_turn
        self._refused: OrderedDict[tuple[str, ...], None] = OrderedDict()
        """Formats that a provider has refused, the last ones."""

    def register(self, ctx: Any) -> None:
        ctx.register_middleware("llm_execution", self._call)

    def _call(self, request: Any, next_call: Callable[[Any], Any], **given: Any) -> Any:
        # A subagent runs in its parent's context, and its answer is not the turn's.
        turn = self._current_turn() if given.get("platform") == PLATFORM else None
        if turn is None or not isinstance(request, dict):
            return next_call(request)
        runtime = tuple(str(given.get(name)) for name in ("provider", "base_url", "model"))
        turn.runtime = turn.runtime or runtime
        # After a failure Hermes may go on with another provider, which has models of its own.
        model = turn.inbound.model if turn.runtime == runtime else ""
        if model:  # Bedrock calls it modelId
            request = {**request, "modelId" if "modelId" in request else "model": model}
        form = turn.inbound.response_format
        # The other modes of Hermes have no such parameter.
        if form is None or given.get("api_mode") != "chat_completions":
            return next_call(request)
        key = (*runtime, model, json.dumps(form, sort_keys=True))
        if key in self._refused:
            return next_call(request)
        try:
            return next_call({**request, "response_format": form})
        except Exception as error:
            if not _is_refusal(error):
                raise
            self._remember(key)
        # Outside of the handler: Hermes looks for a status in the cause and the context, too.
        raise ResponseFormatRefused("the provider does not accept response_format")

    def _remember(self, key: tuple[str, ...]) -> None:
        log.info("the provider refuses a response_format; asking without it")
        self._refused[key] = None
        while len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)


def _is_refusal(error: Exception) -> bool:
    """Whether the provider's error is about the format. Hermes wraps it (middleware.py:282)."""
    original = error.__cause__ or error
    words = str(original).lower()
    status = getattr(original, "status_code", None)
    return status in (400, 404, 415, 422) and any(each in words for each in _REFUSALS)
