"""The configuration file: what it says, and what stops it, in one line with the place."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from molecule_hermes.config import (
    AgentConfig,
    Configuration,
    Limits,
    PeerConfig,
    RouteConfig,
    Settings,
    Webhook,
    isolation_of,
    load_configuration,
    uses_main_hermes,
    with_peers,
)
from molecule_hermes.config.yaml_tree import MAX_BYTES, YamlProblem, parse_yaml
from molecule_hermes.errors import ConfigError

TOKEN = "token-of-the-file-0123456789"


def settings_for(folder: Path, text: str | bytes, **environ: str) -> Settings:
    file = folder / "agents.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Settings.from_env({"MOLECULE_HERMES_CONFIG": str(file), **environ})


def load(folder: Path, text: str | bytes, **environ: str) -> Configuration:
    return load_configuration(settings_for(folder, text, **environ))


def problem(folder: Path, text: str | bytes, **environ: str) -> str:
    """The error's line, with the file's path replaced by FILE."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **environ)
    line = str(caught.value)
    assert "\n" not in line
    return line.replace(str(folder / "agents.yaml"), "FILE")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "soul.md").write_text("You are kind.")
    (tmp_path / "skills").mkdir()
    for name, text in (
        ("secret", f"{TOKEN}\n"),
        ("other-secret", "another-token-0123456789"),
        ("keys.env", "# keys\nOPENROUTER_API_KEY='sk-or-12345678'\nexport A=${HOME}\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    return tmp_path


WHOLE = """
agents:
  main:
    title: Ada
    description: Answers.
    isolation: peer
    model: openrouter/vendor/model
    models: [vendor/small, "vendor/large:free"]
    system_prompt: |
      Be brief.
      Be kind.
    soul: soul.md
    skills: skills
    toolsets: [web, mcp-files]
    mcp_servers:
      files: {command: server, args: [--root, 1, yes, 1.5, null]}
    hermes_config:
      terminal: {backend: local}
      gateway: {max_concurrent_sessions: 4}
    env_file: keys.env
    approvals: deny
    limits: {running: 2, waiting: 3}
  research:
    hermes: {plugin: "http://10.0.0.7:8645/", profile: lab, secret_file: secret}
  far:
    hermes: {api: "https://hermes.example/v1"}
    system_prompt: ""
routes:
  - {peer: "billing-*", agent: research}
  - {tenant: ops, agent: main}
  - {context: "ops-*", skill: deploy, agent: far}
default: research
peers:
  billing-agent:
    token_file: secret
    agents: [research, "ma*"]
    toolsets: []
    models: [vendor/small]
    approvals: ask
    limits: {running: 1}
  alice@example.com:
"""


def test_everything_in_the_file_is_in_the_configuration(folder: Path) -> None:
    found = load(folder, WHOLE, MOLECULE_HERMES_PEER_TOKENS="alice@example.com:0123456789abcdef")
    main = found.agents["main"]
    assert (main.name, main.title, main.description) == ("main", "Ada", "Answers.")
    assert (main.isolation, main.approvals, main.limits) == ("peer", "deny", Limits(2, 3))
    assert main.model == "openrouter/vendor/model"
    assert main.models == ("vendor/small", "vendor/large:free")
    assert main.system_prompt == "Be brief.\nBe kind.\n"
    assert (main.soul, main.skills) == (folder / "soul.md", folder / "skills")
    assert main.toolsets == ("web", "mcp-files")
    arguments = ["--root", 1, "yes", 1.5, None]
    assert main.mcp_servers == {"files": {"command": "server", "args": arguments}}
    assert main.hermes_config == {
        "terminal": {"backend": "local"},
        "gateway": {"max_concurrent_sessions": 4},
    }
    env = {name: value.get_secret_value() for name, value in main.env.items()}
    assert env == {"OPENROUTER_API_KEY": "sk-or-12345678", "A": "${HOME}"}
    remote = found.agents["research"].hermes
    assert remote is not None
    assert remote.secret is not None
    assert (remote.plugin, remote.profile) == ("http://10.0.0.7:8645", "lab")
    assert remote.secret.get_secret_value() == TOKEN
    far = found.agents["far"]
    assert far.hermes is not None
    assert (far.hermes.api, far.system_prompt) == ("https://hermes.example/v1", "")
    assert found.default == "research"
    assert found.routes == (
        RouteConfig("research", peer="billing-*"),
        RouteConfig("main", tenant="ops"),
        RouteConfig("far", context="ops-*", skill="deploy"),
    )
    billing = found.peers["billing-agent"]
    assert billing.token is not None
    assert billing.token.get_secret_value() == TOKEN
    assert (billing.agents, billing.toolsets) == (("research", "ma*"), ())
    assert (billing.models, billing.approvals) == (("vendor/small",), "ask")
    assert billing.limits == Limits(1, 0)
    assert found.peers["alice@example.com"] == PeerConfig("alice@example.com")
    assert found.peer("nobody") == PeerConfig("nobody")
    assert found.warnings == ()


def test_a_peers_webhook_is_a_url_or_has_a_token(folder: Path) -> None:
    text = """
agents: {main: {deliveries: allow}}
peers:
  ann: {token_file: secret, webhook: "http://127.0.0.1:9000/hook?key=1", deliveries: deny}
  bob: {token_file: other-secret, webhook: {url: "https://bob.example/hook", token_file: secret}}
"""
    found = load(folder, text)
    assert found.agents["main"].deliveries == "allow"
    assert found.peers["ann"].webhook == Webhook("http://127.0.0.1:9000/hook?key=1")
    assert found.peers["ann"].deliveries == "deny"
    hook = found.peers["bob"].webhook
    assert hook is not None
    assert hook.headers == {"Authorization": f"Bearer {TOKEN}"}
    assert TOKEN not in repr(found)


def test_without_a_file_there_is_one_agent() -> None:
    found = load_configuration(Settings.from_env({}))
    assert found == Configuration()
    assert list(found.agents) == ["main"]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n...\n", "{}", "agents:\n", "peers: {}\n"]
)
def test_a_file_without_agents_has_the_one_agent(folder: Path, text: str) -> None:
    assert load(folder, text) == Configuration()


def test_the_only_agent_is_the_default_whatever_its_name(folder: Path) -> None:
    assert load(folder, "agents: {ada: {}}").default == "ada"
    assert load(folder, "agents: {ada: {}, main: {}}").default == "main"


def test_an_anchor_can_be_used_for_several_agents(folder: Path) -> None:
    text = "agents:\n  a: &a {limits: &l {running: 1}}\n  b: *a\n  c: {limits: *l}\ndefault: a\n"
    found = load(folder, text)
    assert [each.limits.running for each in found.agents.values()] == [1, 1, 1]
    assert list(found.agents) == [each.name for each in found.agents.values()]


def test_paths_are_relative_to_the_file_wherever_the_bridge_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "config").mkdir()
    settings = settings_for(folder / "config", "agents: {main: {soul: ../soul.md}}")
    monkeypatch.chdir("/")
    soul = load_configuration(settings).agents["main"].soul
    assert soul is not None
    assert soul.read_text() == "You are kind."


REFUSED = [
    (
        "agents: {main: {isolation: x}}",
        "FILE:1: agents.main.isolation='x' is not valid: it takes shared or peer",
    ),
    (
        "agents:\n  main:\n\n    isolation: true",
        "isolation=true is not valid: it takes shared or peer (text: put it in quotes)",
    ),
    (
        "agents:\n  main:\n    approvals: maybe\n",
        "FILE:3: agents.main.approvals='maybe' is not valid: it takes ask or deny",
    ),
    (
        "agents:\n  main:\n    deliveries: off\n",
        "FILE:3: agents.main.deliveries='off' is not valid: it takes allow or deny",
    ),
    # Webhooks of peers.
    (
        "peers:\n  ann:\n    webhook: ftp://host/secret",
        "FILE:3: peers.ann.webhook=(not shown) is not valid: it takes a URL",
    ),
    ("peers: {ann: {webhook: 'https://user:secret@host/'}}", "peers.ann.webhook=(not shown)"),
    ("peers: {ann: {webhook: {token_file: secret}}}", "FILE:1: peers.ann.webhook needs a url"),
    ("peers: {ann: {webhook: {url: 'http://[::1', token_file: secret}}}", "webhook.url"),
    ("peers: {ann: {webhook: 7}}", "peers.ann.webhook=7 is not valid: it takes a mapping with"),
    # Names.
    (
        "agents: {Main: {}}",
        "FILE:1: agents.Main has a name that is not valid: it takes an agent's name",
    ),
    ("agents: {tasks: {}}", "FILE:1: agents.tasks has a name that is not valid"),
    ("agents: {v1: {}}", "FILE:1: agents.v1 has a name that is not valid"),
    ("agents: {a/b: {}}", "FILE:1: agents.'a/b' has a name that is not valid"),
    ("agents: {'..': {}}", "FILE:1: agents... has a name"),
    ("agents: {'': {}}", "FILE:1: agents.'' has a name"),
    ("agents: {-a: {}}", "FILE:1: agents.-a has a name"),
    (f"agents: {{{'a' * 64}: {{}}}}", "has a name that is not valid"),
    ('agents: {"a\\n": {}}', "FILE:1: agents.'a\\n' has a name"),
    ("agents: {1: {}}", "FILE:1: agents.1 is not text: put the name in quotes"),
    (
        "peers: {a b: {}}",
        "FILE:1: peers.'a b' has a name that is not valid: it takes a peer's name",
    ),
    # Keys and types.
    ("agent: {}", "FILE:1: agent is not known; did you mean agents?"),
    (
        "agents: {main: {tools: []}}",
        "FILE:1: agents.main.tools is not known; did you mean toolsets?",
    ),
    ("agents: {main: {zzz: 1}}", "FILE:1: agents.main.zzz is not known; there are approvals,"),
    ("agents: {main: {limits: {runing: 1}}}", "did you mean running?"),
    ("peers: {a: {token: x}}", "FILE:1: peers.a.token is not known; did you mean token_file?"),
    ("routes: [{agents: main}]", "FILE:1: routes[1].agents is not known; did you mean agent?"),
    ("agents: []", "FILE:1: agents=[…] is not valid: it takes a mapping of agents' names"),
    ("[]", "FILE:1: the file=[…] is not valid: it takes a mapping with agents, default,"),
    ("just text", "FILE:1: the file=(not shown) is not valid"),
    ("agents: {main: 5}", "FILE:1: agents.main=5 is not valid"),
    ("routes: {}", "FILE:1: routes={…} is not valid: it takes a list of routes"),
    ("routes: [main]", "FILE:1: routes[1]=(not shown) is not valid"),
    (
        "agents: {main: {toolsets: web}}",
        "agents.main.toolsets=(not shown) is not valid: it takes a list",
    ),
    ("agents: {main: {toolsets: [web, 5]}}", "agents.main.toolsets[2]=5 is not valid"),
    ("agents: {main: {toolsets: [web, web]}}", "agents.main.toolsets[2] repeats 'web'"),
    ("agents: {main: {toolsets: [a b]}}", "agents.main.toolsets[1]='a b' is not valid"),
    ("agents: {main: {models: [$KEY]}}", "agents.main.models[1]='$KEY' is not valid"),
    ("agents: {main: {models: ['']}}", "agents.main.models[1]='' is not valid"),
    ("agents: {main: {model: ''}}", "agents.main.model='' is not valid"),
    ("agents: {main: {model: }}", "agents.main.model=null is not valid"),
    ("agents: {main: {model: 5}}", "agents.main.model=5 is not valid"),
    ("agents: {main: {title: ''}}", "agents.main.title='' is not valid"),
    ('agents: {main: {title: "a\\nb"}}', "agents.main.title='a\\nb' is not valid"),
    (f"agents: {{main: {{system_prompt: {'x' * 65_537}}}}}", "text of at most 65536 characters"),
    (
        "agents: {main: {limits: {running: -1}}}",
        "limits.running=-1 is not valid: it takes a whole number from 0 to 100000",
    ),
    ("agents: {main: {limits: {running: true}}}", "limits.running=true is not valid"),
    ("agents: {main: {limits: {waiting: 1.5}}}", "limits.waiting=1.5 is not valid"),
    ("agents: {main: {limits: {waiting: '1'}}}", "limits.waiting='1' is not valid"),
    ("agents: {main: {limits: {waiting: 100001}}}", "limits.waiting=100001 is not valid"),
    # Files.
    ("agents: {main: {soul: none.md}}", "No such file"),
    ("agents: {main: {soul: skills}}", "it is not a file"),
    ("agents: {main: {soul: large}}", "more than 1048576 bytes"),
    ("agents: {main: {soul: binary}}", "which is not UTF-8"),
    (
        'agents: {main: {soul: "a\\0b"}}',
        "agents.main.soul='a\\x00b' is not valid: it takes the path",
    ),
    ("agents: {main: {soul: pipe}}", "it is not a file"),
    ("agents: {main: {skills: soul.md}}", "Not a directory"),
    ("agents: {main: {env_file: bad.env}}", "whose line 2 is not NAME=value"),
    (
        "agents: {main: {env_file: bridge.env}}",
        "sets MOLECULE_A2A_PLATFORM_PORT: the bridge sets it",
    ),
    (
        "peers:\n  a:\n    token_file: soul.md",
        "FILE:3: peers.a.token_file names a file without a secret: it takes",
    ),
    ("peers: {a: {token_file: short}}", "names a file without a secret"),
    (
        "peers: {a: {token_file: none}}",
        "FILE:1: peers.a.token_file names a file that cannot be read: No such file",
    ),
    # Hermes elsewhere.
    ("agents: {a: {hermes: {}}}", "FILE:1: agents.a.hermes needs either plugin or api"),
    (
        "agents: {a: {hermes: {plugin: 'http://x', api: 'http://x/v1'}}}",
        "needs either plugin or api",
    ),
    (
        "agents: {a: {hermes: {api: 'http://x'}}}",
        "hermes.api='http://x' is not valid: it takes a URL that ends in /v1",
    ),
    (
        "agents: {a: {hermes: {plugin: 'ftp://x'}}}",
        "hermes.plugin='ftp://x' is not valid: it takes a URL",
    ),
    ("agents: {a: {hermes: {plugin: 'http://x:99999'}}}", "is not valid: it takes a URL"),
    ("agents: {a: {hermes: {plugin: 'http://x/?a=b'}}}", "is not valid: it takes a URL"),
    (
        "agents: {a: {hermes: {plugin: 'http://x', profile: A}}}",
        "hermes.profile='A' is not valid: it takes a profile's name",
    ),
    (
        "agents: {a: {hermes: {plugin: 'http://x', profile: a/b}}}",
        "hermes.profile='a/b' is not valid",
    ),
    (
        "agents: {a: {hermes: {api: 'http://x/v1'}, models: [m]}}",
        "agents.a.models needs hermes.plugin",
    ),
    # Routes.
    ("routes: [{peer: a}]", "FILE:1: routes[1] needs an agent"),
    (
        "routes: [{agent: x}]",
        "FILE:1: routes[1].agent='x' is not valid: it takes the name of an agent: main",
    ),
    ("default: x", "FILE:1: default='x' is not valid: it takes the name of an agent: main"),
    ("agents: {a: {}, b: {}}", "FILE:1: agents has no agent 'main': add `default: NAME`"),
    ("routes: [{agent: main, tenant: ''}]", "routes[1].tenant='' is not valid: it takes a pattern"),
    ("routes: [{agent: main, peer: 5}]", "routes[1].peer=5 is not valid"),
    (
        "agents: {main: , a: }\nroutes: [{tenant: a, agent: main}]",
        "FILE:2: routes[1].tenant can never match: 'a' is an agent",
    ),
    ("peers: {a: {agents: [x*]}}", "FILE:1: peers.a.agents[1] matches no agent: 'x*'"),
    ("peers: {a: {agents: [main, other]}}", "peers.a.agents[2] matches no agent: 'other'"),
    ("peers: {a: {agents: []}}", "peers.a.agents is empty: the peer would reach no agent"),
    # YAML.
    ("agents:\n  main: {}\n  main: {}\n", "FILE:3: a key comes twice: it is in line 2, too"),
    ("agents: [", "FILE:1: not valid YAML"),
    ("agents:\n\t- x", "FILE:2: not valid YAML"),
    ("agents: !!python/object:os.system {}", "FILE:1: tags have no place here"),
    ("a: 1\n---\nb: 2", "FILE:2: the file has more than one document"),
    ("a: 1\nb: \0", "FILE:2: not valid YAML: a control character"),
    ('a: "\\ud800"', "FILE:1: an escaped character is none of Unicode's"),
    ('a: "\\UFFFFFFFF"', "FILE:1: not valid YAML"),
    ("a: *b", "FILE:1: an alias has no anchor before it"),
    ("a: &a [*a]", "FILE:1: an alias has no anchor before it"),
    ("? [a]\n: b", "FILE:1: a key is not text"),
    ("[" * 40 + "]" * 40, "FILE:1: values are nested more than 32 deep"),
    (b"agents:\n  main: {title: \xff}", "FILE:2: this is not UTF-8"),
    (b"#" * (MAX_BYTES + 1), "more than 1048576 bytes"),
]


@pytest.mark.parametrize(
    ("text", "line"), REFUSED, ids=[f"{n}-{str(t)[:40]!r}" for n, (t, _) in enumerate(REFUSED)]
)
def test_a_bad_value_is_one_line_that_says_where_it_stands_and_what_it_takes(
    folder: Path, text: str | bytes, line: str
) -> None:
    (folder / "short").write_text("123456789012345")
    (folder / "large").write_bytes(b"x" * (2**20 + 1))
    (folder / "binary").write_bytes(b"\xff\xfe")
    (folder / "bad.env").write_text("A=1\nnot a variable\n")
    (folder / "bridge.env").write_text("MOLECULE_A2A_PLATFORM_PORT=1\n")
    os.mkfifo(folder / "pipe")
    assert line in problem(folder, text)


@pytest.mark.parametrize(
    "key",
    [
        "isolation: peer",
        "model: m",
        "soul: soul.md",
        "skills: skills",
        "toolsets: [web]",
        "mcp_servers: {}",
        "hermes_config: {}",
        "env_file: keys.env",
    ],
)
def test_a_hermes_elsewhere_takes_nothing_that_only_its_own_folder_can_say(
    folder: Path, key: str
) -> None:
    text = f"agents:\n  a:\n    hermes: {{plugin: 'http://x'}}\n    {key}\n"
    name = key.partition(":")[0]
    expected = f"FILE:4: agents.a.{name} is for a Hermes that the bridge runs; this agent's Hermes"
    assert problem(folder, text).startswith(expected)


@pytest.mark.parametrize(
    ("config", "name", "instead"),
    [
        ("platforms: {molecule_a2a: {enabled: false}}", "platforms.molecule_a2a", "remove it"),
        ("platforms: {api_server: {}}", "platforms.api_server", "remove it"),
        ("molecule_a2a: {}", "molecule_a2a", "remove it"),
        ("plugins: {enabled: []}", "plugins", "remove it"),
        ("plugins: ", "plugins", "remove it"),
        ("gateway: {api_server: {max_concurrent_runs: 1}}", "gateway.api_server", "remove it"),
        ("gateway: {platforms: {molecule_a2a: {}}}", "gateway.platforms.molecule_a2a", "remove it"),
        ("gateway: {multiplex_profiles: true}", "gateway.multiplex_profiles", "remove it"),
        ("approvals: {mode: off}", "approvals.mode", "use the agent's `approvals`"),
        ("model: {default: x}", "model", "use the agent's `model`"),
        ("mcp_servers: {}", "mcp_servers", "use the agent's `mcp_servers`"),
        ("platform_toolsets: {api_server: []}", "platform_toolsets.api_server", "`toolsets`"),
        ("terminal: {cwd: /}", "terminal.cwd", "remove it"),
    ],
)
def test_what_the_bridge_writes_into_hermes_config_cannot_be_set(
    folder: Path, config: str, name: str, instead: str
) -> None:
    line = problem(folder, f"agents: {{main: {{hermes_config: {{{config}}}}}}}")
    assert f"agents.main.hermes_config.{name} is decided by the bridge: " in line
    assert instead in line


def test_a_section_of_hermes_config_that_the_bridge_merges_into_must_be_one(folder: Path) -> None:
    line = problem(folder, "agents: {main: {hermes_config: {approvals: [manual]}}}")
    assert "agents.main.hermes_config.approvals=[…] is not valid: it takes a mapping" in line


@pytest.mark.parametrize(
    ("routes", "number", "earlier"),
    [
        ("[{agent: main}, {peer: a, agent: main}]", 1, 0),
        ("[{peer: a*, agent: main}, {peer: ab, agent: main}]", 1, 0),
        ("[{peer: a*, agent: main}, {peer: ab*, agent: main}]", 1, 0),
        ("[{peer: a, agent: main}, {peer: a, context: 'x*', agent: main}]", 1, 0),
        ("[{tenant: t*, agent: main}, {tenant: tx, peer: b, agent: main}]", 1, 0),
        ("[{skill: s, agent: main}, {tenant: t, agent: main}, {skill: s, agent: main}]", 2, 0),
        ("[{context: a, agent: main}, {peer: '*', agent: main}, {peer: b, agent: main}]", 2, 1),
    ],
)
def test_a_route_that_an_earlier_one_makes_useless_is_refused(
    folder: Path, routes: str, number: int, earlier: int
) -> None:
    line = problem(folder, f"routes: {routes}", MOLECULE_HERMES_PEER_TOKENS=f"ab:{TOKEN}")
    assert f"FILE:1: routes[{number + 1}] can never match: routes[{earlier + 1}] (line 1)" in line


def test_routes_that_overlap_and_are_of_use_are_taken(folder: Path) -> None:
    text = """
routes:
  - {peer: ab, agent: main}
  - {peer: "a*", agent: main}
  - {peer: "a*", tenant: t, agent: main}
  - {peer: "a*", tenant: "*", agent: main}
  - {peer: "[a-c]", context: "x*", agent: main}
  - {context: "x*", agent: main}
  - {context: "*", agent: main}
  - {tenant: "z", agent: main}
"""
    assert len(load(folder, text).routes) == 8


def test_toolsets_of_a_peer_are_refused_for_an_agent_behind_an_api(folder: Path) -> None:
    text = (
        "agents:\n  main:\n  far: {hermes: {api: 'http://x/v1'}}\n"
        "peers:\n  a:\n    agents: ['f*']\n    toolsets: [web]\n"
    )
    line = problem(folder, text)
    assert line.startswith("FILE:7: peers.a.toolsets cannot be enforced for agent 'far'")
    assert load(folder, text.replace("f*", "m*")).peers["a"].toolsets == ("web",)
    elsewhere = text.replace("api: 'http://x/v1'", "plugin: 'http://x'")
    assert load(folder, elsewhere).peers["a"].toolsets == ("web",)


def test_the_config_variable_must_name_a_file(tmp_path: Path) -> None:
    for name, reason in (("none.yaml", "No such file"), (".", "it is not a file")):
        settings = Settings.from_env({"MOLECULE_HERMES_CONFIG": str(tmp_path / name)})
        with pytest.raises(ConfigError, match=reason) as caught:
            load_configuration(settings)
        assert "MOLECULE_HERMES_CONFIG" in str(caught.value)


def test_what_may_be_a_mistake_is_a_warning(folder: Path) -> None:
    (folder / "secret").chmod(0o644)
    (folder / "keys.env").chmod(0o604)
    text = (
        "agents: {main: {env_file: keys.env}}\n"
        "routes: [{peer: 'x*', agent: main}]\n"
        "peers:\n  a: {token_file: secret}\n  b: {}\n  c: {}\n"
    )
    settings = settings_for(folder, text, MOLECULE_HERMES_PEER_TOKENS="c:0123456789abcdef")
    file = settings.config
    assert load_configuration(settings).warnings == (
        f"{file}:1: every user of this machine can read agents.main.env_file",
        f"{file}:4: every user of this machine can read peers.a.token_file",
        f"{file}:5: peers.b has no token_file, and is not in MOLECULE_HERMES_PEER_TOKENS: "
        "it cannot call",
        f"{file}:2: routes[1] is for peers like 'x*', and no such peer is known",
    )


def test_a_secret_is_in_no_message_and_no_repr(folder: Path) -> None:
    for text in (
        f"peers: {{a: {TOKEN}}}",
        f"peers: {{a: {{token_file: {TOKEN}}}}}",
        f"peers: {{a: {{token_file: [{TOKEN}]}}}}",
        f"peers: [{{a: {TOKEN}}}]",
        f"peers: a:{TOKEN}",
        f"peers: {{'a:{TOKEN}': {{}}}}",
        f"peers: ['a:{TOKEN}']",
        f"peers: {{a: {{token: {TOKEN}}}}}",
        f"agents: {{a: {{hermes: {{plugin: 'http://u:{TOKEN}@x'}}}}}}",
        f"agents: {{a: {{hermes: {{plugin: 'http://x', secret_file: {TOKEN}}}}}}}",
        f"agents: {{a: {{env_file: keys.env, api_key: {TOKEN}}}}}",
        f"agents: {{main: {{hermes_config: {{model: {{api_key: {TOKEN}}}}}}}}}",
    ):
        assert TOKEN not in problem(folder, text)
    found = load(folder, WHOLE, MOLECULE_HERMES_PEER_TOKENS="alice@example.com:0123456789abcdef")
    assert TOKEN not in repr(found)
    assert "sk-or-12345678" not in repr(found)


def test_the_peers_of_the_file_are_added_to_those_of_the_environment(folder: Path) -> None:
    text = "peers: {a: {token_file: secret}, b: {approvals: deny}}"
    settings = settings_for(folder, text, MOLECULE_HERMES_PEER_TOKENS="b:0123456789abcdef")
    merged = with_peers(settings, load_configuration(settings))
    tokens = {name: token.get_secret_value() for name, token in merged.peer_tokens.items()}
    assert tokens == {"b": "0123456789abcdef", "a": TOKEN}
    assert list(settings.peer_tokens) == ["b"]
    assert merged.has_several_peers


@pytest.mark.parametrize(
    ("peers", "environ", "line"),
    [
        (
            "a: {token_file: secret}",
            "a:0123456789abcdef",
            "FILE:2: peers.a has a token_file, and 'a' is in MOLECULE_HERMES_PEER_TOKENS, too",
        ),
        (
            "a: {token_file: secret}",
            f"b:{TOKEN}",
            "FILE:2: peers.a has the token of 'b' in MOLECULE_HERMES_PEER_TOKENS",
        ),
        (
            "a: {token_file: secret}\n  b: {token_file: secret}",
            "",
            "FILE:3: peers.b has the token of peers.a (FILE:2)",
        ),
    ],
)
def test_a_name_or_token_that_comes_twice_names_both_places(
    folder: Path, peers: str, environ: str, line: str
) -> None:
    settings = settings_for(folder, f"peers:\n  {peers}\n", MOLECULE_HERMES_PEER_TOKENS=environ)
    configuration = load_configuration(settings)
    with pytest.raises(ConfigError) as caught:
        with_peers(settings, configuration)
    assert str(caught.value).replace(str(settings.config), "FILE") == line


@pytest.mark.parametrize(
    ("agent", "environ", "peers", "isolation"),
    [
        ("", {}, 0, "shared"),
        ("", {}, 1, "shared"),
        ("", {}, 2, "peer"),
        ("", {"SHARED_MEMORY": "true"}, 2, "shared"),
        ("", {"ISOLATION": "peer"}, 1, "peer"),
        ("", {"ISOLATION": "peer", "SHARED_MEMORY": "true"}, 2, "peer"),
        ("", {"ISOLATION": "shared"}, 2, "shared"),
        ("isolation: shared", {"ISOLATION": "peer"}, 2, "shared"),
        ("isolation: peer", {"ISOLATION": "shared"}, 1, "peer"),
        ("hermes: {plugin: 'http://x'}", {"ISOLATION": "peer"}, 2, "shared"),
    ],
)
def test_isolation_is_the_agents_then_the_settings_then_by_the_number_of_peers(
    folder: Path, agent: str, environ: dict[str, str], peers: int, isolation: str
) -> None:
    ours = {f"MOLECULE_HERMES_{name}": value for name, value in environ.items()}
    settings = settings_for(folder, f"agents: {{main: {{{agent}}}}}", **ours)
    main = load_configuration(settings).agents["main"]
    assert isolation_of(main, settings, peers=peers) == isolation


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ("main: {}", True),
        ("main: {isolation: peer}", False),
        ("main: {soul: SOUL.md}", False),
        ("main: {hermes: {plugin: 'http://x'}}", False),
        ("other: {}", False),
        ("main: {}, research: {hermes: {plugin: 'http://x'}}", True),
        # An agent that lives in the folder must not change what another one is made from.
        ("main: {}, research: {}", False),
        ("main: {isolation: shared}, research: {isolation: peer}", False),
    ],
)
def test_the_main_agent_lives_in_the_operators_folder_only_if_that_is_no_template(
    folder: Path, agents: str, expected: bool
) -> None:
    (folder / "SOUL.md").write_text("You are a test.")
    default = agents.partition(":")[0]
    settings = settings_for(folder, f"{{agents: {{{agents}}}, default: {default}}}")
    assert uses_main_hermes(settings, load_configuration(settings)) is expected


def test_aliases_of_aliases_do_not_fill_the_memory(folder: Path) -> None:
    lines = ["agents: {main: {hermes_config: {", "a0: &a0 [x, x, x, x, x, x, x, x, x, x],"]
    for n in range(1, 12):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}],")
    assert "the aliases repeat too much" in problem(folder, "\n".join([*lines, "}}}"]))


@pytest.mark.parametrize(
    ("section", "entry", "count"),
    [("agents", "a{n}: {{}}", 1001), ("peers", "p{n}: ", 10_001), ("routes", "- r", 10_001)],
)
def test_the_sections_are_bounded(folder: Path, section: str, entry: str, count: int) -> None:
    lines = [f"  {entry.format(n=n)}" for n in range(count)]
    line = problem(folder, "\n".join([f"{section}:", *lines]))
    assert f"FILE:1: {section} has {count} entries, and may have {count - 1}" in line


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=8))
KEYS = (*AgentConfig.__dataclass_fields__, *PeerConfig.__dataclass_fields__)
KEYS += ("agents", "routes", "peers", "default", "tenant", "peer", "agent", "plugin", "api", "main")


def yaml_like() -> st.SearchStrategy[Any]:
    keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=4))
    return st.recursive(
        PLAIN,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=20,
    )


def _loads_or_is_refused(folder: Path, data: bytes) -> None:
    try:
        found = load(folder, data)
    except ConfigError as error:
        assert re.fullmatch(r"[^\n]+", str(error))
        return
    assert found.default in found.agents
    assert all(route.agent in found.agents for route in found.routes)


fuzz = hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(st.binary(max_size=200))
def test_any_bytes_are_a_configuration_or_a_config_error(folder: Path, data: bytes) -> None:
    _loads_or_is_refused(folder, data)


@fuzz
@given(st.text("abc:-[]{},&*!?|>'\"%@#~<\n\t \\xuU09é\0\ufeff\u2028", max_size=60))
def test_any_text_of_yamls_characters_is_a_configuration_or_a_config_error(
    folder: Path, text: str
) -> None:
    _loads_or_is_refused(folder, text.encode())


@fuzz
@given(yaml_like())
def test_any_structure_is_a_configuration_or_a_config_error(folder: Path, value: Any) -> None:
    _loads_or_is_refused(folder, json.dumps(value).encode())


@fuzz
@given(st.integers(0, len(WHOLE)), st.integers(0, 12), st.text(":{}[]-x \n*&", max_size=3))
def test_a_damaged_file_is_a_configuration_or_a_config_error(
    folder: Path, start: int, length: int, put: str
) -> None:
    _loads_or_is_refused(folder, (WHOLE[:start] + put + WHOLE[start + length :]).encode())


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_tree_has_what_the_text_says(value: Any) -> None:
    def plain(tree: Any) -> Any:
        if isinstance(tree.value, dict):
            return {key: plain(each) for key, each in tree.value.items()}
        return [plain(e) for e in tree.value] if isinstance(tree.value, list) else tree.value

    try:
        found = plain(parse_yaml(json.dumps(value).encode()))
    except YamlProblem:
        return
    assert found == value
