"""The clients that are tried with the bridge, and what each of them can do.

`docs/clients.md` has the table, and `tests/clients/test_clients.py` measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_REQUIREMENTS = Path(__file__).parent / "requirements"

# What a client may be able to do: the drivers' commands, and how the table names them.
ABILITIES: Mapping[str, str] = {
    "send": "send",
    "stream": "stream",
    "context": "conversation",
    "cancel": "cancel",
    "answer": "answer a question",
    "attach": "send a file",
    "receive": "receive a file",
    "fail": "reason of a failure",
}


@dataclass(frozen=True)
class Client:
    """A client, its environment, and the abilities that it lacks, each with the reason."""

    name: str
    title: str
    driver: str
    limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def requirements(self) -> Path:
        """The packages with exact versions, one per line, the client itself first."""
        return _REQUIREMENTS / f"{self.name}.txt"

    @property
    def version(self) -> str:
        first = self.requirements.read_text().splitlines()[0]
        return first.replace("==", "@").rpartition("@")[2]

    @property
    def uses_node(self) -> bool:
        return self.driver.endswith(".mjs")

    def can(self, ability: str) -> bool:
        return ability not in self.limits


_NO_CANCEL = "it has no call for CancelTask"

CLIENTS = [
    Client("a2a-sdk-0.3", "a2a-sdk 0.3 (Python)", "a2a_sdk_03_driver.py"),
    Client("a2a-js-1", "@a2a-js/sdk 1.x", "a2a_js_1_driver.mjs"),
    Client("a2a-js-0.3", "@a2a-js/sdk 0.3", "a2a_js_03_driver.mjs"),
    Client(
        "google-adk",
        "google-adk, `RemoteA2aAgent`",
        "google_adk_driver.py",
        {"cancel": _NO_CANCEL},
    ),
    Client("agent-framework", "agent-framework-a2a, `A2AAgent`", "agent_framework_driver.py"),
    Client(
        "strands",
        "strands-agents, `A2AAgent`",
        "strands_driver.py",
        {
            "context": "it never sends a contextId, so each message starts a conversation",
            "cancel": _NO_CANCEL,
            "answer": "it shows the question, but never sends a taskId",
            "attach": "it sends text blocks only",
        },
    ),
    Client("litellm", "LiteLLM, `A2AClient`", "litellm_driver.py", {"cancel": _NO_CANCEL}),
]


def table() -> str:
    """The table of `docs/clients.md`."""
    rows = [["client", "version", *ABILITIES.values()]]
    rows.append(["---"] * len(rows[0]))
    for client in CLIENTS:
        cells = ["yes" if client.can(ability) else "no" for ability in ABILITIES]
        rows.append([client.title, client.version, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def limits() -> str:
    """The list below the table: what each client cannot do, and why."""
    return "".join(
        f"- {client.name}, {ABILITIES[ability]}: {reason}.\n"
        for client in CLIENTS
        for ability, reason in client.limits.items()
    )
