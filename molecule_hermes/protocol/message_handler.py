"""The request handler for `MOLECULE_HERMES_REPLY=message`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.types import Message, SendMessageRequest, Task

from molecule_hermes.protocol.message_reply import message_of
from molecule_hermes.protocol.request_handler import BridgeRequestHandler

__all__ = ["MessageRequestHandler"]


class MessageRequestHandler(BridgeRequestHandler):
    """Answers each message with one Message instead of its task, also in a stream.

    The task is stored as always: it can be listed, read, canceled and followed, and a resend gets
    the reply of its task.
    """

    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        reply = await super().on_message_send(_for_the_whole_task(params), context)
        return message_of(reply) if isinstance(reply, Task) else reply

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        yield await self.on_message_send(params, context)


def _for_the_whole_task(params: SendMessageRequest) -> SendMessageRequest:
    """The reply is made of the history, and there is none before the end."""
    whole = SendMessageRequest()
    whole.CopyFrom(params)
    whole.configuration.ClearField("history_length")
    whole.configuration.return_immediately = False
    return whole
