"""`molecule-hermes agents`: what it lists, and which agent it says that a request gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from molecule_hermes.cli.agents import Overview
from molecule_hermes.cli.main import main
from molecule_hermes.config import Settings

SECRET = "the-token-of-carol-0123"
TEXT = """
agents:
  main: {description: "Answers\\neverything"}
  research: {hermes: {plugin: "http://10.0.0.7:8645", profile: lab}, title: Research}
  far: {hermes: {api: "http://10.0.0.8:8642/v1"}}
routes:
  - {peer: "billing-*", agent: research}
  - {tenant: ops, context: "a*", skill: deploy, agent: far}
peers:
  bob: {agents: [main]}
  carol: {token_file: token}
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "agents.yaml"
    file.write_text(TEXT)
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setenv("MOLECULE_HERMES_CONFIG", str(file))
    monkeypatch.setenv("MOLECULE_HERMES_PEER_TOKENS", "bob:0123456789abcdef")
    return file


def test_it_lists_agents_routes_and_peers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "agents",
        "  main      peer    managed                             Answers everything",
        "  research  shared  http://10.0.0.7:8645 (profile lab)  Research",
        "  far       shared  http://10.0.0.8:8642/v1",
        "routes",
        "  1  peer=billing-*                      → research",
        "  2  tenant=ops context=a* skill=deploy  → far",
        "     otherwise                           → main",
        "peers",
        "  bob, carol",
    ]


@pytest.mark.parametrize(
    ("arguments", "line", "code"),
    [
        (["--peer", "carol"], "a request with peer 'carol': agent main, by the default", 0),
        (["--peer", "billing-x"], "agent research, by route 1", 0),
        (["--peer", "carol", "--tenant", "far"], "agent far, by its tenant", 0),
        (["--tenant", "ops", "--context", "a1", "--skill", "deploy"], "agent far, by route 2", 0),
        (["--peer", "carol", "--tenant", "ops"], "refused: the tenant is not an agent, and no", 1),
        (["--peer", "bob", "--tenant", "far"], "refused: its tenant leads to agent far, which", 1),
        (["--peer", ""], "a request: agent main, by the default", 0),
    ],
)
def test_it_says_which_agent_a_request_gets_and_why(
    arguments: list[str], line: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agents", *arguments]) == code
    first, *notes = capsys.readouterr().out.splitlines()
    assert line in first
    known = "bob" in arguments or "carol" in arguments
    assert bool(notes) == (not known)


def test_the_lists_are_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "--json"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert [agent["name"] for agent in found["agents"]] == ["main", "research", "far"]
    assert found["agents"][0]["hermes"] is None
    assert found["agents"][0]["isolation"] == "peer"
    assert found["agents"][1]["hermes"]["profile"] == "lab"
    assert found["routes"][0] == {"agent": "research", "peer": "billing-*"}
    assert (found["default"], found["peers"]) == ("main", ["bob", "carol"])
    assert SECRET not in printed


def test_an_answer_is_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "--json", "--peer", "billing-x"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["agent"], found["route"], found["refused"]) == ("research", 1, None)
    assert found["note"] == "no peer has the name 'billing-x'"
    assert main(["agents", "--json", "--peer", "bob", "--tenant", "far"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["agent"], found["route"]) == (None, None)
    assert "may not reach" in found["refused"]


def test_a_bad_file_is_one_line_and_exits_2(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("agents:\n  main: {isolation: x}\n")
    assert main(["agents"]) == 2
    printed = capsys.readouterr()
    takes = "agents.main.isolation='x' is not valid: it takes shared or peer"
    assert printed.err == f"molecule-hermes: {file}:2: {takes}\n"
    assert printed.out == ""


def test_a_token_that_comes_twice_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOLECULE_HERMES_PEER_TOKENS", f"dave:{SECRET}")
    assert main(["agents"]) == 2
    error = capsys.readouterr().err
    assert "peers.carol has the token of 'dave' in MOLECULE_HERMES_PEER_TOKENS" in error
    assert SECRET not in error


def test_warnings_go_to_standard_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "token").chmod(0o644)
    assert main(["agents", "--json"]) == 0
    printed = capsys.readouterr()
    assert "every user of this machine can read peers.carol.token_file" in printed.err
    assert json.loads(printed.out)["warnings"]


def test_without_a_file_there_is_one_agent_for_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MOLECULE_HERMES_CONFIG")
    monkeypatch.delenv("MOLECULE_HERMES_PEER_TOKENS")
    assert main(["agents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "agents",
        "  main  shared  managed",
        "routes",
        "    otherwise  → main",
        "peers",
        "  none: callers need no token",
    ]


def test_the_agents_that_each_may_ask_are_listed(file: Path) -> None:
    file.write_text(
        "agents:\n  main: {}\n  quiet: {calls: []}\npeers:\n"
        "  bee: {url: 'http://bee.example'}\n  wasp: {url: 'http://wasp.example'}\n"
    )
    overview = Overview(Settings.from_env({"MOLECULE_HERMES_CONFIG": str(file)}))
    lines = list(overview.lines())
    assert lines[-3:] == ["other agents that they may ask", "  main   bee, wasp", "  quiet  none"]
    assert [each["calls"] for each in overview.as_json()["agents"]] == [["bee", "wasp"], []]
