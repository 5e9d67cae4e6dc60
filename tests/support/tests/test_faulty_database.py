"""The simulated database server: each fault has the error type and the effect of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from foqs.store.port import StoreLost, StoreUnusable, WriteRefused
from tests.support.clocks import ServerClock
from tests.support.faulty_database import NONE, FaultRates, FaultyDatabaseServer
from tests.support.stores import OTHER, Ownership, contents, make_row, opened, reading
from tests.support.virtual_time import SimulatedLoop, run_virtual


def play(story: Callable[[FaultyDatabaseServer, Ownership], Awaitable[None]]) -> FaultyDatabaseServer:
    """A story of a server that is well, and of the owner of its only shard."""
    servers: list[FaultyDatabaseServer] = []

    async def program() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        server = FaultyDatabaseServer(
            loop, Random(1), ServerClock(loop, Random(1)), lambda: 0.0, lambda server, connection: None
        )
        server.troubles = NONE
        servers.append(server)
        await story(server, await opened(server.store(1)))

    run_virtual(program, until_s=60)
    return servers[0]


def certain(**trouble: float) -> FaultRates:
    return FaultRates(**(dict.fromkeys(FaultRates.__slots__, 0.0) | trouble))


def test_a_deadlock_writes_nothing_and_is_retryable() -> None:
    async def story(server: FaultyDatabaseServer, owned: Ownership) -> None:
        server.troubles = certain(deadlock=1.0)
        with pytest.raises(WriteRefused) as refused:
            await owned.write(inserts=[make_row(1)])
        assert refused.value.is_retryable
        server.heal()
        await owned.write(inserts=[make_row(1)])
        assert set(await contents(owned)) == {1}

    assert play(story).counts["deadlocks"] == 1


def test_a_read_only_server_refuses_writes_and_owners_but_serves_reads() -> None:
    async def story(server: FaultyDatabaseServer, owned: Ownership) -> None:
        await owned.write(inserts=[make_row(1)])
        server.turn_read_only(2)
        async with reading(owned.store) as reads:
            assert len(await reads.rows(owned.past, [1])) == 1
        with pytest.raises(StoreLost, match="read-only"):
            await owned.write(inserts=[make_row(2)])
        with pytest.raises(StoreLost, match="read-only"):
            await owned.store.read_owner()
        with pytest.raises(StoreLost, match="read-only"):
            await owned.store.take_over(2, OTHER)
        await asyncio.sleep(2)
        assert (await owned.store.read_owner()).flush == 1
        await owned.write(inserts=[make_row(2)])

    assert play(story).counts["writes while read-only"] == 3


def test_a_server_that_returns_with_weak_settings_refuses_owners_until_they_are_fixed() -> None:
    async def story(server: FaultyDatabaseServer, owned: Ownership) -> None:
        server.restart(weak_s=2)
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(1)])
        with pytest.raises(StoreLost, match="innodb_flush_log_at_trx_commit is 2"):
            await owned.store.read_owner()
        with pytest.raises(StoreUnusable, match="innodb_flush_log_at_trx_commit is 2"):
            await server.store(1).open()
        await asyncio.sleep(2)
        assert (await owned.store.read_owner()).flush == 0
        await owned.write(inserts=[make_row(1)])
        assert not server.is_commit_risky

    assert play(story).counts["weak servers"] == 2


def test_a_server_that_is_down_keeps_committed_data() -> None:
    async def story(server: FaultyDatabaseServer, owned: Ownership) -> None:
        await owned.write(inserts=[make_row(1)])
        server.restart(away_s=2)
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(2)])
        with pytest.raises(StoreLost, match="refused the connection"):
            await owned.store.read_owner()
        async with reading(owned.store) as reads:
            with pytest.raises(StoreLost, match="refused the connection"):
                await reads.rows(owned.past, [1])
        await asyncio.sleep(2)
        assert (await owned.store.read_owner()).flush == 1
        assert set(await contents(owned)) == {1}

    assert play(story).counts["nobody there"] == 2


@pytest.mark.parametrize("seed", range(20))
def test_a_late_commit_takes_effect_and_readers_of_the_owner_row_wait_for_it(seed: int) -> None:
    async def story(server: FaultyDatabaseServer, owned: Ownership) -> None:
        server.rng.seed(seed)
        server.troubles = certain(late_commit=1.0)
        try:
            await owned.write(inserts=[make_row(1)])
        except StoreLost:
            owned.number += 1
            committed = (await owned.store.read_owner()).flush == 1
        else:
            committed = True
        server.heal()
        await asyncio.sleep(10)
        assert set(await contents(Ownership(owned.store, number=2 if committed else 1))) == (
            {1} if committed else set()
        )

    play(story)


def test_a_slow_server_answers_late() -> None:
    async def story(server: FaultyDatabaseServer, owned: Ownership) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await owned.write()
        usual, before = loop.time() - before, loop.time()
        server.slow_down(60)
        await owned.write()
        assert loop.time() - before > 5 * usual

    play(story)
