"""A confined process does its own work, and each attack that succeeds without confinement fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from molecule_hermes.hermes.confinement import confinement_for, missing
from molecule_hermes.plugin.landlock import Rules, abi, confine, limits, unenforceable
from tests.support import hostile
from tests.support.privileges import unprivileged
from tests.support.serving import free_port

needs_landlock = pytest.mark.skipif(
    sys.platform != "linux" or missing() != (), reason="needs a kernel that enforces all of it"
)
PROJECT = Path(__file__).parents[2]
MARKER = "MARKER-a-secret-of-another"
NOBODY = 65534
WAIT = """
import ctypes, sys
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()
"""
"""A process that lets others attach to it where Yama would forbid that."""
ATTACKS = {
    *("environments_of_processes", "memory_of_processes", "descriptors_of_processes", "search"),
    *("read", "list_folders", "change", "create", "empty", "follow_a_link"),
    *("watch", "link_in", "move_out", "move_in"),
    *("open_process_files", "trace", "limit", "slow_down", "signal_processes"),
    *("abstract_sockets", "listen", "listen_by_multipath"),
}


@dataclass(frozen=True)
class User:
    """Who runs the child: a Python that this user can run, and the command that changes to it."""

    python: str = sys.executable
    through: Sequence[str] = ()
    uid: int = field(default_factory=os.geteuid)


def same_user() -> User:
    return User()


def without_capabilities() -> User:
    return User(through=unprivileged())


def another_user() -> User:
    """Not root at all. The modules need nothing but the standard library, so any Python will do."""
    setpriv, python = shutil.which("setpriv"), "/usr/bin/python3"
    if os.geteuid() != 0 or setpriv is None or not Path(python).exists():
        pytest.skip("needs root, setpriv and a Python that everyone can run")
    new = subprocess.run([python, "-c", "import tomllib"], check=False, capture_output=True)
    if new.returncode != 0:
        pytest.skip("needs Python 3.11 for everyone")
    change = [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return User(python, change, NOBODY)


@dataclass
class World:
    """Two workers' folders side by side, and a process, a socket and a port outside."""

    user: User
    base: Path
    own: Path
    rules: Rules
    targets: dict[str, Any]

    def run(
        self,
        rules: Rules | None,
        targets: dict[str, Any],
        program: Sequence[str] = ("-m", "tests.support.confined"),
    ) -> dict[str, str]:
        given = {"rules": rules and asdict(rules), "folder": str(self.own), "targets": targets}
        ended = subprocess.run(
            [*self.user.through, self.user.python, *program],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            cwd=PROJECT,
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        lines = (tuple(line.split(": ", 1)) for line in ended.stdout.splitlines())
        return dict(lines) | {"stderr": ended.stderr}


@pytest.fixture(scope="module", params=[same_user, without_capabilities, another_user])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    user = request.param()
    with ExitStack() as stack:
        # Not pytest's own folder, which another user cannot enter.
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="confined-"))).resolve()
        own, other, state = base / "own", base / "other", base / "state"
        for folder in (own / "home", own / "work", own / "tmp", other, state, base / "user"):
            folder.mkdir(parents=True)
        outside = {folder: folder / f"file-{MARKER}" for folder in (other, state, base / "user")}
        for path in outside.values():
            path.write_text(MARKER)
        for path in (base, *base.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o600)
            os.chown(path, user.uid, -1)
        pid = stack.enter_context(_outsider(user, outside[other]))
        sockets = stack.enter_context(socket.socket(socket.AF_UNIX))
        sockets.bind(f"\0{base.name}")
        sockets.listen()
        rules = confinement_for(
            own / "home", own / "work", own / "tmp", protected=[state], ports=[free_port()]
        )
        reversed_marker = [MARKER[::-1]]
        files = [str(path) for path in outside.values()]
        targets = {
            "scan": {"markers": reversed_marker, "pids": [pid]},
            "read": files,
            "list": [str(folder) for folder in outside],
            "change": files,
            "create": [f"{folder}/new-{base.name}" for folder in ("/tmp", "/dev/shm", base)],
            "search": {"markers": reversed_marker, "folders": [str(base)]},
            "move": {"outside": files[0], "own": str(own / "work")},
            "processes": [pid],
            "signal": {"pids": [pid], "number": int(signal.SIGCONT)},
            "abstract": [base.name],
            "listen": [free_port()],
            "multipath": [free_port()],
        }
        yield World(user, base, own / "work", rules, targets)


class _outsider:  # noqa: N801 - used as a function
    """Runs a process of that user which holds the marker in all that others could read of it."""

    def __init__(self, user: User, file: Path) -> None:
        with file.open() as opened:
            self._process = subprocess.Popen(
                [*user.through, user.python, "-c", WAIT],
                env={"OF_ANOTHER": MARKER},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[opened.fileno()],
            )

    def __enter__(self) -> int:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self._process.pid

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def free_results(world: World) -> dict[str, str]:
    return world.run(None, world.targets)


@pytest.fixture(scope="module")
def confined_results(world: World, free_results: dict[str, str]) -> dict[str, str]:
    for path in world.targets["change"]:
        Path(path).write_text(MARKER)  # the other attacker has emptied it
    return world.run(world.rules, world.targets)


@needs_landlock
@pytest.mark.parametrize("confined", [False, True])
@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_an_attack_succeeds_only_without_confinement(
    attack: str, confined: bool, free_results: dict[str, str], confined_results: dict[str, str]
) -> None:
    results = confined_results if confined else free_results
    if attack == "listen_by_multipath" and "Errno 93" in results["stderr"] and not confined:
        pytest.skip("needs a kernel with MPTCP")
    expected = "denied" if confined else "LEAK"
    assert results[attack].split()[0] == expected, results[attack] + results["stderr"]


@needs_landlock
@pytest.mark.parametrize("target", ["read", "list", "change", "create"])
def test_without_confinement_each_of_the_files_is_reached(
    world: World, free_results: dict[str, str], target: str
) -> None:
    """Else the attack on one of them would prove nothing."""
    attack = "list_folders" if target == "list" else target
    assert all(path in free_results[attack] for path in world.targets[target])


@needs_landlock
def test_a_confined_process_does_its_own_work(world: World) -> None:
    mine = world.own / "mine"
    mine.write_text("my own")
    os.chown(mine, world.user.uid, -1)
    assert world.rules.bind_ports is not None
    targets = {
        "read": [str(mine), "/etc/passwd", sys.executable, "/proc/self/environ"],
        "list": [str(world.own), "/usr", "/proc/self/fd", "/sys"],
        "change": [str(mine), "/dev/null"],
        "create": [str(world.own.with_name(name) / "new") for name in ("home", "work", "tmp")],
        "listen": [0, *world.rules.bind_ports],
    }
    if world.user.uid == NOBODY:
        targets["read"].remove(sys.executable)
    results = world.run(world.rules, targets)
    for target, name in (("list", "list_folders"), *((t, t) for t in targets if t != "list")):
        given = targets[target]
        told = results[name]
        assert all(f"{value}" in told for value in given), told + results["stderr"]


@needs_landlock
def test_root_gives_up_what_only_root_may_read(world: World) -> None:
    if world.user.uid != 0 or not Path("/etc/shadow").exists():
        pytest.skip("needs root")
    targets = {"read": ["/etc/shadow"]}
    assert world.run(None, targets)["read"].startswith("LEAK")
    assert world.run(world.rules, targets)["read"] == "denied"


@needs_landlock
def test_a_link_in_the_place_of_a_folder_grants_nothing(world: World) -> None:
    link = world.own / "planted"
    link.symlink_to(world.base)
    targets = {"read": world.targets["read"]}
    for path in (str(link), f"{link}/other"):
        rules = replace(world.rules, write=(*world.rules.write, path))
        assert world.run(rules, targets)["read"] == "denied"
    rules = replace(world.rules, write=(*world.rules.write, str(world.base)))
    assert world.run(rules, targets)["read"].startswith("LEAK")


@needs_landlock
def test_no_rule_prevents_a_connection_to_a_unix_socket_with_a_path(world: World) -> None:
    """Before Linux 7.1. `limits` says so, and with a newer kernel it does not."""
    path = world.base / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o777)
        connected = world.run(world.rules, {"sockets": [str(path)]})["unix_sockets"]
    path.unlink()
    assert connected.startswith("LEAK") is (abi() < 9)
    assert any("Unix sockets" in limit for limit in limits()) is (abi() < 9)


@needs_landlock
def test_no_rule_prevents_a_change_of_modes_or_hides_command_lines(world: World) -> None:
    targets = {
        "modes": world.targets["change"],
        "scan": world.targets["scan"] | {"markers": ["sys.stdin.read"[::-1]]},
    }
    results = world.run(world.rules, targets)
    assert results["change_modes"].startswith("LEAK")
    assert "/cmdline" in results["environments_of_processes"]
    for word in ("chmod", "command lines", "stat"):
        assert any(word in limit for limit in limits())


@needs_landlock
def test_landlock_alone_does_not_hold_root_with_its_capabilities(world: World) -> None:
    if world.user != same_user() or os.geteuid() != 0:
        pytest.skip("needs root with its capabilities")
    script = (
        "import ctypes, runpy; from molecule_hermes.plugin import privileges;"
        "privileges.drop = lambda: ctypes.CDLL(None).prctl(38, 1, 0, 0, 0);"
        "from tests.support.confined import main; main()"
    )
    results = world.run(world.rules, {"scan": world.targets["scan"]}, ("-c", script))
    assert "/environ" in results["environments_of_processes"]
    assert world.run(world.rules, {"scan": world.targets["scan"]})["environments_of_processes"] == (
        "denied"
    )


@needs_landlock
def test_what_a_confined_process_starts_is_confined_and_has_no_capability(world: World) -> None:
    code = (
        "import json, sys, subprocess; from molecule_hermes.plugin import landlock;"
        "landlock.confine(landlock.Rules.parse(json.load(sys.stdin)));"
        f"subprocess.run(['cat', '/proc/self/status', {world.targets['read'][0]!r}])"
    )
    ended = subprocess.run(
        [*world.user.through, world.user.python, "-c", code],
        input=json.dumps(asdict(world.rules)),
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=30,
        check=False,
    )
    status = dict(line.split(":\t", 1) for line in ended.stdout.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert MARKER not in ended.stdout
    assert "denied" in ended.stderr


def test_every_attack_is_one_of_those_that_are_tried_here_or_end_to_end() -> None:
    elsewhere = {
        *(
            "environment",
            "plant",
            "unix_sockets",
            "change_modes",
            "forge_a_reply",
            "send_into_another_chat",
        ),
        *("answer_a_question", "read_sessions"),
    }
    assert hostile.ATTACKS.keys() == ATTACKS | elsewhere


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is of Linux")
@pytest.mark.parametrize(
    ("version", "words"),
    [
        (0, {"no Landlock", "TCP port", "signalled"}),
        (1, {"emptied", "TCP port", "signalled"}),
        (2, {"emptied", "TCP port", "signalled"}),
        (3, {"TCP port", "signalled"}),
        (4, {"signalled"}),
        (5, {"signalled"}),
        (6, set()),
        (7, set()),
        (9, set()),
    ],
)
def test_an_older_kernel_is_said_to_enforce_less(version: int, words: set[str]) -> None:
    known = {"no Landlock", "emptied", "TCP port", "signalled"}
    told = " ".join(unenforceable(Rules(bind_ports=(1,)), version))
    assert {word for word in known if word in told} == words
    assert "TCP port" not in " ".join(unenforceable(Rules(), version))


@needs_landlock
@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_on_an_older_kernel_the_rest_is_still_enforced(world: World, version: int) -> None:
    """This kernel knows the rights of older ones, so the rules for them can be applied here."""
    code = (
        "import json, sys; from molecule_hermes.plugin import landlock;"
        f"landlock.abi = lambda: {version};"
        "given = json.load(sys.stdin); rules = landlock.Rules.parse(given['rules']);"
        "print(len(landlock.confine(rules)));"
        "open(given['own'] + '/written', 'w').close(); open(given['outside'])"
    )
    ended = subprocess.run(
        [*world.user.through, world.user.python, "-c", code],
        input=json.dumps(
            {
                "rules": asdict(world.rules),
                "own": str(world.own),
                "outside": world.targets["read"][0],
            }
        ),
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=30,
        check=False,
    )
    assert int(ended.stdout) == len(unenforceable(world.rules, version))
    assert "PermissionError" in ended.stderr
    assert world.targets["read"][0] in ended.stderr


def test_rules_survive_json() -> None:
    for ports in (None, (), (1, 2)):
        rules = Rules(("/usr",), ("/a", "/b"), ("/dev/null",), ports)
        assert Rules.parse(json.loads(json.dumps(asdict(rules)))) == rules


@pytest.mark.skipif(sys.platform == "linux", reason="for other systems")
def test_on_other_systems_nothing_is_confined_and_that_is_said() -> None:
    assert "needs Linux" in " ".join(confine(Rules()))
