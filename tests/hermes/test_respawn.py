"""The pause that Hermes makes after many starts."""

from __future__ import annotations

from pathlib import Path

from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.respawn import RespawnPause, RespawnWatch
from molecule_hermes.plugin.settings import restart_settings

LINE = (
    "2026-07-01 10:00:00,000 WARNING hermes_cli.gateway: Gateway (re)started {} times in 120s — "
    "backing off {}s to break a respawn storm.\n"
)


def errors_log(home: HermesHome) -> Path:
    path = home.path / "logs" / "errors.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_only_a_pause_after_the_start_counts(tmp_path: Path) -> None:
    home = HermesHome(tmp_path)
    assert RespawnWatch(home).pause() is None
    log = errors_log(home)
    log.write_text(LINE.format(6, 10))
    watch = RespawnWatch(home)
    assert watch.pause() is None
    with log.open("a") as file:
        file.write("WARNING something else\n" + LINE.format(7, 20))
    assert watch.pause() == RespawnPause(starts=7, window=120, seconds=20)


def test_a_pause_in_a_log_that_hermes_rotated_counts(tmp_path: Path) -> None:
    home = HermesHome(tmp_path)
    errors_log(home).write_text("an older line\n" * 100)
    watch = RespawnWatch(home)
    errors_log(home).write_text(LINE.format(6, 10))
    assert watch.pause() == RespawnPause(starts=6, window=120, seconds=10)


def test_a_pause_says_how_to_disable_it() -> None:
    said = str(RespawnPause(6, 120, 10))
    assert "started 6 times in 120 s" in said
    assert "gateway.respawn_storm.max_starts to 0" in said


def test_hermes_does_not_brake_the_restarts_that_up_makes() -> None:
    assert restart_settings()["gateway"]["respawn_storm"] == {"max_starts": 0}
