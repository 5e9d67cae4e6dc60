"""Work beside a block ends with it, and no error is dropped."""

from __future__ import annotations

import asyncio

import pytest

from perf.lib.running import running
from tests.support.aio import run


async def fail(text: str) -> None:
    raise ValueError(text)


def test_work_ends_with_its_block() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def story() -> None:
        async with running([work()]):
            await asyncio.sleep(0)
        assert ended == ["work"]

    run(story())


def test_all_errors_of_the_work_are_raised_at_the_end_of_the_block() -> None:
    async def story() -> None:
        async with running([fail("one"), fail("two")]):
            await asyncio.sleep(0)

    with pytest.raises(ExceptionGroup) as caught:
        run(story())
    assert [str(error) for error in caught.value.exceptions] == ["one", "two"]


def test_error_of_the_block_is_raised_with_those_of_the_work_as_notes() -> None:
    async def story() -> None:
        async with running([fail("one")]):
            await asyncio.sleep(0)
            raise KeyError("block")

    with pytest.raises(KeyError, match="block") as caught:
        run(story())
    assert caught.value.__notes__ == ["work beside it had ended: ValueError('one')"]
