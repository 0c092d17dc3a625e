"""Strict reading of JSON objects, one field at a time."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from molecule_hermes.wire.limits import MAX_FILE_BYTES, MAX_ID, MAX_TEXT, MAX_URL

__all__ = ["Fields", "WireError", "checked_text", "decode"]

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*", re.I)


class WireError(ValueError):
    """The data is not a valid message. The text names the field."""


def decode(body: bytes | str) -> Mapping[str, object]:
    """Decodes the JSON object in a body."""
    try:
        data = json.loads(body, parse_constant=_no_constant)
    # RecursionError: `[[[[…` is nested too deeply for the decoder.
    except (ValueError, RecursionError) as error:
        raise WireError("the body is not JSON") from error
    return _object(data, "the body")


_REQUIRED = object()


class Fields:
    """Reads a JSON object field by field; null counts as absent."""

    def __init__(self, data: object, path: str = "") -> None:
        if isinstance(data, bytes | str) and not path:
            data = decode(data)
        self.data = _object(data, path or "the body")
        self._path = f"{path}." if path else ""

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def get(self, name: str) -> object:
        return self.data.get(name)

    def id(self, name: str) -> str:
        return _label(self._value(name), self._path + name, shortest=1)

    def label(self, name: str, default: object = _REQUIRED) -> str:
        return _label(self._value(name, default), self._path + name, shortest=0)

    def text(self, name: str, default: object = _REQUIRED, most: int = MAX_TEXT) -> str:
        return checked_text(self._value(name, default), self._path + name, most)

    def one_of(self, name: str, values: tuple[str, ...], default: object = _REQUIRED) -> str:
        value = self._value(name, default)
        if not isinstance(value, str) or value not in values:
            raise WireError(f"`{self._path}{name}` must be one of {', '.join(values)}")
        return value

    def flag(self, name: str, default: bool | None) -> bool:
        value = self._value(name, default)
        if value is not default and not isinstance(value, bool):
            raise WireError(f"`{self._path}{name}` must be true or false")
        return cast(bool, value)

    def count(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
            raise WireError(f"`{self._path}{name}` must be a non-negative integer")
        return value

    def seconds(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WireError(f"`{self._path}{name}` must be a number")
        if not 0 <= value < 1e9 or not math.isfinite(value):
            raise WireError(f"`{self._path}{name}` must be a number of seconds")
        return float(value)

    def amount(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WireError(f"`{self._path}{name}` must be a number")
        if not 0 <= value < 1e9:
            raise WireError(f"`{self._path}{name}` must be an amount of money")
        return float(value)

    def items(self, name: str, most: int) -> list[object]:
        value = self._value(name, [])
        if not isinstance(value, list):
            raise WireError(f"`{self._path}{name}` must be a list")
        if len(value) > most:
            raise WireError(f"`{self._path}{name}` may have at most {most} entries")
        return value

    def mapping(self, name: str, most: int) -> Mapping[str, object] | None:
        """A JSON object of at most that many characters."""
        value = self.get(name)
        if value is None:
            return None
        checked = _object(value, f"`{self._path}{name}`")
        try:
            encoded = json.dumps(checked, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise WireError(f"`{self._path}{name}` is not JSON") from error
        checked_text(encoded, self._path + name, most)
        return checked

    def url(self, name: str) -> str:
        return _url(self._value(name), self._path + name)

    def media_type(self, name: str) -> str:
        value = self.label(name).split(";", 1)[0].strip().lower()
        if not _MEDIA_TYPE.fullmatch(value):
            raise WireError(f"`{self._path}{name}` must be a media type such as text/plain")
        return value

    def base64(self, name: str) -> bytes:
        value = self._value(name)
        if not isinstance(value, str):
            raise WireError(f"`{self._path}{name}` must be base64 text")
        if len(value) > MAX_FILE_BYTES * 4 // 3 + 4:
            raise WireError(f"`{self._path}{name}` is larger than {MAX_FILE_BYTES} bytes")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise WireError(f"`{self._path}{name}` is not base64") from error

    def _value(self, name: str, default: object = _REQUIRED) -> object:
        value = self.data.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise WireError(f"`{self._path}{name}` is missing")
        return default


def _object(data: object, what: str) -> Mapping[str, object]:
    if not isinstance(data, Mapping):
        raise WireError(f"{what} must be a JSON object")
    return data


def _label(value: object, path: str, shortest: int) -> str:
    text = checked_text(value, path)
    if not shortest <= len(text) <= MAX_ID:
        raise WireError(f"`{path}` must have {shortest} to {MAX_ID} characters")
    if any(unicodedata.category(char) in {"Cc", "Zl", "Zp"} for char in text):
        raise WireError(f"`{path}` must not contain control characters")
    return text


def checked_text(value: object, path: str, most: int = MAX_TEXT) -> str:
    if not isinstance(value, str):
        raise WireError(f"`{path}` must be text")
    if len(value) > most:
        raise WireError(f"`{path}` is longer than {most} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WireError(f"`{path}` is not valid Unicode") from error
    return value


def _url(value: object, path: str) -> str:
    text = checked_text(value, path)
    if len(text) > MAX_URL or not text.isprintable() or " " in text:
        raise WireError(f"`{path}` is not a URL")
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise WireError(f"`{path}` is not a URL") from error
    if not valid:
        raise WireError(f"`{path}` must be an http or https URL")
    return text


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
