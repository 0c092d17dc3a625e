"""The extensions of A2A that the card declares. `docs/extensions.md` describes them."""

from __future__ import annotations

from collections.abc import Collection

from a2a.types import AgentExtension

from molecule_hermes.turns.features import Feature

__all__ = ["QUESTIONS", "TURN_METADATA", "extensions"]

# The URIs are names, not addresses. The number changes with an incompatible change.
TURN_METADATA = "urn:molecule-hermes:a2a:turn-metadata:1"
QUESTIONS = "urn:molecule-hermes:a2a:questions:1"


def extensions(features: Collection[Feature]) -> list[AgentExtension]:
    """The extensions of an agent whose transport has these features."""
    declared = [
        AgentExtension(
            uri=TURN_METADATA,
            description=(
                "Metadata for programs: tool progress, notices, questions and failures in status "
                "messages; token usage and durations in the last status update."
            ),
            required=False,
        )
    ]
    if Feature.APPROVALS in features or Feature.CLARIFICATIONS in features:
        declared.append(
            AgentExtension(
                uri=QUESTIONS,
                description=(
                    "The open questions of an INPUT_REQUIRED task, with choices and expiry, and "
                    "answers that name their question, as a JSON Schema."
                ),
                required=False,
            )
        )
    return declared
