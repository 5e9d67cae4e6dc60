"""The hand-written queues that FOQS is compared with: Postgres and MariaDB with `SKIP LOCKED`.

Always true: each is as fast as we could make it, and does less: it has no lease
index, attempts, tokens or timers. With calls of a hundred items Postgres does not
even lease: the transaction that locks the items lasts until they are done. With
calls of one item that was slower, and on MariaDB deleting locked rows deadlocks, so
items would be delivered twice. Knows nothing of how load is offered or timed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from perf.lib.caller import NOTHING, Batch, Caller, Put, Taken, all_durable
from perf.lib.packets import AsyncConnection, Connection, QueryFailed, query, query_bytes, run_all

CONNECTIONS_MAX: Final = 16
BATCH_CONNECTIONS_MAX: Final = 4
"""The connections of one process to a plain database, with calls of one item and of many. More callers share them:
these systems are fastest so, as more connections only wait for each other."""
EMPTY_PAUSE_S: Final = 0.001
"""How long a caller of a plain database waits before it looks again."""
_RECLAIM_S: Final = 1.0
_AGAIN: Final = frozenset({1205, 1213})


class Pool:
    """A session whose callers share a bounded number of connections, each used by one call at a time.

    Args:
        holds: items must be finished on the connection that returned them, and no other call uses it until then.
        connections_max: another bound than the usual one.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Caller]],
        batch: int,
        *,
        holds: bool = False,
        connections_max: int | None = None,
    ) -> None:
        self._connect = connect
        self._holds = holds
        self._connections_max = connections_max or (CONNECTIONS_MAX if batch == 1 else BATCH_CONNECTIONS_MAX)
        self._connected: list[Caller] = []
        self._idle: asyncio.LifoQueue[Caller] = asyncio.LifoQueue()

    async def caller(self) -> Caller:
        if len(self._connected) < self._connections_max:
            self._connected.append(await self._connect())
            self._idle.put_nowait(self._connected[-1])
        return _Borrower(self._idle, holds=self._holds)

    async def close(self) -> None:
        for caller in self._connected:
            await caller.close()


class _Borrower:
    def __init__(self, idle: asyncio.LifoQueue[Caller], *, holds: bool) -> None:
        self._idle = idle
        self._holds = holds
        self._held: Caller | None = None

    async def put(self, items: Batch) -> Put:
        caller = await self._idle.get()
        try:
            return await caller.put(items)
        finally:
            self._idle.put_nowait(caller)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        caller = await self._idle.get()
        taken = NOTHING
        try:
            taken = await caller.take(wants, wait_ms)
        finally:
            if self._holds and taken[0]:
                self._held = caller
            else:
                self._idle.put_nowait(caller)
        return taken

    async def done(self, handles: Sequence[Any]) -> None:
        caller, self._held = self._held or await self._idle.get(), None
        try:
            await caller.done(handles)
        finally:
            self._idle.put_nowait(caller)

    async def close(self) -> None:
        pass


# ---------------------------------------------------------------- Postgres

POSTGRES_SCHEMA: Final = """
CREATE TABLE item (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  topic text NOT NULL,
  priority int NOT NULL DEFAULT 0,
  state smallint NOT NULL DEFAULT 0,
  leased_until timestamptz,
  attempt int NOT NULL DEFAULT 0,
  payload bytea NOT NULL
);
ALTER TABLE item ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX item_ready ON item (topic, priority, id) WHERE state = 0;
"""
_PUT_ONE: Final = "INSERT INTO item (topic, payload) VALUES ($1, $2)"
_TAKE: Final = """
SELECT id, payload FROM item WHERE topic = $1 AND state = 0 ORDER BY priority, id LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_TAKE_OF_EACH: Final = """
SELECT found.id, found.payload FROM unnest($1::text[], $2::int[]) AS want (topic, count), LATERAL (
  SELECT id, payload FROM item WHERE topic = want.topic AND state = 0 ORDER BY priority, id LIMIT want.count
  FOR UPDATE SKIP LOCKED
) AS found
"""
_TAKE_ONE: Final = """
UPDATE item SET state = 1, leased_until = clock_timestamp() + interval '30 s', attempt = attempt + 1
WHERE id = (
  SELECT id FROM item WHERE topic = $1 AND state = 0 ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id, payload
"""
_DONE_ONE: Final = "DELETE FROM item WHERE id = $1"
_DONE: Final = "DELETE FROM item WHERE id = ANY($1::bigint[])"


async def prepare_postgres(place: str) -> None:
    """Creates the table."""
    connection = await connect_postgres(place)
    await connection.execute(POSTGRES_SCHEMA)
    await connection.close()


async def postgres_caller(place: str) -> Caller:
    return PostgresCaller(await connect_postgres(place))


class PostgresCaller:
    """Commits the lease of one item, but keeps many items locked until they are done."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._prepared: dict[str, Any] = {}

    async def put(self, items: Batch) -> Put:
        if len(items.payloads) == 1:
            await (await self._statement(_PUT_ONE)).fetch(items.topics[0], items.payloads[0])
        else:
            records = zip(items.topics, items.payloads, strict=True)
            await self._connection.copy_records_to_table("item", records=records, columns=("topic", "payload"))
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        topic, count = next(iter(wants.items()))
        if count == 1 and len(wants) == 1:
            found = await (await self._statement(_TAKE_ONE)).fetch(topic)
        else:
            await self._connection.execute("BEGIN")
            if len(wants) == 1:
                found = await (await self._statement(_TAKE)).fetch(topic, count)
            else:
                found = await (await self._statement(_TAKE_OF_EACH)).fetch(list(wants), list(wants.values()))
            if not found:
                await self._connection.execute("ROLLBACK")
        if not found:
            await asyncio.sleep(EMPTY_PAUSE_S)
        return [row[0] for row in found], [row[1] for row in found]

    async def done(self, handles: Sequence[Any]) -> None:
        if self._connection.is_in_transaction():
            await (await self._statement(_DONE)).fetch(handles)
            await self._connection.execute("COMMIT")
        else:
            await (await self._statement(_DONE_ONE)).fetch(handles[0])

    async def close(self) -> None:
        await self._connection.close()

    async def _statement(self, text: str) -> Any:
        found = self._prepared.get(text)
        if found is None:
            found = self._prepared[text] = await self._connection.prepare(text)
        return found


async def connect_postgres(place: str) -> Any:
    import asyncpg

    folder, _, port = place.rpartition(":")
    return await asyncpg.connect(host=folder, port=int(port), user="postgres", database="postgres")


# ----------------------------------------------------------------- MariaDB

MARIADB_SCHEMA: Final = (
    """CREATE TABLE item (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  topic VARBINARY(64) NOT NULL,
  priority INT NOT NULL DEFAULT 0,
  state TINYINT NOT NULL DEFAULT 0,
  leased_until_ms BIGINT,
  attempt INT NOT NULL DEFAULT 0,
  payload MEDIUMBLOB NOT NULL,
  KEY item_ready (topic, state, priority, id)
) ENGINE = InnoDB""",
)
_CLAIM: Final = (
    "SELECT id, payload FROM item WHERE topic = '{topic}' AND state = 0 ORDER BY priority, id LIMIT {count} "
    "FOR UPDATE SKIP LOCKED"
)
# Of several topics in the order of the index, as MariaDB has no LATERAL.
_CLAIM_OF_SEVERAL: Final = (
    "SELECT id, payload FROM item FORCE INDEX (item_ready) WHERE topic IN ({topics}) AND state = 0 "
    "ORDER BY topic, priority, id LIMIT {count} FOR UPDATE SKIP LOCKED"
)
# The index is named because a server that expects few rows would read, and lock, all of them.
_LEASE: Final = (
    "UPDATE item FORCE INDEX (PRIMARY) SET state = 1, leased_until_ms = {until_ms}, attempt = attempt + 1 "
    "WHERE id IN ({ids})"
)
_RECLAIM: Final = "UPDATE item SET state = 0 WHERE topic = 't0' AND state = 1 AND leased_until_ms < {now_ms}"
_DELETE: Final = "DELETE item FROM item FORCE INDEX (PRIMARY) WHERE id IN ({ids})"
_READ_COMMITTED: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"


def _claim(wants: Mapping[str, int]) -> str:
    if len(wants) == 1:
        ((topic, count),) = wants.items()
        return _CLAIM.format(topic=topic, count=count)
    topics = ",".join(f"'{topic}'" for topic in wants)
    return _CLAIM_OF_SEVERAL.format(topics=topics, count=sum(wants.values()))


def prepare_mariadb(connection: Connection) -> None:
    """Creates the table."""
    run_all(connection, MARIADB_SCHEMA)


class ReclaimingPool(Pool):
    """A session that also looks once a second for leases of topic t0 that have ended."""

    def __init__(self, connect: Callable[[], Awaitable[Caller]], batch: int, place: str) -> None:
        super().__init__(connect, batch)
        self._place = place
        self._reclaiming: asyncio.Task[None] | None = None

    async def caller(self) -> Caller:
        if self._reclaiming is None:
            self._reclaiming = asyncio.create_task(
                self._reclaim(await AsyncConnection.connect(Path(self._place), "perf"))
            )
        return await super().caller()

    async def _reclaim(self, connection: AsyncConnection) -> None:
        await connection.run(query(_READ_COMMITTED))
        while True:
            await asyncio.sleep(_RECLAIM_S)
            try:
                await connection.run(query(_RECLAIM.format(now_ms=_in_ms(0))))
            except QueryFailed as error:
                if error.code not in _AGAIN:
                    raise

    async def close(self) -> None:
        if self._reclaiming is not None:
            self._reclaiming.cancel()
        await super().close()


def _in_ms(seconds: float) -> int:
    return round((time.time() + seconds) * 1000)


async def mariadb_caller(place: str, *, prebuilt: bool, lease_s: float) -> Caller:
    if prebuilt:
        connection = await AsyncConnection.connect(Path(place), "perf")
        # Quoted payloads rely on a charset in which every byte is a character.
        await connection.run(query("SET NAMES binary", _READ_COMMITTED))
        return PrebuiltCaller(connection, lease_s)
    import aiomysql
    from pymysql.converters import escape_bytes

    if not callable(aiomysql.connection.escape_bytes_prefixed):
        aiomysql.connection.escape_bytes_prefixed = escape_bytes  # PyMySQL 1.2.3 left a placeholder
    found = await aiomysql.connect(unix_socket=place, user="root", db="perf", autocommit=True)
    async with found.cursor() as cursor:
        await cursor.execute(_READ_COMMITTED)
    return AiomysqlCaller(found, lease_s)


class _MariaCaller:
    """Tries again after a deadlock, as every client must."""

    def __init__(self, connection: Any, lease_s: float) -> None:
        self._connection = connection
        self._lease_s = lease_s
        self._rng = random.Random(id(self))

    async def _pause(self, error: Exception, code: int) -> None:
        if code not in _AGAIN:
            raise error
        await asyncio.sleep(self._rng.uniform(0, 0.005))


class PrebuiltCaller(_MariaCaller):
    """Builds its SQL as bytes, with the minimal driver."""

    async def put(self, items: Batch) -> Put:
        escaped = [payload.replace(b"\\", b"\\\\").replace(b"'", b"\\'") for payload in items.payloads]
        columns = zip(items.topics, escaped, strict=True)
        rows = b",".join([b"('%b','%b')" % (topic.encode(), payload) for topic, payload in columns])
        await self._run(query_bytes(b"INSERT INTO item (topic, payload) VALUES " + rows))
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        claim = _claim(wants)
        while True:
            try:
                _, found = await self._connection.run(query("START TRANSACTION", claim))
                if not found.rows:
                    await self._connection.run(query("ROLLBACK"))
                    await asyncio.sleep(EMPTY_PAUSE_S)
                    return NOTHING
                ids = ",".join(row[0].decode() for row in found.rows)
                await self._connection.run(query(_LEASE.format(until_ms=_in_ms(self._lease_s), ids=ids), "COMMIT"))
            except QueryFailed as error:
                await self._connection.run(query("ROLLBACK"))
                await self._pause(error, error.code)
            else:
                return [row[0] for row in found.rows], [row[1] or b"" for row in found.rows]

    async def done(self, handles: Sequence[Any]) -> None:
        await self._run(query(_DELETE.format(ids=b",".join(handles).decode())))

    async def close(self) -> None:
        self._connection.close()

    async def _run(self, packet: bytes) -> None:
        while True:
            try:
                await self._connection.run(packet)
            except QueryFailed as error:
                await self._pause(error, error.code)
            else:
                return


class AiomysqlCaller(_MariaCaller):
    """Does the same with the usual driver."""

    async def put(self, items: Batch) -> Put:
        rows = list(zip(items.topics, items.payloads, strict=True))
        await self._retried(
            lambda cursor: cursor.executemany("INSERT INTO item (topic, payload) VALUES (%s, %s)", rows)
        )
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        claim = _claim(wants)

        async def work(cursor: Any) -> Any:
            await self._connection.begin()
            await cursor.execute(claim)
            found = await cursor.fetchall()
            if found:
                await cursor.execute(
                    _LEASE.format(until_ms=_in_ms(self._lease_s), ids=",".join(str(number) for number, _ in found))
                )
            await self._connection.commit()
            return found

        found: Sequence[tuple[Any, bytes]] = await self._retried(work)
        if not found:
            await asyncio.sleep(EMPTY_PAUSE_S)
        return [row[0] for row in found], [row[1] for row in found]

    async def done(self, handles: Sequence[Any]) -> None:
        await self._retried(lambda cursor: cursor.execute(_DELETE.format(ids=",".join(map(str, handles)))))

    async def close(self) -> None:
        self._connection.close()

    async def _retried(self, work: Any) -> Any:
        from pymysql.err import OperationalError

        while True:
            try:
                async with self._connection.cursor() as cursor:
                    return await work(cursor)
            except OperationalError as error:
                await self._connection.rollback()
                await self._pause(error, error.args[0])
