from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.gateway import CallbackServer, Hermes, callback_server, running_hermes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hermes]:
    """One gateway for a module; its tests run on the module's loop."""
    async with running_hermes(tmp_path_factory.mktemp("hermes")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def callbacks() -> AsyncIterator[CallbackServer]:
    async with callback_server() as server:
        yield server
