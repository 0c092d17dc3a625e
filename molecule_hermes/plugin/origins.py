"""Which message late output comes from. No I/O, one thread.

A job of Hermes ends after its turn. Its delivery runs under the settings of the message that began
it: the same agent, prompt and toolsets, and the same callbacks.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TypeVar

from molecule_hermes.wire import Inbound, Origin

__all__ = ["Job", "Origins", "job_named_in"]

_JOB_ID = re.compile(r"\b(?:proc|deleg)_\w{4,64}\b")
_HEAD = 400
"""Characters at the beginning of an event in which Hermes names the job that has ended
(tools/process_registry.py:2207, 2071). What follows is output, which may name anything."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Job:
    """Something that an agent began and that ends later. `label` names it, for people."""

    inbound: Inbound
    """The message in whose turn it was begun, without its content."""
    label: str = ""


class Origins:
    """The last jobs, and how each chat was last spoken to."""

    def __init__(self, *, max_jobs: int = 1024, max_chats: int = 1024) -> None:
        self._max_jobs = max_jobs
        self._max_chats = max_chats
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._by_message: OrderedDict[str, Job] = OrderedDict()
        self._chats: OrderedDict[str, Inbound] = OrderedDict()

    def spoken(self, inbound: Inbound) -> None:
        """A peer has sent this message."""
        _keep(self._chats, inbound.chat_id, _settings_of(inbound), self._max_chats)

    def started(self, job_id: str, label: str, inbound: Inbound) -> None:
        """The agent has begun a job in the turn of this message."""
        job = Job(_settings_of(inbound), label)
        _keep(self._jobs, job_id, job, self._max_jobs)
        _keep(self._by_message, inbound.message_id, job, self._max_jobs)

    def of(self, chat_id: str, job_id: str = "", message_id: str = "") -> Job | None:
        """The job with this id, else one that the turn of this message began; None if neither is
        known, or if it belongs to another chat."""
        job = self._jobs.get(job_id)
        if job is None and (begun := self._by_message.get(message_id)):
            job = Job(begun.inbound)
        return job if job is not None and job.inbound.chat_id == chat_id else None

    def settings(self, chat_id: str) -> Inbound:
        """How the chat was last spoken to.

        A chat that nobody has spoken to since Hermes was started gets no tools: what its peer may
        use is not known.
        """
        last = self._chats.get(chat_id)
        if last is None:
            return Inbound(chat_id, "", "", "", agent="", toolsets=())
        # It is not the message that the job comes from, but it is the same conversation.
        return replace(last, metadata=Origin(a2a_context_id=last.metadata.a2a_context_id))

    def same_peer(self, chat_id: str, other: str) -> bool:
        """Whether both chats are known to be one peer's with one agent."""
        one, two = self._chats.get(chat_id), self._chats.get(other)
        if one is None or two is None:
            return False
        return (one.peer_id, one.agent) == (two.peer_id, two.agent)


def job_named_in(text: str) -> str:
    """The id of the job that an event of Hermes is about; empty if it names none."""
    found = _JOB_ID.search(text[:_HEAD])
    return found.group() if found else ""


def _settings_of(inbound: Inbound) -> Inbound:
    """The message without what was only for its own turn."""
    # All messages to an agent have the same prompt; it is kept once.
    prompt = sys.intern(inbound.system_prompt)
    return replace(
        inbound,
        content="",
        attachments=(),
        response_format=None,
        system_prompt=prompt,
        handoff=None,
    )


def _keep(kept: OrderedDict[str, Value], key: str, value: Value, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
