"""The chain of agents that led to a message, so that agents that call agents make no loops.

It travels in the metadata of messages, under the URI of its extension: how many calls from agent to
agent there were, and the names of the agents that made them. A name says nothing about its agent:
it only has to be the same each time, and nobody else's.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any, Self, TypeGuard

from a2a.types import AgentCard, AgentExtension, Message, Task
from google.protobuf import json_format

from molecule_hermes.errors import BadRequest, Forbidden

__all__ = ["CHAIN_URI", "Chain", "Loops", "agent_id", "chain_extension", "hops_of", "id_on_card"]

CHAIN_URI = "urn:molecule-hermes:a2a:chain:1"
"""Also the name in a message's metadata under which the chain stands."""

_AGENTS, _HOPS, _NAME = "agents", "hops", "agentId"
_MAX_AGENTS = 64
_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Chain:
    agents: tuple[str, ...] = ()
    """Those that called, the first one first."""
    hops: int = 0
    """How many calls there were, also of agents that did not say their names."""

    @classmethod
    def of(cls, message: Message | None) -> Self:
        """The chain that led to the message. Raises `BadRequest` if it cannot be read."""
        if message is None or CHAIN_URI not in message.metadata.fields:
            return cls()
        found = json_format.MessageToDict(message.metadata.fields[CHAIN_URI])
        given = found if isinstance(found, dict) else {}
        agents, hops = given.get(_AGENTS), given.get(_HOPS)
        if not _are_names(agents) or not _is_count(hops):
            raise BadRequest(
                f"the metadata {CHAIN_URI} is not a chain of agents",
                hint=f"send {{agents: [up to {_MAX_AGENTS} names], hops: a number}}, or leave it "
                "out",
            )
        return cls(tuple(agents), max(int(hops), len(agents)))

    def followed_by(self, agent: str) -> Chain:
        """The chain of what this agent sends."""
        return Chain((*self.agents, agent), self.hops + 1)

    def mark(self, message: Message) -> None:
        """Writes the chain into the message."""
        message.metadata.update({CHAIN_URI: {_AGENTS: list(self.agents), _HOPS: self.hops}})
        if CHAIN_URI not in message.extensions:
            message.extensions.append(CHAIN_URI)

    def mark_task(self, task: Task) -> None:
        """Writes the chain into a task that no message began."""
        task.metadata.update({CHAIN_URI: {_AGENTS: list(self.agents), _HOPS: self.hops}})


@dataclass(frozen=True, slots=True)
class Loops:
    """Which messages an agent refuses, because agents would call each other without end."""

    agent: str = ""
    """The agent's own name in chains."""
    max_hops: int = 5

    def refuse(self, chain: Chain) -> None:
        """Raises `Forbidden` for a message that the agent must not work on."""
        if self.agent and self.agent in chain.agents:
            raise Forbidden(
                "this agent is one of those whose calls led to this message",
                hint="answer with what is known, without calling this agent again",
            )
        if chain.hops > self.max_hops:
            raise Forbidden(
                f"{chain.hops} calls from agent to agent led to this message, and "
                f"{self.max_hops} are allowed",
                hint="answer with what is known, or have the first agent call this one",
            )

    def refuse_call(self, chain: Chain, card: AgentCard) -> None:
        """Raises `Forbidden` if the agent of the card would have to refuse it, or its answer to
        somebody would."""
        following = chain.followed_by(self.agent)
        if following.hops > self.max_hops:
            raise Forbidden(
                f"{chain.hops} calls from agent to agent led to this turn, and no more than "
                f"{self.max_hops} are allowed",
                hint="answer without asking another agent",
            )
        if id_on_card(card) in following.agents:
            raise Forbidden(
                "that agent waits for this answer: a call would be a loop",
                hint="answer with what is known, without calling that agent",
            )


def hops_of(task: Task) -> int:
    """How many calls from agent to agent led to a task."""
    marked = Message()
    if CHAIN_URI in task.metadata.fields:
        marked.metadata.fields[CHAIN_URI].CopyFrom(task.metadata.fields[CHAIN_URI])
    most = 0
    for message in (marked, *task.history):
        with contextlib.suppress(BadRequest):
            most = max(most, Chain.of(message).hops)
    return most


def chain_extension(agent: str) -> AgentExtension:
    """As the card of the agent with this name declares it."""
    extension = AgentExtension(
        uri=CHAIN_URI,
        description=(
            "The agents whose calls led to a message: metadata {URI: {agents: […], hops: N}}. A "
            "message that this agent has called for itself, or with too many hops, is rejected."
        ),
        required=False,
    )
    extension.params.update({_NAME: agent})
    return extension


def agent_id(bridge: str, agent: str) -> str:
    """The name of a bridge's agent in chains. It does not tell what it is made of."""
    material = f"{len(bridge)}:{bridge}{agent}"
    return hashlib.sha256(material.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def id_on_card(card: AgentCard) -> str:
    """The agent's name in chains; a text that is in no chain if the card does not say it."""
    for extension in card.capabilities.extensions:
        if extension.uri == CHAIN_URI and _NAME in extension.params.fields:
            return str(extension.params.fields[_NAME].string_value) or "?"
    return "?"


def _are_names(value: Any) -> TypeGuard[list[str]]:
    if not isinstance(value, list) or len(value) > _MAX_AGENTS:
        return False
    return all(isinstance(name, str) and 0 < len(name) <= _MAX_NAME for name in value)


def _is_count(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= 10**6 and value == int(value)
