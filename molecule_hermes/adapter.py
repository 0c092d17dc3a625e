"""The adapter for the orchestration platform (`ADAPTER_MODULE=molecule_hermes.adapter`)."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molecule_hermes.agents.connections import transport_to_running_hermes
from molecule_hermes.backoff import Backoff
from molecule_hermes.config import Settings
from molecule_hermes.confined_files import ConfinedFileError, read_below
from molecule_hermes.embedding import EmbeddedExecutor, ExecutorConfig, create_executor
from molecule_hermes.errors import StartError, TurnFailure, Unreachable
from molecule_hermes.hermes.credentials import known_credentials
from molecule_hermes.hermes.diagnosis import diagnose_running
from molecule_hermes.hermes.providers import HERMES_API_KEY_NOTE, keys_that_are_set
from molecule_hermes.hermes.transcript import read_transcript
from molecule_hermes.plugin.settings import API_KEY, PLATFORM, SECRET
from molecule_hermes.wire import MAX_SYSTEM_PROMPT

__all__ = ["Adapter", "NativeSession", "SetupError"]

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(first=0.2, longest=5.0)
_DEFAULTS = {
    # Readers on the platform take the first text part of a Message and read no task.
    "MOLECULE_HERMES_REPLY": "message",
    "MOLECULE_HERMES_APPROVALS": "deny",
    "MOLECULE_HERMES_WORKSPACE": "/workspace",
    "WORKSPACE_ID": "workspace",
}
"""The settings whose defaults differ from those of our own server."""


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
        """Returns when Hermes is ready. Raises `SetupError` if it is not ready in time, or if a
        prompt file cannot be read."""
        logger.info("keys that are set: %s", ", ".join(_keys()) or "none")
        if "HERMES_API_KEY" in _keys():
            logger.info(HERMES_API_KEY_NOTE)
        executor = _create_executor(config)
        if executor.settings.smoke_mode:
            logger.info("smoke mode: not waiting for Hermes")
            return
        async with executor:
            await _until_ready(executor)

    async def create_executor(self, config: ExecutorConfig) -> EmbeddedExecutor:
        """Returns a started executor. The caller stops it with `stop()`."""
        executor = _create_executor(config)
        await executor.start()
        # The platform looks for this attribute when it stops.
        self._executor = executor
        return executor

    async def transcript_lines(self, since: int = 0, limit: int = 100) -> dict[str, Any]:
        """What was said in Hermes's newest session after the message `since`.

        Pass the returned `cursor` as `since` to go on.
        """
        executor: EmbeddedExecutor | None = getattr(self, "_executor", None)
        settings = executor.settings if executor else Settings.from_env()
        nothing = {"lines": [], "cursor": since, "more": False, "source": None}
        about = {"runtime": self.name(), "supported": not settings.smoke_mode}
        if settings.smoke_mode:
            return about | nothing
        key = known_credentials(settings).api_key
        source = PLATFORM if transport_to_running_hermes(settings) == "plugin" else "api_server"
        return about | await read_transcript(settings.hermes_api_base, key, source, since, limit)


@dataclass(frozen=True, slots=True)
class _Config:
    """A config of the platform with its prompt files in its system prompt."""

    model: str | None
    system_prompt: str | None


def _create_executor(config: ExecutorConfig) -> EmbeddedExecutor:
    environ = _DEFAULTS | {name: value for name, value in os.environ.items() if value.strip()}
    if workspace := getattr(config, "workspace_id", None):
        environ["WORKSPACE_ID"] = str(workspace)
    return create_executor(_Config(config.model, _system_prompt(config)), environ)


def _system_prompt(config: ExecutorConfig) -> str:
    """The system prompt, followed by the prompt files below the config's folder."""
    names = getattr(config, "prompt_files", None) or ()
    folder = Path(getattr(config, "config_path", None) or Settings.from_env().workspace_config_path)
    prompts = [config.system_prompt or "", *(_prompt_file(folder, str(name)) for name in names)]
    prompt = "\n\n".join(filter(None, (each.strip() for each in prompts)))
    if len(prompt) > MAX_SYSTEM_PROMPT:
        raise SetupError(
            f"the system prompt has {len(prompt):,} characters with its prompt files; Hermes "
            f"accepts {MAX_SYSTEM_PROMPT:,}",
            "shorten the prompt files",
        )
    return prompt


def _prompt_file(folder: Path, name: str) -> str:
    try:
        return read_below(folder, name, 4 * MAX_SYSTEM_PROMPT).decode()
    except (ConfinedFileError, UnicodeDecodeError) as error:
        why = error if isinstance(error, ConfinedFileError) else "it is not UTF-8 text"
        raise SetupError(
            f"the prompt file {name!r} below {folder} cannot be read: {why}",
            "name text files below the folder of config.yaml in prompt_files",
        ) from error


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
