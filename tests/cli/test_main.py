"""The command line: arguments, exit codes and error lines."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from molecule_hermes.cli.main import _Redacted, main
from molecule_hermes.config import Settings
from molecule_hermes.turns.model import Completed
from tests.conftest import StartBridge
from tests.support.fakes import ScriptedTransport
from tests.support.serving import free_port


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "molecule_hermes", *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", ["up", "serve", "send", "watch", "agents", "card", "doctor"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert command in capsys.readouterr().out


def test_ctrl_c_while_the_command_loads_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    command = [sys.executable, "-m", "molecule_hermes", "card"]
    ended = subprocess.run(
        command,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=False,
        # Where the tests run in the background, children are born deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (130, b"")


def test_a_wrong_command_exits_2() -> None:
    assert run("dance").returncode == 2
    assert run().returncode == 2


def test_a_bad_setting_is_one_line_and_exits_2() -> None:
    ended = run("up", MOLECULE_HERMES_PORT="http")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "MOLECULE_HERMES_PORT='http'" in ended.stderr


def test_a_host_beyond_loopback_without_tokens_does_not_start() -> None:
    for command in ("up", "serve"):
        ended = run(command, MOLECULE_HERMES_HOST="0.0.0.0")
        assert ended.returncode == 2
        assert "PEER_TOKENS" in ended.stderr
        assert "ALLOW_ANONYMOUS" in ended.stderr


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"MOLECULE_HERMES_HOST": "0.0.0.0"}, ["on loopback only", "MOLECULE_HERMES_HOST=0.0.0.0"]),
        ({"MOLECULE_HERMES_DEMO": "never"}, ["MOLECULE_HERMES_DEMO=never"]),
        ({"HERMES_INFERENCE_MODEL": "openrouter/x"}, ["HERMES_INFERENCE_MODEL='openrouter/x'"]),
        ({"HERMES_DEFAULT_MODEL": "xai/x", "GROK_KEY": "v"}, ["GROK_KEY is set", "XAI_API_KEY"]),
    ],
)
def test_a_missing_model_key_is_one_line_that_names_look_alikes(
    tmp_path: Path, environ: dict[str, str], words: list[str]
) -> None:
    ended = run(
        "up",
        MOLECULE_HERMES_STATE_DIR=str(tmp_path),
        MOLECULE_HERMES_PORT=str(free_port()),
        HERMES_API_BASE=f"http://127.0.0.1:{free_port()}/v1",
        MOLECULE_HERMES_PEER_TOKENS="alice:token-0123456789abcdef",
        OPENROUTER_KEY="the-mistyped-key",
        **environ,
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "looked for" in ended.stderr
    if "HERMES_DEFAULT_MODEL" not in environ:
        words = [*words, "OPENROUTER_KEY is set: did you mean OPENROUTER_API_KEY?"]
    assert [word for word in words if word not in ended.stderr] == []
    assert "the-mistyped-key" not in ended.stderr


def test_a_model_of_the_user_is_not_replaced_by_the_demo_model(tmp_path: Path) -> None:
    config = tmp_path / "hermes" / "config.yaml"
    config.parent.mkdir()
    config.write_text("model: {default: mine, provider: xai}\n")
    ended = run(
        "up",
        MOLECULE_HERMES_STATE_DIR=str(tmp_path),
        MOLECULE_HERMES_PORT=str(free_port()),
        HERMES_API_BASE=f"http://127.0.0.1:{free_port()}/v1",
        MOLECULE_HERMES_DEMO="always",
    )
    assert ended.returncode == 2
    assert "would replace the model" in ended.stderr
    assert config.read_text() == "model: {default: mine, provider: xai}\n"


@pytest.mark.parametrize("command", [["send", "hi"], ["card"]])
def test_an_agent_that_does_not_answer_is_one_line_and_exits_1(command: list[str]) -> None:
    ended = run(*command, "--url", f"http://127.0.0.1:{free_port()}")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "molecule-hermes up" in ended.stderr


def test_the_doctor_names_each_failure_and_what_to_do(tmp_path: Path) -> None:
    ended = run(
        "doctor",
        MOLECULE_HERMES_STATE_DIR=str(tmp_path),
        MOLECULE_HERMES_PORT=str(free_port()),
        HERMES_API_BASE=f"http://127.0.0.1:{free_port()}/v1",
    )
    assert ended.returncode == 1
    for what in ("hermes", "key", "bridge", "card", "turn"):
        assert f"FAIL  {what}" in ended.stdout
    assert ended.stdout.count("→") == ended.stdout.count("FAIL")
    assert "ok    python" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("command", [["send", "hi"], ["card"], ["doctor"]])
@pytest.mark.parametrize("wrong", ["--url=http://127.0.0.1:http", "--url=here", "--token=ü"])
def test_a_wrong_argument_is_one_line_and_exits_2(command: list[str], wrong: str) -> None:
    ended = run(*command, wrong)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_a_file_that_cannot_be_read_is_one_line_and_exits_1(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    port = {"MOLECULE_HERMES_PORT": "0", "HERMES_API_BASE": f"http://127.0.0.1:{free_port()}/v1"}
    ended = run("up", HERMES_HOME=str(tmp_path), **port)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert str(tmp_path / "config.yaml") in ended.stderr


async def test_a_text_that_is_not_utf8_is_sent_with_replacement_characters(
    bridge: StartBridge,
) -> None:
    transport = ScriptedTransport(Completed("done"))
    async with bridge(transport) as b:
        ended = await asyncio.to_thread(run, "send", "caf\udce9", "--url", b.url)
    assert ended.returncode == 0
    assert transport.turns[0].text == "caf\N{REPLACEMENT CHARACTER}"


def test_a_bad_request_is_one_line_in_the_log() -> None:
    error = ValueError("what the peer sent\n2026 ERROR forged: " + "x" * 10_000)
    raised = (ValueError, error, None)
    record = logging.LogRecord("a2a.server", logging.ERROR, "f", 1, "bad %s", ("params",), raised)
    text = _Redacted(None).format(record)
    assert text.startswith("bad params (what the peer sent 2026")
    assert "\n" not in text
    assert len(text) < 600


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no ::1")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_a_message_is_sent_to_a_bridge_on_ipv6_loopback(
    bridge: StartBridge, host: str
) -> None:
    transport = ScriptedTransport(Completed("done"))
    async with bridge(transport, HOST=host) as b:
        port = b.url.rpartition(":")[2]
        environ = {"MOLECULE_HERMES_HOST": host, "MOLECULE_HERMES_PORT": port}
        ended = await asyncio.to_thread(run, "send", "hi", **environ)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert transport.turns[0].text == "hi"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://127.0.0.1:8000"),
        ("[::]", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
        ("agent.example", "http://agent.example:8000"),
    ],
)
def test_commands_on_the_same_machine_find_the_bridge(host: str, url: str) -> None:
    assert Settings.from_env({"MOLECULE_HERMES_HOST": host}).local_url == url


def test_enabling_the_plugin_names_the_workspaces_mcp_servers(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mcp_servers: {files: {command: files-server}}")
    home = tmp_path / "hermes"
    environ = {"WORKSPACE_CONFIG_PATH": str(tmp_path)}
    done = run("plugin", "enable", "--hermes-home", str(home), **environ)
    assert done.returncode == 0
    assert "mcp      files (from the workspace's config.yaml)" in done.stdout
    assert "files-server" in (home / "config.yaml").read_text()
    if importlib.util.find_spec("mcp") is None:
        assert "install\n           molecule-hermes[mcp]" in done.stdout
