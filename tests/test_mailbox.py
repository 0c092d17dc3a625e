from __future__ import annotations

import asyncio

from molecule_hermes.mailbox import Mailbox


async def test_what_is_put_is_taken_in_order() -> None:
    box: Mailbox[int] = Mailbox()
    for number in range(3):
        box.put(number)
    assert (len(box), list(box)) == (3, [0, 1, 2])
    assert [await box.get() for _ in range(3)] == [0, 1, 2]


async def test_who_waits_is_woken() -> None:
    box: Mailbox[str] = Mailbox()
    waiter = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put("a")
    box.put("b")
    assert await waiter == "a"
    assert await box.get() == "b"


async def test_who_gives_up_loses_nothing() -> None:
    box: Mailbox[str] = Mailbox()
    for put_first in (False, True):
        waiter = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        if put_first:
            box.put("a")
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    async with asyncio.timeout(1):
        assert await box.get() == "a"
