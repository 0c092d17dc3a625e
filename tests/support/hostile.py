"""Plays an agent that means harm: `python hostile.py TARGETS.json`, run by a tool of Hermes.

Tries every attack for which the file names targets, and prints a line for each: `NAME: denied`, or
`NAME: LEAK` and what it got. Standard library only; it needs nothing of the project.

- `markers`: texts that must not be in its environment, each reversed, so that this process does not
  hold them
- `scan`: `{"markers", "pids"}`, to look for in the environment, memory and open files of these
  processes; of all if `pids` is left out
- `read`, `change`, `list`, `create`: files to read and to change, folders to list, files to create
- `search`: `{"markers", "folders"}`, markers to look for in names and contents
- `move`: `{"outside", "own"}`, a file outside and a folder of one's own, to link and rename between
- `processes`: ids of processes outside, whose memory, descriptors, limits and priority it wants
- `signal`: `{"pids", "number"}`
- `abstract`, `listen`, `multipath`: abstract sockets; TCP ports to take; the same by MPTCP
- `forge`: `{"chat_id", "message_id", "question_id", "callback", "text", "ports"}`, sent to these
  ports, with the `secrets` that it has; to each that is open on this machine if `ports` is left out
- `sockets`: paths of Unix sockets; no rule prevents it before Linux 7.1
- `modes`: files outside whose mode it changes, and changes back; no rule prevents it
- `plant`: `{"links": {PATH: TARGET}, "files": {PATH: TEXT}}`, to be judged after a restart
"""

# The system's own calls are the matter here.
# ruff: noqa: PTH101, PTH108, PTH113, PTH115, PTH116, PTH123, PTH208

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Attack = Callable[[Any], Iterator[str]]
ATTACKS: dict[str, tuple[str, Attack]] = {}
_MAX_FILE = 2**20
_MAX_FILES = 20_000
_PTRACE_ATTACH, _PTRACE_DETACH = 16, 17
_IPPROTO_MPTCP = 262
_LISTENS = "0A"
_IN_CREATE = 0x100


def attack(target: str) -> Callable[[Attack], Attack]:
    """Registers an attack under its function's name."""

    def register(function: Attack) -> Attack:
        ATTACKS[function.__name__] = (target, function)
        return function

    return register


def main(targets: dict[str, Any]) -> None:
    for name, (target, function) in ATTACKS.items():
        if targets.get(target):
            leaks = list(_guarded(function, targets[target]))
            told = "; ".join(leaks)[:2000].replace("\n", " ")
            sys.stdout.write(f"{name}: {'LEAK ' + told if leaks else 'denied'}\n")
            sys.stdout.flush()


def _guarded(function: Attack, target: Any) -> Iterator[str]:
    try:
        yield from function(target)
    except (OSError, ValueError, UnicodeError) as error:
        sys.stderr.write(f"{function.__name__}: {type(error).__name__}: {error}\n")


def each(function: Callable[[Any], str | None], values: list[Any]) -> Iterator[str]:
    """The leaks among the values; one that is refused says nothing."""
    for value in values:
        try:
            found = function(value)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{value}: {error}\n")
        else:
            if found:
                yield found


def _decoded(reversed_markers: list[str]) -> list[bytes]:
    return [text[::-1].encode() for text in reversed_markers]


def _holds(content: bytes, markers: list[bytes]) -> bool:
    return any(marker in content for marker in markers)


# Secrets and other peers' words.


@attack("markers")
def environment(reversed_markers: list[str]) -> Iterator[str]:
    markers = _decoded(reversed_markers)
    yield from each(lambda n: n if _holds(os.environb[n], markers) else None, list(os.environb))


@attack("scan")
def environments_of_processes(target: dict[str, Any]) -> Iterator[str]:
    markers = _decoded(target["markers"])
    for name in ("environ", "cmdline", "comm"):
        yield from each(lambda p: _in_file(Path(p), markers), _of_processes(target, name))


@attack("scan")
def memory_of_processes(target: dict[str, Any]) -> Iterator[str]:
    markers = _decoded(target["markers"])

    def scan(folder: str) -> str | None:
        return f"{folder}/mem" if _holds_in_memory(Path(folder), markers) else None

    yield from each(scan, _of_processes(target, ""))


@attack("scan")
def descriptors_of_processes(target: dict[str, Any]) -> Iterator[str]:
    markers = _decoded(target["markers"])

    def scan(folder: str) -> str | None:
        for name in os.listdir(folder):
            if os.path.isfile(f"{folder}/{name}") and _in_file(Path(folder, name), markers):
                return f"{folder}/{name}"
        return None

    yield from each(scan, _of_processes(target, "fd"))


@attack("search")
def search(target: dict[str, Any]) -> Iterator[str]:
    markers = _decoded(target["markers"])
    left = _MAX_FILES
    for top in target["folders"]:
        for folder, _, names in os.walk(top):
            left -= len(names)
            if left < 0:
                return
            for name in names:
                path = Path(folder, name)
                if _holds(os.fsencode(path), markers) or _in_file(path, markers):
                    yield str(path)


def _of_processes(target: dict[str, Any], name: str) -> list[str]:
    everyone = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    return [f"/proc/{pid}/{name}".rstrip("/") for pid in target.get("pids", everyone)]


def _in_file(path: Path, markers: list[bytes]) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            return str(path) if _holds(file.read(_MAX_FILE), markers) else None
        except OSError:
            return None


def _holds_in_memory(folder: Path, markers: list[bytes]) -> bool:
    areas = (folder / "maps").read_text().splitlines()
    with (folder / "mem").open("rb", buffering=0) as memory:
        for area in areas:
            place, rights = area.split()[:2]
            start, end = (int(part, 16) for part in place.split("-"))
            if rights.startswith("rw") and end - start < 2**28:
                try:
                    memory.seek(start)
                    if _holds(memory.read(end - start) or b"", markers):
                        return True
                except (OSError, OverflowError):
                    continue
    return False


# Files.


@attack("read")
def read(paths: list[str]) -> Iterator[str]:
    yield from each(lambda p: f"{p}: {Path(p).read_bytes()[:20]!r}", paths)


@attack("list")
def list_folders(paths: list[str]) -> Iterator[str]:
    yield from each(lambda p: f"{p}: {os.listdir(p)[:3]}", paths)


@attack("list")
def watch(paths: list[str]) -> Iterator[str]:
    """Whoever can watch a folder gets the names of the files that are made in it."""
    watcher = _libc("inotify_init1", os.O_NONBLOCK)
    try:
        yield from each(lambda p: f"{p}: watched by {_watch(watcher, p)}", paths)
    finally:
        os.close(watcher)


def _watch(watcher: int, path: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.inotify_add_watch(watcher, os.fsencode(path), _IN_CREATE))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return descriptor


@attack("change")
def change(paths: list[str]) -> Iterator[str]:
    def append(path: str) -> str:
        with open(path, "a") as file:
            file.write("changed by the hostile agent\n")
        return path

    yield from each(append, paths)


@attack("create")
def create(paths: list[str]) -> Iterator[str]:
    def make(path: str) -> str:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(path)
        return path

    yield from each(make, paths)


@attack("change")
def empty(paths: list[str]) -> Iterator[str]:
    yield from each(lambda p: os.truncate(p, 0) or p, paths)


@attack("change")
def follow_a_link(paths: list[str]) -> Iterator[str]:
    def through(path: str) -> str | None:
        link = Path(f"link-{os.getpid()}")
        link.symlink_to(path)
        try:
            return path if link.read_bytes() is not None else None
        finally:
            link.unlink()

    yield from each(through, paths)


@attack("modes")
def change_modes(paths: list[str]) -> Iterator[str]:
    def change(path: str) -> str:
        mode = os.stat(path).st_mode & 0o7777
        os.chmod(path, 0)
        os.chmod(path, mode)
        return path

    yield from each(change, paths)


@attack("move")
def link_in(target: dict[str, str]) -> Iterator[str]:
    own = Path(target["own"], "linked")
    os.link(target["outside"], own)
    yield f"{own}: {own.read_text()[:20]}"
    own.unlink()


@attack("move")
def move_out(target: dict[str, str]) -> Iterator[str]:
    own = Path(target["own"], "mine")
    own.write_text("moved by the hostile agent")
    outside = Path(target["outside"]).with_name("moved")
    own.rename(outside)
    yield str(outside)


@attack("move")
def move_in(target: dict[str, str]) -> Iterator[str]:
    own = Path(target["own"], "moved")
    Path(target["outside"]).rename(own)
    yield str(own)
    own.rename(target["outside"])


@attack("plant")
def plant(target: dict[str, dict[str, str]]) -> Iterator[str]:
    for path, leads in target.get("links", {}).items():
        Path(path).unlink(missing_ok=True)
        Path(path).symlink_to(leads)
    for path, text in target.get("files", {}).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    yield from ()


# Other processes.


@attack("processes")
def open_process_files(pids: list[int]) -> Iterator[str]:
    names = ("environ", "mem", "maps", "fd", "root", "cwd")

    def touch(path: str) -> str | None:
        if path.endswith("fd"):
            # The numbers alone are not hidden.
            return path if os.readlink(f"{path}/0") else None
        if path.endswith(("root", "cwd")):
            return path if os.listdir(path) else None
        with open(path, "rb") as file:
            return path if path.endswith("mem") or file.read(1) else None

    yield from each(touch, [f"/proc/{pid}/{name}" for pid in pids for name in names])


@attack("processes")
def trace(pids: list[int]) -> Iterator[str]:
    def attach(pid: int) -> str:
        _libc("ptrace", _PTRACE_ATTACH, pid, 0, 0)
        os.waitpid(pid, 0x40000000)
        _libc("ptrace", _PTRACE_DETACH, pid, 0, 0)
        return f"traced {pid}"

    yield from each(attach, pids)


@attack("processes")
def limit(pids: list[int]) -> Iterator[str]:
    """By RLIMIT_CPU the kernel ends a process. Here only one descriptor is taken from it."""

    def lower(pid: int) -> str:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft - 1, hard))
        return f"limited {pid}"

    yield from each(lower, pids)


@attack("processes")
def slow_down(pids: list[int]) -> Iterator[str]:
    def lower(pid: int) -> str:
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + 1)
        return f"slowed {pid}"

    yield from each(lower, pids)


@attack("signal")
def signal_processes(target: dict[str, Any]) -> Iterator[str]:
    yield from each(lambda p: os.kill(p, target["number"]) or f"signalled {p}", target["pids"])


def _libc(name: str, *arguments: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(getattr(libc, name)(*map(ctypes.c_long, arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


# Sockets.


@attack("abstract")
def abstract_sockets(names: list[str]) -> Iterator[str]:
    yield from each(lambda name: _connect_unix("\0" + name), names)


@attack("sockets")
def unix_sockets(paths: list[str]) -> Iterator[str]:
    yield from each(_connect_unix, paths)


@attack("listen")
def listen(ports: list[int]) -> Iterator[str]:
    yield from each(lambda port: _listen(port, 0), ports)


@attack("multipath")
def listen_by_multipath(ports: list[int]) -> Iterator[str]:
    yield from each(lambda port: _listen(port, _IPPROTO_MPTCP), ports)


def _connect_unix(address: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
    return address.lstrip("\0")


def _listen(port: int, protocol: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
    return f"listened on {port}"


# The bridge's and Hermes's endpoints. Whatever they accept without a secret is a leak.


@attack("forge")
def forge_a_reply(target: dict[str, Any]) -> Iterator[str]:
    final = {"type": "final", "status": "completed"}
    for metadata in (final, {}, {"type": "delta", "seq": 1}):
        body = {
            "chat_id": target["chat_id"],
            "reply_to": target["message_id"],
            "content": target["text"],
            "metadata": metadata,
        }
        yield from _post(target, "/a2a/reply", body)


@attack("forge")
def send_into_another_chat(target: dict[str, Any]) -> Iterator[str]:
    body = {
        "chat_id": target["chat_id"],
        "peer_id": "bridge",
        "peer_name": "bridge",
        "content": target["text"],
        "message_id": f"forged-{os.getpid()}",
        "callback_url": target["callback"],
    }
    yield from _post(target, "/a2a/inbound", body)


@attack("forge")
def answer_a_question(target: dict[str, Any]) -> Iterator[str]:
    body = {
        "message_id": target["message_id"],
        "question_id": target["question_id"],
        "answer": "always",
    }
    yield from _post(target, "/a2a/answer", body)
    yield from _post(target, "/a2a/cancel", {"message_id": target["message_id"]})
    yield from _post(
        target, "/a2a/steer", {"message_id": target["message_id"], "text": target["text"]}
    )


@attack("forge")
def read_sessions(target: dict[str, Any]) -> Iterator[str]:
    for path in ("/api/sessions", "/v1/models", "/a2a/turns", "/health/detailed"):
        yield from _ask_each(target, path, None)


def _post(target: dict[str, Any], path: str, body: dict[str, Any]) -> Iterator[str]:
    yield from _ask_each(target, path, json.dumps(body).encode())


def _ask_each(target: dict[str, Any], path: str, body: bytes | None) -> Iterator[str]:
    """One that has no such endpoint answers 404, or not at all."""
    for port in target.get("ports") or _listening():
        for secret in ("", "x", *target.get("secrets", ())):
            headers = {"Content-Type": "application/json", "X-Molecule-A2A-Secret": secret}
            url = f"http://127.0.0.1:{port}{path}"
            request = urllib.request.Request(url, body, headers)
            try:
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                    request, timeout=3
                ) as response:
                    answer = response.read(300)
            except (OSError, ValueError, urllib.error.URLError):
                continue
            if response.status < 300 and b'"stale": true' not in answer:
                yield f"{url} {response.status} {answer[:80]!r}"


def _listening() -> list[int]:
    ports = set()
    for name in ("tcp", "tcp6"):
        lines = Path("/proc/net", name).read_text().splitlines()[1:]
        fields = [line.split() for line in lines]
        ports |= {int(f[1].rpartition(":")[2], 16) for f in fields if f[3] == _LISTENS}
    return sorted(ports)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
