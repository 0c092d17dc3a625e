"""The extensions of A2A that the card declares. `docs/extensions.md` describes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from a2a.types import AgentExtension

from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.model import REASONING, TOOL_DETAIL

__all__ = ["REASONING_URI", "TOOL_DETAIL_URI", "TURN_METADATA", "extensions", "requested"]

TURN_METADATA = "urn:molecule-hermes:a2a:turn-metadata:1"
"""Names the extension; it is not an address. The number changes with an incompatible change."""
REASONING_URI = "urn:molecule-hermes:a2a:reasoning:1"
TOOL_DETAIL_URI = "urn:molecule-hermes:a2a:tool-detail:1"


class _OnRequest(NamedTuple):
    """An extension that a client activates with the header A2A-Extensions."""

    name: str
    feature: Feature
    description: str


_ON_REQUEST = {
    REASONING_URI: _OnRequest(
        REASONING,
        Feature.REASONING,
        "Streams what the model thinks before it answers as the artifact `reasoning`.",
    ),
    TOOL_DETAIL_URI: _OnRequest(
        TOOL_DETAIL, Feature.TOOL_DETAIL, "Adds the result of each tool call to its metadata."
    ),
}


def extensions(features: Collection[Feature]) -> list[AgentExtension]:
    declared = {
        TURN_METADATA: (
            "Metadata for programs: progress of tools and subagents, notices, questions and "
            "failures in status messages; usage and durations in the last status update."
        )
    }
    declared |= {
        uri: each.description for uri, each in _ON_REQUEST.items() if each.feature in features
    }
    return [
        AgentExtension(uri=uri, description=description, required=False)
        for uri, description in declared.items()
    ]


def requested(uris: Collection[str], features: Collection[Feature]) -> frozenset[str]:
    """The names (`turns.model`) of the extensions that a client activates and a turn can do."""
    return frozenset(
        each.name for uri, each in _ON_REQUEST.items() if uri in uris and each.feature in features
    )
