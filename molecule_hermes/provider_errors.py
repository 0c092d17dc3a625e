"""What a model provider's words mean for a turn.

Standard library only: the plugin imports this module inside Hermes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from molecule_hermes.errors import (
    AuthFailure,
    BadRequest,
    ContextOverflow,
    EmptyReply,
    InternalFailure,
    ModelNotFound,
    QuotaExceeded,
    RateLimited,
    TurnFailure,
    TurnTimeout,
)
from molecule_hermes.text import one_line, shorten

__all__ = ["failure_from_model_error"]

# Providers share status codes between causes (a 429 is a rate or an empty account, a 400 an
# oversized prompt or a bad model), so the text decides first and the status second.
_BY_TEXT: tuple[tuple[re.Pattern[str], type[TurnFailure]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), failure)
    for pattern, failure in (
        (
            r"context[ _](length|window|overflow|limit)|maximum context"
            r"|prompt is too long|too many tokens|exceeds? the (max|context)",
            ContextOverflow,
        ),
        (
            r"insufficient[_ ](quota|credit|balance|funds)|exceeded your current quota"
            r"|out of credit|billing|payment required|spending limit",
            QuotaExceeded,
        ),
        (
            r"model[_ ]not[_ ]found|(no such|unknown|invalid) model"
            r"|model\b.{0,80}\b(does not exist|not found|is not available)",
            ModelNotFound,
        ),
        (
            r"invalid[_ ]api[_ ]key|incorrect api key|unauthori[sz]ed|authentication"
            r"|no api key|api key not (valid|found)|permission denied|forbidden",
            AuthFailure,
        ),
        (r"rate[ _-]?limit|too many requests|slow down|overloaded", RateLimited),
        (r"timed? ?out|timeout", TurnTimeout),
        (r"empty (response|reply)|no reply|returned (nothing|no content)", EmptyReply),
    )
)
_BY_STATUS: Mapping[int, type[TurnFailure]] = {
    401: AuthFailure,
    402: QuotaExceeded,
    403: AuthFailure,
    404: ModelNotFound,
    408: TurnTimeout,
    413: ContextOverflow,
    429: RateLimited,
    504: TurnTimeout,
}
_STATUS_IN_TEXT = re.compile(r"\b(?:HTTP|status(?: code)?|Error code)[ :=]*([45]\d\d)\b", re.I)


def failure_from_model_error(text: str, status: int | None = None) -> TurnFailure:
    """Names what a model provider's error, as Hermes reports it, means for the turn."""
    text = one_line(text)
    if status is None and (found := _STATUS_IN_TEXT.search(text)):
        status = int(found.group(1))
    message = f"the model provider answered: {shorten(text)}" if text else ""
    if status is not None and status >= 500 and status != 504:
        return _upstream_down(message)
    for pattern, failure in _BY_TEXT:
        if pattern.search(text):
            return failure(message)
    if status is not None and status in _BY_STATUS:
        return _BY_STATUS[status](message)
    if status is not None and status < 500:
        return BadRequest(message, hint="the agent's operator must check the model's settings")
    return InternalFailure(message)


def _upstream_down(message: str) -> TurnFailure:
    return InternalFailure(
        message or "the model provider failed",
        hint="the model provider has a problem of its own; try again later",
        retryable=True,
    )
