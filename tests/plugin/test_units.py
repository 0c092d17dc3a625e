"""The small parts: prompts, files, settings, hooks, and the plugin's registration."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes import plugin
from molecule_hermes.plugin import PluginSettings, files, hermes_settings, prompts, settings
from molecule_hermes.plugin.hooks import Effect, Hooks
from molecule_hermes.plugin.turn import Turn
from molecule_hermes.wire import Attachment, Callback, Inbound, Tool, Usage


@given(st.text() | st.from_regex(r"\s*[/@](file|diff|git|url|stop)[: ]?.*"))
def test_a_peers_text_is_neither_a_command_nor_a_reference(text: str) -> None:
    from agent.context_references import parse_context_references
    from gateway.platforms.base import MessageEvent

    said = prompts.neutralized(text)
    assert not MessageEvent(said).is_command()
    assert parse_context_references(said) == []
    assert said.replace(" ", "") == text.replace("\x00", "").replace(" ", "")


def test_ordinary_text_is_unchanged() -> None:
    text = "mail bob@example.com, see a/b and @someone; diff@git"
    assert prompts.neutralized(text) == text


def test_the_agent_learns_of_files_that_were_not_delivered() -> None:
    assert prompts.with_refusals("hello", []) == "hello"
    told = prompts.with_refusals("hello", ["the file a is not available"])
    assert told == "[Your last answer: the file a is not available]\n\nhello"


def test_an_attachments_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    names = (
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        "a\\b:c",
        "x" * 300,
        "漢" * 200,
        "ünï.txt",
        "",
    )
    saved: list[Path] = []
    for name in names:
        path = files.save(Attachment(name, "text/plain", b"x"), tmp_path / "cache", saved)
        assert path.parent == tmp_path / "cache"
        assert path.read_bytes() == b"x"
        files.remove([path, path])
        assert not path.exists()
    assert len(set(saved)) == len(names)


def test_a_partially_written_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    saved: list[Path] = []
    with pytest.raises(OSError, match="no space"):
        files.save(Attachment("a", "text/plain", b"x"), tmp_path, saved)
    files.remove(saved)
    assert list(tmp_path.iterdir()) == []


def test_files_left_by_a_crash_are_told_from_those_of_other_platforms(tmp_path: Path) -> None:
    saved: list[Path] = []
    files.save(Attachment("my file.pdf", "application/pdf", b"x"), tmp_path, saved)
    for other in ("doc_0123456789ab_a.pdf", "a2a_notes.txt", "a2a_0123456789xy_a.pdf"):
        (tmp_path / other).touch()
    assert files.left_over(tmp_path) == saved
    assert files.left_over(tmp_path / "missing") == []


def test_a_file_that_cannot_be_removed_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    files.remove([tmp_path / "folder", tmp_path / "file"])
    assert not (tmp_path / "file").exists()


def test_only_files_that_the_agent_created_are_read(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "work"
    for folder in (home / "cache" / "images", home / "cache" / "delegation", cwd):
        folder.mkdir(parents=True)
    made = cwd / "a.txt"
    cached, private, elsewhere = home / "cache" / "images" / "b", home / "state.db", tmp_path / "c"
    another_turns = home / "cache" / "delegation" / "task.log"
    for path in (made, cached, private, elsewhere, another_turns):
        path.write_text("content")
    link = cwd / "link"
    link.symlink_to(private)

    def readable(path: Path, cwd: Path = cwd) -> bool:
        try:
            files.read_file(str(path), cwd=cwd, home=home, limit=100)
        except files.FileRefusedError as error:
            assert str(tmp_path) not in str(error)
            return False
        return True

    assert readable(made)
    assert readable(cached)
    assert not readable(private)
    assert not readable(elsewhere)
    assert not readable(another_turns)
    assert not readable(link)
    assert not readable(cwd)
    # A working directory around Hermes's home, or the home itself, opens nothing in it.
    for wide in (tmp_path, home):
        assert not readable(private, wide)
        assert readable(cached, wide)
    inside = home / "work"
    inside.mkdir()
    (inside / "d").write_text("x")
    assert readable(inside / "d", inside)
    # Without a setting the working directory is the user's home, with what is hidden there.
    for hidden in (cwd / ".netrc", cwd / ".config" / "keys", cwd / "a" / ".b" / "c"):
        hidden.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_text("x")
        assert not readable(hidden)


@pytest.mark.parametrize("name", ["loop", "x" * 300, "a\0b"])
def test_an_invalid_path_is_refused_like_any_other(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(files.FileRefusedError, match="is not available") as refused:
        files.read_file(f"{tmp_path}/{name}", cwd=tmp_path, home=tmp_path / "h", limit=10)
    assert str(tmp_path) not in str(refused.value)


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.png"
    path.write_bytes(bytes(11))
    with pytest.raises(files.FileRefusedError, match=r"big\.png was not .* 11 bytes, and 10 are"):
        files.read_file(str(path), cwd=tmp_path, home=tmp_path / "h", limit=10)
    read = files.read_file(str(path), cwd=tmp_path, home=tmp_path / "h", limit=11)
    assert (read.name, read.media_type, read.data) == ("big.png", "image/png", bytes(11))


def test_a_link_keeps_its_address() -> None:
    file = files.linked_file("https://x.example/a/b%20c.gif?size=1")
    assert (file.name, file.media_type) == ("b c.gif", "image/gif")
    assert files.linked_file("https://x.example").name == "image"
    for bad in ("https://x.example/" + "x" * 3000, "file:///etc/passwd"):
        with pytest.raises(files.FileRefusedError, match="not delivered"):
            files.linked_file(bad)


def test_config_yaml_takes_precedence_over_the_environment() -> None:
    env = {
        "MOLECULE_A2A_PLATFORM_HOST": "0.0.0.0",
        "MOLECULE_A2A_PLATFORM_PORT": "9000",
        "MOLECULE_A2A_PLATFORM_SHARED_SECRET": "s3cret",
    }
    from_env = PluginSettings.from_extra({}, env)
    assert (from_env.host, from_env.port, from_env.secret) == ("0.0.0.0", 9000, "s3cret")
    given_both = PluginSettings.from_extra({"port": 9001, "max_chats": 7}, env)
    assert (given_both.host, given_both.port, given_both.max_chats) == ("0.0.0.0", 9001, 7)
    assert PluginSettings.from_extra({}, {}) == PluginSettings()
    assert "s3cret" not in repr(from_env)


@pytest.mark.parametrize(
    "extra",
    [
        {"port": "x"},
        {"port": 70000},
        {"port": True},
        {"max_body": -1},
        {"retry_for": "x"},
        {"host": "0.0.0.0"},
    ],
)
def test_an_invalid_setting_is_named(extra: dict[str, Any]) -> None:
    (name,) = extra
    with pytest.raises(ValueError, match=name):
        PluginSettings.from_extra(extra, {})


@pytest.mark.parametrize(
    ("env", "enabled"),
    [
        ({}, False),
        ({"MOLECULE_A2A_PLATFORM_ENABLED": "true"}, True),
        ({"MOLECULE_A2A_PLATFORM_PORT": "9000"}, True),
        ({"MOLECULE_A2A_PLATFORM_ENABLED": "false", "MOLECULE_A2A_PLATFORM_PORT": "1"}, False),
    ],
)
def test_the_environment_can_enable_the_platform(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], enabled: bool
) -> None:
    for name in ("MOLECULE_A2A_PLATFORM_ENABLED", "MOLECULE_A2A_PLATFORM_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    seed = settings.enabled_by_env()
    assert bool(seed) is enabled
    # Hermes lays it over config.yaml: it must not carry a host or a port.
    assert not seed or set(seed) == {"enabled_by_env"}


def test_hermess_settings_contain_what_the_plugin_needs_and_no_secret() -> None:
    told = hermes_settings("127.0.0.1", 9000)
    assert told["plugins"]["enabled"] == ["molecule-a2a"]
    stanza = told["platforms"]["molecule_a2a"]
    assert stanza["enabled"] is True
    assert stanza["extra"] == {"host": "127.0.0.1", "port": 9000}
    assert stanza["home_channel"]["platform"] == "molecule_a2a"


def test_the_entry_point_is_a_module_with_register() -> None:
    (found,) = entry_points(group="hermes_agent.plugins", name="molecule-a2a")
    assert found.value == "molecule_hermes.plugin"
    assert found.load() is plugin
    assert callable(plugin.register)


def test_the_plugin_imports_without_hermes_and_without_the_bridge() -> None:
    code = (
        "import sys, molecule_hermes.plugin, molecule_hermes.plugin.endpoints,"
        " molecule_hermes.plugin.hooks\n"
        "roots = {name.split('.')[0] for name in sys.modules}\n"
        "assert not roots & {'gateway', 'tools', 'agent', 'a2a', 'starlette', 'httpx'}, roots\n"
        "ours = {n for n in sys.modules if n.startswith('molecule_hermes.')}\n"
        "rooms = ('plugin', 'wire', 'errors', 'provider_errors', 'text', 'backoff',"
        " 'keyed_tasks')\n"
        "known = tuple('molecule_hermes.' + n for n in rooms)\n"
        "assert all(n.startswith(known) for n in ours), ours\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Hearing:
    def __init__(self) -> None:
        self.turn = Turn(Inbound("c", "p", "m", "http://127.0.0.1:1/", "hi"))
        self.told: list[Callback] = []
        self.names: list[str] = []

    def on_hook(self, message_id: str, effect: Effect) -> None:
        self.names.append(message_id)
        dispatcher: Any = SimpleNamespace(emit=lambda turn, callback: self.told.append(callback))
        effect(dispatcher, self.turn)


@pytest.fixture
def hearing(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Hearing()
    hooks = Hooks()
    registered: dict[str, Any] = {}
    hooks.register(SimpleNamespace(register_hook=registered.__setitem__))
    hooks.attach(made)
    current = SimpleNamespace(message_id="m")
    monkeypatch.setattr(
        "molecule_hermes.plugin.hooks.current_message_id", lambda: current.message_id
    )

    def fire(name: str, **given: Any) -> None:
        # Anything but None would be taken for a directive.
        assert registered[name](telemetry_schema_version=1, **given) is None

    return SimpleNamespace(fire=fire, current=current, turn=made.turn, told=made.told)


def test_hooks_record_how_a_turn_went(hearing: Any) -> None:
    hearing.fire("pre_llm_call", platform="molecule_a2a")
    assert hearing.turn.agent_ran
    hearing.fire(
        "api_request_error", platform="molecule_a2a", status_code=429, error={"message": "slow"}
    )
    assert hearing.turn.failure.kind == "rate_limit"
    usage = {"prompt_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    hearing.fire("post_api_request", platform="molecule_a2a", usage=usage, model="m1")
    assert hearing.turn.usage == Usage(3, 4, 7, "m1")
    hearing.fire("post_llm_call", platform="molecule_a2a", assistant_response="hi")
    assert (hearing.turn.answer, hearing.turn.failure) == ("hi", None)
    hearing.fire("on_session_end", platform="molecule_a2a", interrupted=True)
    assert hearing.turn.interrupted


def test_a_subagent_does_not_answer_for_the_agent(hearing: Any) -> None:
    hearing.fire("post_llm_call", platform="subagent", assistant_response="inner thought")
    hearing.current.message_id = ""
    hearing.fire("post_llm_call", platform="molecule_a2a", assistant_response="no turn")
    assert hearing.turn.answer is None


def test_tool_calls_are_reported_briefly_and_without_secrets(hearing: Any) -> None:
    arguments = {"command": "curl -H 'Authorization: Bearer abcdefghijk' " + "x" * 500}
    hearing.fire("pre_tool_call", tool_name="terminal", args=arguments)
    hearing.fire("post_tool_call", tool_name="t", args={"n": 1}, duration_ms=1500, status="error")
    began, ended = (callback.body for callback in hearing.told)
    assert isinstance(began, Tool)
    assert len(began.preview) == 200
    assert "abcdefghijk" not in began.preview
    assert ended == Tool("t", "end", '{"n": 1}', 1.5, False)
