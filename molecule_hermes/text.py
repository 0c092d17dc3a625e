"""Text from outside, made safe: file names, secrets, addresses, error pages.

Standard library only: the plugin imports this module inside Hermes.
"""

from __future__ import annotations

import ipaddress
import re

__all__ = ["is_loopback", "one_line", "redact", "safe_name", "shorten", "without_addresses"]

_UNSAFE = re.compile(r"[^\w.\- ]+")
_MAX_BYTES = 120
"""With what is put in front of it, a name stays below the 255 bytes a file system takes."""


def safe_name(name: str, default: str = "file") -> str:
    """The name without a path, control characters or anything a shell or a prompt might read."""
    last = re.split(r"[/\\]", name)[-1]
    cleaned = _UNSAFE.sub("_", last)
    # The end holds the suffix, so a long name loses its beginning.
    short = cleaned.encode("utf-8", "replace")[-_MAX_BYTES:].decode("utf-8", "ignore")
    # Neither hidden nor an option of a command.
    return short.lstrip(".- ").rstrip(". ") or default


_HTML = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^>]{0,500}>", re.I | re.S)
_MAX_PAGE = 16_384
"""An unclosed tag is searched to the end, so an endless page of them would take hours."""


def one_line(text: str) -> str:
    """The beginning of the text on one line, without the tags of an HTML error page."""
    text = text[:_MAX_PAGE]
    if "<" in text:
        text = _HTML.sub(" ", text)
    return " ".join(text.split())


def shorten(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# Each pattern begins with fixed words or is bounded: texts from outside may be long.
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), r"\1 ***"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://)[^\s/@:]*:[^\s/@]+@"), r"\1***@"),
    (
        re.compile(
            r"\b(?:c?sk|pk|rk|xox[abprs]|gh[pousr]|github_pat|glpat|hf|gsk|nvapi|xai|pplx|fw|r8|AIza)"
            r"[-_][\w-]{8,}"
        ),
        "***",
    ),
    (re.compile(r"\bAIza[\w-]{20,}"), "***"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "***"),
    (re.compile(r"\bya29\.[\w-]{8,}"), "***"),
    # A JSON Web Token.
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), "***"),
    # "Incorrect API key provided: 0123", "the API key '0123' is not valid"; a word has no digit.
    (
        re.compile(
            r"(?i)(\bapi[ _-]?key(?: \w{1,20}){0,3}\s?(?:[:=]\s?[\"'`]?|[\"'`]))"
            r"(?=[^\s\"'`,;}&]{0,100}\d)[^\s\"'`,;}&]{4,}"
        ),
        r"\1***",
    ),
    (
        re.compile(
            r"(?i)((?:api[_-]?key|token|secret|password|passwd|authorization|[?&]key)"
            r"[\"']?\s*[:=]\s*[\"']?)[^\s\"',;}&]{4,}"
        ),
        r"\1***",
    ),
)


def redact(text: str) -> str:
    """The text without what looks like a secret: keys, bearer tokens, passwords in URLs."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


_PLAIN_WORD = re.compile(
    r"[(\"'`]*(?:[A-Za-z][A-Za-z_'’-]*|\d{1,2}(?:\.\d{1,2})?|[—–…])[)\"'`]*[,;:.!?]?"
)


def without_addresses(text: str) -> str:
    """The text for a caller that is not known: words stay, and whatever could be an address, a
    port, a URL or a file's path becomes an ellipsis."""
    return " ".join(word if _PLAIN_WORD.fullmatch(word) else "…" for word in text.split())


def is_loopback(host: str) -> bool:
    """Whether a host name or an address, with or without brackets, is this machine's loopback.

    Other names are not resolved.
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    # Python 3.11 does not look into ::ffff:127.0.0.1, an IPv4 client of a dual-stack socket.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
