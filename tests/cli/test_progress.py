"""Progress lines of the commands."""

from __future__ import annotations

import pytest

from molecule_hermes.cli import progress as module
from molecule_hermes.cli.progress import progress
from tests.support.waiting import until


async def test_work_that_takes_long_is_reported_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.02)
    said: list[str] = []
    async with progress(said.append, "stopping Hermes"):
        await until(lambda: len(said) >= 2)
    count = len(said)
    assert all(line == "stopping Hermes, 0 s …" for line in said[:2])
    with pytest.raises(TimeoutError):
        await until(lambda: len(said) > count, 0.1)


async def test_short_work_is_not_reported() -> None:
    said: list[str] = []
    async with progress(said.append, "stopping Hermes"):
        pass
    assert said == []


async def test_an_error_in_the_work_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="as it is"):
        async with progress(lambda text: None, "stopping Hermes"):
            raise ValueError("as it is")
