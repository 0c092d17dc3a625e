"""What a file is: what its sender declares, held against its content, else what that says."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping

import filetype

__all__ = ["MismatchError", "decoded", "is_text_type", "media_type_of"]

_UNKNOWN = "application/octet-stream"
_UNDECLARED = frozenset({"", _UNKNOWN, "binary/octet-stream"})
_ALIASES: Mapping[str, str] = {
    "application/x-pdf": "application/pdf",
    "image/apng": "image/png",
    "image/heif": "image/heic",
    "image/ico": "image/x-icon",
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/vnd.microsoft.icon": "image/x-icon",
    "image/x-bmp": "image/bmp",
    "image/x-ms-bmp": "image/bmp",
    "image/x-png": "image/png",
}
_TEXT_TYPES = frozenset(
    {
        "application/javascript",
        "application/json",
        "application/sql",
        "application/toml",
        "application/x-yaml",
        "application/xml",
        "application/yaml",
    }
)
_MEDIA = ("image/", "audio/", "video/")
_RECOGNISED = frozenset(_ALIASES.get(kind.mime, kind.mime) for kind in filetype.types)
_SYNTAX = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


class MismatchError(ValueError):
    """The content is not what it is declared to be. The text follows the name of the file."""


def media_type_of(name: str, declared: str, data: bytes) -> str:
    """The media type of a file, without parameters and in lower case."""
    declared = declared.partition(";")[0].strip().lower()
    if declared in _UNDECLARED:
        return _guessed(name, data)
    if not _SYNTAX.fullmatch(declared):
        raise MismatchError("has a media type that is none")
    declared = _ALIASES.get(declared, declared)
    _hold_against(declared, data)
    return declared


def is_text_type(media_type: str) -> bool:
    """Whether files of the type are meant to be read as text."""
    structured = media_type.endswith(("+json", "+xml", "+yaml"))
    return structured or media_type.startswith("text/") or media_type in _TEXT_TYPES


def decoded(data: bytes) -> str | None:
    """The text in the data, or None if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _hold_against(declared: str, data: bytes) -> None:
    """Raises `MismatchError` if the data is known to be something else."""
    family = declared.partition("/")[0]
    found = _recognised(data)
    if family == "text":
        right = decoded(data) is not None
    elif declared == "application/pdf":
        right = b"%PDF-" in data[:1024]
    elif declared == "image/svg+xml":
        right = b"<svg" in data and decoded(data) is not None
    elif declared in _RECOGNISED and family == "image":
        right = found == declared
    elif family in ("audio", "video"):
        # A container may hold either, and too many kinds are not recognised.
        right = found.startswith(("audio/", "video/")) if found else not _is_text(data)
    else:
        right = family != "image" or found.startswith("image/") or not found
    if not right:
        other = "is not UTF-8" if family == "text" else f"is {found or 'something else'}"
        raise MismatchError(f"is declared as {declared} but {other}")


def _guessed(name: str, data: bytes) -> str:
    found = _recognised(data)
    by_name = mimetypes.guess_type(name)[0] or ""
    if found and found != "application/zip":
        return found
    if not found and _is_text(data):
        return by_name if is_text_type(by_name) else "text/plain"
    # Such as the many formats that are archives inside; never what the content would have shown.
    plausible = by_name and not by_name.startswith((*_MEDIA, "text/"))
    return by_name if plausible and by_name != "application/pdf" else found or _UNKNOWN


def _recognised(data: bytes) -> str:
    """The type that the content shows by itself, or an empty text."""
    kind = filetype.guess(data)
    if kind is None:
        return ""
    found = _ALIASES.get(kind.mime, kind.mime)
    # Some marks are two letters long: "BM" begins a bitmap, and many a sentence.
    return "" if found.startswith(_MEDIA) and _is_text(data) else found


def _is_text(data: bytes) -> bool:
    text = decoded(data)
    return text is not None and not _CONTROL.search(text)
