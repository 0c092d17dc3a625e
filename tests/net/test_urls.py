"""URLs made of a host and a port. PUBLIC_URL is in tests/test_config.py."""

from __future__ import annotations

import pytest

from molecule_hermes.net.urls import base_url


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("agent.example", "http://agent.example:8000"),
        ("::1", "http://[::1]:8000"),
        ("[::1]", "http://[::1]:8000"),
    ],
)
def test_an_ipv6_address_has_brackets_in_a_url(host: str, url: str) -> None:
    assert base_url(host, 8000) == url
