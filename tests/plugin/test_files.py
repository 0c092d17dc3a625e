from __future__ import annotations

import math
from pathlib import Path

import pytest

from molecule_hermes.plugin import files


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


def test_of_the_files_that_peers_sent_only_those_of_the_conversation_are_read(
    tmp_path: Path,
) -> None:
    home, cwd = tmp_path / "home", tmp_path / "work"
    kept = home / "cache" / "documents" / "a2a"
    own, others = kept / "own", kept / "others"
    for folder in (own, others, cwd):
        folder.mkdir(parents=True)
        (folder / "a.pdf").write_bytes(b"x")
    (own / ".files.json").write_text("{}")
    (cwd / "link").symlink_to(others / "a.pdf")

    def readable(path: Path, cwd: Path = cwd, since: float = 0.0) -> bool:
        given = {"cwd": cwd, "home": home, "limit": 9, "kept": kept, "own": own}
        try:
            files.read_file(str(path), media_since=since, **given)  # type: ignore[arg-type]
        except files.FileRefusedError:
            return False
        return True

    assert readable(own / "a.pdf")
    # Unlike other media, it belongs to the conversation, whenever it was written.
    assert readable(own / "a.pdf", since=math.inf)
    assert readable(cwd / "a.pdf")
    for refused in (
        others / "a.pdf",
        own / ".." / "others" / "a.pdf",
        cwd / "link",
        own / ".files.json",
        own,
    ):
        assert not readable(refused)
    # Nor if the working directory is around them.
    for wide in (kept, others, kept.parent):
        assert not readable(others / "a.pdf", wide)


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
