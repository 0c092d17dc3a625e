"""Nothing that a tool has left in Hermes's folder leads the bridge's files out of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from molecule_hermes.hermes.confinement import (
    confinement_for,
    environment_for,
    missing,
    tmp_folder,
)
from molecule_hermes.hermes.process import COMMAND
from molecule_hermes.plugin.handover import Confinement, Handover
from molecule_hermes.plugin.home_files import remove, write
from tests.support.privileges import unprivileged

FILES = {"config.yaml": "model: x\n", "skills/a/SKILL.md": "a skill", ".env": "A=1\n"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "home").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("as it was")
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield tmp_path / "home"


def as_they_were(home: Path) -> bool:
    outside = home.parent / "outside"
    return [p.name for p in outside.iterdir()] == ["kept"] and (
        outside / "kept"
    ).read_text() == "as it was"


def nothing(home: Path) -> None:
    pass


def older_files(home: Path) -> None:
    (home / "skills" / "a").mkdir(parents=True)
    (home / "skills" / "a" / "mine").write_text("stays")
    (home / "config.yaml").write_text("older")


def links(home: Path) -> None:
    for name in ("config.yaml", ".env"):
        (home / name).symlink_to(home.parent / "outside" / "kept")
    (home / "skills").mkdir()
    (home / "skills" / "a").symlink_to(home.parent / "outside")


def a_hard_link(home: Path) -> None:
    os.link(home.parent / "outside" / "kept", home / "config.yaml")


def a_linked_top(home: Path) -> None:
    (home / "skills").symlink_to(home.parent / "outside")
    (home / "config.yaml").symlink_to("config.yaml")


def folders_and_files_in_the_way(home: Path) -> None:
    (home / "config.yaml" / "deep").mkdir(parents=True)
    (home / "config.yaml" / "deep" / "link").symlink_to(home.parent / "outside")
    (home / "skills").write_text("a file")


def no_permissions(home: Path) -> None:
    (home / "skills" / "a").mkdir(parents=True)
    (home / "config.yaml" / "deep").mkdir(parents=True)
    for path in (home / "skills" / "a", home / "skills", home / "config.yaml" / "deep"):
        path.chmod(0)
    (home / "config.yaml").chmod(0)


PLANTED = [
    nothing,
    older_files,
    links,
    a_hard_link,
    a_linked_top,
    folders_and_files_in_the_way,
    no_permissions,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_files_are_written_inside_whatever_is_there(
    home: Path, plant: Callable[[Path], None]
) -> None:
    plant(home)
    write(home, FILES)
    for name, text in FILES.items():
        path = home / name
        assert path.resolve() == home.resolve() / name
        assert path.read_text() == text
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_nlink == 1
    assert as_they_were(home)
    if plant is older_files:
        assert (home / "skills" / "a" / "mine").read_text() == "stays"
    assert {path.name for path in home.iterdir()} == {"config.yaml", "skills", ".env"}


@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_removed_is_inside(home: Path, plant: Callable[[Path], None]) -> None:
    plant(home)
    remove(home, ("config.yaml", "skills/a/SKILL.md", "skills/a", "missing/deeper", ".env"))
    assert not any(os.path.lexists(home / name) for name in ("config.yaml", ".env", "missing"))
    assert as_they_were(home)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "a\0b"])
def test_a_name_that_leads_out_is_refused(home: Path, name: str) -> None:
    with pytest.raises(ValueError, match="below"):
        write(home, {name: ""})
    with pytest.raises(ValueError, match="below"):
        remove(home, (name,))


def launch(
    home: Path, handover: Handover, before: str = "", through: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """What the bridge starts, with `--version` in the place of the gateway."""
    command = [*COMMAND[: COMMAND.index("hermes")], "hermes", "--version"]
    if before:
        code = f"{before}; import sys; sys.argv = ['x', 'hermes', '--version']; sys.exit(main())"
        command = [sys.executable, "-c", code]
    return subprocess.run(
        [*through, *command],
        input=handover.to_bytes().decode(),
        env={
            "PATH": os.environ["PATH"],
            "HERMES_HOME": str(home),
            **environment_for(home, home.parent / "work", tmp_folder(home.parent / "tmp")),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def confinement(home: Path, *, require: bool = True) -> Confinement:
    work = home.parent / "work"
    work.mkdir(exist_ok=True)
    rules = confinement_for(home, work, tmp_folder(home.parent / "tmp"))
    return Confinement(rules, require)


@pytest.mark.hermes
@pytest.mark.skipif(missing() != (), reason="needs Landlock")
@pytest.mark.parametrize("plant", [links, folders_and_files_in_the_way, no_permissions])
def test_the_launcher_puts_the_files_there_before_hermes_starts(
    home: Path, plant: Callable[[Path], None]
) -> None:
    plant(home)
    (home / "plugins" / "evil").mkdir(parents=True)
    (home / "plugins" / "evil" / "__init__.py").write_text("raise SystemExit(9)")
    handover = Handover(confinement=confinement(home), files=FILES, remove=("plugins",))
    # As root with its capabilities, permissions would not matter.
    ended = launch(home, handover, through=tuple(unprivileged()))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Hermes" in ended.stdout
    for name, text in FILES.items():
        assert (home / name).read_text() == text
    assert not (home / "plugins" / "evil").exists()
    assert as_they_were(home)


_OLD = (
    "from molecule_hermes.plugin import landlock; landlock.abi = lambda: 0;"
    "from molecule_hermes.plugin.launcher import main"
)


@pytest.mark.hermes
@pytest.mark.skipif(missing() != (), reason="needs Landlock")
def test_on_an_old_kernel_hermes_is_refused_only_if_confinement_is_required(home: Path) -> None:
    required = Handover(confinement=confinement(home), files=FILES)
    ended = launch(home, required, _OLD)
    assert ended.returncode == 3
    assert "MOLECULE_HERMES_CONFINE=require" in ended.stderr
    assert "no Landlock" in ended.stderr
    assert list(home.iterdir()) == []
    given = replace(required, confinement=confinement(home, require=False))
    ended = launch(home, given, _OLD)
    assert ended.returncode == 0, ended.stderr
    assert sum("not confined:" in line for line in ended.stderr.splitlines()) == 3
    assert (home / ".env").read_text() == FILES[".env"]


def test_with_threads_nothing_is_started_unconfined(home: Path) -> None:
    before = (
        "import threading; e = threading.Event();"
        "threading.Thread(target=e.wait, daemon=True).start();"
        "from molecule_hermes.plugin.launcher import main"
    )
    ended = launch(home, Handover(confinement=confinement(home)), before)
    assert ended.returncode == 3
    assert "threads" in ended.stderr


def test_a_handover_with_a_file_outside_is_refused(home: Path) -> None:
    data = json.loads(Handover().to_bytes()) | {"files": {"../x": "y"}}
    ended = subprocess.run(
        [*COMMAND],
        input=json.dumps(data),
        env={"PATH": os.environ["PATH"], "HERMES_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    assert list(home.parent.glob("x")) == []
