"""The agent's tools find no secret of the bridge or of Hermes."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.plugin.settings import API_KEY, SECRET
from tests.support.peers import ask, peer
from tests.support.privileges import unprivileged
from tests.support.stack import Stack, environment, up

pytestmark = [
    pytest.mark.hermes,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="speaks of /proc"),
]

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"
GIVEN = {
    API_KEY: "an-api-key-that-the-operator-gave",
    SECRET: "a-shared-secret-that-the-operator-gave",
    "HERMES_CUSTOM_API_KEY": "a-model-key-that-the-operator-gave",
    "NOUS_API_KEY": "another-model-key-that-the-operator-gave",
    "MOLECULE_HERMES_PEER_TOKENS": f"alice:{ALICE},bob:{BOB}",
    "MOLECULE_HERMES_TOKEN": ALICE,
}
SECRETS = ("operator-gave", ALICE, BOB)


OPEN = {"MOLECULE_HERMES_ISOLATION": "shared", "MOLECULE_HERMES_CONFINE": "off"}
"""The tools read every file of the user: whatever they find, no file and no process tells it."""


@pytest.fixture(scope="module", params=["apart-plugin", "open-chat"])
def setting(request: pytest.FixtureRequest) -> str:
    """Each isolation and each transport once: they do not depend on each other here."""
    return str(request.param)


@pytest.fixture(scope="module")
def apart(setting: str) -> bool:
    return setting.startswith("apart")


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory, setting: str, apart: bool) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("secrets")
    home = HermesHome(folder / "hermes")
    home.create()
    home.merge_env({API_KEY: "key-of-an-earlier-version", SECRET: "secret-of-an-earlier-version"})
    way = {"MOLECULE_A2A_PLATFORM_ENABLED": "true" if "plugin" in setting else "false"}
    return environment(folder, **GIVEN, **way, **({} if apart else OPEN))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(environ: dict[str, str]) -> AsyncIterator[Stack]:
    # As a model of the operator's own: else the keys above would choose another.
    async with demo_model() as model:
        custom = {"HERMES_CUSTOM_BASE_URL": model, "HERMES_INFERENCE_MODEL": "molecule-demo"}
        async with up(environ | custom, through=unprivileged()) as running:
            yield running


async def run(stack: Stack, command: str, token: str = ALICE) -> str:
    """What the agent says of its terminal's answer."""
    async with peer(stack.url, token=token) as client:
        turn = await ask(client, f"demo:run {command}")
    assert turn.states[-1] == "COMPLETED"
    return turn.text


def search(*places: str) -> str:
    """A command that tells which of the places hold a secret, without saying it."""
    words = "|".join(s[:1] + f"[{s[1]}]" + s[2:] for s in SECRETS)
    return f"grep -rlaE '{words}' {' '.join(places)} 2>/dev/null; echo searched"


async def test_no_tool_has_a_secret_in_its_environment(stack: Stack) -> None:
    told = await run(stack, "env | cut -d= -f1 | sort | tr '\\n' ' '")
    names = set(re.findall(r"\w+", told))
    assert "PATH" in names
    assert not names & GIVEN.keys()
    assert _output(await run(stack, f"env | {search()}")) == "searched"


async def test_no_tool_reads_the_environment_or_memory_of_the_bridge_or_hermes(
    stack: Stack, apart: bool
) -> None:
    pids = f"{stack.process.pid} {stack.hermes_pid('alice' if apart else '')} $PPID"
    read = "cat /proc/$p/environ | wc -c; readlink /proc/$p/fd/0 | wc -c; cat /proc/$p/maps | wc -c"
    told = await run(stack, f"for p in {pids}; do {read}; done 2>/dev/null | tr '\\n' ' '")
    assert re.search(r'"output": "(0 ?){9}"', told), told
    told = await run(stack, search(f"/proc/{stack.process.pid}/cmdline", "/proc/$PPID/cmdline"))
    assert _output(told) == "searched"


async def test_no_file_that_a_tool_reads_has_a_secret(
    stack: Stack, environ: dict[str, str], apart: bool
) -> None:
    folder = Path(environ["MOLECULE_HERMES_STATE_DIR"])
    # What is confined reads only its own folders there: it has to name them.
    own = sorted(folder.glob("workers/main@alice-*/*")) if apart else []
    home = next((path for path in own if path.name == "home"), folder / "hermes")
    (home / "finds-this").write_text(f"a file with {ALICE}")
    found = _output(await run(stack, search(str(folder), *map(str, own))))
    (home / "finds-this").unlink()
    assert found.replace("\\n", " ").split() == [f"{home}/finds-this", "searched"]
    env = HermesHome(home).read_env()
    assert env["API_SERVER_ENABLED"] == "true"
    assert not {API_KEY, SECRET} & env.keys()


def _output(told: str) -> str:
    (output,) = re.findall(r'"output": "(.*?)"', told)
    return str(output)


async def test_secrets_that_up_generates_are_in_no_file(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    home = HermesHome(tmp_path / "hermes")
    home.create()
    home.merge_env({API_KEY: "key-of-an-earlier-version", SECRET: "secret-of-an-earlier-version"})
    async with up(environ, through=unprivileged()) as stack:
        assert home.read_env().keys() == {
            "API_SERVER_ENABLED",
            "API_SERVER_HOST",
            "API_SERVER_PORT",
        }
        async with peer(stack.url) as client:
            turn = await ask(client, f"demo:run env | grep -cE '^({API_KEY}|{SECRET})='")
        assert _output(turn.text) == "0"
        for command in (["doctor"], ["plugin", "status"]):
            ended = await _command(environ, *command)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            assert "for the bridge that is ready at" in ended.stdout
    ended = await _command(environ, "plugin", "status")
    assert ended.returncode == 1
    assert f"no Hermes runs on {home.path}" in ended.stdout


async def _command(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*unprivileged(), sys.executable, "-m", "molecule_hermes", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


async def test_the_bridge_forgets_its_secrets_once_they_are_read() -> None:
    code = (
        "import os; from molecule_hermes.cli import main as cli;"
        "settings, environ = cli._guarded(cli._parser().parse_args(['up']));"
        "assert settings.peer_tokens and environ['NOUS_API_KEY'];"
        "print(*os.environ)"
    )
    store = {"MOLECULE_HERMES_STORE": "postgresql://user:password@host/name"}
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=GIVEN | store | {"MOLECULE_HERMES_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    names = set(told.stdout.split())
    assert "MOLECULE_HERMES_PORT" in names
    assert not names & (GIVEN | store).keys()


async def test_the_doctor_checks_the_secrets_it_is_given_against_a_running_bridge(
    stack: Stack, environ: dict[str, str], apart: bool
) -> None:
    ended = await _command(environ, "doctor")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if apart:
        assert "each Hermes has its own, and only the bridge knows it" in ended.stdout
        return
    assert "Hermes accepts API_SERVER_KEY" in ended.stdout
    wrong = environ | {API_KEY: "another-key-0123456789", SECRET: "another-secret-0123456789"}
    ended = await _command(wrong, "doctor")
    assert ended.returncode == 1
    assert re.search(r"FAIL +key", ended.stdout)
    if environ["MOLECULE_A2A_PLATFORM_ENABLED"] == "true":
        assert re.search(r"FAIL +plugin .*refused the bridge's secret", ended.stdout)
