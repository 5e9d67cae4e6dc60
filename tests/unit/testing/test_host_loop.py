"""A host's loop within the test's loop: its time, its turns, and what it refuses."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from foqs.testing.host_loop import HostLoop
from foqs.testing.memory_network import MemoryNetwork
from tests.support.aio import run
from tests.support.poll import soon
from tests.support.virtual_time import run_virtual


def test_its_time_is_what_was_advanced_and_real_time_too() -> None:
    async def main() -> None:
        loop = HostLoop(asyncio.get_running_loop(), MemoryNetwork())
        before = loop.time()
        await loop.advance(1_000)
        assert loop.time() >= before + 1_000

        async def sleep() -> float:
            await asyncio.sleep(0.01)  # by real time: nobody advances
            return loop.time()

        task = loop.create_task(sleep())
        await soon(task.done)
        assert task.result() >= before + 1_000.01
        await loop.finish()

    run(main())


def test_advance_stops_at_each_timer_and_skips_cancelled_ones() -> None:
    async def program() -> None:
        loop = HostLoop(asyncio.get_running_loop(), MemoryNetwork())
        seen: list[float] = []

        def note() -> None:
            seen.append(loop.time())
            if len(seen) == 1:
                loop.call_later(5, note)

        loop.call_later(10, note)
        loop.call_at(12, note).cancel()
        loop.call_at(30, note)
        await loop.advance(20)
        assert (seen, loop.time()) == ([10, 15], 20)
        await loop.finish()

    run_virtual(program)


def test_tls_and_threads_are_refused() -> None:
    async def program() -> None:
        loop = HostLoop(asyncio.get_running_loop(), MemoryNetwork())
        with pytest.raises(ValueError, match="TLS"):
            await loop.create_server(asyncio.Protocol, "host", 1, ssl=ssl.create_default_context())
        with pytest.raises(RuntimeError, match="no threads"):
            loop.run_in_executor(None, int)
        await loop.finish()

    run_virtual(program)
