"""The result of ListTasks without the empty defaults that the SDK prints in it."""

from __future__ import annotations

from typing import Any

__all__ = ["without_empty_defaults"]

_FREE_FORM = frozenset({"metadata", "data"})
"""Peers choose what is below these names."""
_CONTENT = frozenset({"text", "raw", "url"})
"""Members of a oneof: an empty one has been set."""


def without_empty_defaults(result: dict[str, Any]) -> dict[str, Any]:
    """The members of the result itself stay: A2A requires them even when they are empty."""
    return result | {"tasks": [_pruned(task) for task in result.get("tasks", [])]}


def _pruned(value: Any) -> Any:
    match value:
        case dict():
            return {
                name: item if name in _FREE_FORM else _pruned(item)
                for name, item in value.items()
                if name in _FREE_FORM or name in _CONTENT or item not in ("", [])
            }
        case list():
            return [_pruned(item) for item in value]
    return value
