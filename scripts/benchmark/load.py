"""Peers that send turns, check every answer and measure the time.

The SDK's own client is slower than what is measured.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import Any

import aiohttp

from .fakes import TOKENS, reply_to


class WrongAnswerError(Exception):
    pass


class Peers:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def turn(self, text: str, peer: int = 0) -> None:
        """Sends one SendMessage; raises if the answer is wrong."""
        request = _request("SendMessage", text)
        async with self._session.post(self._url, json=request, headers=_headers(peer)) as answer:
            body = await answer.json()
        try:
            task = body["result"]["task"]
            said = "".join(p["text"] for a in task["artifacts"] for p in a["parts"])
        except KeyError:
            raise WrongAnswerError(str(body)[:900]) from None
        if task["status"]["state"] != "TASK_STATE_COMPLETED" or said != "".join(reply_to(text)):
            raise WrongAnswerError(f"{text!r} was answered {said[:100]!r}")

    async def streamed(self, text: str) -> float:
        """Returns the seconds of one SendStreamingMessage, and checks the streamed reply."""
        began = time.perf_counter()
        said, state = "", ""
        request = _request("SendStreamingMessage", text)
        async with self._session.post(self._url, json=request, headers=_headers(0)) as answer:
            async for line in answer.content:
                if line.startswith(b"data:"):
                    said, state = _follow(json.loads(line[5:])["result"], said, state)
        took = time.perf_counter() - began
        if state != "TASK_STATE_COMPLETED" or said != "".join(reply_to(text)):
            raise WrongAnswerError(f"{text!r} ended {state} with {len(said)} characters")
        return took

    async def throughput(self, seconds: float, peers: int = 32) -> float:
        """Returns turns per second of many peers, each with one turn at a time."""
        until = time.perf_counter() + seconds
        done = 0

        async def run(peer: int) -> None:
            nonlocal done
            while time.perf_counter() < until:
                await self.turn(f"{peer} {uuid.uuid4().hex}", peer)
                done += 1

        began = time.perf_counter()
        await asyncio.gather(*(run(peer) for peer in range(peers)))
        return done / (time.perf_counter() - began)

    async def latency(self, turns: int) -> float:
        """Returns the average seconds per turn of one peer."""
        began = time.perf_counter()
        for number in range(turns):
            await self.turn(f"alone {number}")
        return (time.perf_counter() - began) / turns


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=300),
        read_bufsize=2**22,
        trust_env=False,
    )


def _headers(peer: int) -> dict[str, str]:
    token = TOKENS[f"peer{peer % len(TOKENS)}"]
    return {"A2A-Version": "1.0", "Authorization": f"Bearer {token}"}


def _request(method: str, text: str) -> dict[str, Any]:
    message = {
        "messageId": uuid.uuid4().hex,
        "contextId": uuid.uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"text": text}],
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}


def _follow(result: dict[str, Any], said: str, state: str) -> tuple[str, str]:
    if "artifactUpdate" in result:
        update = result["artifactUpdate"]
        piece = "".join(part.get("text", "") for part in update["artifact"]["parts"])
        return said + piece if update.get("append") else piece, state
    status = result.get("statusUpdate", result.get("task", {})).get("status", {})
    return said, status.get("state", state)
