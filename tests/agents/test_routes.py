"""Which agent a request gets: by its tenant, by the first matching route, or by default."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.agents.routes import Choice, Routes
from molecule_hermes.config import AgentConfig, Configuration, PeerConfig, RouteConfig

CONFIGURATION = Configuration(
    agents={name: AgentConfig(name) for name in ("main", "research", "billing", "ops-eu")},
    routes=(
        RouteConfig("billing", peer="billing-*"),
        RouteConfig("research", tenant="lab"),
        RouteConfig("main", tenant="ops", peer="alice"),
        RouteConfig("ops-eu", tenant="ops*"),
        RouteConfig("ops-eu", context="ops-*", skill="deploy"),
        RouteConfig("research", skill="search-?"),
        RouteConfig("billing", context="[0-9]*"),
        RouteConfig("ops-eu", peer="bob"),
        RouteConfig("main", peer="mallory", skill="*help*"),
        RouteConfig("research", peer="mallory"),
        RouteConfig("billing", peer="", context="paid"),
        RouteConfig("research", peer="carol", tenant="*"),
    ),
    default="main",
    peers={
        "bob": PeerConfig("bob", agents=("ops-*", "research")),
        "mallory": PeerConfig("mallory", agents=("main",)),
        "carol": PeerConfig("carol"),
        "billing-bot": PeerConfig("billing-bot", agents=("*",)),
    },
)

CASES = [
    # peer, tenant, context, skill → agent
    ("alice", "", "", "", "main"),
    ("", "", "", "", "main"),
    ("alice", "main", "", "", "main"),
    ("alice", "research", "", "", "research"),
    ("alice", "billing", "ops-1", "deploy", "billing"),
    ("", "ops-eu", "", "", "ops-eu"),
    ("alice", "nobody", "", "", None),
    ("alice", "MAIN", "", "", None),
    ("alice", "main ", "", "", None),
    ("alice", "main\n", "", "", None),
    ("alice", "*", "", "", None),
    ("alice", "mai?", "", "", None),
    # By peer.
    ("billing-agent", "", "", "", "billing"),
    ("billing-", "", "", "", "billing"),
    ("billing", "", "", "", "main"),
    ("Billing-agent", "", "", "", "main"),
    ("not-billing-agent", "", "", "", "main"),
    ("billing-agent", "main", "", "", "main"),
    ("billing-agent", "", "ops-1", "deploy", "billing"),
    ("billing-bot", "research", "", "", "research"),
    # By tenant.
    ("alice", "lab", "", "", "research"),
    ("billing-agent", "lab", "", "", "research"),
    ("alice", "ops", "", "", "main"),
    ("dave", "ops", "", "", "ops-eu"),
    ("dave", "ops-asia", "", "", "ops-eu"),
    ("alice", "ops-asia", "", "", "ops-eu"),
    ("dave", "op", "", "", None),
    ("dave", "Lab", "", "", None),
    ("carol", "anything", "", "", "research"),
    ("carol", "ops", "", "", "ops-eu"),
    ("carol", "", "", "", "main"),
    ("", "lab", "", "", "research"),
    # By context and skill.
    ("alice", "", "ops-1", "deploy", "ops-eu"),
    ("alice", "", "ops-1", "", "main"),
    ("alice", "", "x-ops-1", "deploy", "main"),
    ("alice", "", "", "search-1", "research"),
    ("alice", "", "", "search-10", "main"),
    ("alice", "", "7", "", "billing"),
    ("alice", "", "7", "search-1", "research"),
    ("alice", "", "a7", "", "main"),
    ("alice", "", "ops-1\n", "deploy", "ops-eu"),
    ("", "", "paid", "", "billing"),
    ("alice", "", "paid", "", "main"),
    # A peer's own patterns refuse; the next route does not take over.
    ("bob", "", "", "", "ops-eu"),
    ("bob", "", "7", "", None),
    ("bob", "", "", "search-1", "research"),
    ("bob", "main", "", "", None),
    ("bob", "billing", "", "", None),
    ("bob", "research", "", "", "research"),
    ("bob", "lab", "", "", "research"),
    ("bob", "ops-eu", "", "", "ops-eu"),
    ("mallory", "", "", "", None),
    ("mallory", "", "", "help me", "main"),
    ("mallory", "ops", "", "", None),
    ("mallory", "main", "", "", "main"),
]


@pytest.mark.parametrize(("peer", "tenant", "context", "skill", "agent"), CASES)
def test_a_request_gets_the_agent_of_the_table(
    peer: str, tenant: str, context: str, skill: str, agent: str | None
) -> None:
    assert Routes(CONFIGURATION).choose(peer, tenant, context, skill) == agent


@pytest.mark.parametrize(
    ("request_", "choice"),
    [
        (("alice", "lab", "", ""), Choice("research", 1)),
        (("alice", "research", "", ""), Choice("research", None)),
        (("alice", "", "", ""), Choice("main", None)),
        (("bob", "", "7", ""), Choice("billing", 6, allowed=False)),
        (("mallory", "research", "", ""), Choice("research", None, allowed=False)),
        (("alice", "nobody", "", ""), Choice("", None, allowed=False)),
    ],
)
def test_a_choice_says_which_route_made_it(
    request_: tuple[str, str, str, str], choice: Choice
) -> None:
    assert Routes(CONFIGURATION).explain(*request_) == choice


@pytest.mark.parametrize(
    ("peer", "tenant", "agents"),
    [
        ("alice", "", ("ops-eu", "research", "billing", "main")),
        ("billing-agent", "", ("billing",)),
        ("bob", "", ("ops-eu", "research")),
        ("bob", "main", ()),
        ("mallory", "", ("main",)),
        ("alice", "lab", ("research",)),
        ("alice", "ops", ("main",)),
        ("carol", "ops", ("ops-eu",)),
        ("alice", "nobody", ()),
        ("", "research", ("research",)),
    ],
)
def test_the_agents_where_a_task_may_be_are_those_that_requests_can_get(
    peer: str, tenant: str, agents: tuple[str, ...]
) -> None:
    assert Routes(CONFIGURATION).reachable(peer, tenant) == agents


def test_the_peers_of_an_agent_are_those_whose_patterns_include_it() -> None:
    routes = Routes(CONFIGURATION)
    peers = ("", "alice", "bob", "mallory")
    assert routes.peers_of("main", peers) == ("", "alice", "mallory")
    assert routes.peers_of("ops-eu", peers) == ("", "alice", "bob")


def test_without_a_file_all_requests_go_to_the_only_agent() -> None:
    routes = Routes(Configuration())
    assert routes.choose("anyone", "", "context", "skill") == "main"
    assert routes.choose("anyone", "main", "", "") == "main"
    assert routes.choose("anyone", "other", "", "") is None
    assert routes.reachable("anyone", "") == ("main",)


AGENTS = ("main", "research", "ops", "a")
texts = st.text("ab-*?[]!\n", max_size=4)
patterns = st.one_of(st.just("*"), texts.filter(bool), st.sampled_from(AGENTS))
names = st.one_of(st.sampled_from(("", "*", *AGENTS)), texts)
routes_ = st.builds(
    RouteConfig,
    agent=st.sampled_from(AGENTS),
    peer=patterns,
    tenant=st.one_of(st.just(""), patterns),
    context=patterns,
    skill=patterns,
)
peers_ = st.dictionaries(
    names, st.lists(patterns, min_size=1, max_size=3).map(tuple), max_size=4
).map(lambda found: {name: PeerConfig(name, agents=agents) for name, agents in found.items()})
configurations = st.builds(
    Configuration,
    agents=st.just({name: AgentConfig(name) for name in AGENTS}),
    routes=st.lists(routes_, max_size=6).map(tuple),
    default=st.sampled_from(AGENTS),
    peers=peers_,
)


def first_match(
    configuration: Configuration, peer: str, tenant: str, context: str, skill: str
) -> str | None:
    """What docs/agents.md says, word by word."""
    if tenant in configuration.agents:
        return tenant
    for route in configuration.routes:
        if route.tenant == "" and tenant != "":
            continue
        if route.tenant != "" and (tenant == "" or not fnmatchcase(tenant, route.tenant)):
            continue
        if not fnmatchcase(peer, route.peer):
            continue
        if fnmatchcase(context, route.context) and fnmatchcase(skill, route.skill):
            return route.agent
    return None if tenant else configuration.default


def excluded(configuration: Configuration, peer: str, agent: str) -> bool:
    return not any(fnmatchcase(agent, each) for each in configuration.peer(peer).agents)


@given(configurations, names, names, names, names)
def test_the_first_matching_route_wins_and_the_default_catches_the_rest(
    configuration: Configuration, peer: str, tenant: str, context: str, skill: str
) -> None:
    expected = first_match(configuration, peer, tenant, context, skill)
    if expected is not None and excluded(configuration, peer, expected):
        expected = None
    assert Routes(configuration).choose(peer, tenant, context, skill) == expected


@given(configurations, names, names, names, names)
def test_the_chosen_agent_is_among_the_reachable_ones(
    configuration: Configuration, peer: str, tenant: str, context: str, skill: str
) -> None:
    routes = Routes(configuration)
    agent = routes.choose(peer, tenant, context, skill)
    assert agent is None or agent in routes.reachable(peer, tenant)


@given(configurations, names, names)
def test_nobody_reaches_an_agent_that_their_patterns_exclude(
    configuration: Configuration, peer: str, tenant: str
) -> None:
    reachable = Routes(configuration).reachable(peer, tenant)
    assert not any(excluded(configuration, peer, agent) for agent in reachable)
    assert len(set(reachable)) == len(reachable)


@given(names, names, names)
def test_without_routes_every_request_without_a_tenant_gets_the_default(
    peer: str, context: str, skill: str
) -> None:
    configuration = Configuration({each: AgentConfig(each) for each in AGENTS}, default="ops")
    assert Routes(configuration).choose(peer, "", context, skill) == "ops"
