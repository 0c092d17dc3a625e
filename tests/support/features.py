"""Marks of tests by the features table."""

from __future__ import annotations

import pytest

from molecule_hermes.turns.features import TransportName, why_not


def skip_unless_the_table_says_so(request: pytest.FixtureRequest, way: TransportName) -> None:
    """Skips a test of what this way cannot do, and one of what happens where it cannot."""
    for mark in request.node.iter_markers():
        if mark.name in ("feature", "without"):
            reason = why_not(mark.args[0], way)
            if bool(reason) is (mark.name == "feature"):
                pytest.skip(f"{way}: {mark.args[0].value.what}: {reason or 'yes'}")
