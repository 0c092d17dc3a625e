"""The agent card. It advertises only what works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from molecule_hermes import __version__
from molecule_hermes.config import Settings
from molecule_hermes.protocol.extensions import extensions
from molecule_hermes.text import without_addresses
from molecule_hermes.turns.features import Feature
from molecule_hermes.wire import IMAGE_TYPES

__all__ = ["build_card"]

_CONVERSE = AgentSkill(
    id="converse",
    name="Converse",
    description=(
        "Answers questions and works on tasks. Messages with the same contextId are one "
        "conversation, which the agent remembers across tasks and restarts."
    ),
    tags=["chat", "assistant", "memory"],
    examples=["Summarise what we agreed on so far.", "Draft a reply to this text: …"],
)
_ACT = (
    "Uses the tools and skills that its operator enabled in Hermes, such as running commands, "
    "files and the web, and reports each tool as it runs."
)
_ASKS = " A dangerous command waits for the caller's approval (input-required)."
_INPUT = {
    Feature.TEXT: ("text/plain",),
    Feature.DOCUMENTS_IN: ("application/json",),
    Feature.IMAGES_IN: IMAGE_TYPES,
    Feature.FILES_IN: ("application/octet-stream",),
}
_OUTPUT = {
    Feature.TEXT: ("text/plain",),
    Feature.DATA_OUT: ("application/json",),
    Feature.FILES_OUT: (*IMAGE_TYPES, "application/pdf", "application/octet-stream"),
}


def build_card(
    settings: Settings,
    url: str,
    features: frozenset[Feature],
    *,
    tenant: str = "",
    demo: bool = False,
    warnings: Sequence[str] = (),
    agent_id: str = "",
) -> AgentCard:
    """With `tenant`, clients of A2A 1.0 name it in their requests. `agent_id` is the agent's name
    in chains of agents."""
    if not settings.deliveries:
        features -= {Feature.DELIVERIES}
    remarks = ["It answers with the built-in demo model, not a real one."] if demo else []
    # The card is public.
    remarks += [f"Warning: {without_addresses(warning)}" for warning in warnings]
    description = " ".join([settings.description, *(f"({remark})" for remark in remarks)])
    models = settings.models if Feature.MODEL_CHOICE in features else ()
    card = AgentCard(
        name=settings.name,
        description=description,
        version=__version__,
        supported_interfaces=_interfaces(url, tenant, settings.compat_v03),
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=True,
            extensions=extensions(features, models, agent_id),
        ),
        default_input_modes=_modes(_INPUT, features),
        default_output_modes=_modes(_OUTPUT, features),
        skills=[_CONVERSE, _act(settings.approvals == "ask" and Feature.APPROVALS in features)],
    )
    for skill in card.skills:
        skill.input_modes.extend(card.default_input_modes)
        skill.output_modes.extend(card.default_output_modes)
    if settings.peer_tokens:
        scheme = HTTPAuthSecurityScheme(scheme="bearer", description="A token from the operator")
        card.security_schemes["bearer"].CopyFrom(SecurityScheme(http_auth_security_scheme=scheme))
        card.security_requirements.append(SecurityRequirement(schemes={"bearer": StringList()}))
    return card


def _act(asks: bool) -> AgentSkill:
    return AgentSkill(
        id="act",
        name="Act with tools",
        description=_ACT + _ASKS if asks else _ACT,
        tags=["tools", "automation"],
        examples=["Run the test suite in this folder and tell me what fails."],
    )


def _modes(modes: Mapping[Feature, tuple[str, ...]], features: frozenset[Feature]) -> list[str]:
    return [mode for feature, types in modes.items() if feature in features for mode in types]


def _interfaces(url: str, tenant: str, compat_v03: bool) -> list[AgentInterface]:
    # A proxy that serves a path often serves what is below it, and redirects the path itself,
    # which turns a POST into a GET.
    rpc_url = f"{url}/" if urlsplit(url).path else url
    versions = {"1.0": tenant, "0.3": ""} if compat_v03 else {"1.0": tenant}  # 0.3 has no tenants
    return [
        AgentInterface(
            protocol_binding=binding, protocol_version=version, url=address, tenant=named
        )
        for version, named in versions.items()
        for binding, address in (("JSONRPC", rpc_url), ("HTTP+JSON", url))
    ]
