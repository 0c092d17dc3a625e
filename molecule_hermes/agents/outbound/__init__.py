"""What agents ask of other agents: the only way out of a turn."""

from molecule_hermes.agents.outbound.calls import OutboundCalls
from molecule_hermes.agents.outbound.channel import PeerAgentChannel

__all__ = ["OutboundCalls", "PeerAgentChannel"]
