"""The platform's adapter in front of the real Hermes, through the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.peers import ask, peer
from tests.support.serving import free_port
from tests.support.stack import environment, up
from tests.support.workspace_platform import AdapterConfig, platform


async def test_a_platform_talks_to_the_real_hermes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = environment(
        tmp_path,
        MOLECULE_A2A_PLATFORM_SHARED_SECRET="a-shared-secret-of-the-tests",
        MOLECULE_A2A_PLATFORM_CALLBACKS="127.0.0.1",
    )
    async with up(environ):
        # The platform's process beside Hermes, with a callback port of its own.
        theirs = environ | {
            "MOLECULE_A2A_PLATFORM_ENABLED": "true",
            "MOLECULE_A2A_CALLBACK_PORT": str(free_port()),
        }
        for name, value in theirs.items():
            monkeypatch.setenv(name, value)
        async with platform(AdapterConfig()) as workspace, peer(workspace.url) as client:
            turn = await ask(client, "my fruit is a quince", "platform")
            again = await ask(client, "which fruit?", "platform")
    assert turn.states[-1] == "COMPLETED"
    assert "You said: my fruit is a quince" in turn.text
    assert "quince" in again.text
