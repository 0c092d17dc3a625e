"""What agents ask of other agents: the only way out of a turn."""

from molecule_hermes.agents.outbound.calls import OutboundCalls
from molecule_hermes.agents.outbound.channel import AgentChannel

__all__ = ["AgentChannel", "OutboundCalls"]
