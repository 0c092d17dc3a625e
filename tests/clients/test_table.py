"""The documentation agrees with the clients that are tried."""

from __future__ import annotations

import re
from pathlib import Path

from tests.clients.clients import CLIENTS, limits, table

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
TESTS = Path(__file__).parent / "test_clients.py"


def test_the_page_has_the_table_of_clients() -> None:
    assert _section("clients") == table()
    assert _section("limits") == limits()


def test_the_page_names_tests_that_exist() -> None:
    named = re.findall(r"`(test_\w+)`", PAGE.read_text())
    assert named
    assert [name for name in named if f"def {name}(" not in TESTS.read_text()] == []


def test_every_package_of_a_client_has_an_exact_version() -> None:
    exact = re.compile(r"[\w.\[\]-]+==\S+|@?[\w./-]+@\d+\.\d+\.\d+")
    for client in CLIENTS:
        lines = client.requirements.read_text().splitlines()
        assert [line for line in lines if not exact.fullmatch(line)] == []


def _section(name: str) -> str:
    return PAGE.read_text().split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0]
