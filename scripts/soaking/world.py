"""The system under test: `molecule-hermes up`, the demo model, and the injected faults."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from molecule_hermes.hermes.demo_model import demo_model
from molecule_hermes.hermes.model_choice import demo_choice
from tests.support.stack import Stack, environment, up

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sample:
    at: float
    rss: int
    files: int


class World:
    """A stack that can be restarted on the same ports and folder."""

    def __init__(self, environ: dict[str, str], options: list[str]) -> None:
        self._environ = environ
        self._options = options
        self._stack = AsyncExitStack()
        self.running: Stack | None = None
        self.url = f"http://127.0.0.1:{environ['MOLECULE_HERMES_PORT']}"
        self.life = 0
        self.began = 0.0
        self.hermes_kills = 0
        self.codes: list[int] = []
        """Exit codes of the bridge."""
        self.output = ""
        self.samples: list[Sample] = []

    async def start(self) -> None:
        self.began = time.time()
        self.running = await self._stack.enter_async_context(up(self._environ, *self._options))
        self.life += 1
        self.samples = []

    async def stop(self, number: int = signal.SIGTERM) -> None:
        if self.running is not None:
            self.codes.append(await self.running.stop(number))
            self.output += self.running.output
        await self._stack.aclose()

    def kill_hermes(self) -> None:
        """Kills the Hermes of every peer: each peer's turns meet it."""
        with contextlib.suppress(psutil.Error):
            for pid in self.running.hermes_pids() if self.running is not None else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.hermes_kills += 1

    def sample(self) -> Sample | None:
        if self.running is None or self.running.process.returncode is not None:
            return None
        with contextlib.suppress(psutil.Error):
            bridge = psutil.Process(self.running.process.pid)
            taken = Sample(time.monotonic(), bridge.memory_info().rss, bridge.num_fds())
            self.samples.append(taken)
            return taken
        return None

    def left_over(self) -> list[str]:
        """Returns processes that are still running after everything was stopped."""
        folder = self._environ["MOLECULE_HERMES_STATE_DIR"]
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                home = process.environ().get("HERMES_HOME", "")
                if home.startswith(folder) and process.pid != os.getpid():
                    left.append(" ".join(process.cmdline()))
        return left

    def growth(self) -> tuple[float, float]:
        """Returns the bridge's MiB in the third and the last quarter of its last run."""
        quarter = max(1, len(self.samples) // 4)
        third, last = self.samples[-2 * quarter : -quarter], self.samples[-quarter:]
        return _mib(third or last), _mib(last)


def _mib(samples: list[Sample]) -> float:
    return statistics.median(s.rss for s in samples) / 2**20 if samples else 0.0


@asynccontextmanager
async def world(
    folder: Path,
    way: str,
    tokens: dict[str, str],
    heard: Callable[[str], None],
    shared: Path,
) -> AsyncIterator[World]:
    """Every agent may write to the folder `shared`, so that a peer can tell what its agent did."""
    async with demo_model(on_message=heard) as model:
        environ = environment(
            folder,
            MOLECULE_HERMES_PEER_TOKENS=",".join(f"{n}:{t}" for n, t in tokens.items()),
            MOLECULE_HERMES_MAX_RUNNING="8",
            MOLECULE_HERMES_MAX_WAITING_OF_PEER="10",
            MOLECULE_HERMES_QUESTION_TIMEOUT="5",
            MOLECULE_HERMES_DRAIN_TIMEOUT="3",
            # The idempotency index grows until its first entries expire.
            MOLECULE_HERMES_RETRY_WINDOW="120",
            MOLECULE_HERMES_WRITABLE=str(shared),
            MOLECULE_HERMES_MAX_RESTARTS="1000",
            MOLECULE_HERMES_RESTART_WINDOW="10",
        )
        home = folder / "hermes"
        home.mkdir()
        # Only one attempt, so that a provider's error is reported at once.
        config = {"model": demo_choice(model).block, "agent": {"api_max_retries": 1}}
        (home / "config.yaml").write_text(json.dumps(config))
        made = World(environ, ["--transport", way])
        try:
            await made.start()
            yield made
        finally:
            await made.stop()


async def faults(world: World, dice: random.Random, until: float, restarts: bool, say: Say) -> None:
    """Kills Hermes now and then; with `restarts`, also kills and stops the bridge."""
    bridge = [signal.SIGKILL, None, signal.SIGTERM, None] if restarts else [None]
    # Hermes waits long before it boots when it was started more than five times in two minutes.
    pause = min(40.0, (until - time.monotonic()) / 3)
    for number in itertools.cycle(bridge):
        await asyncio.sleep(pause * dice.uniform(0.8, 1.2))
        if time.monotonic() + pause / 2 > until:
            return
        if number is None:
            say("killing Hermes")
            world.kill_hermes()
        else:
            say(f"sending {number.name} to the bridge")
            await world.stop(number)
            await world.start()
