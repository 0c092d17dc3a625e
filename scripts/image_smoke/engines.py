"""Container engines that build and run images: docker, podman, or buildah with runc."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from image_smoke.report import CheckError, run

PULL_LIMIT = 300.0
BUILD_LIMIT = 600.0
STOP_LIMIT = 100.0


class Engine(Protocol):
    """Its containers share the host's network. Only their volume is writable."""

    def pull(self, image: str) -> None: ...

    def has(self, image: str) -> bool: ...

    def import_base(self, tar: Path, image: str) -> None: ...

    def build(self, context: Path, image: str, *options: str) -> None: ...

    def config(self, image: str) -> dict[str, Any]:
        """Returns the image's configuration in Docker's form: User, Env, Entrypoint, …"""
        ...

    def size(self, image: str) -> str: ...

    def volume(self, image: str) -> str:
        """Returns a new, empty volume that the image's user can write to."""
        ...

    def start(
        self,
        image: str,
        volume: str,
        environ: Mapping[str, str],
        *words: str,
        alone: bool = False,
        at: str = "/data",
    ) -> Container:
        """Starts the image with these arguments; with `alone`, in place of its entrypoint.

        The volume is mounted at the folder `at`.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Commands:
    start: Sequence[object]
    execute: Sequence[object]
    kill: Callable[[str], Sequence[object]]
    remove: Sequence[object]


class Container:
    """A container in the foreground of a child process, which ends with its exit code."""

    def __init__(self, commands: Commands, log: Path) -> None:
        self._commands = commands
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [str(word) for word in commands.start],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *error: object) -> None:
        _quietly(self._commands.remove)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def run(self, *command: str) -> str:
        """Runs a command inside the container, as the image's user."""
        return run([*self._commands.execute, *command], limit=60)

    def kill(self, name: str) -> None:
        """Sends the signal to the container's first process."""
        run(self._commands.kill(name), limit=30)

    def wait(self, limit: float = STOP_LIMIT) -> int:
        try:
            return self._process.wait(limit)
        except subprocess.TimeoutExpired:
            raise CheckError(f"it did not end in {limit:g} s:\n{self.output[-2000:]}") from None


class DockerOrPodman:
    def __init__(self, name: str, work: Path) -> None:
        self._cli = name
        self._work = work
        self._volumes: list[str] = []

    def __str__(self) -> str:
        return self._cli

    def pull(self, image: str) -> None:
        run([self._cli, "pull", image], limit=PULL_LIMIT)

    def has(self, image: str) -> bool:
        return _quietly([self._cli, "image", "inspect", image]) == 0

    def import_base(self, tar: Path, image: str) -> None:
        run([self._cli, "import", tar, image], limit=PULL_LIMIT)

    def build(self, context: Path, image: str, *options: str) -> None:
        # Podman's own image format does not support HEALTHCHECK.
        more = ["--format", "docker"] if self._cli == "podman" else []
        run([self._cli, "build", "--tag", image, *more, *options, context], limit=BUILD_LIMIT)

    def _inspect(self, image: str) -> Any:
        return json.loads(run([self._cli, "image", "inspect", image], limit=30))[0]

    def config(self, image: str) -> dict[str, Any]:
        found = self._inspect(image)
        # Docker reports it inside the configuration, podman next to it.
        return {"Healthcheck": found.get("Healthcheck"), **found["Config"]}

    def size(self, image: str) -> str:
        return f"{self._inspect(image)['Size'] / 1e6:.0f} MB"

    def volume(self, image: str) -> str:
        name = _new_name()
        run([self._cli, "volume", "create", name], limit=30)
        self._volumes.append(name)
        return name

    def start(
        self,
        image: str,
        volume: str,
        environ: Mapping[str, str],
        *words: str,
        alone: bool = False,
        at: str = "/data",
    ) -> Container:
        name = _new_name()
        options = ["--rm", "--name", name, "--network", "host", "--volume", f"{volume}:{at}"]
        options += ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        # Podman needs systemd to run it periodically, so the check runs it once itself.
        options += ["--no-healthcheck"]
        if self._cli == "podman":
            # Otherwise the folders for temporary files would be writable.
            options += ["--read-only-tmpfs=false"]
        for variable, value in environ.items():
            options += ["--env", f"{variable}={value}"]
        if alone:
            options += ["--entrypoint", words[0]]
        commands = Commands(
            start=[self._cli, "run", *options, image, *words[1 if alone else 0 :]],
            execute=[self._cli, "exec", name],
            kill=lambda signal_name: [self._cli, "kill", "--signal", signal_name, name],
            remove=[self._cli, "rm", "--force", name],
        )
        return Container(commands, self._work / f"{name}.log")

    def close(self) -> None:
        for name in self._volumes:
            _quietly([self._cli, "volume", "rm", "--force", name])


class BuildahAndRunc:
    """Builds with buildah in a chroot, and runs with runc in separate namespaces."""

    def __init__(self, cache: Path, work: Path) -> None:
        self._work = work
        self._runc = ["runc", "--root", work / "runc"]
        self._buildah = ["buildah", "--root", cache / "storage", "--runroot", work / "buildah"]
        if _quietly([*self._buildah, "info"]) != 0:
            # Overlays do not stack on every file system. Plain copies always work.
            self._buildah += ["--storage-driver", "vfs"]
        self._roots: dict[str, str] = {}

    def __str__(self) -> str:
        return "buildah and runc"

    def _do(self, *words: object, limit: float = 60.0) -> str:
        return run([*self._buildah, *words], limit=limit).strip()

    def pull(self, image: str) -> None:
        self._do("pull", "--quiet", image, limit=PULL_LIMIT)

    def has(self, image: str) -> bool:
        return _quietly([*self._buildah, "inspect", "--type", "image", image]) == 0

    def import_base(self, tar: Path, image: str) -> None:
        container = self._do("from", "scratch")
        try:
            self._do("add", "--quiet", container, tar, "/", limit=PULL_LIMIT)
            self._do("commit", "--quiet", container, image, limit=PULL_LIMIT)
        finally:
            self._do("rm", container)

    def build(self, context: Path, image: str, *options: str) -> None:
        # With layers, the second image reuses the stages of the first.
        how = ["--isolation", "chroot", "--format", "docker", "--pull-never", "--layers"]
        self._do("build", *how, "--tag", image, *options, context, limit=BUILD_LIMIT)

    def config(self, image: str) -> dict[str, Any]:
        found = json.loads(self._do("inspect", "--type", "image", image))
        return dict(found["Docker"]["config"])

    def size(self, image: str) -> str:
        return str(json.loads(self._do("images", "--json", image))[0]["size"])

    def volume(self, image: str) -> str:
        folder = self._work / _new_name()
        folder.mkdir()
        uid, gid = self.config(image)["User"].split(":")
        os.chown(folder, int(uid), int(gid))
        return str(folder)

    def start(
        self,
        image: str,
        volume: str,
        environ: Mapping[str, str],
        *words: str,
        alone: bool = False,
        at: str = "/data",
    ) -> Container:
        name = _new_name()
        bundle = self._work / f"{name}.bundle"
        bundle.mkdir()
        run(["runc", "spec", "--bundle", bundle], limit=30)
        spec = json.loads((bundle / "config.json").read_text())
        arguments = list(words) if alone else [*self.config(image)["Entrypoint"], *words]
        self._fill_in(spec, image, (volume, at), environ, arguments)
        (bundle / "config.json").write_text(json.dumps(spec))
        commands = Commands(
            start=[*self._runc, "run", "--bundle", bundle, name],
            execute=[*self._runc, "exec", name],
            kill=lambda signal_name: [*self._runc, "kill", name, signal_name],
            remove=[*self._runc, "delete", "--force", name],
        )
        return Container(commands, self._work / f"{name}.log")

    def _fill_in(
        self,
        spec: dict[str, Any],
        image: str,
        volume: tuple[str, str],
        environ: Mapping[str, str],
        arguments: list[str],
    ) -> None:
        """Returns the runtime config that docker would use with --read-only and --cap-drop ALL."""
        config = self.config(image)
        uid, gid = map(int, config["User"].split(":"))
        spec["root"] = {"path": self._mounted(image), "readonly": True}
        spec["process"] |= {
            "terminal": False,
            "user": {"uid": uid, "gid": gid},
            "args": arguments,
            "env": [*config["Env"], *(f"{name}={value}" for name, value in environ.items())],
            "cwd": config["WorkingDir"],
            "capabilities": {},
            "noNewPrivileges": True,
        }
        spec["mounts"] = [mount for mount in spec["mounts"] if mount["type"] != "cgroup"]
        spec["mounts"] += [
            {
                "destination": volume[1],
                "type": "bind",
                "source": volume[0],
                "options": ["bind", "rw"],
            }
        ]
        spaces = spec["linux"]["namespaces"]
        spec["linux"]["namespaces"] = [space for space in spaces if space["type"] != "network"]

    def _mounted(self, image: str) -> str:
        if image not in self._roots:
            container = self._do("from", "--pull-never", image)
            self._roots[image] = self._do("mount", container)
        return self._roots[image]

    def close(self) -> None:
        """Removes everything, including leftovers of interrupted builds: nothing else uses it."""
        for words in (["umount", "--all"], ["rm", "--all"], ["rmi", "--prune"]):
            _quietly([*self._buildah, *words])


def _new_name() -> str:
    return f"smoke-{uuid.uuid4().hex[:12]}"


def _quietly(command: Sequence[object]) -> int:
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, timeout=60, check=False
    )
    return ended.returncode


def _works(name: str) -> bool:
    """Checks that the engine responds, not only that its client is installed."""
    if name == "buildah":
        return bool(shutil.which("buildah") and shutil.which("runc"))
    return shutil.which(name) is not None and _quietly([name, "info"]) == 0


ENGINES = ("docker", "podman", "buildah")


def choose_engine(wanted: str | None, cache: Path, work: Path) -> Engine:
    names = [wanted] if wanted else ENGINES
    found = next(filter(_works, names), None)
    if found is None and "buildah" in names:
        install("buildah", "runc")
        found = "buildah"
    if found is None:
        raise CheckError(f"{wanted} does not work here")
    return BuildahAndRunc(cache, work) if found == "buildah" else DockerOrPodman(found, work)


def install(*packages: str) -> None:
    """Installs Debian packages, if this is a Debian and we are root."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise CheckError(f"install {' and '.join(packages)} (as root, on Debian, this script does)")
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(command, limit=300, environ=quiet)
    except CheckError:
        run(["apt-get", "update"], limit=300)
        run(command, limit=300, environ=quiet)
