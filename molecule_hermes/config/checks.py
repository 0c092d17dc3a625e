"""What the sections of the configuration file must agree on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from itertools import product

from molecule_hermes.config.agents import RouteConfig

__all__ = ["PATTERN", "PATTERN_TAKES", "matches_one_of", "shadowed_by"]

PATTERN = r"[^\x00-\x1f\x7f]{1,256}"
PATTERN_TAKES = "a pattern of at most 256 characters, such as billing-*"
_SPECIAL = frozenset("*?[")
_COMPARED = 100
"""With how many earlier routes that have patterns each route is compared: the time is bounded."""

_Fields = tuple[str, str, str, str]


def matches_one_of(pattern: str, names: Collection[str]) -> bool:
    if not _SPECIAL.intersection(pattern):
        return pattern in names
    return any(fnmatchcase(name, pattern) for name in names)


def shadowed_by(routes: Sequence[RouteConfig]) -> tuple[int, int] | None:
    """The first route that can never match, and the earlier one that takes all its requests.

    It finds routes each of whose patterns is one of the earlier route's, or text that it matches,
    or begins as it does; it does not find every pair of patterns where one implies the other.
    """
    seen: dict[_Fields, int] = {}
    with_patterns: list[tuple[int, _Fields]] = []
    for number, route in enumerate(routes):
        fields = (route.peer, route.tenant, route.context, route.skill)
        # A tenant of "" is no pattern: such a route takes only requests that name no tenant.
        wider = [{each, "*"} if each else {each} for each in fields]
        earlier = [seen[each] for each in product(*wider) if each in seen]
        earlier += [n for n, each in with_patterns if _covers_all(each, fields)]
        if earlier:
            return number, min(earlier)
        seen[fields] = number
        if len(with_patterns) < _COMPARED and any(
            each != "*" and _SPECIAL.intersection(each) for each in fields
        ):
            with_patterns.append((number, fields))
    return None


def _covers_all(wide: _Fields, narrow: _Fields) -> bool:
    return all(_covers(a, b) for a, b in zip(wide, narrow, strict=True))


def _covers(wide: str, narrow: str) -> bool:
    """Whether all that the narrow pattern matches is matched by the wide one, as far as known."""
    if wide == narrow:
        return True
    if not wide or not narrow:
        return False
    if wide == "*":
        return True
    if not _SPECIAL.intersection(narrow):
        return fnmatchcase(narrow, wide)
    start = wide[:-1]
    return wide.endswith("*") and not _SPECIAL.intersection(start) and narrow.startswith(start)
