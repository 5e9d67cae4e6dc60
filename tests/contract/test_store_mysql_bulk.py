"""New rows in bulk on a real MariaDB: refused as one, split into packets, and sent as before to any other server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foqs.store.mysql import mysql_store
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings, OnResults
from foqs.store.mysql.mysql_protocol import BoundStatement, Result, Statement
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import StoreLost, WriteRefused
from tests.contract.conftest import Bench, mysql_bench
from tests.support.aio import run
from tests.support.inner_parts import link_of
from tests.support.mariadb import MariaDb
from tests.support.stores import contents, make_row, opened

pytestmark = pytest.mark.mysql


@pytest.fixture
def bulk_server(servers: Callable[[str], MariaDb]) -> MariaDb:
    """The test session's MariaDB."""
    return servers("mariadb")


@pytest.fixture
def bulk_place(bulk_server: MariaDb) -> MysqlSettings:
    """A new database there."""
    return bulk_server.settings(bulk_server.database())


@pytest.fixture
def bulk_bench(bulk_place: MysqlSettings) -> Bench:
    return mysql_bench(bulk_place)


@pytest.fixture
def in_bulk(monkeypatch: pytest.MonkeyPatch) -> list[BoundStatement]:
    """The statements in bulk that are sent."""
    sent: list[BoundStatement] = []
    run_statements = MysqlLink.run

    async def seen(link: MysqlLink, *statements: Statement, on_results: OnResults | None = None) -> list[Result]:
        sent.extend(each for each in statements if isinstance(each, BoundStatement) and each.is_bulk)
        return await run_statements(link, *statements, on_results=on_results)

    monkeypatch.setattr(MysqlLink, "run", seen)
    return sent


class _Cutting:
    """A transport that sends the beginning of what it is given, and closes."""

    def __init__(self, transport: Any, sent_bytes: int) -> None:
        self._transport = transport
        self._sent_bytes = sent_bytes

    def write(self, data: bytes) -> None:
        assert len(data) > self._sent_bytes
        self._transport.write(data[: self._sent_bytes])
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.parametrize("over_tcp", [False, True])
def test_a_link_executes_in_bulk_where_its_server_does(mariadb: MariaDb, over_tcp: bool) -> None:
    place = mariadb.settings(mariadb.database())
    if over_tcp:
        place = mariadb.settings(place.database, unix_socket=None, port=mariadb.port)

    async def story() -> None:
        link = await MysqlLink.connect(place)
        assert link.can_bulk is (mariadb.name == "mariadb")
        await link.close()

    run(story())


def test_rows_in_bulk_have_every_kind_of_value(bulk_bench: Bench, in_bulk: list[BoundStatement]) -> None:
    largest = (1 << 63) - 1
    rows = [
        make_row(1, topic="it's ? \\", payload=bytes(range(256)) * 300, metadata=b"\\'?\0\xff"),
        make_row(largest, priority=-(1 << 31), deliver_after_ms=0, payload=b"", ttl_ms=1 << 40, due_ms=9),
        make_row(3, priority=(1 << 31) - 1, expires_at_ms=(1 << 62) + 1, namespace="é", payload=b"\1"),
        *[make_row(number, payload=bytes(number)) for number in (250, 251, 65_535, 65_536)],
    ]

    async def story() -> None:
        owned = await opened(bulk_bench.store())
        await owned.write(inserts=rows)
        assert await contents(owned) == {row.id: row for row in rows}

    bulk_bench.run(story())
    assert len(in_bulk) == 1


@pytest.mark.parametrize("at", [0, 50, 99])
def test_a_row_that_is_refused_in_bulk_undoes_the_rows_before_it(
    bulk_bench: Bench, in_bulk: list[BoundStatement], at: int
) -> None:
    rows = [make_row(number) for number in range(1, 101)]

    async def story() -> None:
        owned = await opened(bulk_bench.store())
        await owned.write(inserts=[make_row(1_000)])
        for bad, reason in (
            (make_row(1_000), "Duplicate"),
            (make_row(at + 1, priority=1 << 31), "Out of range"),
            (make_row(at + 1, topic="x" * 256), "too long"),
        ):
            with pytest.raises(WriteRefused, match=reason) as refused:
                await owned.write(inserts=[*rows[:at], bad, *rows[at + 1 :]])
            assert not refused.value.is_retryable
            assert set(await contents(owned)) == {1_000}
        await owned.write(inserts=rows)
        assert len(await contents(owned)) == 101

    bulk_bench.run(story())
    assert len(in_bulk) == 5


def test_rows_in_bulk_are_split_below_the_servers_packet(
    bulk_bench: Bench, in_bulk: list[BoundStatement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_store, "PACKET_BYTES_MAX", 20_000)
    rows = [make_row(number, payload=bytes([number]) * 1_024) for number in range(1, 101)]

    async def story() -> None:
        owned = await opened(bulk_bench.store())
        await owned.write(inserts=rows)
        with pytest.raises(WriteRefused, match="max_allowed_packet"):
            await owned.write(inserts=[make_row(101), make_row(102, payload=bytes(30_000))])
        assert await contents(owned) == {row.id: row for row in rows}

    bulk_bench.run(story())
    assert len(in_bulk) > 5
    assert max(map(len, in_bulk)) < 20_000


@pytest.mark.parametrize("packet_bytes", [1 << 20, 16 << 20])
def test_the_largest_packet_in_bulk_is_accepted(
    bulk_server: MariaDb, in_bulk: list[BoundStatement], packet_bytes: int
) -> None:
    """As large as the server's own limit allows, and the most bytes of one INSERT."""
    bench = mysql_bench(bulk_server.settings(bulk_server.database()))
    before = bulk_server.query("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    rows = [make_row(number, payload=bytes(10 << 10)) for number in range(1, 1_001)]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=rows)
        assert len(await contents(owned)) == len(rows)

    bulk_server.query(f"SET GLOBAL max_allowed_packet = {packet_bytes}")
    try:
        bench.run(story())
    finally:
        bulk_server.query(f"SET GLOBAL max_allowed_packet = {before}")
    assert len(in_bulk) == -(-sum(map(len, in_bulk)) // max(map(len, in_bulk)))
    assert packet_bytes // 5 < max(map(len, in_bulk)) <= packet_bytes


def test_an_altered_table_accepts_rows_in_bulk_again(
    bulk_bench: Bench, bulk_place: MysqlSettings, bulk_server: MariaDb, in_bulk: list[BoundStatement]
) -> None:
    async def story() -> None:
        owned = await opened(bulk_bench.store())
        await owned.write(inserts=[make_row(1), make_row(2)])
        bulk_server.query(f"ALTER TABLE {bulk_place.database}.foqs_3_item ADD COLUMN more INT")
        await owned.write(inserts=[make_row(3), make_row(4)])
        assert set(await contents(owned)) == {1, 2, 3, 4}

    bulk_bench.run(story())
    assert len(in_bulk) == 2


@pytest.mark.parametrize("sent_bytes", [10, 50_000, 400_000])
def test_a_connection_that_breaks_in_the_middle_of_a_packet_in_bulk_writes_nothing(
    bulk_place: MysqlSettings, sent_bytes: int
) -> None:
    rows = [make_row(number, payload=bytes(1_024)) for number in range(1, 401)]

    async def story() -> None:
        store = MysqlStore(bulk_place, 3)
        owned = await opened(store)
        await owned.write(inserts=[make_row(1_000)])
        link: Any = link_of(store)
        link._transport = _Cutting(link._transport, sent_bytes)
        with pytest.raises(StoreLost):
            await owned.write(inserts=rows)
        await owned.store.read_owner()
        assert set(await contents(owned)) == {1_000}
        await store.close()

    run(story())
