"""Reads that several pages share."""

from __future__ import annotations

import asyncio

import pytest

from foqs.console.shared_reads import ENTRIES_MAX, TIMEOUT_S, SharedReads
from tests.support.virtual_time import run_virtual


class Slow:
    """A read that takes a second and returns how often it was made."""

    def __init__(self) -> None:
        self.count = 0
        self.running = 0
        self.most_running = 0
        self.error: Exception | None = None

    async def read(self) -> int:
        self.count += 1
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        await asyncio.sleep(1.0)
        self.running -= 1
        if self.error is not None:
            raise self.error
        return self.count


def test_pages_of_one_time_share_a_read_and_it_is_repeated_when_it_is_old() -> None:
    async def main() -> None:
        slow, reads = Slow(), SharedReads(ttl_s=10.0)
        assert await asyncio.gather(*(reads.get("a", slow.read, 2.0) for _ in range(5))) == [1] * 5
        await asyncio.sleep(9.9)
        assert await reads.get("a", slow.read, 2.0) == 1
        await asyncio.sleep(0.2)
        assert await reads.get("a", slow.read, 2.0) == 2
        await reads.close()

    run_virtual(main)


def test_a_page_does_not_wait_longer_than_it_says_and_the_read_goes_on() -> None:
    async def main() -> None:
        slow, reads = Slow(), SharedReads(ttl_s=10.0)
        assert await reads.get("a", slow.read, 0.3) is None
        assert asyncio.get_running_loop().time() == pytest.approx(0.3)
        await asyncio.sleep(1.0)
        assert await reads.get("a", slow.read, 0.0) == 1
        await reads.close()

    run_virtual(main)


def test_one_read_runs_at_a_time_and_few_results_are_kept() -> None:
    async def main() -> None:
        slow, reads = Slow(), SharedReads(ttl_s=1_000.0)
        await asyncio.gather(*(reads.get(number, slow.read, 0.0) for number in range(ENTRIES_MAX + 5)))
        await asyncio.sleep(60)
        assert slow.most_running == 1
        assert slow.count == ENTRIES_MAX  # those that were dropped before their turn are not read
        assert len(reads._entries) == ENTRIES_MAX
        await reads.close()

    run_virtual(main)


def test_an_error_is_raised_to_the_pages_that_wait_and_the_next_page_reads_again() -> None:
    async def main() -> None:
        slow, reads = Slow(), SharedReads(ttl_s=10.0)
        slow.error = ValueError("no")
        found = await asyncio.gather(*(reads.get("a", slow.read, 2.0) for _ in range(2)), return_exceptions=True)
        assert [str(error) for error in found] == ["no", "no"]
        slow.error = None
        assert await reads.get("a", slow.read, 2.0) == 2
        await reads.close()

    run_virtual(main)


def test_a_read_that_hangs_ends() -> None:
    async def main() -> None:
        reads = SharedReads(ttl_s=10.0)

        async def hang() -> int:
            await asyncio.sleep(1e6)
            return 0

        assert await reads.get("a", hang, 0.1) is None
        await asyncio.sleep(TIMEOUT_S)
        slow = Slow()
        assert await reads.get("b", slow.read, 2.0) == 1
        await reads.close()

    run_virtual(main)
