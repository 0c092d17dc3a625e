"""The extensions of A2A that the card declares. `docs/extensions.md` describes them."""

from __future__ import annotations

from a2a.types import AgentExtension

__all__ = ["TURN_METADATA", "extensions"]

TURN_METADATA = "urn:molecule-hermes:a2a:turn-metadata:1"
"""Names the extension; it is not an address. The number changes with an incompatible change."""


def extensions() -> list[AgentExtension]:
    return [
        AgentExtension(
            uri=TURN_METADATA,
            description=(
                "Metadata for programs: tool progress, notices, questions and failures in status "
                "messages; token usage and durations in the last status update."
            ),
            required=False,
        )
    ]
