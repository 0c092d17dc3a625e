"""The three folders of a worker, and what it is confined to."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.confinement import MAX_TMP, confinement_for, environment_for
from molecule_hermes.plugin.handover import Confinement

__all__ = ["WorkerFolders"]


@dataclass(frozen=True, slots=True)
class WorkerFolders:
    home: Path
    """HERMES_HOME."""
    work: Path
    """What the agent's tools work in."""
    tmp: Path

    @classmethod
    def below(cls, folder: Path) -> Self:
        return cls(folder / "home", folder / "work", short_path(folder / "tmp"))

    def create(self) -> None:
        """The agent can write to the parent of none of them, so it can put no link in their way.

        Raises `StartError`.
        """
        for path in (self.home, self.work, self.tmp):
            make_folder(path)

    def environment(self, settings: Settings) -> dict[str, str]:
        """The variables that lead a confined Hermes into its folders."""
        if settings.confine == "off":
            return {}
        return environment_for(self.home, self.work, self.tmp)

    def confinement(
        self,
        settings: Settings,
        *,
        protected: Iterable[Path],
        readable: Iterable[Path] = (),
        ports: Iterable[int] | None,
    ) -> Confinement | None:
        """What Hermes and its tools may reach; None for everything. Raises `StartError`.

        `protected` is what no agent may see, besides the bridge's own state.
        """
        if settings.confine == "off":
            return None
        rules = confinement_for(
            self.home,
            self.work,
            self.tmp,
            protected=(settings.state_dir.absolute(), *protected),
            readable=(*settings.readable, *readable),
            writable=settings.writable,
            ports=ports,
        )
        return Confinement(rules, require=settings.confine == "require")


def make_folder(path: Path) -> None:
    """Raises `StartError`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise StartError(
            f"cannot create the folder {path}: {error.strerror}",
            "set MOLECULE_HERMES_STATE_DIR to a folder that you can write to",
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StartError(f"{path} is not a folder of this user", "remove it")


def short_path(path: Path) -> Path:
    """The path, or if it is too long for what Hermes makes in it, one below the system's folder
    for temporary files."""
    if len(os.fsencode(path)) <= MAX_TMP:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"hermes-{digest}"
