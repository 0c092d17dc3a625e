"""A second platform of Hermes: it keeps what the agent says there in a file of Hermes's home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["PAGER", "plant", "said"]

PAGER = "pager"
_CODE = """
import asyncio
from pathlib import Path

from gateway.config import Platform
from gateway.platforms.base import BasePlatformAdapter, SendResult
from hermes_constants import get_hermes_home


class Pager(BasePlatformAdapter):
    def __init__(self, config, name):
        super().__init__(config, Platform(name))

    async def connect(self, **_):
        self._mark_connected()
        return True

    async def disconnect(self):
        pass

    async def send(self, chat_id, content, reply_to=None, metadata=None):
        home = Path(get_hermes_home())
        with (home / "pager.txt").open("a") as file:
            file.write(f"{chat_id}: {content}\\n")
        while (home / "pager-hangs").exists():
            await asyncio.sleep(0.05)
        if (home / "pager-fails").exists():
            return SendResult(success=False, error="the pager is out of paper")
        return SendResult(success=True, message_id="1")

    async def send_typing(self, chat_id, metadata=None):
        pass

    async def get_chat_info(self, chat_id):
        return {"name": chat_id, "type": "dm"}


def register(ctx):
    for name in ("pager", "homeless"):
        ctx.register_platform(
            name=name,
            label=name,
            adapter_factory=lambda config, name=name: Pager(config, name),
            check_fn=lambda: True,
        )
"""


def plant(home: Path) -> dict[str, Any]:
    """Adds the platform to a home; returns configuration for it. It has a home channel, and its
    twin `homeless` has none."""
    plugin = home / "plugins" / "pager"
    plugin.mkdir(parents=True)
    manifest = {"name": "pager", "version": "1", "description": "test", "kind": "platform"}
    (plugin / "plugin.yaml").write_text(json.dumps(manifest))
    (plugin / "__init__.py").write_text(_CODE)
    channel = {"platform": PAGER, "chat_id": "room-1", "name": "Room"}
    return {
        "plugins": {"enabled": ["molecule-a2a", "pager"]},
        "platforms": {
            PAGER: {"enabled": True, "home_channel": channel},
            "homeless": {"enabled": True},
        },
    }


def said(home: Path) -> str:
    """All that the agent has said there."""
    path = home / "pager.txt"
    return path.read_text() if path.is_file() else ""
