"""Pages of ListTasks, bounded in bytes as well as in number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from a2a.types import ListTasksResponse, Task
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    decode_page_token,
    encode_list_tasks_cursor,
)

__all__ = ["MAX_PAGE_BYTES", "bounded", "cut", "read_token"]

MAX_PAGE_BYTES = 4 * 2**20
"""One larger task is a page of its own."""

Row = TypeVar("Row")


def cut(rows: Iterable[tuple[int, Row]], count: int) -> tuple[list[Row], bool]:
    """As many of the rows, each with its size, as make a page; and whether there are more."""
    page: list[Row] = []
    total = 0
    for size, row in rows:
        total += size
        if len(page) == count or (page and total > MAX_PAGE_BYTES):
            return page, True
        page.append(row)
    return page, False


def bounded(page: ListTasksResponse) -> ListTasksResponse:
    """The page without what is beyond the bound, in place; the next page begins there."""
    kept, more = cut(((task.ByteSize(), task) for task in page.tasks), len(page.tasks))
    if more:
        page.next_page_token = encode_list_tasks_cursor(_cursor(kept[-1]))
        del page.tasks[len(kept) :]
    return page


def _cursor(task: Task) -> ListTasksCursor:
    status = task.status
    updated = status.timestamp.ToNanoseconds() if status.HasField("timestamp") else None
    return ListTasksCursor(updated, task.id)


def read_token(token: str) -> ListTasksCursor | str:
    """The last task of the page before or, in a token of an older SDK, the id of the first of this.

    Raises `InvalidParamsError`.
    """
    cursor = decode_list_tasks_cursor(token)
    if cursor is not None and _is_text(cursor.task_id):
        return cursor
    first = decode_page_token(token)
    if not _is_text(first):
        raise InvalidParamsError(f"Invalid page token: {token}")
    return first


def _is_text(text: str) -> bool:
    """Not so for half a surrogate pair, which JSON lets through; PostgreSQL takes no NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
