"""The newest migration of a MySQL shard: a full shard of the version before it is upgraded, and keeps its rows.

Run it alone for the figures: FOQS_UPGRADE_ROWS=10000000 pytest tests/integration/test_upgrade.py -m long -s
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pytest

from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.item import SEQUENCE_BITS, State
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.mysql.schema_upgrade import contract_tables, schema_link
from foqs.store.row_columns import NEVER_MS
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import BOTH, running
from tests.support.older_tables import NEWEST, OLDER_VERSION, OlderShard
from tests.support.stores import Ownership, make_row, opened, reading, write_again

pytestmark = [pytest.mark.process, pytest.mark.mysql]

SHARD: Final = 3
LONG_ROWS: Final = int(os.environ.get("FOQS_UPGRADE_ROWS", "10000000"))
ROWS_PER_INSERT: Final = 1_000_000
PROGRESS_S: Final = 1.0
PAGES_MIN: Final = 4
"""A page has at most twice the rows of the one before it."""
FIRST: Final = 1 << SEQUENCE_BITS
"""The numbers of the rows are the next ones after this."""
NOW_MS: Final = 1_800_000_000_000
SERVER: Final = ("--innodb-buffer-pool-size=512M",)


@dataclass(slots=True)
class FullShard:
    """The tables of one shard in an old version, with many small rows."""

    server: MariaDb
    database: str

    @property
    def item(self) -> str:
        return f"{self.database}.foqs_{SHARD}_item"

    @property
    def place(self) -> MysqlSettings:
        return self.server.settings(self.database)

    def store(self) -> MysqlStore:
        return MysqlStore(self.place, SHARD)

    def fill(self, count: int) -> None:
        """Insert rows: of ten, seven READY, one LEASED, one DEFERRED, and one READY with NULL as its `due_ms`."""
        digits = f"{self.database}.digits"
        self.server.query(f"CREATE TABLE {digits} (n INT NOT NULL PRIMARY KEY)")
        self.server.query(f"INSERT INTO {digits} VALUES {','.join(f'({n})' for n in range(10))}")
        self.server.query("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        powers = range(len(str(ROWS_PER_INSERT)) - 2, -1, -1)
        number = " + ".join(f"d{power}.n * {10**power}" for power in powers)
        tables = " STRAIGHT_JOIN ".join(f"{digits} AS d{power}" for power in powers)
        for start in range(0, count, ROWS_PER_INSERT):
            self.server.query(
                f"INSERT INTO {self.item} (id, namespace, topic, priority, deliver_after_ms, enqueued_at_ms, lease_ms, "
                "policy, attempts_max, payload_bytes, payload, metadata, state, due_ms, token, attempt) "
                f"SELECT {FIRST + 1} + id, 'default', 't', 0, {NOW_MS}, {NOW_MS}, 30000, 1, 0, 20, "
                "'01234567890123456789', '', "
                f"CASE id % 10 WHEN 1 THEN {State.LEASED:d} WHEN 2 THEN {State.DEFERRED:d} ELSE {State.READY:d} END, "
                f"CASE WHEN id % 10 IN (1, 2) THEN {NOW_MS} + id WHEN id % 10 = 3 THEN NULL ELSE {NEVER_MS} END, "
                f"IF(id % 10 = 1, {FIRST + 1}, 0), id % 10 = 1 "
                f"FROM (SELECT {start} + {number} AS id FROM {tables}) AS numbers WHERE id < {count}"
            )
        self.server.query("SET GLOBAL innodb_flush_log_at_trx_commit = 1")

    def sums(self) -> list[tuple[Any, ...]]:
        """Return figures of all rows that no migration may change, by state."""
        return self.server.query(
            "SELECT state, COUNT(*), SUM(id), SUM(CRC32(payload)), SUM(token), SUM(attempt), "
            f"SUM(COALESCE(due_ms, {NEVER_MS}) % 1000003) FROM {self.item} GROUP BY state ORDER BY state"
        )

    def timers(self) -> list[tuple[Any, ...]]:
        """Return the count and sums of the timer table, and of the rows that must have an entry there."""
        sums = "COUNT(*), SUM(id), SUM(due_ms % 1000003)"
        timed = f"state <> {State.LEASED:d} AND due_ms < {NEVER_MS}"
        return [
            *self.server.query(f"SELECT {sums} FROM {self.database}.foqs_{SHARD}_timer"),
            *self.server.query(f"SELECT {sums} FROM {self.item} WHERE {timed}"),
        ]


@pytest.fixture(params=BOTH)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with running(request.param, *SERVER) as started:
        yield started


@pytest.mark.parametrize(
    "count", [20_000, pytest.param(LONG_ROWS, marks=[pytest.mark.long, pytest.mark.timeout(7_200)], id="long")]
)
def test_upgrade_of_a_full_shard_keeps_its_rows(
    server: MariaDb, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = FullShard(server, server.database())
    older = OlderShard(server, shard.place, SHARD)

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{server.name}, {count:,} rows: {text}", end="", flush=True)

    async def expand() -> Ownership:
        begun = time.monotonic()
        owned = await opened(shard.store())
        say(f"version {OLDER_VERSION} was expanded in {time.monotonic() - begun:.2f} s")
        return owned

    async def contract(owned: Ownership) -> None:
        """Contract while a writer writes flush after flush."""
        begun, shown = time.monotonic(), 0.0
        waits: list[float] = []
        flushes_at_page: list[int] = []

        def show(done: int, total: int) -> None:
            nonlocal shown
            flushes_at_page.append(len(waits))
            if time.monotonic() - shown > PROGRESS_S:
                shown = time.monotonic()
                say(f"{shown - begun:.0f} s: {done:,} of {total:,}")

        async with schema_link(shard.place) as link:
            contracting = asyncio.ensure_future(contract_tables(link, shard.place, SHARD, show))
            await write_until(owned, contracting, waits)
        await contracting
        waits.sort()
        say(
            f"contracted in {time.monotonic() - begun:.2f} s; {len(waits)} flushes meanwhile, p50 "
            f"{1e3 * waits[len(waits) // 2]:.1f}, p99 {1e3 * waits[len(waits) * 99 // 100]:.1f}, longest {1e3 * waits[-1]:.1f} ms"
        )
        pages = list(pairwise(flushes_at_page))
        assert len(pages) > PAGES_MIN
        assert sum(before < after for before, after in pages) > len(pages) / 2, "flushes waited for the filling"

    async def write_until(owned: Ownership, end: asyncio.Future[None], waits: list[float]) -> None:
        """Write one row and delete it, again and again. Add to `waits` how long each flush took, in seconds."""
        number = FIRST + 2 * count
        while not end.done():
            for change in ({"inserts": [make_row(number)]}, {"deletes": [number]}):
                begun = time.monotonic()
                await write_again(owned, **change)
                waits.append(time.monotonic() - begun)

    async def use(owned: Ownership) -> None:
        """Old rows are leased and updated, and a new one is written beside them."""
        ready, deferred, leased = FIRST + 5, FIRST + 3, FIRST + 2
        new = make_row(FIRST + count + 1, trace_context=b"00-trace", first_delivered_at_ms=NOW_MS)
        await owned.write(
            inserts=[new],
            leases=[
                LeaseUpdate(NOW_MS + 9, 99, 1, [ready], first_delivered_at_ms=NOW_MS + 1),
                LeaseUpdate(NOW_MS + 9, 99, 2, [leased]),
            ],
        )
        async with reading(owned.store) as reads:
            rows = {row.id: row for row in await reads.rows(owned.past, [ready, deferred, leased, new.id])}
        assert [(rows[n].first_delivered_at_ms, rows[n].trace_context) for n in (ready, deferred, leased)] == [
            (NOW_MS + 1, None),
            (None, None),
            (None, None),
        ]
        assert (rows[new.id].first_delivered_at_ms, rows[new.id].trace_context) == (NOW_MS, b"00-trace")

    async def story() -> None:
        older.create()
        begun = time.monotonic()
        shard.fill(count)
        before = shard.sums()
        assert sum(found[1] for found in before) == count
        say(f"filled in {time.monotonic() - begun:.0f} s")
        owned = await expand()
        try:
            assert older.version() == OLDER_VERSION
            await contract(owned)
            assert (older.version(), older.has_due_index()) == (NEWEST, False)
            assert shard.sums() == before
            entries, timed = shard.timers()
            assert entries == timed
            assert entries[0] > 0
            await use(owned)
        finally:
            await owned.store.close()

    run(story(), 7_000)
