"""The extensions of A2A that the card declares. `docs/extensions.md` describes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from a2a.types import AgentExtension

from molecule_hermes.protocol.chain import chain_extension
from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.model import REASONING, TOOL_DETAIL

__all__ = [
    "DELIVERIES",
    "QUESTIONS",
    "REASONING_URI",
    "STRUCTURED_OUTPUT",
    "TOOL_DETAIL_URI",
    "TURN_METADATA",
    "extensions",
    "requested",
]

# The URIs are names, not addresses. The number changes with an incompatible change.
TURN_METADATA = "urn:molecule-hermes:a2a:turn-metadata:1"
QUESTIONS = "urn:molecule-hermes:a2a:questions:1"
DELIVERIES = "urn:molecule-hermes:a2a:deliveries:1"
STRUCTURED_OUTPUT = "urn:molecule-hermes:a2a:structured-output:1"
"""Also the name in a message's metadata under which its schema stands."""
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


def extensions(
    features: Collection[Feature], models: Sequence[str] = (), agent_id: str = ""
) -> list[AgentExtension]:
    """The extensions of an agent whose transport has these features. `models` are those that a
    message may choose, and `agent_id` is the agent's name in chains."""
    declared = {
        STRUCTURED_OUTPUT: (
            "The answer as a data part that is valid against a JSON Schema: metadata "
            '{URI: {"schema": {…}}} of the message.'
        )
    }
    if Feature.APPROVALS in features or Feature.CLARIFICATIONS in features:
        declared[QUESTIONS] = (
            "The open questions of an INPUT_REQUIRED task, with choices and expiry, and answers "
            "that name their question, as a JSON Schema."
        )
    if Feature.DELIVERIES in features:
        declared[DELIVERIES] = (
            "Tasks that the agent begins itself, in a context of its peer: metadata "
            '{"initiatedBy": "agent", "cause"}; GET /deliveries streams them as server-sent events.'
        )
    declared |= {
        uri: each.description for uri, each in _ON_REQUEST.items() if each.feature in features
    }
    others = [
        AgentExtension(uri=uri, description=description, required=False)
        for uri, description in declared.items()
    ]
    chain = [chain_extension(agent_id)] if agent_id else []
    return [_turn_metadata(models), *others, *chain]


def _turn_metadata(models: Sequence[str]) -> AgentExtension:
    extension = AgentExtension(
        uri=TURN_METADATA,
        description=(
            "Metadata for programs: progress of tools and subagents, notices, questions and "
            "failures in status messages; usage and durations in the last status update."
        ),
        required=False,
    )
    if models:
        extension.description += (
            ' A message may choose one of these models for its turn: metadata {"model": NAME}.'
        )
        extension.params.update({"models": list(models)})
    return extension


def requested(uris: Collection[str], features: Collection[Feature]) -> frozenset[str]:
    """The names (`turns.model`) of the extensions that a client activates and a turn can do."""
    return frozenset(
        each.name for uri, each in _ON_REQUEST.items() if uri in uris and each.feature in features
    )
