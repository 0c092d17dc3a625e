"""The media types that a client accepts (`acceptedOutputModes`)."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["accepts", "accepts_json", "accepts_text"]


def accepts(accepted: Iterable[str], media_type: str) -> bool:
    """Whether the client accepts the media type. An empty list accepts everything."""
    modes = {mode.partition(";")[0].strip().lower() for mode in accepted}
    family = media_type.partition("/")[0]
    # Many 0.3 clients write "text" for text/plain.
    return not modes or not modes.isdisjoint({media_type, f"{family}/*", family, "*/*", "*"})


def accepts_text(accepted: Iterable[str]) -> bool:
    """Whether the client accepts the agent's replies, which are text of any kind."""
    modes = list(accepted)
    return accepts(modes, "text/plain") or any(m.strip().lower().startswith("text/") for m in modes)


def accepts_json(accepted: Iterable[str]) -> bool:
    """Whether the client accepts data parts."""
    return accepts(accepted, "application/json")
