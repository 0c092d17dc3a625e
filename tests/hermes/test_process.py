"""Running and supervising a process, on a stand-in for `hermes gateway`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError, Unreachable
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import api_address
from molecule_hermes.hermes.process import Gateway
from molecule_hermes.net.ports import require_free_port
from tests.support.serving import free_port
from tests.support.waiting import until

STAYS = (
    "import os, time; print('token=hunter2222', flush=True);"
    "print(dict(os.environ), flush=True); time.sleep(60)"
)
DIES = "print('cannot start', flush=True); raise SystemExit(3)"
STUBBORN = (
    "import signal, subprocess, sys, time;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True);"
    "print(child.pid, flush=True); time.sleep(60)"
)

KILLED = (
    "import os, signal, subprocess, sys;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True, env=os.environ | {'_HERMES_GATEWAY': '1'});"
    "print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
)


def gateway(tmp_path: Path, script: str, **more: object) -> Gateway:
    home = HermesHome(tmp_path / "home")
    home.create()
    environ = dict(os.environ) | {"MOLECULE_HERMES_PEER_TOKENS": "a:secret-of-a-peer"}
    return Gateway(
        home,
        tmp_path / "gateway.log",
        environ=environ,
        command=(sys.executable, "-c", script),
        **more,  # type: ignore[arg-type]
    )


async def until_logged(running: Gateway) -> str:
    return str(await until(running.log_tail))


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


async def test_it_runs_until_it_is_left_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with gateway(tmp_path, STAYS) as running:
        await running.check()
        pid = running.pid
        assert pid is not None
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)
    with pytest.raises(Unreachable):
        await running.check()


async def test_a_process_that_ignores_sigterm_is_killed_with_what_it_started(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, STUBBORN, stop_timeout=0.3) as running:
        child = int(await until_logged(running))
        assert psutil.pid_exists(child)
    assert is_gone(child)


async def test_whoever_is_in_haste_does_not_wait_for_it(tmp_path: Path) -> None:
    async with asyncio.timeout(10), gateway(tmp_path, STUBBORN) as running:
        child = int(await until_logged(running))
        asyncio.get_running_loop().call_later(0.2, running.hasten.set)
    assert is_gone(child)


async def test_a_death_is_told_and_it_comes_back(tmp_path: Path) -> None:
    told: list[str] = []
    async with gateway(tmp_path, STAYS, on_change=told.append) as running:
        first = running.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: running.pid not in (None, first))
    assert told == ["Hermes ended with code -9; starting it again in 1 s"]


async def test_dying_again_and_again_gives_up_with_the_last_lines(tmp_path: Path) -> None:
    async with gateway(tmp_path, DIES, max_restarts=1) as running, asyncio.timeout(10):
        with pytest.raises(StartError, match="2 times") as caught:
            await running.failed()
    assert "cannot start" in str(caught.value)


async def test_peers_tokens_stay_out_of_its_environment_and_secrets_out_of_the_tail(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, STAYS) as running:
        tail = await until_logged(running)
    assert "secret-of-a-peer" not in running.log_file.read_text()
    assert "hunter2222" not in tail


async def test_a_gateway_on_the_same_home_is_told_by_its_pid(tmp_path: Path) -> None:
    async with gateway(tmp_path, "import time; 'hermes'; time.sleep(60)") as running:
        pid_file = running.home.path / "gateway.pid"
        pid_file.write_text(json.dumps({"pid": running.pid}))
        with pytest.raises(StartError, match=rf"pid {running.pid}.*kill {running.pid}"):
            gateway(tmp_path, STAYS).require_alone()


def test_a_taken_port_is_named_with_its_owner_and_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"port {port}.*pid {os.getpid()}.*VAR=1"):
            require_free_port("127.0.0.1", port, "VAR", "1")
    require_free_port("127.0.0.1", free_port(), "VAR", "1")


def test_a_hermes_elsewhere_is_not_ours_to_start() -> None:
    remote = Settings.from_env({"HERMES_API_BASE": "http://10.0.0.1:8642/v1"})
    with pytest.raises(StartError, match="serve"):
        api_address(remote)
    assert api_address(Settings.from_env({})) == ("127.0.0.1", 8642)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_host_of_another_machine_is_not_called_a_taken_port(host: str) -> None:
    with pytest.raises(StartError, match=f"^{host} is no address of this machine"):
        require_free_port(host, free_port(), "MOLECULE_HERMES_PORT", "8001")


def test_an_address_in_brackets_is_an_address() -> None:
    require_free_port("[::1]", free_port(), "MOLECULE_HERMES_PORT", "8001")


async def test_what_a_killed_gateway_leaves_behind_is_ended(tmp_path: Path) -> None:
    changed = asyncio.Event()
    async with gateway(tmp_path, KILLED, on_change=lambda _: changed.set()) as running:
        await asyncio.wait_for(changed.wait(), 10)
        assert not psutil.pid_exists(int(running.log_tail()))


async def test_no_proxy_stands_before_this_machine(tmp_path: Path) -> None:
    async with gateway(tmp_path, STAYS) as running:
        await until(lambda: "127.0.0.1,localhost'" in running.log_tail())


async def test_what_an_earlier_gateway_left_behind_is_ended_at_the_start(tmp_path: Path) -> None:
    environ = dict(os.environ) | {"_HERMES_GATEWAY": "1", "HERMES_HOME": str(tmp_path / "home")}
    left = subprocess.Popen(["sleep", "60"], env=environ)
    async with gateway(tmp_path, STAYS):
        assert left.poll() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent's death")
async def test_a_killed_bridge_takes_a_gateway_along_that_ignores_sigterm(tmp_path: Path) -> None:
    bridge = f"""
import asyncio, pathlib
from tests.hermes.test_process import STUBBORN, gateway
from tests.support.waiting import until
async def main():
    async with gateway(pathlib.Path({str(tmp_path)!r}), STUBBORN) as running:
        print(running.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", bridge, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    pid = int(await asyncio.wait_for(process.stdout.readline(), 20))
    log = await until((tmp_path / "gateway.log").read_text)
    process.kill()
    await process.wait()
    await until(lambda: is_gone(pid))
    psutil.Process(int(log)).kill()
