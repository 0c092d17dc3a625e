"""The media types under which Hermes is given a peer's files."""

from __future__ import annotations

from pathlib import Path

from molecule_hermes.wire import Attachment

__all__ = ["shown_type"]

_IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_DOCUMENT = "application/x-document"


def shown_type(item: Attachment, path: Path) -> str:
    """The type that makes Hermes treat a file as what it is.

    An image is shown to the model, a video announced with its path (run.py:11561). All else is a
    document, of a type that Hermes does not know: in an event of type DOCUMENT audio is neither
    transcribed nor announced, and of a text Hermes says that its content follows (run.py:2290).
    """
    kind = item.media_type
    shown = kind in _IMAGES or (kind.startswith("image/") and _can_be_shown(path))
    return kind if shown or kind.startswith("video/") else _DOCUMENT


def _can_be_shown(path: Path) -> bool:
    """Whether Hermes can turn the image into one that models take; else it would drop it."""
    from agent.image_routing import _file_to_data_url

    return _file_to_data_url(path) is not None
