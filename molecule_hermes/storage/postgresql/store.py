"""Tasks in PostgreSQL."""

from __future__ import annotations

from molecule_hermes.storage.base import PATIENCE
from molecule_hermes.storage.postgresql.database import Database
from molecule_hermes.storage.sql import SqlTaskStore

__all__ = ["PostgresTaskStore"]


class PostgresTaskStore(SqlTaskStore):
    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        super().__init__(Database(url, patience=patience))
