"""What each transport supports: the single source of the card, docs/features.md and the tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

__all__ = ["Feature", "TransportName", "features_of", "features_table", "why_not"]

TransportName = Literal["plugin", "chat"]


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the table. A cell that begins with "no" means that the feature is missing."""

    what: str
    plugin: str
    chat: str


class Feature(Enum):
    TEXT = _Row("text while it is being written", "yes", "yes")
    CORRECTIONS = _Row(
        "the artifact's text is the final answer, interim text replaced", "yes", "yes"
    )
    TOOLS = _Row("a status update when a tool starts and when it ends", "yes", "yes")
    TOOL_FIGURES = _Row(
        "how long a tool took, and whether it worked", "yes", "no: Hermes does not report it"
    )
    TOOL_CALLS = _Row(
        "a tool's arguments, and why it failed", "yes", "no: Hermes does not report it"
    )
    TOOL_DETAIL = _Row(
        "what a tool returned, for a peer that asks for it",
        "yes",
        "no: Hermes does not report it",
    )
    SUBAGENTS = _Row(
        "a status update when a subagent starts and when it ends",
        "yes",
        "no: a subagent is a tool like others",
    )
    REASONING = _Row(
        "what the model thinks, for a peer that asks for it", "yes", "no: Hermes does not report it"
    )
    NOTICES = _Row(
        "a notice when Hermes repeats a failed model call, changes to a fallback model or "
        "compresses the conversation",
        "yes",
        "no: Hermes does not report it; the bridge's own notices only",
    )
    APPROVALS = _Row(
        "the peer is asked before a dangerous command",
        "yes",
        "no: Hermes blocks the command, and the agent is told",
    )
    CLARIFICATIONS = _Row("the agent's questions to the peer", "yes", "no: the agent cannot ask")
    SEVERAL_QUESTIONS = _Row(
        "several questions open at once, each answered by its id",
        "yes",
        "no: there are no questions",
    )
    STEERING = _Row(
        "a message to a task that is working reaches the running turn",
        "yes",
        "no: Hermes's API cannot steer a running turn",
    )
    CANCEL = _Row(
        "CancelTask ends the task, keeps its text and frees the conversation", "yes", "yes"
    )
    CANCEL_TOOLS = _Row(
        "CancelTask kills the running tool",
        "yes, within 3 s",
        "no: Hermes notices at its next write, up to 30 s later",
    )
    DOCUMENTS_IN = _Row("text documents and data parts in", "yes", "yes")
    IMAGES_IN = _Row("images in, for a model that accepts images", "yes", "yes")
    FILES_IN = _Row("other files in, as files that tools can open", "yes", "no: refused by name")
    KEPT_FILES = _Row(
        "files of a conversation stay for its later turns",
        "yes",
        "no: no files are taken; documents and images are part of their message only",
    )
    FILES_OUT = _Row("files that the agent delivers", "yes", "no: the agent can only name them")
    DATA_OUT = _Row(
        "the answer as data that is valid against a JSON Schema",
        "yes, the model's provider is asked for it, too",
        "yes, by instruction only",
    )
    OUTBOUND = _Row(
        "the agent asks other agents that the operator has configured, and the peer sees what they "
        "are doing",
        "yes, if bridge and plugin share a secret",
        "no: the agent has no way to the bridge",
    )
    REFERENCES = _Row(
        "the answers of the tasks in `referenceTaskIds`, before the agent", "yes", "yes"
    )
    MODEL_CHOICE = _Row(
        "another model for one message, of those in `MOLECULE_HERMES_MODELS`",
        "yes",
        "no: refused by name, as Hermes uses its own model",
    )
    TOKENS = _Row("tokens used, duration and time to first text", "yes", "yes")
    TOKENS_OF_FAILURES = _Row(
        "tokens used by a turn that failed", "yes", "yes, if Hermes ended it itself"
    )
    TOKENS_OF_CANCELS = _Row(
        "tokens used by a turn that was canceled", "yes", "no: Hermes does not report it"
    )
    MODEL = _Row(
        "the model that answered, its provider, cached and reasoning tokens, the cost where Hermes "
        "knows it, and how full the model's context is",
        "yes",
        "no: Hermes does not report it",
    )
    SUBAGENT_TOKENS = _Row(
        "subagents' tokens are part of the turn's", "yes", "no: Hermes does not report them"
    )
    INCOMPLETE = _Row(
        "a mark on an answer that Hermes's limit of model calls cut short",
        "yes",
        "no: Hermes does not report it",
    )
    FAILURES = _Row("failures by kind, with a hint", "yes", "yes")
    OUTLIVES = _Row(
        "a running turn goes on after a restart of the bridge, and so does an open question",
        "yes, if Hermes still runs",
        "no: it ends as `interrupted`; turns that waited go on",
    )
    HANDOFF = _Row(
        "a conversation of the operator's own Hermes can be handed over to the peer",
        "yes",
        "no: Hermes's API cannot put a conversation into another chat",
    )
    DELIVERIES = _Row(
        "what the agent says after its turn, or unasked: background jobs and cron jobs",
        "yes, as a task of its own",
        "no: Hermes's API has no such thing, and the agent's tools are told so",
    )
    SUBSCRIBE = _Row("SubscribeToTask gives the state so far, then the rest", "yes", "yes")


def features_of(transport: TransportName) -> frozenset[Feature]:
    return frozenset(feature for feature in Feature if not why_not(feature, transport))


def why_not(feature: Feature, transport: TransportName) -> str:
    """Why the transport does not support the feature; empty if it does."""
    cell = feature.value.plugin if transport == "plugin" else feature.value.chat
    return cell if cell.startswith("no") else ""


def features_table() -> str:
    """The table in docs/features.md."""
    rows = ["| what a peer gets | through the plugin | through chat completions |", "|---|---|---|"]
    rows += [f"| {row.what} | {row.plugin} | {row.chat} |" for row in (f.value for f in Feature)]
    return "\n".join(rows) + "\n"
