"""`up` and `doctor` name the cause when the plugin is installed but does not listen."""

from __future__ import annotations

import asyncio
import re
import site
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from molecule_hermes.config import Settings
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import configure
from molecule_hermes.hermes.model_choice import demo_choice
from molecule_hermes.hermes.plugin_setup import enable
from tests.support.peers import ask, peer
from tests.support.stack import environment, up

ROOT = Path(__file__).parent.parent.parent


def _configured(environ: dict[str, str]) -> HermesHome:
    """A home as `up` would make it."""
    settings = Settings.from_env(environ)
    home = HermesHome(settings.home)
    configure(home, settings, demo_choice("http://127.0.0.1:9/v1"))
    enable(home, settings)
    return home


def not_enabled(environ: dict[str, str]) -> list[str]:
    _configured(environ).change_list(("plugins", "enabled"), remove="molecule-a2a")
    return ["--keep-config"]


def no_stanza(environ: dict[str, str]) -> list[str]:
    home = _configured(environ)
    config = home.config_file.read_text()
    home.config_file.write_text(re.sub(r"^platforms:\n(?: .*\n)+", "", config, flags=re.M))
    # Its port in the environment would switch the platform on as well.
    del environ["MOLECULE_A2A_PLATFORM_PORT"]
    return ["--keep-config"]


def disabled(environ: dict[str, str]) -> list[str]:
    _configured(environ).merge_config({"plugins": {"disabled": ["molecule-a2a"]}})
    return []


def safe_mode(environ: dict[str, str]) -> list[str]:
    environ["HERMES_SAFE_MODE"] = "1"
    return []


def port_taken(environ: dict[str, str]) -> list[str]:
    # Held by another process of ours for as long as the test runs.
    return []


def _bare_site(environ: dict[str, str], entry_points: str = "") -> None:
    """The packages of this environment without our own installation, for the base interpreter."""
    folder = Path(environ["MOLECULE_HERMES_STATE_DIR"]) / "site"
    folder.mkdir(parents=True)
    for package in Path(site.getsitepackages()[0]).iterdir():
        if "molecule_hermes" not in package.name and package.name != "__pycache__":
            (folder / package.name).symlink_to(package)
    if entry_points:
        info = folder / "molecule_hermes-9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: molecule-hermes\nVersion: 9\n")
        (info / "entry_points.txt").write_text(f"[hermes_agent.plugins]\n{entry_points}\n")
    environ["PYTHONPATH"] = f"{folder}:{ROOT}"
    # A confined Hermes does not see what else is installed in the folder of the bridge's state.
    environ["MOLECULE_HERMES_READABLE"] = str(folder)


def not_installed(environ: dict[str, str]) -> list[str]:
    _bare_site(environ)
    return []


def load_error(environ: dict[str, str]) -> list[str]:
    _bare_site(environ, "molecule-a2a = molecule_hermes.nowhere")
    return []


CAUSES: dict[Callable[[dict[str, str]], list[str]], tuple[str, str]] = {
    not_enabled: ("does not list molecule-a2a in plugins.enabled", "plugin enable"),
    no_stanza: ("has no stanza platforms.molecule_a2a", "plugin enable"),
    disabled: ("in plugins.disabled", "remove it there"),
    safe_mode: ("HERMES_SAFE_MODE is set", "unset it"),
    port_taken: ("cannot listen on", "MOLECULE_A2A_PLATFORM_PORT"),
    not_installed: ("is not installed in Hermes's environment", "pip install molecule-hermes"),
    load_error: ("No module named 'molecule_hermes.nowhere'", "force-reinstall"),
}


async def _command(python: str, environ: dict[str, str], *words: str) -> str:
    ended = await asyncio.to_thread(
        subprocess.run,
        [python, "-m", "molecule_hermes", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("sabotage", CAUSES, ids=lambda s: s.__name__)
async def test_a_plugin_that_is_not_bound_says_exactly_why(
    tmp_path: Path, sabotage: Callable[[dict[str, str]], list[str]]
) -> None:
    """`up --transport auto` warns of the cause and goes on; the doctor finds it too."""
    environ = environment(tmp_path)
    options = sabotage(environ)
    # The only name for the interpreter outside the virtual environment.
    python = sys._base_executable if "PYTHONPATH" in environ else sys.executable  # type: ignore[attr-defined]
    cause, remedy = CAUSES[sabotage]
    with socket.socket() as other:
        if sabotage is port_taken:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", int(environ["MOLECULE_A2A_PLATFORM_PORT"])))
            other.listen()
        async with up(environ, "--transport", "auto", *options, python=python) as stack:
            assert cause in stack.output
            assert remedy in stack.output
            async with httpx.AsyncClient() as http:
                ready = (await http.get(stack.url + "/readyz")).json()
                card = (await http.get(stack.url + "/.well-known/agent-card.json")).json()
            assert any(cause in warning for warning in ready["warnings"])
            assert "continuing over chat completions" in card["description"]
            if "--keep-config" not in options:
                async with peer(stack.url) as client:
                    assert (await ask(client, "hi")).states[-1] == "COMPLETED"
            status = await _command(python, environ, "plugin", "status")
            assert cause in status
            assert remedy in status


@pytest.mark.parametrize("sabotage", [disabled, safe_mode], ids=lambda s: s.__name__)
async def test_up_does_not_start_without_the_plugin_and_says_why(
    tmp_path: Path, sabotage: Callable[[dict[str, str]], list[str]]
) -> None:
    environ = environment(tmp_path)
    cause, remedy = CAUSES[sabotage]
    output = await _command(sys.executable, environ, "up", *sabotage(environ))
    assert cause in output
    assert remedy in output


async def test_enabling_the_plugin_in_an_existing_hermes_can_be_repeated(tmp_path: Path) -> None:
    home = tmp_path / "mine"
    home.mkdir()
    text = "# my own\nmodel:\n  default: mine  # keep\nplugins:\n  enabled:\n  - other\n"
    (home / "config.yaml").write_text(text)
    for _ in range(2):
        ended = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable,
                *["-m", "molecule_hermes", "plugin", "enable", "--hermes-home"],
                str(home),
            ],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    written = (home / "config.yaml").read_text()
    assert written.startswith("# my own\nmodel:\n  default: mine  # keep\n")
    assert written.count("molecule-a2a") == 1
    assert "- other" in written
    assert not (home / ".env").exists()


async def test_the_plugin_of_another_hermes_is_not_mistaken_for_its_own(tmp_path: Path) -> None:
    """Even with the same secret: its peers would talk to the wrong agent."""
    secret = {"MOLECULE_A2A_PLATFORM_SHARED_SECRET": "one-secret-for-the-two-of-them"}
    first = environment(tmp_path / "first", **secret)
    second = environment(tmp_path / "second", **secret)
    second["MOLECULE_A2A_PLATFORM_PORT"] = first["MOLECULE_A2A_PLATFORM_PORT"]
    async with up(first):
        assert "cannot listen on" in await _command(sys.executable, second, "up")


async def test_a_state_that_a_killed_hermes_left_does_not_hide_the_cause(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    async with up(environ) as stack:
        stack.process.kill()
        await stack.process.wait()
    output = await _command(sys.executable, environ | {"HERMES_SAFE_MODE": "1"}, "up")
    assert "HERMES_SAFE_MODE is set" in output


async def test_without_an_api_to_ask_the_cause_is_reported_after_the_timeout(
    tmp_path: Path,
) -> None:
    """A config.yaml that somebody else wrote, with nothing in it that the plugin needs."""
    environ = environment(tmp_path, HERMES_GATEWAY_READY_BUDGET_SEC="3")
    home = HermesHome(Settings.from_env(environ).home)
    home.create()
    home.set_model(demo_choice("http://127.0.0.1:9/v1").block)
    output = await _command(sys.executable, environ, "up", "--keep-config")
    assert CAUSES[not_enabled][0] in output
