"""What the rules of a worker grant, and what they never do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from molecule_hermes.cli.doctor import examine
from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes import confinement
from molecule_hermes.hermes.confinement import (
    MAX_TMP,
    confinement_for,
    environment_for,
    missing,
    require_confinement,
    start_lines,
    tmp_folder,
)
from molecule_hermes.plugin import landlock
from molecule_hermes.plugin.landlock import Rules

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Landlock is of Linux")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bridge's state, with a worker in it. Paths of pytest are longer than users' ones."""
    monkeypatch.setattr(confinement, "MAX_TMP", 200)
    for name in ("home", "work", "tmp"):
        (tmp_path / "state" / "worker" / name).mkdir(parents=True)
    return tmp_path


def rules_for(base: Path, **more: object) -> Rules:
    worker = base / "state" / "worker"
    given = {"protected": [base / "state"]} | more
    return confinement_for(worker / "home", worker / "work", worker / "tmp", **given)  # type: ignore[arg-type]


def readable(rules: Rules, path: Path) -> bool:
    return any(path.resolve().is_relative_to(granted) for granted in (*rules.read, *rules.write))


def test_a_worker_writes_in_its_folders_only(base: Path) -> None:
    worker = (base / "state" / "worker").resolve()
    rules = rules_for(base, ports=[5])
    assert rules.write == tuple(str(worker / name) for name in ("home", "tmp", "work"))
    assert rules.bind_ports == (5,)
    assert rules_for(base, ports=None).bind_ports is None


def test_a_worker_reads_the_system_and_what_python_needs(base: Path) -> None:
    rules = rules_for(base)
    needed = ["/usr/bin/env", "/etc/passwd", "/proc/self", sys.executable, os.__file__]
    needed += [confinement.__file__, pytest.__file__]
    for path in needed:
        assert readable(rules, Path(path)), path


def test_a_worker_reads_neither_the_state_nor_a_home_nor_what_all_share(base: Path) -> None:
    rules = rules_for(base)
    secret = [base / "state", base / "state" / "tasks.db", Path.home(), Path.home() / ".ssh"]
    for path in [*secret, *map(Path, ("/tmp", "/var/tmp", "/dev/shm", "/dev/pts", "/run", "/var"))]:
        assert not readable(rules, path), path
    assert not {"/", "/home", "/root"} & {*rules.read}


def test_root_does_not_pass_on_what_only_root_may_read(base: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    rules = rules_for(base)
    private = [path for path in Path("/etc").rglob("*") if not path.lstat().st_mode & 0o004]
    assert private
    assert not [path for path in private if readable(rules, path) and not path.is_symlink()]


@pytest.mark.parametrize("place", ["state", "software/state", "software/deep/state"])
def test_a_folder_that_contains_the_state_is_granted_without_it(
    base: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    top = base / "opt"
    state = top / place
    for path in (state / "agents", top / "other", top / "software" / "deep" / "more"):
        path.mkdir(parents=True, exist_ok=True)
    (top / "link").symlink_to(state)
    monkeypatch.setattr(confinement, "_SYSTEM", (str(top),))
    rules = rules_for(base, protected=[state])
    assert not readable(rules, state)
    assert not readable(rules, state / "agents")
    assert not readable(rules, state.with_name("made later"))
    for path in (top / "other", top / "software" / "deep" / "more"):
        assert readable(rules, path)


def test_an_installation_inside_the_state_or_the_home_is_granted_alone(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = base / "state" / "venv"
    (venv / "lib").mkdir(parents=True)
    (venv / "secret").write_text("not Python's")
    monkeypatch.setattr(sys, "prefix", str(venv))
    monkeypatch.setenv("HOME", str(venv))
    rules = rules_for(base)
    assert readable(rules, venv / "lib")
    assert not readable(rules, venv / "secret")
    assert not readable(rules, venv)


def test_the_operator_grants_more(base: Path) -> None:
    for name in ("read", "write"):
        (base / name).mkdir()
    (base / "linked").symlink_to(base / "read")
    rules = rules_for(base, readable=[base / "linked"], writable=[base / "write", Path("/dev/shm")])
    assert str(base / "read") in rules.read
    assert str(base / "write") in rules.write
    assert "/dev/shm" in rules.write
    assert "/dev/zero" in rules_for(base, writable=[Path("/dev/zero")]).devices


@pytest.mark.parametrize("setting", ["readable", "writable"])
def test_the_operator_cannot_grant_the_state_by_mistake(base: Path, setting: str) -> None:
    for path in (base, base / "state", Path("/")):
        with pytest.raises(StartError, match=f"{setting.upper()}.*contains"):
            rules_for(base, **{setting: [path]})


def test_a_link_that_a_tool_has_put_in_the_place_of_its_folder_is_refused(base: Path) -> None:
    home = base / "state" / "worker" / "home"
    (home / "work").symlink_to(base)
    with pytest.raises(StartError, match="symbolic link"):
        confinement_for(home, home / "work", base / "state" / "worker" / "tmp")
    (home / "work").unlink()
    (home / "deep").symlink_to(base)
    (base / "work").mkdir()
    with pytest.raises(StartError, match="symbolic link"):
        confinement_for(home, home / "deep" / "work", base / "state" / "worker" / "tmp")


def test_the_folder_for_temporary_files_has_room_for_a_socket(tmp_path: Path) -> None:
    """Of the kind of execute_code: hermes_rpc_ and 32 digits."""
    with tempfile.TemporaryDirectory() as short:
        exact = Path(short, "x" * (MAX_TMP - len(short) - 1))
        assert tmp_folder(exact) == exact
        code = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
        path = exact / f"hermes_rpc_{'0' * 32}.sock"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=20)
        refused = subprocess.run(
            [sys.executable, "-c", code, f"{path}x"], check=False, capture_output=True, timeout=20
        )
        assert b"too long" in refused.stderr


def test_a_long_path_for_temporary_files_is_replaced_by_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * MAX_TMP)
    with pytest.raises(StartError, match="too long"):
        confinement_for(tmp_path, tmp_path, long)
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        folder = tmp_folder(long)
        assert (folder.parent, folder.stat().st_mode & 0o777) == (Path(short), 0o700)
        assert folder == tmp_folder(long) != tmp_folder(long.with_name("y" * MAX_TMP))
        folder.rmdir()
        folder.symlink_to(tmp_path)
        with pytest.raises(StartError, match="not a folder of this user"):
            tmp_folder(long)


def test_the_variables_lead_into_the_folders(tmp_path: Path) -> None:
    home, work, tmp = (tmp_path / name for name in ("home", "work", "tmp"))
    variables = environment_for(home, work, tmp)
    assert variables.keys() >= {"HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"}
    for name, value in variables.items():
        assert name == "PYTHONUSERBASE" or Path(value).is_relative_to(tmp_path)


def test_what_the_kernel_lacks_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 5)
    assert "signalled" in " ".join(start_lines("auto"))
    assert "off" in " ".join(start_lines("off"))
    with pytest.raises(StartError, match=r"require.*signalled"):
        require_confinement()
    monkeypatch.setattr(landlock, "abi", lambda: 7)
    if not missing():
        assert start_lines("auto") == ()
        require_confinement()


@pytest.mark.parametrize(
    ("version", "confine", "ok", "words"),
    [
        (7, "auto", True, "(Landlock 7)"),
        (7, "require", True, "(Landlock 7)"),
        (0, "auto", True, "no Landlock"),
        (0, "require", False, "no Landlock"),
        (0, "off", True, "CONFINE=off"),
    ],
)
async def test_the_doctor_says_what_is_confined(
    monkeypatch: pytest.MonkeyPatch,
    settings: Callable[..., Settings],
    version: int,
    confine: str,
    ok: bool,
    words: str,
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: version)
    async for finding in examine(settings(CONFINE=confine), "", "", lambda text: None):
        if finding.what == "confine":
            assert (finding.ok, words in finding.detail) == (ok, True), finding
            return
    pytest.fail("the doctor said nothing")
