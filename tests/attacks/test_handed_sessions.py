"""An agent's tools write to the database of its home, from which conversations are handed over."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest
from hermes_state import SessionDB

from molecule_hermes.cli.handoff import listed
from molecule_hermes.config import Settings
from molecule_hermes.server.handoff_records import Handoff, HandoffRecords
from molecule_hermes.server.handoff_requests import requested_in

_LOOK = """
import asyncio, sys
from pathlib import Path
from molecule_hermes.server import handoff_requests

if {race}:  # the file was replaced after the look at it
    handoff_requests._FILES = ()

async def main():
    try:
        async with asyncio.timeout(1):
            print(await handoff_requests.find_request(Path({home!r})))
    except TimeoutError:
        print("it waits")

asyncio.run(main())
"""


def _database(home: Path, *sessions: object) -> None:
    with sqlite3.connect(home / "state.db") as database:
        database.execute(
            "CREATE TABLE sessions (id, handoff_state, handoff_platform, started_at REAL)"
        )
        database.executemany(
            "INSERT INTO sessions VALUES (?, 'running', 'molecule_a2a', ?)",
            [(session, number) for number, session in enumerate(sessions)],
        )
    database.close()


@pytest.mark.parametrize(("race", "seen"), [(False, "None"), (True, "it waits")])
async def test_a_pipe_in_place_of_the_journal_holds_up_nothing(
    tmp_path: Path, race: bool, seen: str
) -> None:
    _database(tmp_path, "s1")
    os.mkfifo(tmp_path / "state.db-journal")
    script = _LOOK.format(race=race, home=str(tmp_path))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(30):
            out, _ = await process.communicate()
        assert out.decode().strip() == seen
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("planted", ["x" * 70_000, b"s1", 7, None, "\x1b]0;x\x07", "s\n2"])
def test_an_id_that_is_none_does_not_hide_a_request(tmp_path: Path, planted: object) -> None:
    _database(tmp_path, planted, "s1")
    assert requested_in(tmp_path) == "s1"


@pytest.mark.parametrize(
    ("size", "content", "reason"),
    [
        (2**23, "replace(hex(zeroblob(?)), '00', 'x')", "too long"),
        (2**27, "replace(hex(zeroblob(?)), '00', 'x')", "MemoryError"),
        (2**10, "zeroblob(?)", "WireError"),
    ],
)
async def test_a_session_without_end_is_refused_before_the_bridge_reads_it(
    tmp_path: Path, size: int, content: str, reason: str
) -> None:
    database = SessionDB(tmp_path / "state.db")
    database.create_session("s1", "cli")
    database.append_message("s1", "assistant", "hi")
    database.close()
    with sqlite3.connect(tmp_path / "state.db") as planted:
        planted.execute(f"UPDATE messages SET content = {content}", (size,))
    planted.close()
    script = (
        "import sys; from molecule_hermes.plugin import session_source as source; "
        "source._MAX_MEMORY = 2**28; sys.exit(source.main())"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    asked = {"home": str(tmp_path), "do": "claim", "session": "s1", "target": "x"}
    async with asyncio.timeout(60):
        out, _ = await process.communicate(json.dumps(asked).encode())
    assert len(out) < 1000
    assert reason in json.loads(out)["error"]


async def test_a_pipe_in_place_of_a_handoffs_record_does_not_hold_up_hermes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "planted.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "planted.json")
    (tmp_path / "folder.json").mkdir()
    script = (
        "import asyncio, sys; from pathlib import Path; "
        "from molecule_hermes.plugin.handoffs import Handoffs; "
        "asyncio.run(Handoffs(None, Path(sys.argv[1])).restore())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(tmp_path))
    try:
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert not (tmp_path / "planted.json").exists()


def test_the_list_of_handoffs_writes_nothing_that_a_terminal_acts_on(tmp_path: Path) -> None:
    settings = Settings.from_env({"MOLECULE_HERMES_STATE_DIR": str(tmp_path)})
    handoff = Handoff("s\x1b[2J\nfaked", "ann", "", "ctx", str(tmp_path))
    handoff.end("no \x1b]52;c;AAAA\x07 such\x9b2J session")
    HandoffRecords(settings.handoffs_dir).save(handoff)
    (line,) = listed(settings)
    assert line.isprintable()
