"""A real nginx for the test run: the machine's own, or Debian's package unpacked into `.cache`."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.serving import free_port
from tests.support.waiting import until

CACHE = Path(__file__).parents[2] / ".cache" / "nginx"

_CONFIGURATION = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port};
        {server}
    }}
}}
"""


def find_nginx() -> Path:
    """Skips the test where there is none and Debian's package cannot be had."""
    if found := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin"):
        return Path(found)
    unpacked = CACHE / "usr" / "sbin" / "nginx"
    if not unpacked.exists():
        _unpack()
    runs = subprocess.run([unpacked, "-v"], capture_output=True, check=False)
    if runs.returncode:
        pytest.skip(f"nginx does not run: {runs.stderr.decode().strip()}")
    return unpacked


def _unpack() -> None:
    """Needs no root, unless apt has no package lists yet."""
    if not shutil.which("apt-get"):
        pytest.skip("no nginx, and no apt-get to download it with")
    CACHE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        downloaded = _run(folder, "apt-get", "download", "nginx")
        if downloaded is not None and os.geteuid() == 0:
            _run(folder, "apt-get", "update")
            downloaded = _run(folder, "apt-get", "download", "nginx")
        if downloaded is not None:
            pytest.skip(f"no nginx, and its package cannot be downloaded: {downloaded}")
        (package,) = Path(folder).glob("*.deb")
        failed = _run(folder, "dpkg", "-x", str(package), "unpacked")
        assert failed is None, failed
        with suppress(OSError):  # another run was faster
            (Path(folder) / "unpacked").rename(CACHE)


def _run(folder: str, *command: str) -> str | None:
    """What went wrong, if anything did."""
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
    return done.stderr.decode().strip() if done.returncode else None


@asynccontextmanager
async def nginx(server: str, port: int | None = None) -> AsyncIterator[str]:
    """Runs nginx with these lines in its `server` block; its URL."""
    program, port = find_nginx(), port or free_port()
    with tempfile.TemporaryDirectory(prefix="nginx-") as folder:
        configuration = Path(folder) / "nginx.conf"
        configuration.write_text(_CONFIGURATION.format(port=port, server=server))
        process = await asyncio.create_subprocess_exec(
            program, "-p", folder, "-c", configuration, stderr=asyncio.subprocess.PIPE
        )
        try:
            await until(lambda: _accepts(process, port))
            yield f"http://localhost:{port}"
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _accepts(process: asyncio.subprocess.Process, port: int) -> bool:
    if process.returncode is not None and process.stderr is not None:
        raise RuntimeError((await process.stderr.read()).decode())
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
