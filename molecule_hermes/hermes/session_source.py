"""The sessions of an operator's Hermes: read and marked by a process in that Hermes's home."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from molecule_hermes.errors import BadRequest
from molecule_hermes.hermes.confinement import uses_user_site
from molecule_hermes.wire import Transcript, WireError

__all__ = ["claim", "settle"]

_COMMAND = (
    sys.executable,
    # As Hermes itself is started: nothing is imported from where tools can write.
    *(("-P",) if uses_user_site() else ("-P", "-s")),
    *("-m", "molecule_hermes.plugin.session_source"),
)
_KEPT = ("PATH", "HOME", "LANG", "PYTHONUSERBASE")
_WITHIN = 30.0


async def claim(home: Path, session: str, target: str) -> Transcript:
    """Marks the session as being handed over to the target, and reads it. Raises `BadRequest`."""
    try:
        return Transcript.parse(await _ask(home, do="claim", session=session, target=target))
    except WireError as error:
        await settle(home, target, "the session is too long")
        raise BadRequest(f"the session is too long to be handed over: {error}", hint="") from error


async def settle(home: Path, target: str, error: str = "", session: str = "") -> None:
    """Ends the handoff to the target, of this session if one is named; it failed if there is an
    error. Raises `BadRequest`."""
    await _ask(home, do="settle", target=target, error=error, session=session)


async def _ask(home: Path, **request: str) -> Mapping[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        env={name: os.environ[name] for name in _KEPT if name in os.environ},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    question = json.dumps({"home": str(home), **request}).encode()
    try:
        async with asyncio.timeout(_WITHIN):
            out, err = await process.communicate(question)
        answer = json.loads(out)
    except (TimeoutError, ValueError):
        lines = err.decode(errors="replace").strip().splitlines() if process.returncode else []
        reason = lines[-1] if lines else "there is no answer"
        raise BadRequest(f"the sessions of {home} cannot be read: {reason}", hint="") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if isinstance(answer, dict) and "error" not in answer:
        return answer
    raise BadRequest(str(answer["error"]), hint="")
