"""The stored bytes of each peer, and their limit."""

from __future__ import annotations

from collections.abc import Mapping

from molecule_hermes.errors import QuotaExceeded

__all__ = ["StorageQuota", "StoredBytes"]


class StoredBytes:
    """Counts in memory what the store holds: loaded once at the start, then kept up to date.

    An ended task is saved once, so only tasks without an end are remembered one by one. No I/O.
    """

    def __init__(self) -> None:
        self.total = 0
        self._by_peer: dict[str, int] = {}
        self._unfinished: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        """Tasks whose sizes are kept in memory."""
        return len(self._unfinished)

    def of(self, peer: str) -> int:
        return self._by_peer.get(peer, 0)

    def load(self, bytes_by_peer: Mapping[str, int]) -> None:
        for peer, size in bytes_by_peer.items():
            self._add(peer, size)

    def resumed(self, peer: str, task_id: str, size: int) -> None:
        """A loaded task that has no end yet, so that it will be saved again."""
        self._unfinished[peer, task_id] = size

    def saved(self, peer: str, task_id: str, size: int, *, ended: bool) -> None:
        before = self._unfinished.pop((peer, task_id), 0)
        self._add(peer, size - before)
        if not ended:
            self._unfinished[peer, task_id] = size

    def deleted(self, peer: str, task_id: str, size: int) -> None:
        """Only ended tasks are deleted."""
        self._add(peer, -size)

    def _add(self, peer: str, size: int) -> None:
        self._by_peer[peer] = max(0, self._by_peer.get(peer, 0) + size)
        self.total = max(0, self.total + size)


class StorageQuota:
    """Refuses the turns of a peer that has `limit` bytes of tasks; 0 means no limit."""

    def __init__(self, stored: StoredBytes, limit: int, keep_days: float) -> None:
        self._stored = stored
        self._limit = limit
        self._keep_days = keep_days

    def admit(self, peer: str) -> None:
        """Raises `QuotaExceeded` when the peer has no room left."""
        if self._limit and self._stored.of(peer) >= self._limit:
            raise self._exceeded(peer)

    def require_room_for_refusal(self, peer: str) -> None:
        """Raises `QuotaExceeded` beyond 110 % of the limit: a refused turn leaves a small task
        behind, and at some point there is no room for these either."""
        if self._limit and self._stored.of(peer) >= self._limit * 1.1:
            raise self._exceeded(peer)

    def _exceeded(self, peer: str) -> QuotaExceeded:
        return QuotaExceeded(
            f"your tasks take {self._stored.of(peer):,} bytes of this agent's storage, and the "
            f"limit is {self._limit:,}",
            hint=f"tasks are deleted {self._keep_days:g} days after their end; the agent's "
            "operator can change that (MOLECULE_HERMES_KEEP_DAYS) or raise "
            "MOLECULE_HERMES_MAX_STORED_BYTES_OF_PEER",
        )
