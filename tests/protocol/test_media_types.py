"""What a file is, whatever it is called."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from molecule_hermes.protocol.media_types import MismatchError, is_text_type, media_type_of


def image(kind: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (200, 10, 10)).save(out, kind)
    return out.getvalue()


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("a", "b")
    return out.getvalue()


PNG, JPEG, BMP = image("PNG"), image("JPEG"), image("BMP")
PDF = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj"
MP4 = struct.pack(">I", 24) + b"ftypmp42\0\0\0\0mp42isom" + bytes(40)
MP3 = b"ID3\x03" + bytes(100)
PROGRAM = b"\x7fELF\x02\x01\x01" + bytes(60)


@pytest.mark.parametrize(
    ("declared", "data", "taken_as"),
    [
        ("image/png", PNG, "image/png"),
        ("IMAGE/PNG; x=y", PNG, "image/png"),
        ("image/jpg", JPEG, "image/jpeg"),
        ("image/x-ms-bmp", BMP, "image/bmp"),
        ("image/gif", image("GIF"), "image/gif"),
        ("image/webp", image("WEBP"), "image/webp"),
        ("image/tiff", image("TIFF"), "image/tiff"),
        ("image/svg+xml", b"<?xml?><svg></svg>", "image/svg+xml"),
        ("image/x-unheard-of", b"\x00\x01\x02", "image/x-unheard-of"),
        ("application/pdf", PDF, "application/pdf"),
        ("audio/mpeg", MP3, "audio/mpeg"),
        ("audio/mp4", MP4, "audio/mp4"),
        ("video/mp4", MP4, "video/mp4"),
        ("audio/pcm", bytes(100), "audio/pcm"),
        ("text/plain; charset=utf-8", "grüße".encode(), "text/plain"),
        ("text/x-python", b"", "text/x-python"),
        ("application/json", b"{", "application/json"),
        ("application/x-own", PNG, "application/x-own"),
    ],
)
def test_what_is_rightly_declared_is_taken_so(declared: str, data: bytes, taken_as: str) -> None:
    assert media_type_of("f", declared, data) == taken_as


@pytest.mark.parametrize(
    ("declared", "data", "told"),
    [
        ("image/png", JPEG, "is declared as image/png but is image/jpeg"),
        ("image/png", b"", "something else"),
        ("image/png", b"<html>Not found</html>", "something else"),
        ("image/jpeg", PDF, "application/pdf"),
        ("image/bmp", b"BM is two letters, and this is text", "something else"),
        ("image/svg+xml", PNG, "image/png"),
        ("image/x-unheard-of", PROGRAM, "application/x-executable"),
        ("application/pdf", PNG, "image/png"),
        ("application/pdf", b"hello", "something else"),
        ("audio/mpeg", b"just words", "something else"),
        ("audio/mpeg", PROGRAM, "application/x-executable"),
        ("video/mp4", PNG, "image/png"),
        ("text/plain", b"\xff\xfe\xfd", "is not UTF-8"),
        ("text/csv", PNG, "is not UTF-8"),
        ("nonsense", b"x", "invalid media type"),
        ("a b/c", b"x", "invalid media type"),
    ],
)
def test_a_wrongly_declared_file_is_refused(declared: str, data: bytes, told: str) -> None:
    with pytest.raises(MismatchError, match=told):
        media_type_of("f", declared, data)


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        ("", PNG, "image/png"),
        ("photo.jpg", PNG, "image/png"),
        ("photo.png", b"\x00\x01", "application/octet-stream"),
        ("a.pdf", PDF, "application/pdf"),
        ("a.pdf", b"\x00\x01", "application/octet-stream"),
        ("notes.md", b"# hello", "text/markdown"),
        ("notes", b"hello", "text/plain"),
        ("bm.txt", b"BM is two letters", "text/plain"),
        ("x.png", b"hello", "text/plain"),
        ("table.csv", b"a,b", "text/csv"),
        ("data.json", b"{}", "application/json"),
        ("report.docx", archive(), "vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.zip", archive(), "application/zip"),
        ("a.txt", b"\x00\xff", "application/octet-stream"),
        ("tool", PROGRAM, "application/x-executable"),
        ("", b"", "text/plain"),
    ],
)
def test_an_undeclared_type_is_detected_from_the_content_and_then_the_name(
    name: str, data: bytes, found: str
) -> None:
    for declared in ("", "application/octet-stream", "binary/octet-stream"):
        assert media_type_of(name, declared, data).endswith(found)


def test_types_that_are_read_as_text() -> None:
    for kind in ("text/plain", "application/json", "application/ld+json", "image/svg+xml"):
        assert is_text_type(kind)
    for kind in ("image/png", "application/pdf", "application/octet-stream", ""):
        assert not is_text_type(kind)


@given(
    st.text(),
    st.text() | st.sampled_from(["image/png", "audio/ogg", "video/x", "text/x", "application/pdf"]),
    st.binary() | st.sampled_from([PNG, MP4, MP3, PDF, BMP]).map(lambda data: data[:20]),
)
def test_anything_has_a_type_or_is_refused(name: str, declared: str, data: bytes) -> None:
    try:
        found = media_type_of(name, declared, data)
    except MismatchError:
        return
    assert "/" in found
    assert found == found.lower()
