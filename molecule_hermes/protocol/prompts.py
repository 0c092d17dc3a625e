"""What a peer's request says about its turn: the text and the files for Hermes, the form of the
answer, and the model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from a2a.server.agent_execution import RequestContext
from a2a.types import Message

from molecule_hermes.errors import BadRequest
from molecule_hermes.protocol.incoming import Attachments
from molecule_hermes.protocol.references import quoted
from molecule_hermes.protocol.schema_process import SchemaProcesses, UnusableSchemaError
from molecule_hermes.protocol.structured_output import (
    BadSchemaError,
    StructuredOutput,
    requested_output,
)
from molecule_hermes.text import shorten
from molecule_hermes.turns.features import Feature
from molecule_hermes.turns.model import Turn
from molecule_hermes.wire import Transcript

__all__ = ["MODEL", "Prompts", "chosen_model", "handoff_notice"]

MODEL = "model"
"""In the metadata of a message."""


class Prompts:
    """Reads requests for a transport with the given features."""

    def __init__(
        self,
        attachments: Attachments,
        schemas: SchemaProcesses,
        features: frozenset[Feature],
    ) -> None:
        self._attachments = attachments
        self._schemas = schemas
        self._has_models = Feature.MODEL_CHOICE in features

    async def complete(
        self, turn: Turn, context: RequestContext, models: Collection[str]
    ) -> tuple[Turn, StructuredOutput | None]:
        """The turn as Hermes gets it, and the data that is its answer; None if that is text.

        `models` are those that the message may choose. Raises a `TurnFailure` for a request that
        cannot be met.
        """
        offered = models if self._has_models else None
        turn = replace(turn, model=chosen_model(context.message, offered))
        output = await self.output(context, turn.peer)
        text, files = await self._attachments.read(context.message, turn.peer)
        earlier = quoted(context.related_tasks)
        text = "\n\n".join(filter(None, (earlier, text)))
        turn = replace(turn, text=text, attachments=files)
        return (output.prompt(turn) if output is not None else turn), output

    async def output(self, context: RequestContext, peer: str) -> StructuredOutput | None:
        """The data that the request asks for as its answer; None if it asks for text."""
        config = context.configuration
        accepted = tuple(config.accepted_output_modes) if config is not None else ()
        try:
            output = requested_output(context.message, accepted)
            if output is not None and output.schema is not None:
                await self._schemas.require_sound(output.schema, peer)
        except (BadSchemaError, UnusableSchemaError) as error:
            raise BadRequest(
                f"the schema cannot be used: {error}", hint="send another schema, or none"
            ) from error
        return output


def handoff_notice(handed: Transcript) -> str:
    """What the agent reads in a conversation that it goes on with."""
    title = f' ("{handed.title}")' if handed.title else ""
    return (
        f"[This conversation{title} was just handed over from the operator to another agent, which "
        "you talk with from here on. The whole conversation so far is above. Briefly confirm that "
        "you go on here, and summarize what it was about, so that the other agent can continue.]"
    )


def chosen_model(message: Message | None, models: Collection[str] | None) -> str:
    """The model that the message chooses; empty if it chooses none. Raises `BadRequest` for one
    that is not among `models`; None means that the transport cannot change the model."""
    if message is None or MODEL not in message.metadata.fields:
        return ""
    given = message.metadata.fields[MODEL]
    name = given.string_value
    if not name and given.WhichOneof("kind") in ("null_value", "string_value"):
        return ""
    shown = repr(shorten(name, 100)) if name else "in the metadata, which is not a text,"
    if models is None:
        raise BadRequest(
            f"the model {shown} cannot be chosen: Hermes always uses its own model here",
            hint="leave `model` out of the metadata",
        )
    if name in models:
        return name
    offered = f"choose one of {', '.join(models)}, or " if models else ""
    raise BadRequest(
        f"the model {shown} is not offered", hint=f"{offered}leave `model` out of the metadata"
    )
