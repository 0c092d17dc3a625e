"""Deletes old tasks in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from molecule_hermes.errors import StorageFailure
from molecule_hermes.storage.base import Store

__all__ = ["pruned"]

logger = logging.getLogger(__name__)

_PRUNE_EVERY = 600.0
_PRUNE_PAUSE = 0.1
"""Seconds between two batches, so that turns go first."""


@contextlib.asynccontextmanager
async def pruned(store: Store, days: float, keep: int) -> AsyncIterator[None]:
    """Prunes the store for as long as the context is open."""
    pruner = asyncio.create_task(_prune(store, days, keep), name="pruner")
    try:
        yield
    finally:
        pruner.cancel()
        await asyncio.gather(pruner, return_exceptions=True)


async def _prune(store: Store, days: float, keep: int) -> None:
    while True:
        deleted = 0
        try:
            deleted = await store.prune(time.time() - days * 86_400, keep)
        except StorageFailure as failure:
            logger.warning("old tasks cannot be deleted now: %s", failure)
        except Exception:
            logger.exception("old tasks could not be deleted")
        await asyncio.sleep(_PRUNE_PAUSE if deleted else _PRUNE_EVERY)
