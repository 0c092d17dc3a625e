"""Ways to break the image, and the message that each must cause at the start."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from image_smoke.checks import environment, expect
from image_smoke.engines import Container, Engine

_AS_UP_LEAVES_IT_BUT = """
from molecule_hermes.config import Settings
from molecule_hermes.hermes.plugin_setup import enable
from molecule_hermes.hermes.home_setup import configure
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.model_choice import demo_choice
settings = Settings.from_env()
home = HermesHome(settings.home)
configure(home, settings, demo_choice("http://127.0.0.1:9/v1"))
enable(home, settings)
home.change_list(("plugins", "enabled"), remove="molecule-a2a")
"""
_NO_ENTRY_POINT = r"""
FROM {image}
USER 0
RUN sed -i '/hermes_agent.plugins/,/^$/d' \
    /opt/molecule-hermes/lib/python3.*/site-packages/molecule_hermes-*.dist-info/entry_points.txt
USER {user}
"""


@dataclass(frozen=True)
class Sabotage:
    start: Callable[[Engine, str], Container]
    told: str
    """The text that the output must contain."""
    code: int = 1


def not_enabled(engine: Engine, image: str) -> Container:
    volume, environ = engine.volume(image), environment()
    words = ["python3", "-c", _AS_UP_LEAVES_IT_BUT]
    with engine.start(image, volume, environ, *words, alone=True) as preparing:
        expect(preparing.wait(60) == 0, preparing.output)
    return engine.start(image, volume, environ, "--keep-config")


def no_entry_point(engine: Engine, image: str) -> Container:
    broken = f"{image}-no-entry-point"
    with tempfile.TemporaryDirectory() as folder:
        text = _NO_ENTRY_POINT.format(image=image, user=engine.config(image)["User"])
        (Path(folder) / "Dockerfile").write_text(text)
        engine.build(Path(folder), broken)
    return engine.start(broken, engine.volume(image), environment())


def port_taken(engine: Engine, image: str) -> Container:
    other = socket.socket()
    other.bind(("127.0.0.1", 0))
    other.listen()
    _HELD.append(other)
    environ = environment(MOLECULE_A2A_PLATFORM_PORT=str(other.getsockname()[1]))
    return engine.start(image, engine.volume(image), environ)


_HELD: list[socket.socket] = []
"""Ports stay in use until this script ends."""


def short_key(engine: Engine, image: str) -> Container:
    environ = environment(API_SERVER_KEY="too-short")
    return engine.start(image, engine.volume(image), environ)


def mistyped_key(engine: Engine, image: str) -> Container:
    environ = environment(MOLECULE_HERMES_DEMO="auto", OPENROUTER_KEY="not-a-real-key")
    return engine.start(image, engine.volume(image), environ)


SABOTAGES = {
    "not-enabled": Sabotage(not_enabled, "does not list molecule-a2a in plugins.enabled"),
    "no-entry-point": Sabotage(no_entry_point, "is not installed in Hermes's environment"),
    "port-taken": Sabotage(port_taken, "set MOLECULE_A2A_PLATFORM_PORT"),
    "mistyped-key": Sabotage(mistyped_key, "the demo model answers on loopback only", code=2),
    "short-key": Sabotage(short_key, "API_SERVER_KEY=(a secret) is not valid", code=2),
}


def caught(name: str, engine: Engine, image: str) -> str:
    """Checks that the container exits and that its last line names the cause."""
    sabotage = SABOTAGES[name]
    with sabotage.start(engine, image) as it:
        code = it.wait(120)
        expect(code == sabotage.code, f"exit code {code}:\n{it.output[-2000:]}")
        expect(sabotage.told in it.output, it.output[-2000:])
        return it.output.strip().splitlines()[-1]
