"""A real PostgreSQL server in a temporary folder, for one test run."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from tests.support.serving import free_port

PASSWORD = "pg-secret-0123456789"


def _programs(copy_to: Path | None) -> Path:
    """The folder of PostgreSQL's programs: from the `pgserver` package, copied if needed, or the
    machine's own."""
    if (spec := find_spec("pgserver")) and spec.origin:
        package = Path(spec.origin).parent
        if copy_to is not None:
            for name in ("pgserver", "pgserver.libs"):
                shutil.copytree(package.parent / name, copy_to / name)
            package = copy_to / "pgserver"
        return package / "pginstall" / "bin"
    found = [Path(initdb)] if (initdb := shutil.which("initdb")) else []
    for program in [*found, *Path("/usr/lib/postgresql").glob("*/bin/initdb")]:
        return program.resolve().parent
    raise RuntimeError("no PostgreSQL: pip install pgserver, or apt install postgresql")


class Postgres:
    """Runs as `nobody` when root starts it, because PostgreSQL refuses root."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._data = folder / "data"
        self._data.mkdir()
        self._as: dict[str, Any] = {"cwd": folder}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            folder.chmod(0o755)
            os.chown(self._data, nobody.pw_uid, nobody.pw_gid)
            self._as |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        # `nobody` may not be able to read the folder of the package.
        self._bin = _programs(folder if os.geteuid() == 0 else None)
        self._process: subprocess.Popen[bytes] | None = None
        self._initialise(folder)

    def _initialise(self, folder: Path) -> None:
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        options = ["-U", "bridge", "--pwfile", password, "-A", "scram-sha-256"]
        options += ["--no-sync", "--locale=C", "--encoding=UTF8"]
        self._run("initdb", "-D", self._data, *options)

    def start(self) -> None:
        options = [f"-cunix_socket_directories={self._data}", "-cfsync=off", "-cmax_connections=50"]
        command = [
            str(self._bin / "postgres"),
            "-D",
            str(self._data),
            "-p",
            str(self.port),
            *options,
        ]
        log = (self._data.parent / "log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)
        deadline = time.monotonic() + 60
        while self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port), check=False):
            assert time.monotonic() < deadline, (self._data.parent / "log").read_text()
            time.sleep(0.05)  # between two looks, until the deadline

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Stops all processes of the server. Connections are still accepted, by the kernel."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        server.suspend()  # first, so that it starts no other
        processes = [*server.children(), server]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def backends(self, name: str) -> list[psutil.Process]:
        """The processes that serve connections to the database."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        return [child for child in children if f" {name} " in " ".join(child.cmdline())]

    def new_database(self) -> str:
        """Creates a database for one test, and returns its URL."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "bridge", name)
        return f"postgresql://bridge:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: object, check: bool = True) -> int:
        environ = {"PATH": os.environ["PATH"], "PGPASSWORD": PASSWORD}
        command = [str(self._bin / program), *map(str, arguments)]
        done = subprocess.run(
            command, env=environ, capture_output=True, timeout=60, check=False, **self._as
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.returncode


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """Starts a server; stops and deletes it on exit."""
    with tempfile.TemporaryDirectory(prefix="postgres-", dir="/tmp") as folder:
        server = Postgres(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
