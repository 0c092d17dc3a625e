"""Holds the internals of Hermes that the plugin uses against the Hermes that is installed."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import queue
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent import turn_finalizer
from agent.runtime_cwd import resolve_agent_cwd, set_session_cwd
from cron import scheduler
from gateway.config import GatewayConfig, Platform, PlatformConfig
from gateway.hooks import HookRegistry
from gateway.platforms.base import (
    BasePlatformAdapter,
    MessageEvent,
    MessageType,
    SendResult,
    cleanup_document_cache,
    get_document_cache_dir,
)
from gateway.run import _AGENT_PENDING_SENTINEL, GatewayRunner, _redact_approval_command
from gateway.session_context import clear_session_vars, set_session_vars
from run_agent import AIAgent
from tools import approval, clarify_gateway
from tools.terminal_tool import get_session_cwd

from molecule_hermes.plugin import hermes_api
from molecule_hermes.plugin.adapter import MoleculeAdapter
from molecule_hermes.plugin.kept_files import KeptFiles
from molecule_hermes.plugin.settings import API_KEY, SECRET, SECRETS
from molecule_hermes.wire import Attachment

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c626001000000ffff03000006000557bfabd40000000049454e44ae426082"
)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    home = tmp_path / "hermes"
    monkeypatch.setenv("HERMES_HOME", str(home))
    return home


@pytest.fixture
def runner(home: Path) -> Iterator[Any]:
    runner = GatewayRunner(GatewayConfig(sessions_dir=home / "sessions"))
    yield runner
    runner._shutdown_executor()


class Adapter(BasePlatformAdapter):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(PlatformConfig(enabled=True), Platform.WEBHOOK)

    async def connect(self, *, is_reconnect: bool = False) -> bool:
        return True

    async def disconnect(self) -> None: ...

    async def send(self, *args: Any, **given: Any) -> Any:
        return SendResult(success=True, message_id="1")

    async def get_chat_info(self, chat_id: str) -> dict[str, Any]:
        return {"name": chat_id, "type": "dm"}


def run_python(code: str, home: Path, **environ: str) -> None:
    """Runs code that changes Hermes's modules, in a process of its own."""
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PATH": os.environ["PATH"], "HERMES_HOME": str(home), **environ},
        timeout=60,
        check=True,
    )


def test_a_gateway_is_ready_unless_it_starts_or_drains(runner: Any) -> None:
    assert hermes_api.state(None) == "starting"
    assert hermes_api.state(runner) == "ready"
    runner._enter_external_drain()
    assert hermes_api.state(runner) == "draining"
    runner._exit_external_drain()
    assert hermes_api.state(runner) == "ready"
    for name, expected in (
        ("_startup_restore_in_progress", "starting"),
        ("_draining", "draining"),
    ):
        assert getattr(runner, name) is False, "Hermes's own default"
        setattr(runner, name, True)
        assert hermes_api.state(runner) == expected


def test_hermes_itself_sets_what_the_state_is_read_from() -> None:
    source = inspect.getsource(GatewayRunner)
    for name in ("_draining", "_external_drain_active", "_startup_restore_in_progress"):
        assert f"self.{name} = True" in source


def test_turns_run_in_the_pool_that_was_made_for_them(runner: Any) -> None:
    hermes_api.widen_executor(None, 20)
    hermes_api.widen_executor(runner, 20)
    pool = runner._get_executor()
    assert pool._max_workers == 20
    hermes_api.widen_executor(runner, 30)
    assert runner._get_executor() is pool


def test_the_pool_is_never_narrower_than_hermess_own(runner: Any) -> None:
    hermes_api.widen_executor(runner, 3)
    assert runner._get_executor()._max_workers == 10


async def test_a_session_is_active_while_hermes_works_on_a_message() -> None:
    adapter, entered, leave = Adapter(), asyncio.Event(), asyncio.Event()

    async def handler(event: Any) -> str:
        entered.set()
        await leave.wait()
        return ""

    adapter.set_message_handler(handler)
    source = adapter.build_source(chat_id="c", chat_type="dm", user_id="u", user_name="u")
    key = hermes_api.session_key_of(source)
    assert not hermes_api.has_session(adapter, key)
    await adapter.handle_message(MessageEvent("hi", MessageType.DOCUMENT, source, message_id="m"))
    await asyncio.wait_for(entered.wait(), 10)
    assert hermes_api.has_session(adapter, key)
    leave.set()
    async with asyncio.timeout(10):
        while hermes_api.has_session(adapter, key):
            await asyncio.sleep(0.01)


def test_an_agent_counts_only_once_it_is_made(runner: Any) -> None:
    from gateway import run

    assert not hermes_api.has_agent(runner, "key")
    runner._running_agents["key"] = run._AGENT_PENDING_SENTINEL
    assert not hermes_api.has_agent(runner, "key")
    runner._running_agents["key"] = object()
    assert hermes_api.has_agent(runner, "key")


def test_a_platform_reports_what_became_of_its_connection() -> None:
    adapter = Adapter()
    hermes_api.report_connected(adapter)
    assert adapter.is_connected
    hermes_api.report_disconnected(adapter)
    assert not adapter.is_connected
    hermes_api.report_fatal(adapter, "port_in_use", "cannot listen")
    assert adapter.has_fatal_error
    assert adapter.fatal_error_message == "cannot listen"
    assert not adapter.fatal_error_retryable


def test_the_adapter_hides_no_private_name_of_its_base_class() -> None:
    """A method or attribute of ours with a name of Hermes's would replace it unnoticed."""
    theirs = {name for name in dir(BasePlatformAdapter) if name.startswith("_")}
    theirs |= {name for name in vars(Adapter()) if name.startswith("_")}
    theirs -= {"_abc_impl"}
    classes = [c for c in MoleculeAdapter.__mro__ if c.__module__.startswith("molecule_hermes.")]
    ours = {name for c in classes for name in vars(c) if not name.endswith("__")}
    for each in classes:
        ours |= set(re.findall(r"self\.(_\w+)(?::.*)? = ", inspect.getsource(each)))
    assert {"_ask", "_dispatcher", "_folders", "_unfollow", "_deliver_file"} <= ours
    assert not ours & theirs
    # What our own classes call each other by is not a name of Hermes's.
    assert not {"owner", "pass_on", "late_event", "without_turn"} & set(dir(BasePlatformAdapter))


async def test_an_event_handler_is_called_until_it_is_removed(runner: Any) -> None:
    assert isinstance(runner.hooks, HookRegistry)
    calls: list[Any] = []

    def handler(event: str, given: Any) -> None:
        calls.append((event, given["chat_id"]))

    for _ in range(2):
        hermes_api.add_event_handler(runner, "agent:start", handler)
    await runner.hooks.emit("agent:start", {"chat_id": "c"})
    assert calls == [("agent:start", "c")]
    for _ in range(2):
        hermes_api.remove_event_handler(runner, "agent:start", handler)
    hermes_api.remove_event_handler(runner, "never:added", handler)
    await runner.hooks.emit("agent:start", {"chat_id": "c"})
    assert len(calls) == 1


@pytest.fixture
def agent(runner: Any) -> Iterator[Any]:
    """A real agent, in the gateway's cache as the gateway puts it there."""
    from run_agent import AIAgent

    agent = AIAgent(
        base_url="http://127.0.0.1:1/v1",
        api_key="a-key-of-the-tests",
        model="m",
        provider="custom",
        platform="molecule_a2a",
        enabled_toolsets=[],
        quiet_mode=True,
        skip_memory=True,
    )
    runner._agent_cache["key"] = (agent, "signature", 0, "session")
    yield agent
    agent.close()


def test_the_gateway_caches_an_agent_before_it_runs() -> None:
    source = inspect.getsource(GatewayRunner)
    stored = re.search(r"_cache\[session_key\] = \(\s*agent,", source)
    assert stored is not None
    assert "result = agent.run_conversation(" in source[stored.end() :]


def test_an_agent_passes_on_its_reasoning_to_who_listens(runner: Any, agent: Any) -> None:
    heard: list[str] = []
    hermes_api.listen_to_reasoning(runner, "key", heard.append)
    agent._fire_reasoning_delta("hm")
    hermes_api.listen_to_reasoning(runner, "key", None)
    agent._fire_reasoning_delta("nobody listens")
    hermes_api.listen_to_reasoning(runner, "another key", heard.append)
    hermes_api.listen_to_reasoning(None, "key", heard.append)
    assert heard == ["hm"]


def test_an_agents_session_and_context_are_known_while_it_is_cached(
    runner: Any, agent: Any
) -> None:
    agent.context_compressor.update_from_response({"prompt_tokens": 1200})
    assert hermes_api.context_of(runner, "key") == (1200, agent.context_compressor.context_length)
    assert hermes_api.session_id_of(runner, "key") == agent.session_id != ""
    # Hermes's mark for "not known until the next call" (agent/conversation_loop.py:5127).
    agent.context_compressor.last_prompt_tokens = -1
    assert hermes_api.context_of(runner, "key") is None
    assert hermes_api.context_of(runner, "another key") is None
    assert hermes_api.session_id_of(runner, "another key") == ""


def test_a_review_is_recognised_in_its_own_context_only() -> None:
    from tools.skill_provenance import BACKGROUND_REVIEW, set_current_write_origin

    def in_review() -> bool:
        set_current_write_origin(BACKGROUND_REVIEW)
        return hermes_api.is_background_review()

    assert contextvars.copy_context().run(in_review)
    assert not hermes_api.is_background_review()


def test_the_cost_of_a_call_is_known_where_hermes_knows_the_price() -> None:
    usage = {"input_tokens": 1_000_000, "output_tokens": 0, "prompt_tokens": 1_000_000}
    cost = hermes_api.cost_of("gpt-4o", "openai", "", usage)
    assert cost is not None
    assert cost > 0
    assert hermes_api.cost_of("gpt-4o", "openai", "", {}) == 0
    assert hermes_api.cost_of("a-model-of-nobody", "", "", usage) is None


def test_the_current_message_is_known_inside_a_turn_only() -> None:
    assert hermes_api.current_message_id() == ""
    tokens = set_session_vars(platform="molecule_a2a", chat_id="c", message_id="m-1")
    assert hermes_api.current_message_id() == "m-1"
    clear_session_vars(tokens)
    assert hermes_api.current_message_id() == ""


def test_a_turn_works_in_its_folder_and_stays_below_it(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "below").mkdir(parents=True)
    tokens = set_session_vars(platform="molecule_a2a", session_key="the-key")
    try:
        hermes_api.enter_folder(folder, "the-id")
        assert resolve_agent_cwd() == hermes_api.working_directory() == folder
        assert [get_session_cwd(key) for key in ("the-key", "the-id")] == [str(folder)] * 2
        from tools.terminal_tool import record_session_cwd

        record_session_cwd("the-key", str(folder / "below"))
        record_session_cwd("the-id", str(tmp_path))
        hermes_api.enter_folder(folder, "the-id")
        assert get_session_cwd("the-key") == str(folder / "below")
        assert get_session_cwd("the-id") == str(folder)
    finally:
        set_session_cwd(None)
        clear_session_vars(tokens)


def test_hermess_home_is_the_one_that_is_set(home: Path) -> None:
    assert hermes_api.hermes_home() == home


def test_tools_in_a_container_see_the_caches_at_another_path(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Path(get_document_cache_dir()) / "a2a" / "x"
    kept.mkdir(parents=True)
    assert hermes_api.path_for_tools(kept) == str(kept)
    monkeypatch.setenv("TERMINAL_ENV", "docker")
    assert hermes_api.path_for_tools(kept).endswith("/.hermes/cache/documents/a2a/x")


def test_hermes_clears_its_document_cache_but_not_the_folders_in_it(home: Path) -> None:
    cache = Path(get_document_cache_dir())
    (path,) = KeptFiles(cache).save("c", [Attachment("a.pdf", "application/pdf", b"x")])
    (cache / "doc_1_a.pdf").touch()
    for file in (path, cache / "doc_1_a.pdf"):
        os.utime(file, (1, 1))
    assert cleanup_document_cache() == 1
    assert path.exists()


def test_images_that_models_take_can_be_shown(tmp_path: Path) -> None:
    image, drawing = tmp_path / "a.png", tmp_path / "b.svg"
    image.write_bytes(PNG)
    drawing.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    assert hermes_api.can_show_image(image)
    assert not hermes_api.can_show_image(drawing)
    assert not hermes_api.can_show_image(tmp_path / "missing.png")


def test_the_wires_image_types_are_those_hermes_passes_on_as_they_are() -> None:
    from agent.image_routing import _UNIVERSALLY_SUPPORTED_MIMES

    from molecule_hermes.wire import IMAGE_TYPES

    assert set(IMAGE_TYPES) == _UNIVERSALLY_SUPPORTED_MIMES


def test_approvals_are_answered_oldest_first() -> None:
    assert not hermes_api.resolve_approval("no such session", "once")
    entries = [approval._ApprovalEntry({"command": name}) for name in ("first", "second")]
    approval._gateway_queues["the-session"] = list(entries)
    assert hermes_api.resolve_approval("the-session", "deny")
    assert [entry.result for entry in entries] == ["deny", None]
    assert hermes_api.resolve_approval("the-session", "once")
    assert not hermes_api.resolve_approval("the-session", "once")


def test_open_approvals_are_those_that_hermes_shows_oldest_first() -> None:
    notified: queue.Queue[dict[str, Any]] = queue.Queue()
    commands = [f"curl -H 'Authorization: Bearer sk-{'a1b2c3d4' * 5}' x", "rm -rf y"]
    asking = []
    for command in commands:
        data = {"command": command} | ({"description": "a"} if "curl" in command else {})
        given = ("open", notified.put, data)
        asking.append(threading.Thread(target=approval._await_gateway_decision, args=given))
        asking[-1].start()
        assert notified.get(timeout=10) == data
    try:
        first, second = hermes_api.open_approvals("open")
    finally:
        approval.clear_session("open")
    for thread in asking:
        thread.join(10)
    assert first == (_redact_approval_command(commands[0]), "a")
    assert "a1b2c3d4a1b2c3d4" not in first[0]
    assert second == ("rm -rf y", "dangerous command")
    assert hermes_api.open_approvals("open") == []


def test_a_question_takes_one_answer() -> None:
    assert not hermes_api.resolve_clarify("unknown", "yes")
    clarify_gateway.register("q-1", "the-session", "Which?", ["a", "b"])
    answers: list[str | None] = []
    asking = threading.Thread(
        target=lambda: answers.append(clarify_gateway.wait_for_response("q-1", 10))
    )
    asking.start()
    assert hermes_api.resolve_clarify("q-1", "b")
    asking.join(10)
    assert answers == ["b"]


def test_a_stopped_turns_questions_are_dropped() -> None:
    clarify_gateway.register("q-2", "the-session", "Which?", None)
    assert clarify_gateway.has_pending("the-session")
    hermes_api.clear_questions("the-session")
    assert not clarify_gateway.has_pending("the-session")


def test_hermes_strips_our_secrets_from_whatever_it_starts(home: Path) -> None:
    code = f"""
    import os
    from tools.environments import local
    from molecule_hermes.plugin.hermes_api import strip_from_tools
    strip_from_tools({SECRETS!r}, ["A_MODEL_KEY"])
    made = [
        local._make_run_env({{}}),
        local._sanitize_subprocess_env(dict(os.environ)),
        local.hermes_subprocess_env(),
    ]
    secret = {{"API_SERVER_KEY", "A_MODEL_KEY", {SECRET!r}}}
    assert not any(secret & env.keys() for env in made)
    assert all("OTHER" in env for env in made)
    env = local.hermes_subprocess_env(inherit_credentials=True)
    assert "A_MODEL_KEY" in env
    assert not {{"API_SERVER_KEY", {SECRET!r}}} & env.keys()
    """
    run_python(code, home, **{SECRET: "s", API_KEY: "k", "A_MODEL_KEY": "m", "OTHER": "o"})


def test_the_api_server_gets_its_key_and_the_environment_does_not_keep_it(home: Path) -> None:
    code = """
    import os
    from molecule_hermes.plugin.hermes_api import lend_api_key
    lend_api_key("API_SERVER_KEY", "a-key-of-sixteen-characters")
    from gateway.config import Platform
    from gateway.run import load_gateway_config_for_runner
    for _ in range(2):
        config = load_gateway_config_for_runner()
        assert config.platforms[Platform.API_SERVER].extra["key"] == "a-key-of-sixteen-characters"
        assert "API_SERVER_KEY" not in os.environ
    """
    run_python(code, home, API_SERVER_ENABLED="true")


def test_agents_of_peers_are_made_without_withheld_toolsets(home: Path) -> None:
    code = """
    import inspect, run_agent
    names = inspect.signature(run_agent.AIAgent.__init__).parameters
    assert {"platform", "disabled_toolsets", "skip_memory"} <= names.keys()
    made = []
    run_agent.AIAgent.__init__ = lambda self, **given: made.append(given)
    from molecule_hermes.plugin.hermes_api import withhold_toolsets
    withhold_toolsets(["memory", "cronjob"], frozenset({"peers"}))
    run_agent.AIAgent(platform="peers", disabled_toolsets=["web"])
    run_agent.AIAgent(platform="cli")
    assert made[0]["disabled_toolsets"] == ["web", "memory", "cronjob"]
    assert made[0]["skip_memory"] is True
    assert made[1] == {"platform": "cli"}
    """
    run_python(code, home)


def test_a_text_steers_the_running_agent_and_can_be_taken_back(runner: Any) -> None:
    agent = AIAgent.__new__(AIAgent)
    assert not hermes_api.steer(runner, "key", "more")
    assert hermes_api.take_unheard(runner, "key") == ""
    runner._running_agents["key"] = _AGENT_PENDING_SENTINEL
    assert not hermes_api.steer(runner, "key", "more")
    runner._running_agents["key"] = agent
    runner._agent_cache["key"] = (agent, "signature", 0)
    assert hermes_api.steer(runner, "key", " more ")
    assert hermes_api.steer(runner, "key", "and more")
    assert hermes_api.take_unheard(runner, "key") == "more\nand more"
    assert hermes_api.take_unheard(runner, "key") == ""


def test_hermes_runs_what_the_agent_has_not_read_as_a_further_turn() -> None:
    """The plugin takes such a turn for the rest of the message."""
    assert 'result["pending_steer"]' in inspect.getsource(turn_finalizer)
    assert 'result.get("pending_steer")' in inspect.getsource(GatewayRunner)


async def test_the_session_of_a_profile_has_another_key_among_the_agents(runner: Any) -> None:
    adapter = Adapter()
    source = adapter.build_source(chat_id="c", chat_type="dm", user_id="u", user_name="u")
    assert hermes_api.agent_key_of(runner, source) == hermes_api.session_key_of(source)
    assert not hermes_api.has_profiles(runner)
    runner.config.multiplex_profiles = True
    assert hermes_api.has_profiles(runner)
    assert hermes_api.agent_key_of(runner, source) == hermes_api.session_key_of(source)
    source.profile = "red"
    assert hermes_api.agent_key_of(runner, source).startswith("agent:red:")
    assert hermes_api.session_key_of(source).startswith("agent:main:")


def test_a_folder_is_a_profile_at_once(home: Path) -> None:
    assert "red" not in hermes_api.profiles()
    (home / "profiles" / "red").mkdir(parents=True)
    assert "red" in hermes_api.profiles()


async def test_hermes_finds_the_adapter_of_a_profile(runner: Any) -> None:
    adapter = Adapter()
    assert runner._authorization_adapter(adapter.platform, "red") is None
    hermes_api.answer_for_profile(runner, "red", adapter)
    assert runner._authorization_adapter(adapter.platform, "red") is adapter


def test_a_toolset_contains_the_tools_of_those_that_it_includes(home: Path) -> None:
    assert {"terminal", "process"} <= hermes_api.tools_of(["terminal"])
    assert {"terminal", "web_search", "read_file"} <= hermes_api.tools_of(["debugging"])
    assert hermes_api.tools_of([]) == hermes_api.tools_of(["no-such-toolset"]) == frozenset()


def test_a_tool_names_its_toolset(home: Path) -> None:
    import model_tools  # noqa: F401 - registers Hermes's tools

    assert hermes_api.toolset_of("terminal") == "terminal"
    assert hermes_api.toolset_of("no_such_tool") == ""
    assert hermes_api.is_only_about_tools("tool_search")
    assert not hermes_api.is_only_about_tools("tool_call")


def test_hermes_names_the_tasks_of_subagents_as_expected() -> None:
    from tools import delegate_tool

    source = inspect.getsource(delegate_tool)
    assert 'f"sa-{task_index}-' in source
    assert 'f"subagent-{task_index}-' in source
    assert hermes_api.is_subagent("sa-0-12")
    assert not hermes_api.is_subagent("20250101_abc")


def test_the_first_answer_to_whether_a_tool_may_run_counts() -> None:
    from hermes_cli import plugins

    manager = plugins.PluginManager()
    manifest = plugins.PluginManifest(name="ours")
    context = plugins.PluginContext(manifest, manager)
    context.register_hook("pre_tool_call", print)
    hermes_api.call_first(context, "pre_tool_call", repr)
    assert manager._hooks["pre_tool_call"] == [repr, print]


def test_what_is_loaded_before_the_first_turn_makes_no_call_to_the_network(home: Path) -> None:
    code = """
    import importlib, socket
    def refuse(*given, **more): raise AssertionError(f"calls out: {given}")
    socket.getaddrinfo = socket.socket.connect = refuse
    from molecule_hermes.plugin import hermes_api
    for name in hermes_api.MODULES:
        importlib.import_module(name)
    hermes_api.probe_environment()
    """
    run_python(code, home)


async def test_what_a_cron_job_sends_knows_the_job_until_it_is_undone(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent.async_utils import safe_schedule_threadsafe

    loop, seen, ended = asyncio.get_running_loop(), [], []
    given: list[Any] = []

    async def send() -> None:
        seen.append(hermes_api.current_cron_run())

    def deliver(job: Any, content: str, adapters: Any = None, loop: Any = None) -> str:
        given.append((content, adapters, loop))
        future = safe_schedule_threadsafe(send(), loop)
        assert future is not None
        future.result(timeout=10)
        return "why"

    monkeypatch.setattr(scheduler, "_deliver_result", deliver)
    undo = hermes_api.follow_cron(runner, loop, ended.append)
    job = {"id": "j", "name": "daily", "origin": {"platform": "p", "chat_id": "c"}}
    # As an agent does it that runs a job at once: without adapters and loop.
    assert await asyncio.to_thread(scheduler._deliver_result, job, "text") == "why"
    (run,) = seen
    assert (run.job_id, run.name, run.origin) == ("j", "daily", ("p", "c"))
    assert ended == [run]
    assert given == [("text", runner.adapters, loop)]
    assert hermes_api.current_cron_run() is None
    await asyncio.to_thread(
        scheduler._deliver_result, {"id": "j", "origin": "x"}, "text", adapters={}, loop=loop
    )
    assert (seen[1].name, seen[1].origin, given[1]) == ("j", ("", ""), ("text", {}, loop))
    undo()
    assert scheduler._deliver_result is deliver


def test_hermes_delivers_the_results_of_cron_jobs_by_the_name_that_is_replaced() -> None:
    call = "_deliver_result(job, deliver_content, adapters=adapters, loop=loop)"
    assert call in inspect.getsource(scheduler.run_one_job)
    assert list(inspect.signature(scheduler._deliver_result).parameters) == [
        "job",
        "content",
        "adapters",
        "loop",
    ]
    source = inspect.getsource(GatewayRunner)
    assert source.count('f"[Background process {session_id} ') == 2


def test_hermes_asks_at_each_turn_whether_a_late_result_can_be_delivered() -> None:
    source = inspect.getsource(GatewayRunner._set_session_env)
    assert 'getattr(_adapter, "supports_async_delivery", True)' in source


def test_the_names_of_handoffs_are_hermess(runner: Any) -> None:
    import hermes_state
    from gateway.session import SessionStore

    source = inspect.getsource(GatewayRunner._process_handoff)
    for name in (
        "get_or_create_session",
        "switch_session",
        "_evict_cached_agent",
        "handoff_platform",
    ):
        assert name in source
    assert "self._process_handoff(row)" in inspect.getsource(GatewayRunner._handoff_watcher)
    assert callable(runner._session_key_for_source)
    database = hermes_state.SessionDB
    for name in (
        "get_handoff_state",
        "import_sessions",
        "get_next_title_in_lineage",
        "delete_session",
        "get_messages",
    ):
        assert callable(getattr(database, name))
    for name in ("reopen_session", "get_compression_tip", "end_session"):
        assert callable(getattr(database, name))
    for name in ("get_session", "import_sessions"):
        assert callable(getattr(database, name))
    for name in ("reset_session", "list_sessions", "peek_session_id"):
        assert callable(getattr(SessionStore, name))
    interrupt = inspect.getsource(GatewayRunner._interrupt_and_clear_session)
    for words in ("self._running_agents.get(session_key)", "running_agent.interrupt("):
        assert words in interrupt
    assert "self.config.get_home_channel(platform)" in source
    assert "self.adapters.get(platform)" in source
    claim = inspect.getsource(database.request_handoff) + inspect.getsource(database.claim_handoff)
    for words in ("handoff_state = 'running'", "handoff_error = NULL", "('completed', 'failed')"):
        assert words in claim


class Waiting:
    """The database, in which a bridge notes how a handoff goes."""

    def __init__(self, *states: dict[str, str]) -> None:
        self._states = list(states)

    async def get_handoff_state(self, session_id: str) -> dict[str, str]:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


async def test_what_hermess_own_command_asks_for_is_left_to_the_bridge(runner: Any) -> None:
    seen = []

    async def process(self: Any, row: Any) -> None:
        seen.append(row["handoff_platform"])

    running, row = {"state": "running"}, {"id": "s", "handoff_platform": "Molecule_A2A"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GatewayRunner, "_process_handoff", process)
        hermes_api.take_requests(runner, "molecule_a2a", within=0.05, every=0.01)
        runner._session_db = Waiting(running, running, {"state": "completed"})
        await runner._process_handoff(row)
        runner._session_db = Waiting(running, {"state": "failed", "error": "unknown peer"})
        with pytest.raises(RuntimeError, match="unknown peer"):
            await runner._process_handoff(row)
        runner._session_db = Waiting(running)
        with pytest.raises(RuntimeError, match="no bridge"):
            await runner._process_handoff(row)
        await runner._process_handoff({**row, "handoff_platform": "telegram"})
        hermes_api.leave_requests(runner)
        await runner._process_handoff({**row, "handoff_platform": "molecule_a2a"})
    assert seen == ["telegram", "molecule_a2a"]


def test_collecting_these_tests_leaves_the_users_own_hermes_alone(tmp_path: Path) -> None:
    """Some of Hermes's modules write to its folder when they are imported, before any fixture."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only"]
    subprocess.run(
        [*command, __file__], env={**os.environ, "HOME": str(tmp_path)}, check=True, timeout=60
    )
    assert list(tmp_path.iterdir()) == []
