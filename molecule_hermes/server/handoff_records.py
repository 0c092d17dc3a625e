"""What is known of each handoff, in a file of its own below STATE_DIR.

The command reads them, also while no bridge runs, and the next bridge ends what one has left.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self, TypeAlias

from molecule_hermes.hermes.home import write_atomically

__all__ = ["Handoff", "HandoffRecords", "State"]

State: TypeAlias = Literal["pending", "running", "completed", "failed"]
_MAX_RECORD = 65_536


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Handoff:
    """A session of Hermes on its way to a peer, or a peer's conversation to a platform."""

    session: str
    """As the operator named it."""
    peer: str
    """To whom."""
    agent: str
    """Empty if the routes choose it."""
    context_id: str
    home: str
    """Of the session."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    session_id: str = ""
    task_id: str = ""
    state: State = "pending"
    reason: str = ""
    """Why it failed."""
    claimed: bool = False
    """Whether the session is, or may be, marked as being handed over."""
    requested: bool = False
    """Whether Hermes's own command asked for it, and waits for its end."""
    to_platform: bool = False
    """Whether `peer` is a platform of the Hermes that has the context's conversation."""
    owner: str = ""
    """The peer that has it; empty if the context says enough."""
    began: str = field(default_factory=_now)
    ended: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "failed")

    @property
    def target(self) -> str:
        """By which the session's row names this handoff."""
        return f"molecule_a2a:{self.id}"

    def end(self, reason: str) -> None:
        self.state, self.reason = ("failed", reason) if reason else ("completed", "")
        self.ended = _now()

    @classmethod
    def read(cls, path: Path) -> Self | None:
        try:
            with path.open() as file:
                data = json.loads(file.read(_MAX_RECORD))
            known = {each.name for each in fields(cls)}
            return cls(**{name: value for name, value in data.items() if name in known})
        except (OSError, ValueError, TypeError, AttributeError):
            return None


class HandoffRecords:
    """The last `keep` of them, and all that are not over."""

    def __init__(self, folder: Path, keep: int = 200) -> None:
        self._folder = folder
        self._keep = keep

    def __iter__(self) -> Iterator[Handoff]:
        """The oldest first."""
        found = (Handoff.read(path) for path in self._folder.glob("*.json"))
        return iter(sorted((each for each in found if each), key=lambda each: each.began))

    def find(self, handoff_id: str) -> Handoff | None:
        return Handoff.read(self._folder / f"{handoff_id}.json") if handoff_id.isalnum() else None

    def save(self, handoff: Handoff) -> None:
        """Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / f"{handoff.id}.json", json.dumps(asdict(handoff)))

    def prune(self) -> None:
        for old in [each for each in self if each.is_over][: -self._keep]:
            (self._folder / f"{old.id}.json").unlink(missing_ok=True)
