"""Decides how a turn ended, from what Hermes did and from the words it used. No I/O.

Hermes reports failures in prose: an apology as the reply, a marker for silence, a text in the
place of an empty answer. The texts are those of hermes-agent 0.19.0.
"""

from __future__ import annotations

import ast
import re

from molecule_hermes.errors import (
    Busy,
    Draining,
    EmptyReply,
    InternalFailure,
    Interrupted,
    TurnFailure,
)
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.provider_errors import failure_from_model_error
from molecule_hermes.wire import Callback, Final, Problem

__all__ = ["final_of", "provider_failure"]

# The `final_response` of a failed turn (agent/conversation_loop.py), where no hook reported it.
_APOLOGY = re.compile(
    r"\s*(?:⚠|❌|⏳|⚡|API call failed|Invalid API response|First response truncated"
    r"|Context (?:overflow|length)|Request payload|Sorry, I encountered an error)"
)
# Replaces an empty answer, or follows a fragment of one (run_agent.py:3142).
_NO_REPLY = "⚠️ No reply: "
_EMPTY = "(empty)"
# As the whole reply these mean "say nothing" (gateway/response_filters.py).
_SILENCE = frozenset({"[SILENT]", "SILENT", "NO_REPLY", "NO REPLY"})
_PUNCTUATION = ".,;:!?*_`'\"-–—()"


def final_of(turn: Turn) -> Callback:
    """The final callback of a turn that has ended."""
    final, text = _judge(turn)
    return turn.callback(final, text)


def provider_failure(error: str, status: int | None, reason: str = "") -> TurnFailure:
    """What a failed call of the model means; `reason` is Hermes's own verdict on it."""
    return failure_from_model_error(_provider_message(error), status, reason)


def _judge(turn: Turn) -> tuple[Final, str]:
    if turn.canceled:
        return Final("canceled", usage=turn.usage, context=turn.context), ""
    text = turn.reply if turn.answer is None else turn.answer
    failure = _failure(turn) if turn.answer is None else None
    if failure is None and text is not None:
        if _is_silence(text) or (turn.has_files and not text.strip()):
            return Final(usage=turn.usage, context=turn.context, silent=True), ""
        failure = _failure_in_answer(text, written=turn.written)
        if failure is None:
            final = Final(usage=turn.usage, context=turn.context, incomplete=turn.incomplete)
            return final, text
    problem = Problem.of(failure or Interrupted())
    return Final("failed", error=problem, usage=turn.usage, context=turn.context), ""


def _failure(turn: Turn) -> TurnFailure | None:
    """Why a turn whose agent reported no end failed; None if its reply is the answer."""
    if turn.failure is not None:
        return turn.failure
    if turn.interrupted:
        return Interrupted()
    if not turn.reply:
        return Interrupted("Hermes ended the turn without an answer")
    if not turn.agent_ran:
        return _refusal(turn.reply)
    if _APOLOGY.match(turn.reply):
        return failure_from_model_error(turn.reply.strip())
    return None


def _failure_in_answer(text: str, *, written: bool) -> TurnFailure | None:
    """The failure that an answer consists of, or ends with, unless the model wrote it itself."""
    if not text.strip() or text.strip() == _EMPTY:
        return EmptyReply()
    if written:
        return None
    head, apology, reason = text.partition(_NO_REPLY)
    if apology and not head.strip():
        return EmptyReply(_first_sentence(reason))
    if apology and head.endswith("\n\n"):
        return Interrupted(_first_sentence(reason))
    return None


def _refusal(text: str) -> TurnFailure:
    """The meaning of a reply for which Hermes did not run the agent (run.py:11122, 11372)."""
    if re.search(r"drain|restart|shutting down|maintenance", text, re.IGNORECASE):
        return Draining()
    if re.search(r"too many|limit|concurrent|maximum", text, re.IGNORECASE):
        return Busy(text.strip())
    return InternalFailure(text.strip())


def _is_silence(text: str) -> bool:
    words = " ".join(text.split()).upper()
    return words in _SILENCE or words.strip(_PUNCTUATION) in _SILENCE


def _first_sentence(text: str) -> str:
    return text.strip().partition(". ")[0]


def _provider_message(error: str) -> str:
    """The provider's own message out of `Error code: 401 - {'error': {'message': …}}`."""
    _, dash, quoted = error.partition(" - {")
    try:
        body = ast.literal_eval("{" + quoted) if dash else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return error
    detail = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(detail, dict) or not isinstance(detail.get("message"), str):
        return error
    code = detail.get("code") or detail.get("type")
    return f"{detail['message']} ({code})" if code else str(detail["message"])
