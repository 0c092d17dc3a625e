"""What can go wrong, as one tree.

BridgeError
├── StartError            the bridge or Hermes cannot start; told to the operator in one line
│   └── ConfigError       a setting is wrong
└── TurnFailure           a turn ended badly; told to the peer as {kind, message, hint, retryable}
    ├── Unreachable       nobody answers where Hermes should be
    ├── TurnTimeout       the turn took longer than it may
    ├── Busy              Hermes's limit or our own
    ├── Draining          shutting down, no new turns
    ├── AuthFailure       the provider or Hermes refused a key
    ├── QuotaExceeded     the provider's account is out of credit, or the peer's storage is full
    ├── RateLimited       the provider asks to slow down
    ├── ModelNotFound     the provider does not know the model
    ├── ContextOverflow   the conversation no longer fits the model
    ├── TooLarge          the message is larger than Hermes takes
    ├── BadRequest        the message cannot be passed on
    ├── EmptyReply        the model answered nothing
    ├── Interrupted       Hermes or the bridge died under the turn
    ├── Forbidden         a policy does not allow it
    └── InternalFailure   anything else; the details are in the log only
        └── StorageFailure    the task cannot be written or read

Standard library only: the plugin imports this module inside Hermes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from molecule_hermes.text import redact

__all__ = [
    "FAILURES",
    "AuthFailure",
    "BadRequest",
    "BridgeError",
    "Busy",
    "ConfigError",
    "ContextOverflow",
    "Draining",
    "EmptyReply",
    "Forbidden",
    "InternalFailure",
    "Interrupted",
    "ModelNotFound",
    "QuotaExceeded",
    "RateLimited",
    "StartError",
    "StorageFailure",
    "TooLarge",
    "TurnFailure",
    "TurnTimeout",
    "Unreachable",
    "failure_from_dict",
]


class BridgeError(Exception):
    """Everything this package raises on purpose."""


class StartError(BridgeError):
    """The bridge or Hermes cannot start. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} — {self.hint}" if self.hint else self.message


class ConfigError(StartError):
    """A setting is wrong."""


class TurnFailure(BridgeError):
    """A turn ended badly. The message and the hint are meant for the peer."""

    kind: ClassVar[str] = "internal"
    default_message: ClassVar[str] = "the turn failed"
    default_hint: ClassVar[str] = ""
    default_retryable: ClassVar[bool] = False

    def __init__(
        self, message: str = "", *, hint: str | None = None, retryable: bool | None = None
    ) -> None:
        self.message = redact(message) or self.default_message
        self.hint = self.default_hint if hint is None else redact(hint)
        self.retryable = self.default_retryable if retryable is None else retryable
        super().__init__(self.message)

    def as_dict(self) -> dict[str, str | bool]:
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
        }


class Unreachable(TurnFailure):
    kind = "unreachable"
    default_message = "Hermes does not answer"
    default_hint = "start Hermes, or check HERMES_API_BASE; /readyz says which part is down"
    default_retryable = True


class TurnTimeout(TurnFailure):
    kind = "timeout"
    default_message = "Hermes did not finish in time"
    default_hint = "ask for less at once, or raise MOLECULE_HERMES_TURN_TIMEOUT"
    default_retryable = True


class Busy(TurnFailure):
    kind = "busy"
    default_message = "too many turns at once"
    default_hint = "try again in a few seconds"
    default_retryable = True


class Draining(TurnFailure):
    kind = "draining"
    default_message = "the agent is shutting down"
    default_hint = "try again when /readyz answers 200"
    default_retryable = True


class AuthFailure(TurnFailure):
    kind = "auth"
    default_message = "a key was refused"
    default_hint = "the agent's operator must check the model provider's API key"


class QuotaExceeded(TurnFailure):
    kind = "quota"
    default_message = "the model provider's account is out of credit"
    default_hint = "the agent's operator must top up the account or choose another provider"


class RateLimited(TurnFailure):
    kind = "rate_limit"
    default_message = "the model provider asks to slow down"
    default_hint = "try again in a minute"
    default_retryable = True


class ModelNotFound(TurnFailure):
    kind = "model_not_found"
    default_message = "the model provider does not know the model"
    default_hint = "the agent's operator must check HERMES_INFERENCE_MODEL"


class ContextOverflow(TurnFailure):
    kind = "context_overflow"
    default_message = "the conversation no longer fits the model's context"
    default_hint = "start a new conversation (a new contextId) or send less"


class TooLarge(TurnFailure):
    kind = "too_large"
    default_message = "the message is too large"
    default_hint = "send it in smaller pieces"


class BadRequest(TurnFailure):
    kind = "bad_request"
    default_message = "the message cannot be passed on"
    default_hint = "send text"


class EmptyReply(TurnFailure):
    kind = "empty_reply"
    default_message = "the model answered nothing"
    default_hint = "try again, or ask in other words"
    default_retryable = True


class Interrupted(TurnFailure):
    kind = "interrupted"
    default_message = "the turn was cut off"
    # Whoever sends it again may have its effects twice.
    default_hint = (
        "the turn may have run in part: find out what it did before you send the message again; "
        "the conversation is kept"
    )
    _NOT_BEGUN = "the turn had not begun: send the message again"

    @classmethod
    def before_it_began(cls, message: str) -> Interrupted:
        """For a turn of which it is known that nothing has reached Hermes."""
        return cls(message, hint=cls._NOT_BEGUN, retryable=True)


class Forbidden(TurnFailure):
    kind = "forbidden"
    default_message = "this is not allowed"
    default_hint = "the agent's operator decides what is allowed"


class InternalFailure(TurnFailure):
    kind = "internal"
    default_message = "something went wrong inside the agent"
    default_hint = "the agent's log has the details"


class StorageFailure(InternalFailure):
    default_message = "the task could not be stored"
    default_hint = "the agent's operator must look at its storage; /readyz says when it is well"
    default_retryable = True


FAILURES: Mapping[str, type[TurnFailure]] = {
    failure.kind: failure
    for failure in (
        Unreachable,
        TurnTimeout,
        Busy,
        Draining,
        AuthFailure,
        QuotaExceeded,
        RateLimited,
        ModelNotFound,
        ContextOverflow,
        TooLarge,
        BadRequest,
        EmptyReply,
        Interrupted,
        Forbidden,
        InternalFailure,
    )
}


def failure_from_dict(data: Mapping[str, object]) -> TurnFailure:
    """The failure a `{kind, message, hint, retryable}` stands for; an unknown kind is internal."""
    failure = FAILURES.get(str(data.get("kind")), InternalFailure)
    hint = data.get("hint")
    retryable = data.get("retryable")
    return failure(
        str(data.get("message") or ""),
        hint=hint if isinstance(hint, str) else None,
        retryable=retryable if isinstance(retryable, bool) else None,
    )
