"""`molecule-hermes serve`, with a stand-in for Hermes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from tests.support.fakes import KEY, fake_hermes
from tests.support.serving import free_port
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


async def test_a_hermes_that_would_answer_as_its_root_stops_the_start(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner, port = web.AppRunner(app), free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    hermes = f"api: 'http://127.0.0.1:{port}/v1', profile: red, secret_file: key"
    (tmp_path / "agents.yaml").write_text(f"agents: {{lab: {{hermes: {{{hermes}}}}}}}")
    config = {"MOLECULE_HERMES_CONFIG": str(tmp_path / "agents.yaml")}
    try:
        async with up(environment(tmp_path, **config), ready=False, command="serve") as serve:
            assert await serve.ended() == 1
    finally:
        await runner.cleanup()
    assert "agents.lab: Hermes does not serve profiles" in serve.output
    assert "gateway.multiplex_profiles: true" in serve.output
