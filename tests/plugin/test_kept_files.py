"""The files of conversations: names, bounds, age."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.plugin.kept_files import Bounds, KeptFiles, shown_name
from molecule_hermes.wire import Attachment

DAY = 86_400.0


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pdf(name: str, data: bytes = b"x") -> Attachment:
    return Attachment(name, "application/pdf", data)


def keeping(cache: Path, clock: Clock, **bounds: Any) -> KeptFiles:
    return KeptFiles(cache, Bounds(**bounds), clock)


def contents(kept: KeptFiles, chat: str) -> dict[str, bytes]:
    folder = kept.of(chat)
    names = folder.iterdir() if folder.exists() else ()
    return {path.name: path.read_bytes() for path in names if not path.name.startswith(".")}


def test_only_the_owner_can_read_the_folder_of_a_conversation(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock)
    kept.save("c", [pdf("a.pdf")])
    assert kept.of("c").stat().st_mode & 0o777 == kept.root.stat().st_mode & 0o777 == 0o700
    assert kept.of("c") != kept.of("d")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        "a\\b:c",
        "x" * 300,
        "漢" * 200,
        "ünï.txt",
        "",
        ".files.json",
    ],
)
def test_an_attachments_name_does_not_lead_out_of_the_folder(
    tmp_path: Path, clock: Clock, name: str
) -> None:
    kept = keeping(tmp_path, clock)
    (path,) = kept.save("c", [pdf(name)])
    assert path.parent == kept.of("c")
    assert path.read_bytes() == b"x"
    assert not path.name.startswith(".")


def test_files_with_the_same_name_are_kept_side_by_side(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock)
    kept.save("c", [pdf("a.pdf", b"1"), pdf("a.pdf", b"2")])
    kept.save("c", [pdf("a.pdf", b"3")])
    assert contents(kept, "c") == {"a.pdf": b"1", "a-2.pdf": b"2", "a-3.pdf": b"3"}


def test_a_file_that_is_sent_again_is_kept_once_unless_a_tool_has_changed_it(
    tmp_path: Path, clock: Clock
) -> None:
    kept = keeping(tmp_path, clock)
    (first,) = kept.save("c", [pdf("a.pdf", b"1")])
    kept.save("c", [pdf("a.pdf", b"2")])
    assert kept.save("c", [pdf("a.pdf", b"1")]) == [first]
    first.write_bytes(b"9")
    (third,) = kept.save("c", [pdf("a.pdf", b"1")])
    assert contents(kept, "c") == {"a.pdf": b"9", "a-2.pdf": b"2", "a-3.pdf": b"1"}
    assert third.name == "a-3.pdf"


def test_hermes_shows_the_whole_name_of_a_file(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock)
    for name in ("my_big_report.pdf", "a.pdf", "a_b.pdf"):
        (path,) = kept.save("c", [pdf(name)])
        parts = path.name.split("_", 2)  # as gateway/run.py:11743 does
        assert (parts[2] if len(parts) >= 3 else path.name) == shown_name(path.name) == name


def test_a_link_that_a_tool_left_is_not_written_through(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path / "cache", clock)
    kept.save("c", [pdf("b.pdf")])
    (tmp_path / "target").write_text("untouched")
    for name, target in (("a.pdf", tmp_path / "target"), ("d.pdf", tmp_path / "missing")):
        (kept.of("c") / name).symlink_to(target)
        (path,) = kept.save("c", [pdf(name, b"new")])
        assert path.name == name.replace(".", "-2.")
    assert (tmp_path / "target").read_text() == "untouched"
    assert not (tmp_path / "missing").exists()


def test_a_partially_written_file_is_removed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keeping(tmp_path, clock)

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def write(self, data: bytes) -> int:
            raise OSError("no space left")

    original = Path.open

    def opened(path: Path, mode: str = "r", **more: Any) -> Any:
        if mode != "xb":
            return original(path, mode, **more)
        path.touch()
        return Full()

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        with pytest.raises(OSError, match="no space"):
            kept.save("c", [pdf("a.pdf")])
    assert contents(kept, "c") == {}


def test_the_latest_files_of_earlier_turns_are_named(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock)
    assert kept.earlier("c").names == ()
    for number in range(12):
        kept.save("c", [pdf(f"{number}.pdf", bytes([number]))])
    (kept.of("c") / "of a tool").write_text("x")
    new = kept.save("c", [pdf("new.pdf")])
    earlier = kept.earlier("c", but=new)
    assert earlier.names == tuple(f"{number}.pdf" for number in range(11, 1, -1))
    assert (earlier.folder, earlier.more) == (kept.of("c"), 2)
    assert kept.earlier("d").names == ()


def test_only_what_the_peer_sent_itself_counts_as_its_file(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock)
    (path,) = kept.save("c", [pdf("a.pdf", b"sent")])
    (kept.of("c") / "made.pdf").write_bytes(b"made")
    assert kept.holds("c", b"sent")
    assert not kept.holds("c", b"made")
    assert not kept.holds("d", b"sent")
    path.unlink()
    assert not kept.holds("c", b"sent")


def test_a_conversation_gives_up_its_oldest_files_first(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock, of_chat=25_000)
    for name in "abc":
        kept.save("c", [pdf(name, name.encode() * 10_000)])
    assert sorted(contents(kept, "c")) == ["b", "c"]
    # A used file is no longer the oldest.
    kept.save("c", [pdf("b", b"b" * 10_000)])
    kept.save("c", [pdf("d", b"d" * 10_000)])
    assert sorted(contents(kept, "c")) == ["b", "d"]


def test_the_files_of_the_running_turn_stay_whatever_their_size(
    tmp_path: Path, clock: Clock
) -> None:
    kept = keeping(tmp_path, clock, of_chat=5_000, in_all=5_000)
    kept.enter("c")
    kept.save("c", [pdf("a", bytes(9_000)), pdf("b", bytes(9_001))])
    kept.sweep()
    assert sorted(contents(kept, "c")) == ["a", "b"]
    kept.leave("c")
    kept.sweep()
    assert contents(kept, "c") == {}


def test_many_small_files_count_too(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock, of_chat=5 * 4096)
    for number in range(9):
        kept.save("c", [pdf("a", bytes([number]))])
    assert len(contents(kept, "c")) == 5


def test_over_all_conversations_the_oldest_files_go_first(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock, in_all=25_000)
    for chat in ("old", "running", "new"):
        kept.save(chat, [pdf("a", bytes(10_000))])
    kept.enter("old")
    kept.sweep()
    assert [bool(contents(kept, chat)) for chat in ("old", "running", "new")] == [True, False, True]


def test_files_go_when_their_conversation_has_not_been_used_for_days(
    tmp_path: Path, clock: Clock
) -> None:
    kept = keeping(tmp_path, clock, days=7)
    kept.save("used", [pdf("a")])
    kept.save("unused", [pdf("a")])
    clock.now += 6 * DAY
    kept.sweep()
    kept.enter("used")
    kept.leave("used")
    kept.enter("without files")
    clock.now += 2 * DAY
    # Another run of Hermes goes by the same rule.
    keeping(tmp_path, clock, days=7).sweep()
    assert contents(kept, "used") == {"a": b"x"}
    assert not kept.of("unused").exists()
    clock.now += 7 * DAY
    kept.enter("used")
    kept.sweep()
    assert contents(kept, "used") == {"a": b"x"}


def test_files_that_are_kept_for_no_days_go_with_their_turn(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock, days=0)
    kept.enter("c")
    kept.save("c", [pdf("a")])
    kept.sweep()
    assert contents(kept, "c")
    kept.leave("c")
    kept.sweep()
    assert not kept.of("c").exists()


@pytest.mark.parametrize("spoiled", ["", "[]", "[" * 100_000, '{"a": 1, "../x": "y"}', "\x00"])
def test_a_manifest_that_a_tool_has_spoiled_does_no_harm(
    tmp_path: Path, clock: Clock, spoiled: str
) -> None:
    kept = keeping(tmp_path, clock)
    kept.save("c", [pdf("a")])
    (kept.of("c") / ".files.json").write_text(spoiled)
    kept.earlier("c")
    assert not kept.holds("c", b"x")
    kept.save("c", [pdf("a")])
    kept.sweep()
    assert kept.holds("c", b"x")


def test_links_in_the_folder_are_removed_and_not_followed(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path / "cache", clock, days=1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    kept.save("c", [pdf("a")])
    (kept.of("c") / "link").symlink_to(outside)
    (kept.root / "root link").symlink_to(outside)
    clock.now += 2 * DAY
    kept.sweep()
    assert not kept.of("c").exists()
    assert (outside / "precious").exists()


def test_conversations_save_and_clean_up_at_the_same_time(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock, in_all=30 * 4096)

    def turns(chat: str) -> None:
        for number in range(20):
            kept.enter(chat)
            (path,) = kept.save(chat, [pdf("a", f"{chat}{number}".encode())])
            kept.sweep()
            assert path.read_bytes() == f"{chat}{number}".encode()
            kept.leave(chat)
        done.append(chat)

    done: list[str] = []
    threads = [threading.Thread(target=turns, args=(f"c{number}",)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    kept.sweep()
    assert len(done) == 5
    assert sum(len(contents(kept, f"c{number}")) for number in range(5)) == 30


_saves = st.lists(
    st.tuples(
        st.sampled_from("cd"), st.sampled_from(["a.pdf", "b_c_d.pdf", ""]), st.binary(max_size=2)
    )
)


@given(_saves)
def test_whatever_is_sent_is_found_under_its_path(
    tmp_path_factory: pytest.TempPathFactory, saves: list[tuple[str, str, bytes]]
) -> None:
    kept = keeping(tmp_path_factory.mktemp("cache"), Clock())
    for chat, name, data in saves:
        (path,) = kept.save(chat, [pdf(name, data)])
        assert path.parent == kept.of(chat)
        assert kept.holds(chat, data)
    for chat, _, data in saves:
        assert data in contents(kept, chat).values()


def test_a_pipe_that_a_tool_left_does_not_hold_up_the_conversations(
    tmp_path: Path, clock: Clock
) -> None:
    kept = keeping(tmp_path, clock)
    kept.save("c", [pdf("a.pdf", b"")])
    found: list[int] = []

    def use() -> None:
        found.append(kept.earlier("c").more)
        found.append(len(kept.save("c", [pdf("a.pdf", b"")])))

    for name in ("a.pdf", ".files.json"):
        (kept.of("c") / name).unlink()
        os.mkfifo(kept.of("c") / name)
        using = threading.Thread(target=use, daemon=True)
        using.start()
        using.join(10)
    assert found == [0, 1, 0, 1]


def test_a_manifest_that_is_a_link_is_not_read(tmp_path: Path, clock: Clock) -> None:
    kept = keeping(tmp_path, clock)
    kept.save("c", [pdf("a.pdf")])
    kept.save("d", [pdf("a.pdf")])
    (kept.of("c") / ".files.json").unlink()
    (kept.of("c") / ".files.json").symlink_to(kept.of("d") / ".files.json")
    assert kept.earlier("c").names == ()
