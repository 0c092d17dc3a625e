"""The filter refuses what could harm processes outside, and lets ordinary programs work."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from molecule_hermes.plugin import syscall_filter

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or syscall_filter.unenforceable() != (), reason="of Linux"
)
PROJECT = Path(__file__).parents[2]
FILTER = """
from molecule_hermes.plugin import privileges, syscall_filter
privileges.drop()
syscall_filter.install()
"""
KEYRING = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
KEYCTL = {"x86_64": 250, "aarch64": 219}[platform.machine()]
print(libc.syscall(KEYCTL, 0, ctypes.c_long(-4), 1) < 0 and ctypes.get_errno() == errno.ENOSYS)
"""
OTHER_NUMBERS = """
import ctypes, mmap
code = bytes([0x53, 0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0x5B, 0xC3])  # getpid of 32-bit programs
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print(ctypes.CFUNCTYPE(ctypes.c_int)(address)() == -38)
"""
RING = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)
print(libc.syscall(425, 1, parameters) < 0 and ctypes.get_errno() == errno.ENOSYS)
"""


def run(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", f"import os, platform, resource, socket, sys{code}"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("code", [KEYRING, OTHER_NUMBERS, RING])
def test_calls_that_reach_around_the_rules_do_not_exist(code: str) -> None:
    if code is OTHER_NUMBERS and platform.machine() != "x86_64":
        pytest.skip("speaks of x86")
    try:
        without = run(code)
    except AssertionError:
        pytest.skip("this kernel has no such call")
    if without == "True":
        pytest.skip("this kernel, or a container, refuses it anyway")
    assert run(FILTER + code) == "True"


def test_a_process_still_limits_and_slows_itself_and_reads_limits_of_others() -> None:
    code = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
os.nice(1)
os.setpriority(os.PRIO_PROCESS, 0, 19)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
resource.prlimit(os.getppid(), resource.RLIMIT_CPU)
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        socket.socket(family, kind).close()
print(resource.getrlimit(resource.RLIMIT_NOFILE), os.getpriority(os.PRIO_PROCESS, 0))
"""
    assert run(FILTER + code) == "(64, 64) 19"


@pytest.mark.parametrize(
    "call",
    [
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, resource.getrlimit(0))",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "os.sched_setscheduler(os.getppid(), os.SCHED_OTHER, os.sched_param(0))",
        "os.sched_setparam(os.getppid(), os.sched_param(0))",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
        "socket.socket(socket.AF_VSOCK)",
    ],
)
def test_a_process_changes_no_other(call: str) -> None:
    attempt = f"""
import os, resource, socket
try:
    {call}
except OSError:
    print("refused")
else:
    print("done")
"""
    # In a child of the child, whose parent is then one of its own and may be slowed down.
    shielded = f"import subprocess\nsubprocess.run([sys.executable, '-c', {attempt!r}])"
    if run(f"\n{shielded}") != "done":
        pytest.skip("this kernel, or a container, refuses it anyway")
    assert run(f"{FILTER}{shielded}") == "refused"


def test_a_process_does_not_slow_down_all_of_a_user() -> None:
    """Of a user who has no processes: tried on another, it would change them all if it worked."""
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.setpriority(os.PRIO_USER, 2**31 - 7, 19)
print(errno.errorcode[ctypes.get_errno()])
"""
    assert run(code) == "ESRCH"
    assert run(FILTER + code) == "EPERM"
