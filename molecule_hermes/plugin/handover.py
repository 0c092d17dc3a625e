"""The secrets and settings that a bridge passes to the Hermes that it starts.

They travel over the standard input of the new process, so that they are in no file, no command
line and no environment. `launcher` receives them, and the plugin finds them here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, Self

from molecule_hermes.plugin.home_files import require_inside
from molecule_hermes.plugin.landlock import Rules

__all__ = ["Confinement", "Handover", "HandoverError", "receive", "received"]

_MAX_BYTES = 16 * 2**20
"""The files of an agent's skills are in it."""


class HandoverError(Exception):
    """There is no handover on standard input, or it cannot be read."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What Hermes and its tools may reach."""

    rules: Rules
    require: bool = False
    """Whether Hermes must not run where the kernel cannot enforce all of the rules."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        return cls(Rules.parse(data["rules"]), bool(data["require"]))


@dataclass(frozen=True, slots=True)
class Handover:
    secret: str = field(default="", repr=False)
    """The shared secret of bridge and plugin."""
    api_key: str = field(default="", repr=False)
    """The key of Hermes's API server; "" leaves it to Hermes's own configuration."""
    callbacks: tuple[str, ...] = ()
    """Where the bridge accepts callbacks, as `host:port`."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that Hermes needs but its tools must not see, such as model keys."""
    disabled_toolsets: tuple[str, ...] = ()
    """Toolsets that agents do not get when peers talk to them."""
    confinement: Confinement | None = None
    """Applied before anything of Hermes is imported; None leaves Hermes as free as the bridge."""
    remove: tuple[str, ...] = ()
    """Files and folders below HERMES_HOME that are removed before the start, such as code that
    tools could have put there for Hermes to import."""
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Files below HERMES_HOME that are written before the start, after `remove`. Not by the
    bridge, which is not confined: a tool could have put a link in their place."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, stream: BinaryIO) -> Self:
        try:
            data = json.loads(stream.read(_MAX_BYTES))
            return cls(
                secret=str(data["secret"]),
                api_key=str(data["api_key"]),
                callbacks=tuple(map(str, data["callbacks"])),
                environ={str(name): str(value) for name, value in data["environ"].items()},
                disabled_toolsets=tuple(map(str, data["disabled_toolsets"])),
                confinement=Confinement.parse(given) if (given := data["confinement"]) else None,
                remove=tuple(_inside(name) for name in data["remove"]),
                files={_inside(name): str(text) for name, text in data["files"].items()},
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # Not chained: the cause may quote what was read.
            raise HandoverError(f"no handover on standard input ({type(error).__name__})") from None


def _inside(name: object) -> str:
    require_inside(str(name))
    return str(name)


_received = Handover()


def receive(handover: Handover) -> None:
    global _received  # noqa: PLW0603 - a Hermes is started by one bridge
    _received = handover


def received() -> Handover:
    """The handover of the bridge that started this Hermes; empty if none did."""
    return _received
