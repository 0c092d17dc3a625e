"""Maps failures of the bridge to errors of the protocol."""

from __future__ import annotations

import functools
import inspect
import logging
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, ParamSpec, TypeVar

from a2a.utils.errors import A2AError, InternalError, InvalidRequestError

from molecule_hermes.errors import QuotaExceeded, StorageFailure

__all__ = ["nothing_leaks"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def nothing_leaks(method: Callable[P, R]) -> Callable[P, R]:
    """Raises protocol errors only. Any other exception goes to the log, and the peer gets a
    reference to it."""
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            events = method(*args, **kwargs)
            try:
                async for event in events:
                    yield event
            except Exception as error:
                raise _as_a2a_error(error) from error
            finally:
                await events.aclose()

        return stream  # type: ignore[return-value]

    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)  # type: ignore[misc]
        except Exception as error:
            raise _as_a2a_error(error) from error

    return call  # type: ignore[return-value]


def _as_a2a_error(error: Exception) -> Exception:
    if isinstance(error, A2AError):
        return error
    if isinstance(error, QuotaExceeded):
        return InvalidRequestError(f"{error.message} ({error.hint})")
    if isinstance(error, StorageFailure):
        return InternalError(f"{error.message} ({error.hint})")
    reference = uuid.uuid4().hex[:12]
    logger.error("a request failed (reference %s)", reference, exc_info=error)
    return InternalError(f"internal error, reference {reference}")
