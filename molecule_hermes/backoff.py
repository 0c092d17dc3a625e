"""One retry policy: exponential delays with a longest one.

Standard library only: the plugin imports this module inside Hermes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays between attempts: `first`, then `factor` times the one before, up to `longest`.

    `jitter` is the fraction by which each delay varies at random, so that clients that failed
    together do not retry together.
    """

    first: float
    longest: float
    factor: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.longest or self.factor < 1 or not 0 <= self.jitter < 1:
            raise ValueError(f"not a retry policy: {self}")

    def delay(self, failures: int) -> float:
        """The seconds to wait after the given number of failures in a row, at least one."""
        try:
            delay = min(self.first * self.factor ** (failures - 1), self.longest)
        except OverflowError:
            delay = self.longest
        return delay * random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311 - no secret

    def delays(
        self, within: float | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[float]:
        """One delay per failure.

        With `within`, they end that many seconds after this call. The last one is cut short so
        that one more attempt happens just then.
        """
        deadline = None if within is None else clock() + within
        return self._delays(deadline, clock)

    def _delays(self, deadline: float | None, clock: Callable[[], float]) -> Iterator[float]:
        failures = 0
        while True:
            failures += 1
            delay = self.delay(failures)
            if deadline is not None:
                left = deadline - clock()
                if left <= 0:
                    return
                delay = min(delay, left)
            yield delay
