"""Checks of the image, from inside and outside a container."""

from __future__ import annotations

import ctypes
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from image_smoke.engines import Container, Engine
from image_smoke.peer import Peer, last_words, new_message, reply, state
from image_smoke.report import CheckError, Report, until

READY_LIMIT = 150.0
TOKEN = "smoke-token-0123456789abcdef"
_PROCESSES = """
import json, psutil
print(json.dumps([p.info for p in psutil.process_iter(["pid", "name", "status"])]))
"""
# The listening process cannot be looked up: Hermes hides its /proc from its user's processes.
_LISTENER = """
import json, psutil, sys, urllib.request
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/a2a/health", timeout=5) as answer:
    ready = json.load(answer)["ready"]
words = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
print("ready" if ready else "not ready", *(w for w in words if w.endswith("hermes gateway run")))
"""
_WRITABLE = """
import os
for folder, inner, _ in os.walk("/"):
    if folder in ("/proc", "/sys", "/dev"):
        inner.clear()
    elif os.access(folder, os.W_OK):
        print(folder)
        inner.clear()
"""
_TOOLS = "import mcp, shutil; print(*filter(shutil.which, ['git', 'curl']))"
_RUNTIME = (Path(__file__).parent / "runtime.py").read_text()
_BUILD_TOOLS = "import shutil; print(*filter(shutil.which, ['cc', 'gcc', 'make', 'cargo', 'git']))"


@dataclass
class Running:
    container: Container
    peer: Peer
    environ: Mapping[str, str]


def prove(engine: Engine, image: str, report: Report) -> None:
    report.check("its configuration", lambda: configuration(engine.config(image)))
    before = processes_of(engine.config(image))
    volume = engine.volume(image)
    began = time.monotonic()
    with running(engine, image, volume) as first:
        report.need("it becomes ready", lambda: ready(first, began))
        for what, check in INSIDE.items():
            report.check(what, partial(check, first))
        report.check("its own HEALTHCHECK", lambda: health(first, engine.config(image)))
        kept = report.check("a full turn through the plugin, from outside", lambda: turn(first))
        report.check("molecule-hermes doctor, inside", lambda: doctor(first))
        report.check("Hermes's tools are confined", lambda: confined(first))
        report.check("orphans are reaped", lambda: reaped(first))
        report.check("SIGTERM drains a running turn and exits 0", lambda: drained(first))
        report.check("no process is left", lambda: none_left(engine.config(image), before))
    began = time.monotonic()
    with running(engine, image, volume) as second:
        report.need("it starts again on the same volume", lambda: ready(second, began))
        if kept is not None:
            report.check("what was kept across the restart", lambda: remembered(second, kept))
        report.check("another on the same volume", lambda: refused(engine, image, volume))
        second.container.kill("KILL")
        report.check("SIGKILL", lambda: str(second.container.wait()))
    began = time.monotonic()
    with running(engine, image, volume) as third:
        # Its processes get the same process ids as the killed ones.
        report.check("it starts again after SIGKILL", lambda: ready(third, began))
    report.check("smoke mode", lambda: smoke_mode(engine, image))


def prove_workspace(engine: Engine, image: str, report: Report) -> None:
    """The workspace's image, with a runtime as its command that loads the adapter."""
    config = engine.config(image)
    report.check("the workspace's configuration", lambda: workspace_configuration(config))
    port = free_port()
    environ = environment(WORKSPACE_ID="smoke")
    command = ["python3", "-c", _RUNTIME, port]
    with engine.start(image, engine.volume(image), environ, *command, at="/home/agent") as it:
        workspace = Running(it, Peer(f"http://127.0.0.1:{port}", ""), environ)
        report.need(
            "the platform's runtime becomes ready in it",
            lambda: answers(workspace, "/.well-known/agent-card.json", 200)["name"],
        )
        report.check("it runs as the agent's user", lambda: agent(workspace))
        report.check("tools for the agent", lambda: tools(workspace))
        report.check("a turn through the adapter", lambda: adapter_turn(workspace))
        it.kill("TERM")
        report.check("SIGTERM ends the workspace", lambda: str(it.wait()))


def workspace_configuration(config: Mapping[str, Any]) -> str:
    expect(list(config["ExposedPorts"]) == ["8000/tcp"], config["ExposedPorts"])
    expect(config["User"] == "1000:1000", config["User"])
    expect("HERMES_HOME=/home/agent/.hermes" in config["Env"], config["Env"])
    return f"user {config['User']}, port 8000, home /home/agent"


def agent(it: Running) -> str:
    identity = it.container.run("id").strip()
    expect(identity.startswith("uid=1000(agent)"), identity)
    it.container.run("test", "-d", "/configs", "-a", "-d", "/workspace")
    return identity.split()[0]


def tools(it: Running) -> str:
    found = python(it, _TOOLS)
    expect(found.split() == ["git", "curl"], found)
    it.container.run("test", "-s", "/etc/ssl/certs/ca-certificates.crt")
    return "git, curl, CA certificates, MCP client"


def adapter_turn(it: Running) -> str:
    """The reply is a Message with one text part; the next message is the same conversation."""
    for text in ("my colour is teal", "demo:run echo from-the-workspace"):
        message = it.peer.call("SendMessage", message=new_message(text))["message"]
        shown = message["parts"][0]["text"]
        expect(text.rpartition(" ")[2] in shown, message)
    again = it.peer.call("SendMessage", message=new_message("what did I say?"))["message"]
    expect("my colour is teal" in again["parts"][0]["text"], again)
    return "answers as a Message and remembers"


def environment(**more: str) -> dict[str, str]:
    """Returns settings with free ports, because the containers share the host's network."""
    port = free_port()
    return {
        "MOLECULE_HERMES_PORT": port,
        "MOLECULE_HERMES_PUBLIC_URL": f"http://127.0.0.1:{port}",
        "MOLECULE_A2A_PLATFORM_PORT": free_port(),
        "MOLECULE_A2A_CALLBACK_PORT": free_port(),
        "HERMES_API_BASE": f"http://127.0.0.1:{free_port()}/v1",
        "MOLECULE_HERMES_PEER_TOKENS": f"smoke:{TOKEN}",
        "MOLECULE_HERMES_DEMO": "always",
        "MOLECULE_HERMES_CONFINE": "require" if has_landlock() else "auto",
        **more,
    }


def has_landlock() -> bool:
    """Containers have this machine's kernel."""
    create_ruleset, version = 444, 1  # the same numbers on every architecture of the image
    return ctypes.CDLL(None).syscall(create_ruleset, None, 0, version) > 0


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextmanager
def running(engine: Engine, image: str, volume: str, **more: str) -> Iterator[Running]:
    environ = environment(**more)
    url = f"http://127.0.0.1:{environ['MOLECULE_HERMES_PORT']}"
    with engine.start(image, volume, environ) as container:
        yield Running(container, Peer(url, TOKEN), environ)


def expect(ok: object, seen: object) -> None:
    if not ok:
        raise CheckError(f"got {seen}")


def answers(it: Running, path: str, wanted: int) -> Any:
    """Waits until the path responds with that status, and returns the body."""

    def look() -> Any:
        if it.container.ended:
            raise CheckError(f"it ended:\n{it.container.output[-3000:]}")
        status, body = it.peer.get(path)
        return body if status == wanted else None

    return until(f"{path} with {wanted}", READY_LIMIT, look)


def ready(it: Running, began: float) -> str:
    report = answers(it, "/readyz", 200)
    expect(report["ready"] is True and report["parts"]["hermes"]["ok"], report)
    return f"{time.monotonic() - began:.1f} s from its start to /readyz"


def configuration(config: Mapping[str, Any]) -> str:
    expect(list(config["ExposedPorts"]) == ["8000/tcp"], config["ExposedPorts"])
    expect(list(config["Volumes"]) == ["/data"], config["Volumes"])
    expect(config["StopSignal"] in ("SIGTERM", "15"), config["StopSignal"])
    expect(config["User"].split(":")[0] not in ("", "0", "root"), config["User"])
    expect(config["Labels"]["org.opencontainers.image.version"] != "unknown", config["Labels"])
    return f"user {config['User']}, port 8000, volume /data"


def python(it: Running, code: str, *words: str) -> str:
    return it.container.run("python3", "-c", code, *words).strip()


def unprivileged(it: Running) -> str:
    identity = it.container.run("id").strip()
    expect("uid=0" not in identity, identity)
    return identity.split()[0]


def only_the_volume(it: Running) -> str:
    writable = python(it, _WRITABLE).split()
    expect(writable == ["/data"], writable)
    return "only /data is writable"


def no_build_tools(it: Running) -> str:
    found = python(it, _BUILD_TOOLS)
    expect(not found, found)
    return "no compiler, make or git"


def package(it: Running) -> str:
    shown = it.container.run("pip", "show", "molecule-hermes")
    return ", ".join(shown.splitlines()[:2])


def entry_point(it: Running) -> str:
    listed = it.container.run("hermes", "plugins", "list", "--plain", "--no-bundled")
    line = next((line for line in listed.splitlines() if "molecule-a2a" in line), "")
    expect(line.split()[:2] == ["enabled", "entrypoint"], listed)
    return " ".join(line.split())


def stanza(it: Running) -> str:
    shown = it.container.run("hermes", "config", "show")
    expect("/data/hermes/config.yaml" in shown, shown)
    port = it.container.run("hermes", "config", "get", "platforms.molecule_a2a.extra.port").strip()
    expect(port == it.environ["MOLECULE_A2A_PLATFORM_PORT"], port)
    enabled = it.container.run("hermes", "config", "get", "plugins.enabled")
    expect("molecule-a2a" in enabled, enabled)
    return "platforms.molecule_a2a and plugins.enabled"


def bound(it: Running) -> str:
    owner = python(it, _LISTENER, it.environ["MOLECULE_A2A_PLATFORM_PORT"])
    expect(owner.startswith("ready") and "gateway run" in owner, owner or "nobody listens")
    return "by hermes gateway run"


INSIDE = {
    "it runs as its unprivileged user": unprivileged,
    "its root file system": only_the_volume,
    "no build tools": no_build_tools,
    "pip show molecule-hermes": package,
    "the entry point, seen by Hermes": entry_point,
    "hermes config, with the stanza": stanza,
    "the plugin's port is bound": bound,
}


def health(it: Running, config: Mapping[str, Any]) -> str:
    kind, *command = config["Healthcheck"]["Test"]
    expect(kind == "CMD", kind)
    it.container.run(*command)
    return "passes"


def turn(it: Running) -> dict[str, Any]:
    """Runs a turn and fetches its task, runs a tool, and checks that a token is required."""
    task = it.peer.ask("my colour is teal", "smoke")
    expect(state(task) == "COMPLETED" and "my colour is teal" in reply(task), task)
    fetched(it, task)
    tool = it.peer.ask("demo:run echo a-tool-was-here", "smoke-tool")
    expect(state(tool) == "COMPLETED" and "a-tool-was-here" in reply(tool), tool)
    stranger = Peer(f"http://127.0.0.1:{it.environ['MOLECULE_HERMES_PORT']}", "")
    try:
        stranger.ask("hello")
    except OSError as error:
        expect("401" in str(error), error)
        return task
    raise CheckError("a peer without a token was answered")


def doctor(it: Running) -> str:
    return it.container.run("molecule-hermes", "doctor", "--token", TOKEN).strip().splitlines()[-1]


def confined(it: Running) -> str:
    """A tool tries to read the bridge's tasks and to write beside them, as the bridge's user."""
    if not has_landlock():
        return "not checked: this kernel has no Landlock"
    tried = "head -c 16 /data/tasks.db; ls /data; touch /data/planted; echo all-was-tried"
    task = it.peer.ask(f"demo:run {tried}", "smoke-confined")
    shown = reply(task)
    expect("all-was-tried" in shown and "SQLite" not in shown, task)
    expect(shown.count("Permission denied") == 3, task)
    kept = it.container.run("ls", "/data").split()
    expect("tasks.db" in kept and "planted" not in kept, kept)
    return "they neither read nor write the bridge's state"


def reaped(it: Running) -> str:
    """A tool leaves a child process behind. When it exits, it must not stay a zombie."""
    task = it.peer.ask("demo:run (sleep 0.2 &); echo left-one", "smoke-orphan")
    expect("left-one" in reply(task), task)

    def gone() -> list[dict[str, Any]] | None:
        found = json.loads(python(it, _PROCESSES))
        left = [p for p in found if p["status"] == "zombie" or p["name"] == "sleep"]
        return None if left else found

    processes = until("the orphan's end", 15, gone)
    first = next(process["name"] for process in processes if process["pid"] == 1)
    expect(first == "tini", first)
    return "first process: tini"


def drained(it: Running) -> str:
    text = "demo:slow=0.2 one two three four five six seven eight"
    events = it.peer.stream(text, "smoke-drain")
    next(event for event in events if "artifactUpdate" in event)
    began = time.monotonic()
    it.container.kill("TERM")
    last = [event["statusUpdate"] for event in events if "statusUpdate" in event][-1]
    expect(state(last) == "COMPLETED", last)
    code = it.container.wait()
    expect(code == 0, f"exit code {code}:\n{it.container.output[-2000:]}")
    return f"{time.monotonic() - began:.1f} s after the signal"


def processes_of(config: Mapping[str, Any]) -> set[str]:
    """Returns all processes on this machine that run as the image's user."""
    uid = config["User"].split(":")[0]
    return {path.parent.name for path in Path("/proc").glob("[0-9]*/status") if _uid(path) == uid}


def _uid(status: Path) -> str:
    try:
        return status.read_text().split("Uid:", 1)[1].split()[0]
    except OSError:  # the process has ended
        return ""


def none_left(config: Mapping[str, Any], before: set[str]) -> str:
    left = processes_of(config) - before
    expect(not left, f"processes {left} of user {config['User']}")
    return f"of user {config['User']}"


def fetched(it: Running, task: dict[str, Any]) -> None:
    kept = it.peer.call("GetTask", id=task["id"])
    expect(state(kept) == "COMPLETED" and reply(kept) == reply(task), kept)


def remembered(it: Running, task: dict[str, Any]) -> str:
    again = it.peer.ask("what did I say?", "smoke")
    expect("my colour is teal" in reply(again), again)
    fetched(it, task)
    return "the conversation and its task"


def refused(engine: Engine, image: str, volume: str) -> str:
    """Two gateways would corrupt each other's state."""
    with engine.start(image, volume, environment()) as other:
        code = other.wait(60)
        expect(code == 1 and "already runs on /data" in other.output, other.output)
    return "is refused"


def smoke_mode(engine: Engine, image: str) -> str:
    with running(engine, image, engine.volume(image), MOLECULE_SMOKE_MODE="1") as it:
        answers(it, "/livez", 200)
        expect(it.peer.get("/.well-known/agent-card.json")[0] == 200, "no card")
        status, body = it.peer.get("/readyz")
        expect(status == 503 and "smoke mode" in json.dumps(body), (status, body))
        task = it.peer.ask("hello")
        expect(state(task) == "FAILED" and "unreachable" in last_words(task), task)
        it.container.kill("TERM")
        expect(it.container.wait() == 0, it.container.output)
    return "alive, not ready, exits 0"
