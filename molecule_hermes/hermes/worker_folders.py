"""The three folders of a worker, and what it is confined to."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.confinement import (
    confinement_for,
    environment_for,
    tmp_folder,
)
from molecule_hermes.plugin.handover import Confinement

__all__ = ["WorkerFolders", "make_folder"]


@dataclass(frozen=True, slots=True)
class WorkerFolders:
    home: Path
    """HERMES_HOME."""
    work: Path
    """What the agent's tools work in."""
    tmp: Path

    @classmethod
    def below(cls, folder: Path) -> Self:
        return cls(folder / "home", folder / "work", tmp_folder(folder / "tmp"))

    def create(self) -> None:
        """The agent can write to the parent of none of them, so it can put no link in their way.

        Raises `StartError`.
        """
        for path in (self.home, self.work, self.tmp):
            make_folder(path)
        self.repair()

    def repair(self) -> None:
        """Restores the modes that a tool may have changed, so that its next Hermes can start."""
        for path in (self.home, self.work, self.tmp):
            # Nothing that is confined can put a link there.
            with contextlib.suppress(OSError):
                path.chmod(0o700)

    def clear(self) -> None:
        """Removes what is only temporary. Links are removed, not followed."""
        for path in self.tmp.iterdir() if self.tmp.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

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
