"""The JSON between the bridge and the plugin inside Hermes.

    Inbound    bridge → plugin   POST /a2a/inbound   a peer's message
    Cancel     bridge → plugin   POST /a2a/cancel    stop that message's turn
    Answer     bridge → plugin   POST /a2a/answer    the peer's answer to a question
    Attach     bridge → plugin   POST /a2a/attach    follow a message that was sent before
    Steer      bridge → plugin   POST /a2a/steer     the peer's message to that running turn
    Check      bridge → plugin   POST /a2a/check     whether this bridge may send messages, and
                                                     whether it takes deliveries
    Lend       bridge → plugin   POST /a2a/lend      keep a chat free for its operator
    HandOn     bridge → plugin   POST /a2a/hand_on   give the conversation of that chat to another
                                                     platform of Hermes
    Callback   plugin → bridge   POST callback_url   an event of a turn
                                                     (one of them, or a `batch` in order)
    PeerCall   plugin → bridge   POST /a2a/outbound  what the agent asks of another agent; the
                                                     response is a `Called`

Every `parse` takes the raw body or the decoded object; it returns the value, or raises
`WireError`, and nothing else. Unknown keys are ignored, so that either side may be newer.

Standard library only: the plugin imports this package inside Hermes.
"""

from __future__ import annotations

from molecule_hermes.wire.callbacks import (
    CAUSES,
    Approval,
    Body,
    Callback,
    Cause,
    Clarify,
    Delta,
    File,
    Final,
    Problem,
    Push,
)
from molecule_hermes.wire.fields import WireError, decode
from molecule_hermes.wire.handoffs import HandOn, Lend, Transcript
from molecule_hermes.wire.limits import (
    ANSWER_PATH,
    ATTACH_PATH,
    CANCEL_PATH,
    CHECK_PATH,
    DEFAULT_CALLBACK_PORT,
    DEFAULT_PLATFORM_PORT,
    HAND_ON_PATH,
    HEALTH_PATH,
    IMAGE_TYPES,
    INBOUND_PATH,
    JOBS_PATH,
    LEND_PATH,
    MAIN_AGENT,
    MAX_ATTACHMENTS,
    MAX_BATCH,
    MAX_BODY_BYTES,
    MAX_CALL_TEXT,
    MAX_FILE_BYTES,
    MAX_HAND_ON,
    MAX_LEND,
    MAX_MODELS,
    MAX_RESPONSE_FORMAT,
    MAX_STEER,
    MAX_SYSTEM_PROMPT,
    MAX_TOOLSETS,
    MAX_TRANSCRIPT,
    MAX_TRANSCRIPT_MESSAGES,
    NOT_CONNECTED,
    NOT_HANDED_ON,
    OUTBOUND,
    OUTBOUND_PATH,
    PROFILE_REFUSED,
    REPLY_PATH,
    SECRET_HEADER,
    STEER_PATH,
    TURNS_PATH,
)
from molecule_hermes.wire.messages import (
    Answer,
    Attach,
    Attachment,
    Cancel,
    Check,
    Inbound,
    Origin,
    Steer,
    Steered,
)
from molecule_hermes.wire.outbound import ACTIONS, Action, Called, PeerCall
from molecule_hermes.wire.progress import (
    Args,
    Notice,
    NoticeKind,
    Phase,
    Reasoning,
    Spent,
    Subagent,
    Tool,
)
from molecule_hermes.wire.usage import Context, Usage

__all__ = [
    "ACTIONS",
    "ANSWER_PATH",
    "ATTACH_PATH",
    "CANCEL_PATH",
    "CAUSES",
    "CHECK_PATH",
    "DEFAULT_CALLBACK_PORT",
    "DEFAULT_PLATFORM_PORT",
    "HAND_ON_PATH",
    "HEALTH_PATH",
    "IMAGE_TYPES",
    "INBOUND_PATH",
    "JOBS_PATH",
    "LEND_PATH",
    "MAIN_AGENT",
    "MAX_ATTACHMENTS",
    "MAX_BATCH",
    "MAX_BODY_BYTES",
    "MAX_CALL_TEXT",
    "MAX_FILE_BYTES",
    "MAX_HAND_ON",
    "MAX_LEND",
    "MAX_MODELS",
    "MAX_RESPONSE_FORMAT",
    "MAX_STEER",
    "MAX_SYSTEM_PROMPT",
    "MAX_TOOLSETS",
    "MAX_TRANSCRIPT",
    "MAX_TRANSCRIPT_MESSAGES",
    "NOT_CONNECTED",
    "NOT_HANDED_ON",
    "OUTBOUND",
    "OUTBOUND_PATH",
    "PROFILE_REFUSED",
    "REPLY_PATH",
    "SECRET_HEADER",
    "STEER_PATH",
    "TURNS_PATH",
    "Action",
    "Answer",
    "Approval",
    "Args",
    "Attach",
    "Attachment",
    "Body",
    "Callback",
    "Called",
    "Cancel",
    "Cause",
    "Check",
    "Clarify",
    "Context",
    "Delta",
    "File",
    "Final",
    "HandOn",
    "Inbound",
    "Lend",
    "Notice",
    "NoticeKind",
    "Origin",
    "PeerCall",
    "Phase",
    "Problem",
    "Push",
    "Reasoning",
    "Spent",
    "Steer",
    "Steered",
    "Subagent",
    "Tool",
    "Transcript",
    "Usage",
    "WireError",
    "decode",
]
