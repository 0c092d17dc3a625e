from __future__ import annotations

import pytest

from molecule_hermes.plugin.sweeper import Sweeper
from tests.support.waiting import until


async def test_it_cleans_up_at_the_start_when_it_is_woken_and_at_the_end() -> None:
    sweeps: list[int] = []
    sweeper = Sweeper(lambda: sweeps.append(1))
    await sweeper.close()
    assert sweeps == []
    sweeper.open()
    await until(lambda: len(sweeps) == 1)
    sweeper.wake()
    await until(lambda: len(sweeps) == 2)
    await sweeper.close()
    assert len(sweeps) == 3


async def test_it_cleans_up_from_time_to_time() -> None:
    sweeps: list[int] = []
    sweeper = Sweeper(lambda: sweeps.append(1), every=0.01)
    sweeper.open()
    await until(lambda: len(sweeps) >= 3)
    await sweeper.close()


async def test_a_failure_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    sweeps: list[int] = []

    def sweep() -> None:
        sweeps.append(1)
        raise OSError("the disk is gone")

    sweeper = Sweeper(sweep)
    sweeper.open()
    await until(lambda: len(sweeps) == 1)
    sweeper.wake()
    await until(lambda: len(sweeps) == 2)
    await sweeper.close()
    assert "cleaning up failed" in caplog.text
