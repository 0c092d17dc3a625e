"""What a webhook receives, in the protocol version of the client that registered it.

A2A 1.0 sends each event as a StreamResponse. A2A 0.3 sends the task, and knows no events here.
"""

from __future__ import annotations

from typing import Any

from a2a.compat.v0_3.conversions import to_compat_task
from a2a.compat.v0_3.versions import is_legacy_version
from a2a.server.context import ServerCallContext
from a2a.types import Task, TaskArtifactUpdateEvent, TaskPushNotificationConfig
from a2a.utils.constants import PROTOCOL_VERSION_0_3, VERSION_HEADER
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict
from google.protobuf.unknown_fields import UnknownFieldSet

from molecule_hermes.protocol.numbers import with_whole_numbers
from molecule_hermes.protocol.task_log import TaskEvent

__all__ = ["is_v03", "payload", "registered_by"]

_MARK_NUMBER = 1000
_MARK = b"\xc2\x3e\x03" + PROTOCOL_VERSION_0_3.encode()
"""Field 1000 with a string of three bytes, in protobuf's encoding."""


def registered_by(
    config: TaskPushNotificationConfig, context: ServerCallContext
) -> TaskPushNotificationConfig:
    """A copy of the configuration that remembers whether a 0.3 client registered it.

    A2A has no field for that, so the copy has one that A2A does not know. protobuf keeps such a
    field in every copy and on disk, and leaves it out of the JSON that peers see.
    """
    copy = TaskPushNotificationConfig()
    copy.CopyFrom(config)
    headers = context.state.get("headers")
    # A request over HTTP that names no version counts as 0.3.
    if headers is not None and is_legacy_version(
        headers.get(VERSION_HEADER.lower()) or PROTOCOL_VERSION_0_3
    ):
        copy.MergeFromString(_MARK)
    return copy


def is_v03(config: TaskPushNotificationConfig) -> bool:
    fields = UnknownFieldSet(config)
    return any(fields[number].field_number == _MARK_NUMBER for number in range(len(fields)))


def payload(task: Task, event: TaskEvent, *, v03: bool) -> dict[str, Any] | None:
    """The body for an event of the task, or None if the webhook does not get the event.

    A 0.3 webhook gets the whole task at each change of its state. With each piece of text, it would
    get all the text before it once more.
    """
    if not v03:
        body: dict[str, Any] = MessageToDict(to_stream_response(event))
    elif isinstance(event, TaskArtifactUpdateEvent):
        return None
    else:
        body = to_compat_task(task).model_dump(mode="json", by_alias=True, exclude_none=True)
    result: dict[str, Any] = with_whole_numbers(body)
    return result
