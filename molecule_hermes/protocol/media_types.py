"""The media type of a file: the declared one, checked against the content, or a detected one."""

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
_RECOGNIZED = frozenset(_ALIASES.get(kind.mime, kind.mime) for kind in filetype.types)
_SYNTAX = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


class MismatchError(ValueError):
    """The content does not match the declared type. The error's text follows the file's name."""


def media_type_of(name: str, declared: str, data: bytes) -> str:
    """Returns the media type of a file, without parameters and in lower case."""
    declared = declared.partition(";")[0].strip().lower()
    if declared in _UNDECLARED:
        return _guessed(name, data)
    if not _SYNTAX.fullmatch(declared):
        raise MismatchError("has an invalid media type")
    declared = _ALIASES.get(declared, declared)
    _require_match(declared, data)
    return declared


def is_text_type(media_type: str) -> bool:
    """Whether files of the type are text."""
    structured = media_type.endswith(("+json", "+xml", "+yaml"))
    return structured or media_type.startswith("text/") or media_type in _TEXT_TYPES


def decoded(data: bytes) -> str | None:
    """Returns the text in the data, or None if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _require_match(declared: str, data: bytes) -> None:
    """Raises `MismatchError` if the data is certainly of another type."""
    family = declared.partition("/")[0]
    found = _recognized(data)
    if family == "text":
        right = decoded(data) is not None
    elif declared == "application/pdf":
        right = b"%PDF-" in data[:1024]
    elif declared == "image/svg+xml":
        right = b"<svg" in data and decoded(data) is not None
    elif declared in _RECOGNIZED and family == "image":
        right = found == declared
    elif family in ("audio", "video"):
        # A container may hold audio or video, and many formats are not recognized.
        right = found.startswith(("audio/", "video/")) if found else not _is_text(data)
    else:
        right = family != "image" or found.startswith("image/") or not found
    if not right:
        other = "is not UTF-8" if family == "text" else f"is {found or 'something else'}"
        raise MismatchError(f"is declared as {declared} but {other}")


def _guessed(name: str, data: bytes) -> str:
    found = _recognized(data)
    by_name = mimetypes.guess_type(name)[0] or ""
    if found and found != "application/zip":
        return found
    if not found and _is_text(data):
        return by_name if is_text_type(by_name) else "text/plain"
    # Many formats are archives inside. The name does not decide on types that the content shows.
    plausible = by_name and not by_name.startswith((*_MEDIA, "text/"))
    return by_name if plausible and by_name != "application/pdf" else found or _UNKNOWN


def _recognized(data: bytes) -> str:
    """Returns the type that the content itself shows, or an empty string."""
    kind = filetype.guess(data)
    if kind is None:
        return ""
    found = _ALIASES.get(kind.mime, kind.mime)
    # Some signatures have two letters: "BM" begins a bitmap, but also many sentences.
    return "" if found.startswith(_MEDIA) and _is_text(data) else found


def _is_text(data: bytes) -> bool:
    text = decoded(data)
    return text is not None and not _CONTROL.search(text)
