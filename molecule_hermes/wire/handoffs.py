"""A conversation that goes on in another chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from molecule_hermes.wire.fields import Fields, WireError
from molecule_hermes.wire.limits import (
    MAX_HAND_ON,
    MAX_LEND,
    MAX_TRANSCRIPT,
    MAX_TRANSCRIPT_MESSAGES,
)

__all__ = ["HandOn", "Lend", "Transcript"]


@dataclass(frozen=True)
class Transcript:
    """What was said in a session of Hermes, as Hermes exports it."""

    session_id: str
    messages: tuple[Mapping[str, object], ...] = field(default=(), repr=False, hash=False)
    title: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data, "handoff")
        fields_of = fields.items("messages", MAX_TRANSCRIPT_MESSAGES)
        messages = []
        for item in fields_of:
            if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
                raise WireError("`handoff.messages` must be objects with a `role`")
            messages.append(item)
        transcript = cls(fields.id("session_id"), tuple(messages), fields.label("title", ""))
        if transcript.size > MAX_TRANSCRIPT:
            raise WireError(f"`handoff` is longer than {MAX_TRANSCRIPT} characters")
        return transcript

    @cached_property
    def size(self) -> int:
        """In characters, as JSON. Raises `WireError` for what is none."""
        try:
            encoded = json.dumps(self.to_json(), ensure_ascii=False)
            encoded.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise WireError("`handoff` is not JSON") from error
        return len(encoded)

    def to_json(self) -> dict[str, object]:
        return {
            "session_id": self.session_id,
            "title": self.title,
            "messages": [dict(message) for message in self.messages],
        }


@dataclass(frozen=True, slots=True)
class Lend:
    """Keeps all turns of a chat waiting for some seconds, because its operator talks with the agent
    in a terminal. The same `lease` goes on with it, and with 0 seconds it ends."""

    chat_id: str
    peer_id: str
    lease: str
    seconds: int
    peer_name: str = ""
    profile: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        seconds = fields.count("seconds")
        if seconds is None or seconds > MAX_LEND:
            raise WireError(f"`seconds` must be a number of at most {MAX_LEND}")
        return cls(
            chat_id=fields.id("chat_id"),
            peer_id=fields.id("peer_id"),
            lease=fields.id("lease"),
            seconds=seconds,
            peer_name=fields.label("peer_name", default=""),
            profile=fields.label("profile", default=""),
        )

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class HandOn:
    """Gives the conversation of a chat, which is lent under `lease`, to another platform of Hermes
    within some seconds. The chat begins a new one."""

    chat_id: str
    peer_id: str
    lease: str
    platform: str
    seconds: int
    peer_name: str = ""

    @classmethod
    def parse(cls, data: object) -> Self:
        fields = Fields(data)
        seconds = fields.count("seconds")
        if not seconds or seconds > MAX_HAND_ON:
            raise WireError(f"`seconds` must be a number from 1 to {MAX_HAND_ON}")
        return cls(
            chat_id=fields.id("chat_id"),
            peer_id=fields.id("peer_id"),
            lease=fields.id("lease"),
            platform=fields.id("platform"),
            seconds=seconds,
            peer_name=fields.label("peer_name", default=""),
        )

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}
