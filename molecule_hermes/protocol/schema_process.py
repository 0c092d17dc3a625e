"""Validation in a process of its own, which can be killed (`json_answers.py`)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid
from collections import OrderedDict
from typing import Any

from molecule_hermes.protocol import json_answers
from molecule_hermes.turns.scheduler import Scheduler

__all__ = ["SchemaProcesses", "UnusableSchemaError"]

_AT_ONCE = 2
_WALL_SECONDS = 30.0
"""More than the CPU time that the process gets: the machine may be busy."""
_REMEMBERED = 256
_KILLED = (-signal.SIGKILL, -signal.SIGXCPU)
"""How the kernel ends a process that has used up its limits."""


class UnusableSchemaError(ValueError):
    """The schema cannot be used. The text says why."""


class SchemaProcesses:
    """Starts a process for each question; at most two run at once, and peers alternate."""

    def __init__(self) -> None:
        self._scheduler = Scheduler(_AT_ONCE)
        self._sound: OrderedDict[str, None] = OrderedDict()
        """Schemas that were found to be sound, the last ones."""

    async def require_sound(self, schema: dict[str, Any], peer: str) -> None:
        """Raises `UnusableSchemaError` for a schema that is none, and `Busy` if too many wait."""
        known = json.dumps(schema, sort_keys=True)
        if known in self._sound:
            self._sound.move_to_end(known)
            return
        await self._ask({"schema": schema}, peer)
        self._sound[known] = None
        while len(self._sound) > _REMEMBERED:
            self._sound.popitem(last=False)

    async def judge(self, schema: dict[str, Any] | None, text: str, peer: str) -> dict[str, Any]:
        """Returns `{"value": VALUE}`, or `{"problem": WHY}` for an answer that is not valid. Raises
        `UnusableSchemaError` if the schema cannot be applied, and `Busy` if too many wait."""
        return await self._ask({"schema": schema, "text": text}, peer)

    async def _ask(self, request: dict[str, Any], peer: str) -> dict[str, Any]:
        async with self._scheduler.enter(uuid.uuid4().hex, peer) as slot:
            await slot.wait()
            verdict = await _run(json.dumps(request).encode())
        if why := verdict.get("schemaProblem"):
            raise UnusableSchemaError(why)
        return verdict


async def _run(request: bytes) -> dict[str, Any]:
    # -P: not from the folder of the module or the working directory, where other files may lie.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        json_answers.__name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_WALL_SECONDS):
            output, errors = await process.communicate(request)
    except TimeoutError:
        raise _too_slow() from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode in _KILLED:
        raise _too_slow()
    if process.returncode != 0:
        raise RuntimeError(f"a validation failed: {errors.decode('utf-8', 'replace')[-500:]}")
    verdict: dict[str, Any] = json.loads(output)
    return verdict


def _too_slow() -> UnusableSchemaError:
    return UnusableSchemaError(
        f"it takes more than {json_answers.CPU_SECONDS} s or too much memory to apply it"
    )
