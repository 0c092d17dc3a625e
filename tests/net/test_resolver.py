"""Names that outsiders choose hold up nothing but each other."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from molecule_hermes.net.resolver import SeparateResolver


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1")])
async def test_an_address_is_its_own(host: str, address: str) -> None:
    resolver = SeparateResolver()
    try:
        found = await resolver.resolve(host, 80, socket.AF_UNSPEC)
    except socket.gaierror:
        pytest.skip("this machine has no such addresses")
    finally:
        await resolver.close()
    assert [(each["host"], each["port"]) for each in found] == [(address, 80)]


async def test_a_name_that_is_none_is_an_error() -> None:
    resolver = SeparateResolver()
    with pytest.raises(socket.gaierror):
        await resolver.resolve("no-such-name.invalid", 80)
    await resolver.close()


async def test_names_that_are_never_resolved_leave_the_other_threads_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()

    def slow(*given: Any) -> list[Any]:
        release.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    resolver = SeparateResolver()
    lookups = [asyncio.create_task(resolver.resolve(f"{n}.slow.test")) for n in range(200)]
    try:
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: "done") == "done"
        assert not any(each.done() for each in lookups)
    finally:
        release.set()
        await asyncio.gather(*lookups)
        await resolver.close()
