"""What went wrong with a call, as a failure that says what to do next."""

from __future__ import annotations

import httpx
from a2a.client.errors import A2AClientTimeoutError
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from molecule_hermes.errors import (
    AuthFailure,
    BadRequest,
    Busy,
    InternalFailure,
    TurnFailure,
    TurnTimeout,
    Unreachable,
)
from molecule_hermes.net.addresses import NotPublicError
from molecule_hermes.text import one_line, redact, shorten

__all__ = ["BadAgent", "failure_of", "is_before_sending"]

_MAX_REASON = 300


class BadAgent(Unreachable):
    """Something answers at the peer's URL that is not the agent that it should be."""

    default_retryable = False


def failure_of(peer: str, error: BaseException) -> TurnFailure:
    """The failure that an error of the SDK's client, or of HTTP, means."""
    if isinstance(error, TurnFailure):
        return error
    known = (_known(peer, cause) for cause in _causes(error))
    if (failure := next((each for each in known if each is not None), None)) is not None:
        return failure
    if isinstance(error, A2AError):
        return InternalFailure(
            f"the agent {peer!r} answered with an error: {_said(error)}",
            hint="try once more, then go on without it",
        )
    return InternalFailure(
        f"the agent {peer!r} gave an answer that is not A2A", hint="go on without it"
    )


def is_before_sending(error: BaseException) -> bool:
    """Whether nothing has been sent, so that it is safe to try again."""
    return any(
        isinstance(each, httpx.ConnectError | httpx.ConnectTimeout) for each in _causes(error)
    )


def _known(peer: str, cause: BaseException) -> TurnFailure | None:
    match cause:
        case httpx.HTTPStatusError():
            failure = _of_status(peer, cause.response.status_code)
        case httpx.ConnectTimeout():
            failure = _unreachable(peer)
        case A2AClientTimeoutError() | httpx.TimeoutException() | TimeoutError():
            hint = "try again later, or go on without it"
            failure = TurnTimeout(f"the agent {peer!r} did not answer in time", hint=hint)
        case httpx.ReadError() | httpx.RemoteProtocolError() if str(cause):
            failure = BadAgent(f"the agent {peer!r} broke off: {_said(cause)}", hint=_ASK_OPERATOR)
        case httpx.RequestError():
            failure = _unreachable(peer)
        case NotPublicError():
            hint = "go on without it; the operator can allow it: MOLECULE_HERMES_REGISTRY_HOSTS"
            failure = BadAgent(f"the agent {peer!r} is not called: {_said(cause)}", hint=hint)
        case TaskNotFoundError():
            hint = "it may have been removed; give the agent a new task"
            failure = BadRequest(f"the agent {peer!r} knows no such task", hint=hint)
        case TaskNotCancelableError():
            what = f"the task of {peer!r} has already ended"
            failure = BadRequest(what, hint="check its status")
        case InvalidParamsError() | UnsupportedOperationError():
            what = f"the agent {peer!r} refused the message: {_said(cause)}"
            failure = BadRequest(what, hint="send something else")
        case _:
            return None
    return failure


_ASK_OPERATOR = "go on without it, and tell the one you work for that its operator must look at it"


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < 10:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    # The innermost says most: the SDK wraps errors of HTTP in its own.
    return causes[::-1]


def _of_status(peer: str, status: int) -> TurnFailure:
    if status in (401, 403):
        return AuthFailure(
            f"the agent {peer!r} does not accept this bridge's credentials (status {status})",
            hint=f"go on without it; the operator must check bearer_file or oauth of peers.{peer}",
        )
    if status in (429, 503):
        return Busy(f"the agent {peer!r} has no room now (status {status})")
    if 300 <= status < 400:
        return BadAgent(
            f"the agent {peer!r} redirects elsewhere (status {status}), which is not followed",
            hint=f"the operator must set url of peers.{peer} to where it is",
        )
    return BadAgent(
        f"at the URL of {peer!r}, no A2A agent answers (status {status})", hint=_ASK_OPERATOR
    )


def _unreachable(peer: str) -> Unreachable:
    return Unreachable(f"the agent {peer!r} cannot be reached", hint="try later, or go on without")


def _said(error: BaseException) -> str:
    """Words of another agent: a short line without secrets."""
    return shorten(redact(one_line(str(error))), _MAX_REASON)
