"""Paths, header, ports, image types and bounds of the wire."""

from __future__ import annotations

__all__ = [
    "ANSWER_PATH",
    "ATTACH_PATH",
    "CANCEL_PATH",
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
    "MAX_ARGS",
    "MAX_ATTACHMENTS",
    "MAX_BATCH",
    "MAX_BODY_BYTES",
    "MAX_CALL_TEXT",
    "MAX_CARRIED",
    "MAX_CHOICES",
    "MAX_FILE_BYTES",
    "MAX_HAND_ON",
    "MAX_ID",
    "MAX_LEND",
    "MAX_MODELS",
    "MAX_RESPONSE_FORMAT",
    "MAX_STEER",
    "MAX_SYSTEM_PROMPT",
    "MAX_TEXT",
    "MAX_TOOLSETS",
    "MAX_TRANSCRIPT",
    "MAX_TRANSCRIPT_MESSAGES",
    "MAX_URL",
    "MAX_WANTS",
    "NOT_CONNECTED",
    "NOT_HANDED_ON",
    "OUTBOUND",
    "OUTBOUND_PATH",
    "PROFILE_REFUSED",
    "REPLY_PATH",
    "SECRET_HEADER",
    "STEER_PATH",
    "TURNS_PATH",
]

MAIN_AGENT = "main"
"""The agent's name where there is only one."""

SECRET_HEADER = "X-Molecule-A2A-Secret"  # noqa: S105 - the name of a header
DEFAULT_PLATFORM_PORT = 8645
DEFAULT_CALLBACK_PORT = 8646
HEALTH_PATH = "/a2a/health"
INBOUND_PATH = "/a2a/inbound"
CANCEL_PATH = "/a2a/cancel"
ANSWER_PATH = "/a2a/answer"
STEER_PATH = "/a2a/steer"
CHECK_PATH = "/a2a/check"
ATTACH_PATH = "/a2a/attach"
TURNS_PATH = "/a2a/turns"
JOBS_PATH = "/a2a/jobs"
LEND_PATH = "/a2a/lend"
HAND_ON_PATH = "/a2a/hand_on"
REPLY_PATH = "/a2a/reply"
OUTBOUND_PATH = "/a2a/outbound"

OUTBOUND = "outbound"
"""In `wants`: the bridge takes what the agent asks of other agents in this turn."""
PROFILE_REFUSED = "profile"
"""The kind of a refusal: Hermes does not serve the profile of the message."""
NOT_CONNECTED = "not_connected"
"""The kind of a refusal: Hermes has no such platform to hand a conversation on to."""
NOT_HANDED_ON = "not_handed_on"
"""The kind of a refusal: the chat has the conversation still."""

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that every model with vision accepts as they are."""

MAX_BODY_BYTES = 32 * 2**20
MAX_FILE_BYTES = 10 * 2**20
MAX_ATTACHMENTS = 16
MAX_ID = 256
MAX_TEXT = 8 * 2**20
MAX_CALL_TEXT = 100_000
"""Characters that an agent sends to another agent at once."""
MAX_CARRIED = 1024
"""Characters of a task's id that an agent keeps for another agent's task."""
MAX_STEER = 65_536
"""Characters of a message that steers a turn: it becomes part of a tool's result."""
MAX_SYSTEM_PROMPT = 65_536
"""Hermes's API silently cuts a longer one (gateway/platforms/api_server.py:126)."""
MAX_RESPONSE_FORMAT = 131_072
"""Characters of it as JSON."""
MAX_URL = 2048
MAX_TRANSCRIPT = 5 * 2**20
"""Of a conversation that is handed over, as JSON; Hermes takes no more (hermes_state.py:1023)."""
MAX_TRANSCRIPT_MESSAGES = 10_000
MAX_CHOICES = 64
MAX_BATCH = 1024
MAX_ARGS = 32
MAX_MODELS = 16
MAX_WANTS = 16
MAX_TOOLSETS = 128
MAX_LEND = 300
"""Seconds for which a chat is lent."""
MAX_HAND_ON = 3600
"""Seconds within which another platform takes a conversation."""
