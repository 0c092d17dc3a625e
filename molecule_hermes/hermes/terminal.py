"""Hermes's own CLI on a session of a Hermes that runs, as confined as that one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from molecule_hermes.plugin.handover import Handover

__all__ = ["Terminal", "for_cli"]


@dataclass(frozen=True, slots=True)
class Terminal:
    session_id: str
    environ: Mapping[str, str] = field(repr=False)
    cwd: str
    handover: Handover

    def to_json(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "environ": dict(self.environ),
            "cwd": self.cwd,
            "handover": json.loads(self.handover.to_bytes()),
        }


def for_cli(handover: Handover) -> Handover:
    """Without the secrets of a gateway, and without what makes its home ready: it is."""
    return replace(handover, secret="", api_key="", callbacks=(), remove=(), files={})
