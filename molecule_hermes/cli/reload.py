"""A new configuration while the bridge serves, on SIGHUP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from molecule_hermes.cli.messages import Say
from molecule_hermes.config import Configuration, Settings, load_configuration
from molecule_hermes.errors import StartError
from molecule_hermes.server.bridge import Bridge

__all__ = ["Reload"]

logger = logging.getLogger(__name__)


class Reload:
    """Reads the configuration file again. A bad one changes nothing.

    `check` raises `StartError` for a configuration that needs a restart, and `apply` takes one that
    the bridge has taken.
    """

    def __init__(
        self,
        settings: Settings,
        bridge: Bridge,
        say: Say,
        *,
        check: Callable[[Configuration], None] = lambda configuration: None,
        apply: Callable[[Configuration], None] = lambda configuration: None,
    ) -> None:
        self._settings = settings
        self._bridge = bridge
        self._say = say
        self._check = check
        self._apply = apply
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        task = asyncio.create_task(self._run(), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        async with self._lock:
            try:
                configuration = await asyncio.to_thread(load_configuration, self._settings)
                self._check(configuration)
                await self._bridge.reload(configuration)
                self._apply(configuration)
            except StartError as error:
                self._say(f"the configuration stays as it was: {error}")
                return
            except Exception:
                logger.exception("the configuration could not be read again")
                return
        for warning in configuration.warnings:
            self._say(f"  warning  {warning}")
        self._say("the configuration was read again")
