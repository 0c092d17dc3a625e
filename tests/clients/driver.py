"""A driver: a process in a client's environment that does what a test asks of that client."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.clients.clients import Client
from tests.clients.environments import command

_PATIENCE = 60.0
_LONGEST_LINE = 2**20


class Driver:
    def __init__(self, client: Client, process: asyncio.subprocess.Process) -> None:
        self.client = client
        self._process = process

    async def __call__(self, ability: str, **given: str) -> dict[str, Any]:
        """Does one thing with the client; returns what the client showed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": ability, **given}).encode() + b"\n")
        answer = await self.next_line()
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    async def next_line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(_PATIENCE):
            line = await self._process.stdout.readline()
        return dict(json.loads(line)) if line else {"error": "the driver's process ended"}


@asynccontextmanager
async def driving(client: Client, url: str, folder: Path) -> AsyncIterator[Driver]:
    """Starts the client's driver for the agent at that URL; its log goes to the folder."""
    argv = await asyncio.to_thread(command, client)
    with (folder / f"{client.name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *argv,
            url,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=_LONGEST_LINE,
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        )
    driver = Driver(client, process)
    try:
        assert await driver.next_line() == {"ready": True}, (
            folder / f"{client.name}.log"
        ).read_text()
        yield driver
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
