"""Answers after which the agent went on, because the peer steered it. No I/O."""

from __future__ import annotations

from typing import Any, Protocol

from molecule_hermes.plugin.turn import Turn

__all__ = ["Extractor", "interim_files"]


class Extractor(Protocol):
    """How Hermes finds the files in an answer (gateway/platforms/base.py:3426)."""

    def extract_media(self, content: str) -> tuple[list[tuple[str, bool]], str]: ...
    def extract_images(self, content: str) -> tuple[list[Any], str]: ...
    def extract_local_files(self, content: str) -> tuple[list[str], str]: ...


def interim_files(hermes: Extractor, turn: Turn) -> list[str]:
    """The paths of the files in the turn's interim answers that its last answer does not name."""
    named = _files(hermes, turn.answer or "")
    found = dict.fromkeys(path for answer in turn.interim for path in _files(hermes, answer))
    return [path for path in found if path not in named]


def _files(hermes: Extractor, answer: str) -> list[str]:
    media, rest = hermes.extract_media(answer)
    # Images by URL stay in the text.
    local, _ = hermes.extract_local_files(hermes.extract_images(rest)[1])
    return [path for path, _ in media] + local
