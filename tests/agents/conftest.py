"""A bridge with two agents and three peers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from molecule_hermes.config import Configuration, Settings
from molecule_hermes.server.bridge import Bridge
from tests.support.agents import Agents, agents_bridge, two_agents

StartAgents = Callable[..., AbstractAsyncContextManager[Bridge]]


@pytest.fixture
def agents() -> Agents:
    return Agents()


@pytest.fixture
def start(settings: Callable[..., Settings], agents: Agents) -> StartAgents:
    """Starts a bridge with the agents of `two_agents`, or with those of another configuration."""

    def run(
        configuration: Configuration | None = None, **variables: Any
    ) -> AbstractAsyncContextManager[Bridge]:
        made = settings(**({"DRAIN_TIMEOUT": 2} | variables))
        return agents_bridge(made, configuration or two_agents(), agents)

    return run
