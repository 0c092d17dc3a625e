from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.text import is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9", "::ffff:127.0.0.1"]
)
def test_loopback_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "127.0.0.1.example", "localhost."]
)
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@given(st.text())
def test_any_text_is_a_loopback_host_or_not(host: str) -> None:
    assert is_loopback(host) in (True, False)
