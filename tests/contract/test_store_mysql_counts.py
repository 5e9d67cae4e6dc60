"""The count of a shard on a server: it may take long, sleeps for the flushes, and its connection may be lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import pytest

from foqs.core.items.item import State
from foqs.store.mysql import mysql_sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings
from foqs.store.mysql.mysql_protocol import Result
from foqs.store.mysql.mysql_reads import MysqlReads
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import (
    StoreLost,
    TopicCount,
)
from tests.contract.conftest import Bench, mysql_bench
from tests.support.aio import run
from tests.support.dropping_proxy import DroppingProxy
from tests.support.mariadb import MariaDb
from tests.support.poll import soon
from tests.support.stores import TOPIC, make_row, opened, reading

pytestmark = pytest.mark.mysql

_TIMEOUT_S: Final = 0.5
_PATIENCE_S: Final = 30.0


@pytest.fixture
def bench(place: MysqlSettings) -> Bench:
    return mysql_bench(place)


@pytest.fixture
def patient_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each link waits for its replies as long as a busy machine takes, whatever the statement timeout of the reads is."""
    connect = MysqlLink.connect

    async def connect_patiently(settings: MysqlSettings) -> MysqlLink:
        return await connect(replace(settings, statement_timeout_s=_PATIENCE_S))

    monkeypatch.setattr(MysqlLink, "connect", connect_patiently)


@pytest.mark.usefixtures("patient_links")
def test_a_count_may_take_longer_than_the_statement_timeout(place: MysqlSettings) -> None:
    waiting = (
        b"SELECT COUNT(*) FROM information_schema.PROCESSLIST "
        b"WHERE STATE LIKE 'Waiting for table metadata lock%' AND INFO LIKE '%foqs_3_item%'"
    )

    async def story() -> None:
        holder = await MysqlLink.connect(place)
        owned = await opened(MysqlStore(place, 3))
        await owned.write(inserts=[make_row(1)])
        reads = MysqlReads(replace(place, statement_timeout_s=_TIMEOUT_S), 3)
        await reads.begin_snapshot(owned.past)
        assert reads._link is not None
        reads._link.timeout_s = _TIMEOUT_S
        await holder.run(b"LOCK TABLES foqs_3_item WRITE")
        counting = asyncio.ensure_future(reads.counts())
        clock = asyncio.get_running_loop().time
        waits_since_s = float("inf")
        while not counting.done() and clock() < waits_since_s + 2 * _TIMEOUT_S:
            (found,) = await holder.run(waiting)
            if found.rows[0][0]:
                waits_since_s = min(waits_since_s, clock())
        await holder.run(b"UNLOCK TABLES")
        assert [count.rows for count in await counting] == [1]
        for each in (reads, holder, owned.store):
            await each.close()

    run(story())


@pytest.mark.usefixtures("patient_links")
@pytest.mark.parametrize("is_server_in_reach", [True, False])
def test_count_whose_reply_is_lost_by_the_network_fails_soon(
    mariadb: MariaDb, place: MysqlSettings, is_server_in_reach: bool
) -> None:
    async def story(proxy: DroppingProxy) -> None:
        behind = replace(
            place, unix_socket=None, port=proxy.port, connect_timeout_s=2.0, statement_timeout_s=_TIMEOUT_S
        )
        store = MysqlStore(behind, 3)
        reads = MysqlReads(behind, 3)
        try:
            owned = await opened(store)
            await owned.write(inserts=[make_row(1)])
            await reads.begin_snapshot(owned.past)
            proxy.drop(new_connections=not is_server_in_reach)
            with pytest.raises(StoreLost, match="was lost" if is_server_in_reach else "no answer|MySQL"):
                await reads.counts()
            proxy.heal()
            await owned.store.read_owner()
            await reads.begin_snapshot(owned.past)
            assert [count.rows for count in await reads.counts()] == [1]
        finally:
            await reads.close()
            await store.close()

    with DroppingProxy(mariadb.port) as proxy:
        run(story(proxy))


def test_a_count_that_sleeps_at_some_rows_counts_all_of_them(bench: Bench) -> None:
    numbers = [1, 4_095, 4_096, 4_097, 8_192]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(number) for number in numbers])
        async with reading(owned.store) as reads:
            await reads.begin_snapshot(owned.past)
            assert await reads.counts() == [TopicCount(*TOPIC, State.READY, 5, 35)]

    bench.run(story())


def test_flushes_continue_while_a_count_sleeps_and_a_killed_count_is_lost(
    bench: Bench, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_statements = MysqlLink.run

    async def run_with_long_pauses(link: MysqlLink, *statements: Any, **more: Any) -> list[Result]:
        pause = f"SLEEP({mysql_sql.PAUSE_S})".encode()
        paused = [each.replace(pause, b"SLEEP(3600)") if isinstance(each, bytes) else each for each in statements]
        return await run_statements(link, *paused, **more)

    monkeypatch.setattr(MysqlLink, "run", run_with_long_pauses)
    asleep = "SELECT ID FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep' AND INFO LIKE '%foqs_3_item%SLEEP(3600)%'"

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1), make_row(4_096), make_row(4_097)])
        async with reading(owned.store) as reads:
            await reads.begin_snapshot(owned.past)
            counting = asyncio.ensure_future(reads.counts())
            await soon(lambda: counting.done() or bool(mariadb.query(asleep)))
            await owned.write(inserts=[make_row(2)], deletes=[1, 4_096])
            assert not counting.done()
            ((connection,),) = mariadb.query(asleep)
            mariadb.query(f"KILL QUERY {connection}")
            with pytest.raises(StoreLost):
                await counting
            await reads.begin_snapshot(owned.past)

    bench.run(story())
