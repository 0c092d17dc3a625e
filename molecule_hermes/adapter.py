"""The adapter for the orchestration platform (`ADAPTER_MODULE=molecule_hermes.adapter`)."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from molecule_hermes.backoff import Backoff
from molecule_hermes.embedding import EmbeddedExecutor, ExecutorConfig, create_executor
from molecule_hermes.errors import StartError, TurnFailure, Unreachable
from molecule_hermes.hermes.credentials import known_credentials
from molecule_hermes.hermes.diagnosis import diagnose_running
from molecule_hermes.hermes.providers import keys_that_are_set
from molecule_hermes.plugin.settings import API_KEY, SECRET

__all__ = ["Adapter", "NativeSession", "SetupError"]

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(first=0.2, longest=5.0)


@dataclass(frozen=True, slots=True)
class NativeSession:
    """The adapter's capabilities, if the platform's own class for them is not installed."""

    provides_native_session: bool = True


class SetupError(StartError, RuntimeError):
    """Hermes did not become ready. The platform expects a RuntimeError."""


def _platform() -> Any:
    """The platform's module with base classes; None if the platform is not installed."""
    if importlib.util.find_spec("molecule_runtime") is None:
        return None
    return importlib.import_module("molecule_runtime.adapters.base")


if TYPE_CHECKING:
    _Base = object
else:
    _Base = getattr(_platform(), "BaseAdapter", object)


class Adapter(_Base):
    """Gives the platform an executor that forwards turns to a Hermes on the same machine."""

    @staticmethod
    def name() -> str:
        return "hermes"

    @staticmethod
    def display_name() -> str:
        return "Hermes Agent"

    @staticmethod
    def description() -> str:
        return "The Hermes agent with its own sessions, tools, memory and skills, over A2A."

    @staticmethod
    def get_config_schema() -> dict[str, Any]:
        return {
            "model": {
                "type": "string",
                "description": "The model name that is sent to Hermes, which uses its own model.",
            },
            "system_prompt": {
                "type": "string",
                "description": "A system prompt for Hermes.",
            },
        }

    def capabilities(self) -> Any:
        """Hermes keeps conversations itself, so the platform does not need to queue their turns."""
        known = getattr(_platform(), "RuntimeCapabilities", NativeSession)
        return known(provides_native_session=True)

    def idle_timeout_override(self) -> int:
        """Seconds without output: slow models think for longer than the platform waits."""
        return 900

    async def setup(self, config: ExecutorConfig) -> None:
        """Returns when Hermes is ready. Raises `SetupError` if it is not ready in time."""
        logger.info("keys that are set: %s", ", ".join(_keys()) or "none")
        executor = create_executor(config)
        if executor.settings.smoke_mode:
            logger.info("smoke mode: not waiting for Hermes")
            return
        async with executor:
            await _until_ready(executor)

    async def create_executor(self, config: ExecutorConfig) -> EmbeddedExecutor:
        """Returns a started executor. The caller stops it with `stop()`."""
        executor = create_executor(config)
        await executor.start()
        # The platform looks for this attribute when it stops.
        self._executor = executor
        return executor


def _keys() -> list[str]:
    own = [name for name in (API_KEY, SECRET) if os.environ.get(name, "").strip()]
    return own + keys_that_are_set(os.environ)


async def _until_ready(executor: EmbeddedExecutor) -> None:
    """A failure that another attempt cannot mend, such as a wrong key, is not tried again."""
    began, attempts = time.monotonic(), 0
    delays = _BACKOFF.delays(within=executor.settings.ready_budget)
    while True:
        attempts += 1
        try:
            return await executor.check()
        except TurnFailure as failure:
            delay = next(delays, None)
            if delay is None or not failure.retryable:
                tried = f"{attempts} attempts in {time.monotonic() - began:.1f} s"
                raise await _not_ready(executor, failure, tried) from failure
        logger.info("Hermes at %s is not ready (attempt %d)", executor.address, attempts)
        await asyncio.sleep(delay)


async def _not_ready(executor: EmbeddedExecutor, failure: TurnFailure, tried: str) -> SetupError:
    """The error with the URL, the attempts and the log, and why the plugin is not bound."""
    settings = executor.settings
    why = f"{failure.message} — {failure.hint}"
    if executor.transport_name == "plugin" and isinstance(failure, Unreachable):
        why = str(await diagnose_running(settings, known_credentials(settings)))
    log = settings.home / "logs" / "gateway.log"
    return SetupError(
        f"Hermes is not ready at {executor.address} after {tried} ({why})",
        f"read {log} and run `molecule-hermes doctor`",
    )
