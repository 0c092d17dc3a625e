"""What only the operator of this machine may do: hand conversations over.

The bridge writes its address and a token, new at each start, to a file that only its own user can
read. No peer has it, and no tool of a confined Hermes can read it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from molecule_hermes.config import Settings
from molecule_hermes.errors import TurnFailure
from molecule_hermes.hermes.home import write_atomically
from molecule_hermes.net.urls import local_base_url
from molecule_hermes.server.handoff_records import Handoff
from molecule_hermes.server.handoffs import Handoffs
from molecule_hermes.server.middleware import is_local
from molecule_hermes.server.resumes import Resumes

__all__ = ["HANDOFFS_PATH", "RESUMES_PATH", "OperatorAccess", "read_access"]

logger = logging.getLogger(__name__)

HANDOFFS_PATH = "/operator/handoffs"
RESUMES_PATH = "/operator/resumes"
_FILE = "operator.json"
_MAX_BODY = 16_384
_MAX_NAME = 1024


class OperatorAccess:
    def __init__(self, settings: Settings, handoffs: Handoffs, resumes: Resumes) -> None:
        self._file = settings.state_dir / _FILE
        self._handoffs = handoffs
        self._resumes = resumes
        self._token = secrets.token_urlsafe(32)

    @property
    def routes(self) -> Sequence[Route]:
        return (
            Route(HANDOFFS_PATH, self._begin, methods=["POST"]),
            Route(RESUMES_PATH, self._resume, methods=["POST"]),
        )

    @contextlib.contextmanager
    def published(self, listens: str) -> Iterator[None]:
        """Within it, the operator finds the bridge. Without a folder there is no such access."""
        parts = urlsplit(listens)
        url = local_base_url(parts.hostname or "", parts.port or 0)
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps({"url": url, "token": self._token}))
        except OSError as error:
            logger.warning("%s: %s; handing over is not possible", self._file, error.strerror)
        try:
            yield
        finally:
            self._resumes.close()
            known = read_access(self._file.parent)
            if known is not None and known[1] == self._token:  # not that of a later bridge
                self._file.unlink(missing_ok=True)

    async def _begin(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        try:
            handoff = _handoff_of(await _body(request))
        except ValueError as error:
            return _error(400, str(error))
        try:
            await self._handoffs.begin(handoff)
        except OSError as error:
            return _error(500, f"the handoff cannot be recorded: {error.strerror}")
        return JSONResponse(asdict(handoff), 202)

    async def _resume(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        try:
            asked = _names(await _body(request), {"context_id": None, "peer": "", "agent": ""})
            return await self._resumes.respond(**asked)
        except ValueError as error:
            return _error(400, str(error))
        except TurnFailure as failure:
            return _error(409, failure.message)

    def _refusal(self, request: Request) -> Response | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip().encode("utf-8", "surrogateescape")
        right = hmac.compare_digest(token, self._token.encode())
        if right and scheme.lower() == "bearer" and is_local(request):
            return None
        return _error(401, "this is for the operator of this machine")


def read_access(state_dir: Path) -> tuple[str, str] | None:
    """The address and the token of the bridge that runs on the folder, if one does."""
    try:
        known = json.loads((state_dir / _FILE).read_text())
        return str(known["url"]), str(known["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def _body(request: Request) -> Mapping[str, Any]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_BODY:
            raise ValueError("the body is too large")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("the body is not JSON") from error
    if not isinstance(data, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004 - as above
    return data


def _handoff_of(data: Mapping[str, Any]) -> Handoff:
    needed = dict.fromkeys(("session", "peer", "home"))
    named = _names(data, {**needed, "agent": "", "context_id": "", "owner": ""})
    context_id = named.pop("context_id") or str(uuid.uuid4())
    return Handoff(
        named["session"],
        named["peer"],
        named["agent"],
        context_id=context_id,
        home=named["home"],
        owner=named["owner"],
    )


def _names(data: Mapping[str, Any], defaults: Mapping[str, str | None]) -> dict[str, str]:
    """The texts of these names; None stands for those that are needed. Raises `ValueError`."""
    named = {}
    for name, default in defaults.items():
        value = data.get(name, default)
        if not isinstance(value, str) or len(value) > _MAX_NAME or not value.isprintable():
            raise ValueError(f"`{name}` must be a text of at most {_MAX_NAME} characters")
        if default is None and not value:
            raise ValueError(f"`{name}` is missing")
        named[name] = value
    return named


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": status, "message": message}}, status)
