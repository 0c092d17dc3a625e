"""The extensions of A2A that the card declares. `docs/extensions.md` describes them."""

from __future__ import annotations

from collections.abc import Sequence

from a2a.types import AgentExtension

__all__ = ["STRUCTURED_OUTPUT", "TURN_METADATA", "extensions"]

TURN_METADATA = "urn:molecule-hermes:a2a:turn-metadata:1"
"""Names the extension; it is not an address. The number changes with an incompatible change."""
STRUCTURED_OUTPUT = "urn:molecule-hermes:a2a:structured-output:1"
"""Also the name in a message's metadata under which its schema stands."""


def extensions(models: Sequence[str] = ()) -> list[AgentExtension]:
    """`models` are those that a message may choose."""
    turn_metadata = AgentExtension(
        uri=TURN_METADATA,
        description=(
            "Metadata for programs: tool progress, notices, questions and failures in status "
            "messages; token usage and durations in the last status update."
        ),
        required=False,
    )
    if models:
        turn_metadata.description += (
            ' A message may choose one of these models for its turn: metadata {"model": NAME}.'
        )
        turn_metadata.params.update({"models": list(models)})
    structured_output = AgentExtension(
        uri=STRUCTURED_OUTPUT,
        description=(
            "The answer as a data part that is valid against a JSON Schema: metadata "
            '{URI: {"schema": {…}}} of the message.'
        ),
        required=False,
    )
    return [turn_metadata, structured_output]
