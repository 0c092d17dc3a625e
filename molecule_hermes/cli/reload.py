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

    `configure` gives a configuration to what the bridge relies on, before the bridge has it. It
    raises `StartError` for one that it cannot take. `after` is called when all have taken it.
    """

    def __init__(
        self,
        settings: Settings,
        configuration: Configuration,
        bridge: Bridge,
        say: Say,
        *,
        configure: Callable[[Configuration], None] = lambda configuration: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._bridge = bridge
        self._say = say
        self._configure = configure
        self._after = after
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
                self._configure(configuration)
                await self._take(configuration)
            except StartError as error:
                self._say(f"the configuration stays as it was: {error}")
                return
            except Exception:
                logger.exception("the configuration could not be read again")
                return
            self._after()
        for warning in configuration.warnings:
            self._say(f"  warning  {warning}")
        self._say("the configuration was read again")

    async def _take(self, configuration: Configuration) -> None:
        try:
            await self._bridge.reload(configuration)
        except BaseException:
            self._configure(self._configuration)
            raise
        self._configuration = configuration
