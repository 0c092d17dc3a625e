"""The operator's own Hermes: its CLI, and the sessions in its database."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

__all__ = ["chat", "messages", "request_handoff", "rows", "run", "session_in"]


async def run(
    *command: str | Path, env: dict[str, str], timeout: float = 120.0
) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(), err.decode()


async def chat(home: Path, text: str, *options: str) -> str:
    """What `hermes chat` says, and the id of its session."""
    hermes = Path(sys.executable).with_name("hermes")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES", "MOLECULE"))}
    env = {**clean, "HERMES_HOME": str(home), "HOME": str(home)}
    code, out, err = await run(hermes, "chat", "-Q", *options, "-q", text, env=env)
    assert code == 0, err
    return out + err


def session_in(output: str) -> str:
    return output.rsplit("session_id:", maxsplit=1)[-1].split(maxsplit=1)[0]


def rows(home: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{home}/state.db?mode=ro", uri=True) as connection:
        return connection.execute(query, values).fetchall()


def messages(home: Path, session: str) -> list[tuple[Any, ...]]:
    query = "SELECT role, content, active FROM messages WHERE session_id = ? ORDER BY id"
    return rows(home, query, session)


def request_handoff(home: Path, session: str, state: str = "pending") -> None:
    """As `/handoff molecule_a2a` in Hermes's CLI does it."""
    with sqlite3.connect(home / "state.db", timeout=10) as connection:
        connection.execute(
            "UPDATE sessions SET handoff_state = ?, handoff_platform = 'molecule_a2a' WHERE id = ?",
            (state, session),
        )
