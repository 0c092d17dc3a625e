"""Loads, after a start, what Hermes's first turn would have to wait for.

A thread imports modules and looks at the environment, as the first agent would. No agent is made:
that would call out to providers. A turn that comes meanwhile waits for no more than it would load
itself.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
import time

from molecule_hermes.plugin import hermes_api

__all__ = ["begin", "is_done"]

log = logging.getLogger(__name__)

_LONGEST = 15.0
"""Seconds after which Hermes counts as warm in any case."""


class _WarmUp:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.over = threading.Event()
        threading.Thread(target=self._run, name="molecule-warm-up", daemon=True).start()

    def _run(self) -> None:
        try:
            for name in hermes_api.MODULES:
                importlib.import_module(name)
            hermes_api.probe_environment()
            log.info("Hermes is warm after %.1f s", time.monotonic() - self.began)
        except Exception:
            log.exception("Hermes could not be warmed up; its first turn takes longer")
        finally:
            self.over.set()

    @property
    def is_done(self) -> bool:
        return self.over.is_set() or time.monotonic() - self.began > _LONGEST


@functools.cache
def begin() -> _WarmUp:
    """Begins once in each process."""
    return _WarmUp()


def is_done() -> bool:
    return begin().is_done
