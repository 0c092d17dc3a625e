"""The extensions of A2A that the card declares. `docs/extensions.md` describes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from a2a.types import AgentExtension

from molecule_hermes.turns.features import Feature

__all__ = ["QUESTIONS", "STRUCTURED_OUTPUT", "TURN_METADATA", "extensions"]

# The URIs are names, not addresses. The number changes with an incompatible change.
TURN_METADATA = "urn:molecule-hermes:a2a:turn-metadata:1"
QUESTIONS = "urn:molecule-hermes:a2a:questions:1"
STRUCTURED_OUTPUT = "urn:molecule-hermes:a2a:structured-output:1"
"""Also the name in a message's metadata under which its schema stands."""


def extensions(features: Collection[Feature], models: Sequence[str] = ()) -> list[AgentExtension]:
    """The extensions of an agent whose transport has these features. `models` are those that a
    message may choose."""
    declared = [
        _turn_metadata(models),
        _extension(
            STRUCTURED_OUTPUT,
            "The answer as a data part that is valid against a JSON Schema: metadata "
            '{URI: {"schema": {…}}} of the message.',
        ),
    ]
    if Feature.APPROVALS in features or Feature.CLARIFICATIONS in features:
        declared.append(
            _extension(
                QUESTIONS,
                "The open questions of an INPUT_REQUIRED task, with choices and expiry, and "
                "answers that name their question, as a JSON Schema.",
            )
        )
    return declared


def _turn_metadata(models: Sequence[str]) -> AgentExtension:
    extension = _extension(
        TURN_METADATA,
        "Metadata for programs: tool progress, notices, questions and failures in status "
        "messages; token usage and durations in the last status update.",
    )
    if models:
        extension.description += (
            ' A message may choose one of these models for its turn: metadata {"model": NAME}.'
        )
        extension.params.update({"models": list(models)})
    return extension


def _extension(uri: str, description: str) -> AgentExtension:
    return AgentExtension(uri=uri, description=description, required=False)
