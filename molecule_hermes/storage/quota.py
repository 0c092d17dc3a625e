"""How many bytes of tasks each peer has stored, and how many it may."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from molecule_hermes.errors import QuotaExceeded

__all__ = ["StorageQuota", "StoredBytes"]

_RECENT = 1000


class StoredBytes:
    """Kept in memory, beside a store that is asked once at the start. No I/O."""

    def __init__(self) -> None:
        self.total = 0
        self._of_peer: dict[str, int] = {}
        self._open: dict[tuple[str, str], int] = {}
        self._ended: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Of late: a task may be saved once more after its end."""

    def __len__(self) -> int:
        """Tasks whose sizes are kept in memory."""
        return len(self._open) + len(self._ended)

    def of(self, peer: str) -> int:
        return self._of_peer.get(peer, 0)

    def load(self, bytes_of_peers: Mapping[str, int]) -> None:
        for peer, size in bytes_of_peers.items():
            self._add(peer, size)

    def saved(self, peer: str, task_id: str, size: int, *, ended: bool) -> None:
        key = (peer, task_id)
        before = self._open.pop(key, 0) + self._ended.pop(key, 0)
        self._add(peer, size - before)
        if not ended:
            self._open[key] = size
            return
        self._ended[key] = size
        if len(self._ended) > _RECENT:
            self._ended.popitem(last=False)

    def deleted(self, peer: str, task_id: str, size: int) -> None:
        self._open.pop((peer, task_id), None)
        self._ended.pop((peer, task_id), None)
        self._add(peer, -size)

    def _add(self, peer: str, size: int) -> None:
        self._of_peer[peer] = max(0, self._of_peer.get(peer, 0) + size)
        self.total = max(0, self.total + size)


class StorageQuota:
    """Beyond `limit` bytes a peer's turns are refused; 0 means no limit."""

    def __init__(self, stored: StoredBytes, limit: int, keep_days: float) -> None:
        self._stored = stored
        self._limit = limit
        self._keep_days = keep_days

    def admit(self, peer: str) -> None:
        """Raises `QuotaExceeded` when the peer has no room left."""
        if self._limit and self._stored.of(peer) >= self._limit:
            raise self._exceeded(peer)

    def require_room_for_refusal(self, peer: str) -> None:
        """A refused turn leaves a small task behind. Beyond a tenth more than the limit there is no
        room for these either."""
        if self._limit and self._stored.of(peer) >= self._limit * 1.1:
            raise self._exceeded(peer)

    def _exceeded(self, peer: str) -> QuotaExceeded:
        return QuotaExceeded(
            f"your tasks take {self._stored.of(peer):,} bytes of this agent's storage, and a peer "
            f"has {self._limit:,}",
            hint=f"tasks are deleted {self._keep_days:g} days after their end; the agent's "
            "operator can change that (MOLECULE_HERMES_KEEP_DAYS) or raise "
            "MOLECULE_HERMES_MAX_STORED_BYTES_OF_PEER",
        )
