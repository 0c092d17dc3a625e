"""The loop of a Python driver: a command per line on stdin, its result per line on stdout.

It runs in the environment of the client under test, so it needs the standard library only.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def drive(driver: Callable[[str], Any]) -> None:
    """Runs the methods of `driver(url)` that stdin names; the URL is the only argument."""
    # Some clients print to stdout: what they print goes to stderr.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    asyncio.run(_loop(driver(sys.argv[1]), out))


async def _loop(driver: Any, out: Any) -> None:
    print(json.dumps({"ready": True}), file=out)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        try:
            result = await getattr(driver, command.pop("do"))(**command)
            print(json.dumps({"result": result}), file=out)
        except Exception:
            print(json.dumps({"error": traceback.format_exc()}), file=out)


def decoded(data: str | bytes) -> str:
    """The text of a file whose content is base64."""
    return base64.b64decode(data).decode()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
