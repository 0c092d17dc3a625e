"""Running and supervising a process, on a stand-in for `hermes gateway`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from molecule_hermes.errors import StartError, Unreachable
from molecule_hermes.hermes import process
from molecule_hermes.hermes.gateway_log import GatewayLog
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.process import Gateway
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

TALKS = "import time\nwhile True:\n    print('x' * 999, flush=True); time.sleep(0.01)"

# hermes_cli/gateway.py:4964 of 0.19.0 writes this to its log.
PAUSES = (
    "import os, time; os.makedirs('logs', exist_ok=True);"
    "open('logs/errors.log', 'a').write('2026-01-01 00:00:00,000 WARNING hermes_cli.gateway: '"
    "'Gateway (re)started 6 times in 120s — backing off 10s to break a respawn storm.\\n');"
    "time.sleep(60)"
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


async def test_it_runs_inside_the_block_and_leaves_no_process_behind(tmp_path: Path) -> None:
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


async def test_a_second_signal_kills_it_without_waiting(tmp_path: Path) -> None:
    async with asyncio.timeout(10), gateway(tmp_path, STUBBORN) as running:
        child = int(await until_logged(running))
        asyncio.get_running_loop().call_later(0.2, running.hasten.set)
    assert is_gone(child)


async def test_a_death_is_reported_and_it_is_restarted(tmp_path: Path) -> None:
    reported: list[str] = []
    async with gateway(tmp_path, STAYS, on_change=reported.append) as running:
        first = running.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: running.pid not in (None, first))
    assert reported == ["Hermes ended with code -9; restarting it in 1 s"]


async def test_repeated_deaths_before_it_is_ready_end_with_the_last_lines_of_the_log(
    tmp_path: Path,
) -> None:
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


async def test_a_second_gateway_on_the_same_folder_is_refused_with_the_pid_of_the_first(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, "import time; 'hermes'; time.sleep(60)") as running:
        pid_file = running.home.path / "gateway.pid"
        pid_file.write_text(json.dumps({"pid": running.pid}))
        with pytest.raises(StartError, match=rf"pid {running.pid}.*kill {running.pid}"):
            gateway(tmp_path, STAYS).require_alone()


async def test_processes_that_a_killed_gateway_leaves_behind_are_killed(tmp_path: Path) -> None:
    changed = asyncio.Event()
    async with gateway(tmp_path, KILLED, on_change=lambda _: changed.set()) as running:
        await asyncio.wait_for(changed.wait(), 10)
        assert not psutil.pid_exists(int(running.log_tail()))


async def test_it_uses_no_proxy_for_this_machine(tmp_path: Path) -> None:
    async with gateway(tmp_path, STAYS) as running:
        await until(lambda: "127.0.0.1,localhost'" in running.log_tail())


async def test_processes_that_an_earlier_gateway_left_behind_are_killed_at_the_start(
    tmp_path: Path,
) -> None:
    environ = dict(os.environ) | {"_HERMES_GATEWAY": "1", "HERMES_HOME": str(tmp_path / "home")}
    left = subprocess.Popen(["sleep", "60"], env=environ)
    async with gateway(tmp_path, STAYS):
        assert left.poll() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the child of a dead parent")
async def test_a_gateway_that_ignores_sigterm_dies_with_a_killed_bridge(tmp_path: Path) -> None:
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
    child = await until(GatewayLog(tmp_path / "gateway.log").tail)
    process.kill()
    await process.wait()
    await until(lambda: is_gone(pid))
    psutil.Process(int(child)).kill()


async def test_the_log_keeps_what_a_crashed_process_wrote(tmp_path: Path) -> None:
    for _ in range(2):
        async with gateway(tmp_path, DIES, max_restarts=1) as running, asyncio.timeout(10):
            with pytest.raises(StartError):
                await running.failed()
    log = running.log_file.read_text().splitlines()
    assert log.count("cannot start") == 4
    starts = [line for line in log if line.startswith("--- Hermes starts ")]
    assert len(starts) == 4
    assert all(re.fullmatch(r"--- Hermes starts \d{4}-\d\d-\d\dT\S+ ---", s) for s in starts)


async def test_the_log_of_a_running_process_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LOG_CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(process, "GatewayLog", partial(GatewayLog, max_bytes=10_000))
    made = gateway(tmp_path, TALKS)
    made.watch(made.check)
    log, old = tmp_path / "gateway.log", tmp_path / "gateway.log.1"
    async with made:
        await until(old.exists)
        await until(lambda: old.stat().st_size > 10_000 > log.stat().st_size > 0)


async def test_a_pause_that_hermes_makes_before_it_boots_is_known(tmp_path: Path) -> None:
    async with gateway(tmp_path, PAUSES) as running:
        pause = await until(running.respawn_pause)
    assert "started 6 times in 120 s" in str(pause)
    assert "sleeps for 10 s" in str(pause)


async def test_a_hermes_that_pauses_before_it_boots_is_not_killed_as_stuck(tmp_path: Path) -> None:
    """It served before, does not serve now, and is past its start timeout."""

    async def check() -> None:
        raise Unreachable("not yet")

    made = gateway(tmp_path, PAUSES, start_timeout=3.0)
    made.watch(check)
    made.has_served = True
    async with made as running:
        first = running.pid
        await until(running.respawn_pause, 2.5)
        with pytest.raises(TimeoutError):
            await until(lambda: running.pid != first, 4.0)


def test_a_hermes_that_dies_before_it_has_its_secrets_counts_as_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With uvloop, which `up` uses, the pipe to a dead process refuses to be written to."""
    create = asyncio.create_subprocess_exec

    async def create_dead(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        created = await create(*command, **options)
        await created.wait()
        assert created.stdin is not None
        await until(created.stdin.is_closing)
        return created

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_dead)

    async def run() -> None:
        async with gateway(tmp_path, DIES, max_restarts=0) as running:
            with pytest.raises(StartError, match="ended 1 times"):
                await asyncio.wait_for(running.failed(), 20)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
