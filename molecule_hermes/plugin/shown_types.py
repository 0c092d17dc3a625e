"""The media types under which Hermes is given a peer's files."""

from __future__ import annotations

from pathlib import Path

from molecule_hermes.plugin.hermes_api import can_show_image
from molecule_hermes.wire import IMAGE_TYPES, Attachment

__all__ = ["shown_type"]

_DOCUMENT = "application/x-document"


def shown_type(item: Attachment, path: Path) -> str:
    """The type that makes Hermes treat a file as what it is.

    Hermes shows an image to the model and announces a video with its path (run.py:11561).
    Everything else is a document, under a type that Hermes does not know: in an event of type
    DOCUMENT it neither transcribes nor announces audio, and it announces that the content of a
    text file follows, which it does not (run.py:2290).
    """
    media_type = item.media_type
    if media_type in IMAGE_TYPES or media_type.startswith("video/"):
        return media_type
    shown = media_type.startswith("image/") and can_show_image(path)
    return media_type if shown else _DOCUMENT
