"""Builds the bridge's agents from what they share: tasks, webhooks, capacity, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from a2a.types import AgentCard

from molecule_hermes.agents.outbound import OutboundCalls
from molecule_hermes.agents.policies import policies, settings_of
from molecule_hermes.agents.roster import Agent
from molecule_hermes.config import AgentConfig, Configuration, Settings
from molecule_hermes.executor import HermesAgentProxyExecutor
from molecule_hermes.protocol.card import build_card
from molecule_hermes.protocol.message_handler import MessageRequestHandler
from molecule_hermes.protocol.request_handler import BridgeRequestHandler
from molecule_hermes.protocol.schema_process import SchemaProcesses
from molecule_hermes.protocol.task_registry import TaskRegistry
from molecule_hermes.protocol.webhooks import PushSender
from molecule_hermes.server.assembly import executor_options
from molecule_hermes.storage.quota import StorageQuota
from molecule_hermes.telemetry.metrics import Metrics
from molecule_hermes.transports.base import Transport
from molecule_hermes.turns.features import Feature, why_not
from molecule_hermes.turns.idempotency import IdempotencyIndex
from molecule_hermes.turns.scheduler import Scheduler

__all__ = ["AgentFactory"]


@dataclass(frozen=True, slots=True)
class AgentFactory:
    settings: Settings
    url: str
    tasks: TaskRegistry
    push: PushSender
    quota: StorageQuota
    scheduler: Scheduler
    idempotency: IdempotencyIndex
    metrics: Metrics
    demo: bool = False
    warnings: Sequence[str] = ()
    calls: OutboundCalls | None = None
    schemas: SchemaProcesses = field(default_factory=SchemaProcesses)

    def build(self, config: AgentConfig, transport: Transport) -> Agent:
        """An agent without its policies and its card, which `configure` sets."""
        executor = HermesAgentProxyExecutor(
            transport,
            **executor_options(self.settings, transport, self.scheduler),
            metrics=self.metrics,
            admit=self.quota.admit,
            schemas=self.schemas,
        )
        as_message = self.settings.reply == "message"
        steers = Feature.STEERING in transport.features
        handler = (MessageRequestHandler if as_message else BridgeRequestHandler)(
            executor,
            self.tasks,
            AgentCard(),
            self.push,
            idempotency=self.idempotency,
            quota=self.quota,
            max_events=self.settings.max_events,
            no_steering="" if steers else why_not(Feature.STEERING, "chat"),
            metrics=self.metrics,
            schemas=self.schemas,
        )
        return Agent(config, transport, executor, handler)

    def configure(self, agent: Agent, configuration: Configuration, settings: Settings) -> None:
        """Sets what may change while the agent runs."""
        agent.executor.policy_of = policies(agent.config, configuration, settings, self.calls)
        path = f"/agents/{agent.name}"
        agent.handler.card = self._card(agent, settings, path, tenant=agent.name)

    def root_card(self, agent: Agent, settings: Settings) -> AgentCard:
        """The card of the agent that gets what no route is for. It names no tenant, so that the
        routes count."""
        return self._card(agent, settings)

    def _card(
        self, agent: Agent, settings: Settings, path: str = "", tenant: str = ""
    ) -> AgentCard:
        return build_card(
            settings_of(agent.config, settings),
            self.url + path,
            agent.transport.features,
            tenant=tenant,
            demo=self.demo,
            warnings=self.warnings,
            agent_id=self.calls.loops(agent.name).agent if self.calls is not None else "",
        )
