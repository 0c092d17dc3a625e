"""ListTasks: filters and positions in SQL, and pages bounded in bytes as well as in number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from a2a.types import ListTasksRequest, ListTasksResponse, Task
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    decode_page_token,
    encode_list_tasks_cursor,
)
from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["MAX_PAGE_BYTES", "Key", "Listing", "bounded", "marks", "nanoseconds"]

MAX_PAGE_BYTES = 4 * 2**20
"""One larger task is a page of its own."""

Row = TypeVar("Row")


class Key(NamedTuple):
    """A task's place in the order of a listing."""

    last_updated: int | None
    id: str
    size: int


class Listing:
    """The SQL conditions for one page of ListTasks, with `?` for each value.

    The newest tasks come first; tasks without a timestamp come last.
    """

    def __init__(self, params: ListTasksRequest, owners: Sequence[str]) -> None:
        self.page_size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        self.where = f"owner IN ({marks(len(owners))})"
        self.values: list[Any] = list(owners)
        self._token = params.page_token
        if params.context_id:
            self._require("context_id = ?", params.context_id)
        if params.status:
            self._require("state = ?", params.status)
        if params.HasField("status_timestamp_after"):
            self._require("last_updated >= ?", nanoseconds(params.status_timestamp_after))

    def start(self) -> str | None:
        """Goes to where the page token points.

        Tokens of older SDKs name the page's first task: returns that task's id, and the caller
        continues with `start_at`. Raises `InvalidParamsError`.
        """
        if not self._token:
            return None
        cursor = decode_list_tasks_cursor(self._token)
        if cursor is not None and _is_text(cursor.task_id):
            self._require_after(cursor.timestamp_ns, cursor.task_id, "<")
            return None
        first = decode_page_token(self._token)
        if not _is_text(first):
            raise self.bad_token()
        return first

    def start_at(self, last_updated: int | None, task_id: str) -> None:
        self._require_after(last_updated, task_id, "<=")

    def bad_token(self) -> InvalidParamsError:
        return InvalidParamsError(f"Invalid page token: {self._token}")

    def cut(self, keys: Iterable[Key]) -> tuple[list[Key], str]:
        """The keys of this page, and the token of the next page if there is one."""
        page, more = _cut(((key.size, key) for key in keys), self.page_size)
        if not more:
            return page, ""
        last = page[-1]
        return page, encode_list_tasks_cursor(ListTasksCursor(last.last_updated, last.id))

    def _require(self, condition: str, *values: Any) -> None:
        self.where += f" AND ({condition})"
        self.values += values

    def _require_after(self, updated: int | None, task_id: str, than: str) -> None:
        if updated is None:
            self._require(f"last_updated IS NULL AND id {than} ?", task_id)
            return
        updated = _storable(updated)
        self._require(
            f"last_updated < ? OR last_updated IS NULL OR (last_updated = ? AND id {than} ?)",
            updated,
            updated,
            task_id,
        )


def marks(count: int) -> str:
    """For so many values in SQL."""
    return ", ".join("?" * count)


def nanoseconds(timestamp: Timestamp) -> int:
    return _storable(timestamp.ToNanoseconds())


def _storable(number: int) -> int:
    """Integers of 64 bits end in the year 2262."""
    return max(-(2**63), min(number, 2**63 - 1))


def bounded(page: ListTasksResponse) -> ListTasksResponse:
    """Cuts the page at the limit of bytes, in place; the next page begins there."""
    kept, more = _cut(((task.ByteSize(), task) for task in page.tasks), len(page.tasks))
    if more:
        page.next_page_token = encode_list_tasks_cursor(_cursor(kept[-1]))
        del page.tasks[len(kept) :]
    return page


def _cut(rows: Iterable[tuple[int, Row]], count: int) -> tuple[list[Row], bool]:
    """As many of the rows, each with its size, as fit on a page; and whether there are more."""
    page: list[Row] = []
    total = 0
    for size, row in rows:
        total += size
        if len(page) == count or (page and total > MAX_PAGE_BYTES):
            return page, True
        page.append(row)
    return page, False


def _cursor(task: Task) -> ListTasksCursor:
    status = task.status
    updated = status.timestamp.ToNanoseconds() if status.HasField("timestamp") else None
    return ListTasksCursor(updated, task.id)


def _is_text(text: str) -> bool:
    """Whether databases accept the text: JSON allows half a surrogate pair, PostgreSQL no NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
