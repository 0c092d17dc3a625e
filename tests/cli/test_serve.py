"""`molecule-hermes serve`, with a stand-in for Hermes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from tests.support.fakes import KEY, fake_hermes
from tests.support.stack import environment, up
from tests.support.waiting import until


async def test_serve_says_that_hermes_is_missing_and_when_it_is_there(tmp_path: Path) -> None:
    environ = environment(tmp_path, API_SERVER_KEY=KEY, MOLECULE_A2A_PLATFORM_ENABLED="false")
    port = urlsplit(environ["HERMES_API_BASE"]).port
    async with up(environ, ready=False, command="serve") as serve:
        await until(lambda: "not ready yet — " in serve.output)
        assert "`molecule-hermes doctor` says what to do" in serve.output
        assert f"Hermes is expected at {environ['HERMES_API_BASE']}" in serve.output
        assert "Hermes is ready" not in serve.output
        async with fake_hermes(port):
            await until(lambda: "Hermes is ready" in serve.output)
        assert await serve.stop() == 0
    assert serve.output.rstrip().endswith("stopping…")


async def test_a_mistyped_setting_is_a_warning(tmp_path: Path) -> None:
    environ = environment(tmp_path, MOLECULE_SMOKE_MODE="1", MOLECULE_HERMES_PROT="1")
    async with up(environ, ready=False) as stack:
        await until(lambda: "the agent is at" in stack.output)
    expected = "MOLECULE_HERMES_PROT is not a setting; did you mean MOLECULE_HERMES_PORT?"
    assert expected in stack.output
