from __future__ import annotations

from pathlib import Path

import pytest

from molecule_hermes.plugin import files
from molecule_hermes.wire import Attachment


def test_an_attachments_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    names = (
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        "a\\b:c",
        "x" * 300,
        "漢" * 200,
        "ünï.txt",
        "",
    )
    saved: list[Path] = []
    for name in names:
        path = files.save(Attachment(name, "text/plain", b"x"), tmp_path / "cache", saved)
        assert path.parent == tmp_path / "cache"
        assert path.read_bytes() == b"x"
        files.remove([path, path])
        assert not path.exists()
    assert len(set(saved)) == len(names)


def test_a_partially_written_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    saved: list[Path] = []
    with pytest.raises(OSError, match="no space"):
        files.save(Attachment("a", "text/plain", b"x"), tmp_path, saved)
    files.remove(saved)
    assert list(tmp_path.iterdir()) == []


def test_files_left_by_a_crash_are_told_from_those_of_other_platforms(tmp_path: Path) -> None:
    saved: list[Path] = []
    files.save(Attachment("my file.pdf", "application/pdf", b"x"), tmp_path, saved)
    for other in ("doc_0123456789ab_a.pdf", "a2a_notes.txt", "a2a_0123456789xy_a.pdf"):
        (tmp_path / other).touch()
    assert files.left_over(tmp_path) == saved
    assert files.left_over(tmp_path / "missing") == []


def test_a_file_that_cannot_be_removed_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    files.remove([tmp_path / "folder", tmp_path / "file"])
    assert not (tmp_path / "file").exists()


def test_only_files_that_the_agent_created_are_read(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "work"
    for folder in (home / "cache" / "images", home / "cache" / "delegation", cwd):
        folder.mkdir(parents=True)
    made = cwd / "a.txt"
    cached, private, elsewhere = home / "cache" / "images" / "b", home / "state.db", tmp_path / "c"
    another_turns = home / "cache" / "delegation" / "task.log"
    for path in (made, cached, private, elsewhere, another_turns):
        path.write_text("content")
    link = cwd / "link"
    link.symlink_to(private)

    def readable(path: Path, cwd: Path = cwd) -> bool:
        try:
            files.read_file(str(path), cwd=cwd, home=home, limit=100)
        except files.FileRefusedError as error:
            assert str(tmp_path) not in str(error)
            return False
        return True

    assert readable(made)
    assert readable(cached)
    assert not readable(private)
    assert not readable(elsewhere)
    assert not readable(another_turns)
    assert not readable(link)
    assert not readable(cwd)
    # A working directory around Hermes's home, or the home itself, opens nothing in it.
    for wide in (tmp_path, home):
        assert not readable(private, wide)
        assert readable(cached, wide)
    inside = home / "work"
    inside.mkdir()
    (inside / "d").write_text("x")
    assert readable(inside / "d", inside)
    # Without a setting the working directory is the user's home, with what is hidden there.
    for hidden in (cwd / ".netrc", cwd / ".config" / "keys", cwd / "a" / ".b" / "c"):
        hidden.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_text("x")
        assert not readable(hidden)


@pytest.mark.parametrize("name", ["loop", "x" * 300, "a\0b"])
def test_an_invalid_path_is_refused_like_any_other(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(files.FileRefusedError, match="is not available") as refused:
        files.read_file(f"{tmp_path}/{name}", cwd=tmp_path, home=tmp_path / "h", limit=10)
    assert str(tmp_path) not in str(refused.value)


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.png"
    path.write_bytes(bytes(11))
    with pytest.raises(files.FileRefusedError, match=r"big\.png was not .* 11 bytes, and 10 are"):
        files.read_file(str(path), cwd=tmp_path, home=tmp_path / "h", limit=10)
    read = files.read_file(str(path), cwd=tmp_path, home=tmp_path / "h", limit=11)
    assert (read.name, read.media_type, read.data) == ("big.png", "image/png", bytes(11))


def test_a_link_keeps_its_address() -> None:
    file = files.linked_file("https://x.example/a/b%20c.gif?size=1")
    assert (file.name, file.media_type) == ("b c.gif", "image/gif")
    assert files.linked_file("https://x.example").name == "image"
    for bad in ("https://x.example/" + "x" * 3000, "file:///etc/passwd"):
        with pytest.raises(files.FileRefusedError, match="not delivered"):
            files.linked_file(bad)
