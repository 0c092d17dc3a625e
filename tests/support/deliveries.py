"""A bridge that takes deliveries, and what makes Hermes produce them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from molecule_hermes.wire import CHECK_PATH, JOBS_PATH, SECRET_HEADER, TURNS_PATH, Push
from tests.support.gateway import API_KEY, SECRET, CallbackServer, Hermes

BRIDGE = "bridge-1"


async def take(hermes: Hermes, callbacks: CallbackServer, bridge: str = BRIDGE) -> None:
    body = {"callback_url": callbacks.url, "bridge": bridge, "deliveries": True}
    status, answer = await hermes.post(CHECK_PATH, body)
    assert (status, answer["deliveries"]) == (200, True)


async def decline(hermes: Hermes, callbacks: CallbackServer, bridge: str = BRIDGE) -> None:
    body = {"callback_url": callbacks.url, "bridge": bridge}
    status, answer = await hermes.post(CHECK_PATH, body)
    assert (status, "deliveries" in answer) == (200, False)


def call(tool: str, **arguments: Any) -> str:
    """What has the demo model call a tool."""
    return f"demo:call={tool} {json.dumps(arguments)}"


def background(command: str, **more: Any) -> str:
    """What has the demo model run a command in the background and ask for its end."""
    return call(
        "terminal", command=command, background=True, **{"notify_on_complete": True, **more}
    )


def until_there_is(sign: Path) -> str:
    """What keeps a chat busy until the file exists."""
    return f"demo:run until [ -e {sign} ]; do sleep 0.1; done"


def pushes(callbacks: CallbackServer, chat: str) -> list[str]:
    return [c.reply_to for c in callbacks.taken if isinstance(c.body, Push) and c.chat_id == chat]


async def delivery(callbacks: CallbackServer, chat: str, number: int = 1) -> str:
    """The id of the chat's delivery with this number, once it has its final."""
    await callbacks.until(lambda: len(pushes(callbacks, chat)) >= number, 60)
    push_id = pushes(callbacks, chat)[number - 1]
    await callbacks.until(lambda: callbacks.finals(push_id), 60)
    return push_id


def assert_each_is_whole(callbacks: CallbackServer) -> None:
    """Each message and each delivery has its callbacks once, in order, and one final."""
    by_id: dict[str, list[int]] = {}
    for callback in callbacks.taken:
        by_id.setdefault(callback.reply_to, []).append(callback.seq or 0)
    for reply_to, seqs in by_id.items():
        assert seqs == sorted(set(seqs)), reply_to
        assert len(callbacks.finals(reply_to)) == 1, reply_to


async def get(hermes: Hermes, path: str) -> dict[str, Any]:
    async with hermes.http.get(hermes.url(path), headers={SECRET_HEADER: SECRET}) as response:
        return dict(await response.json())


async def active(hermes: Hermes) -> int:
    return int((await get(hermes, JOBS_PATH))["active"])


async def ended_turns(hermes: Hermes, chat: str) -> int:
    turns = (await get(hermes, TURNS_PATH))["turns"]
    return sum(turn["chat_id"] == chat and turn["state"] == "ended" for turn in turns)


async def make_cron_job(hermes: Hermes, body: dict[str, Any]) -> None:
    """Over Hermes's API, so that the job comes from no chat."""
    url = f"http://127.0.0.1:{hermes.api_port}/api/jobs"
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with hermes.http.post(url, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()


def look_for_cron_jobs_every_second(home: Path) -> dict[str, Any]:
    """Makes Hermes do so, which by itself does it every minute; returns configuration for it."""
    plugin = home / "plugins" / "fast-cron"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text("name: fast-cron\nversion: '1'\ndescription: test\n")
    (plugin / "__init__.py").write_text(
        "def register(ctx):\n"
        "    from cron.scheduler_provider import InProcessCronScheduler\n"
        "    InProcessCronScheduler.start.__kwdefaults__['interval'] = 1\n"
    )
    return {"plugins": {"enabled": ["molecule-a2a", "fast-cron"]}}
