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
    Unreachable,
)
from molecule_hermes.text import one_line, shorten

__all__ = ["failure_from_model_error"]


def _pattern(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


# An account that is empty, whatever else the provider says.
_NO_CREDIT = _pattern(
    r"insufficient[_ ](quota|credit|balance|funds)",
    r"credit balance is too low",
    r"(credits?|balance) (is |are |has been |have been )?(exhausted|used up|depleted)",
    r"out of credit",
    r"payment required",
    r"spending limit",
)
# A limit that is spent until it is raised or renewed, unless it is a limit per minute.
_LIMIT_SPENT = _pattern(
    r"exceeded your (current |monthly |daily )?quota",
    r"quota[_ ](has been |was |is |limit )?(exceeded|exhausted|reached)",
    r"(usage|plan|message|messages)[_ ]limits?[_ ](has been |was |is )?(exceeded|reached)",
    r"reached (the|your) (limit of messages|(usage|plan|message) limit)",
    r"used up (your|all|the)\b.{0,40}\b(usage|quota|credits?|messages)",
    r"billing",
)
_PER_MINUTE = _pattern(
    r"per[ _-]?(second|minute)",
    r"/ ?(sec|min|minute)\b",
    r"\b(RPM|TPM)\b",
    r"(retry|try again|wait|come back)\b[^.;]{0,30}?\b"
    r"\d+(\.\d+)? ?(ms|s|secs?|seconds?|m|mins?|minutes?)\b",
)
_PER_DAY = _pattern(
    r"per[ _-]?(day|week|month)", r"daily|weekly|monthly", r"\d ?(h|hours?|d|days?)\b"
)

# Providers share status codes between causes (a 429 is a rate or an empty account, a 400 an
# oversized prompt or a bad model), so the text decides first and the status second.
_BY_TEXT: tuple[tuple[re.Pattern[str], type[TurnFailure]], ...] = (
    (
        _pattern(
            r"context[ _](length|window|overflow|limit)|maximum context",
            r"prompt is too long|too many tokens|exceeds? the (max|context)",
        ),
        ContextOverflow,
    ),
    (
        _pattern(
            r"model[_ ]not[_ ]found|(no such|unknown|invalid) model",
            r"model\b.{0,80}\b(does not exist|not found|is not available)",
            r"does not match any known model",
        ),
        ModelNotFound,
    ),
    (
        _pattern(
            r"invalid[_ ]api[_ ]key|incorrect api key|unauthori[sz]ed|authentication",
            r"no api key|api key not (valid|found)|permission denied|forbidden",
        ),
        AuthFailure,
    ),
    (_pattern(r"rate[ _-]?limit|too many requests|slow down|overloaded"), RateLimited),
    (_pattern(r"timed? ?out|timeout"), TurnTimeout),
    (_pattern(r"empty (response|reply)|no reply|returned (nothing|no content)"), EmptyReply),
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
# Hermes's verdict (`FailoverReason` in its agent/error_classifier.py). Only these say more than
# the status: `format_error` stands for any 400, and `unknown` for anything.
_BY_REASON: Mapping[str, type[TurnFailure]] = {
    "auth": AuthFailure,
    "auth_permanent": AuthFailure,
    "billing": QuotaExceeded,
    "rate_limit": RateLimited,
    "upstream_rate_limit": RateLimited,
    "timeout": TurnTimeout,
    "context_overflow": ContextOverflow,
    "payload_too_large": ContextOverflow,
    "long_context_tier": ContextOverflow,
    "model_not_found": ModelNotFound,
}
# Hermes gives these for every 429 and 403, so words about a spent quota count more.
_VAGUE_REASONS = frozenset({"auth", "rate_limit", "upstream_rate_limit"})
_UPSTREAM_DOWN = frozenset({"overloaded", "server_error"})
# Hermes calls it a timeout.
_NO_CONNECTION = re.compile(r"^(?:API call failed.{0,80}: )?connection error", re.I)
_STATUS_IN_TEXT = re.compile(r"\b(?:HTTP|status(?: code)?|Error code)[ :=]*([45]\d\d)\b", re.I)


def failure_from_model_error(text: str, status: int | None = None, reason: str = "") -> TurnFailure:
    """Names what a model provider's error, as Hermes reports it, means for the turn.

    `reason` is Hermes's own verdict, if it is known; it counts before the text.
    """
    text = one_line(text)
    if status is None and (found := _STATUS_IN_TEXT.search(text)):
        status = int(found.group(1))
    message = f"the model provider answered: {shorten(text)}" if text else ""
    if status is None and _NO_CONNECTION.search(text):
        return Unreachable(
            f"the model provider cannot be reached: {shorten(text)}",
            hint="check the address of the model and the network; try again later",
        )
    kind = _kind(text, status, reason)
    if kind is not None:
        return kind(message)
    if reason in _UPSTREAM_DOWN or (status is not None and status >= 500):
        return _upstream_down(message)
    if status is not None:
        return BadRequest(message, hint="the agent's operator must check the model's settings")
    return InternalFailure(message)


def _kind(text: str, status: int | None, reason: str) -> type[TurnFailure] | None:
    """By Hermes's verdict, else by the text, else by the status."""
    verdict = _BY_REASON.get(reason)
    if verdict is not None and reason not in _VAGUE_REASONS:
        return verdict
    if reason in _UPSTREAM_DOWN or (status is not None and status >= 500 and status != 504):
        return None
    if limit := _spent_limit(text):
        return limit
    if verdict is not None:
        return verdict
    for pattern, failure in _BY_TEXT:
        if pattern.search(text):
            return failure
    return _BY_STATUS.get(status) if status is not None else None


def _spent_limit(text: str) -> type[TurnFailure] | None:
    if _NO_CREDIT.search(text):
        return QuotaExceeded
    if not _LIMIT_SPENT.search(text):
        return None
    soon = _PER_MINUTE.search(text) and not _PER_DAY.search(text)
    return RateLimited if soon else QuotaExceeded


def _upstream_down(message: str) -> TurnFailure:
    return InternalFailure(
        message or "the model provider failed",
        hint="the model provider has a problem of its own; try again later",
        retryable=True,
    )
