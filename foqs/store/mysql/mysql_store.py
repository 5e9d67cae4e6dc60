"""The store on MySQL or MariaDB: one connection for writing, READ COMMITTED, every flush one transaction.

Always true: nothing is committed but by a COMMIT, which is sent only after every
result was read; a connection on which anything was left unread is cut and never
used again; after that nothing runs until the owner row was read under its lock.
Knows nothing of SQL's text or of the driver's ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from struct import error as OutOfRange  # noqa: N812 - what it says of a number that no column holds
from typing import Final, TypeVar

from foqs.core.flush.fence import Fence, Owner
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.idempotency_keys import KeyName
from foqs.core.items.item import Row, TopicName
from foqs.store.migrations import pending_migrations
from foqs.store.mysql import mysql_sql as sql
from foqs.store.mysql.mysql_driver import (
    PREPARE_REFUSED_CODES,
    MysqlLink,
    MysqlLinkLost,
    MysqlSettings,
    OnResults,
    Result,
    ServerError,
    Statement,
)
from foqs.store.mysql.mysql_reads import MysqlReads
from foqs.store.mysql.mysql_rows import (
    decode_idempotency_keys,
    decode_owner,
    decode_purge_markers,
    decode_rows,
    decode_topics,
)
from foqs.store.mysql.mysql_schema import (
    READ_ONLY_CODES,
    RUN_RIGHTS,
    is_read_only,
    prepare_tables,
    read_version,
    unsafe_settings,
)
from foqs.store.mysql.mysql_values import as_text
from foqs.store.port import (
    Decide,
    DueRow,
    FaultHook,
    FencedOut,
    IdempotencyKeyExists,
    StoreError,
    StoreLost,
    StoreUnusable,
    Superseded,
    WriteRefused,
    Writes,
    no_faults,
)

_T = TypeVar("_T")

_LOCK_WAIT_CODE: Final = 1205
_RETRYABLE_CODES: Final = frozenset({_LOCK_WAIT_CODE, 1213, *PREPARE_REFUSED_CODES})
"""A lock that did not come, a deadlock; what was bound, and is text the next time."""
_DUPLICATE_KEY_CODE: Final = 1062
_NO_ACCESS_CODES: Final = frozenset({1044, 1045, 1049, 1142, 1143, 1227, 1370, 1698})
_DISK_FULL_CODES: Final = frozenset({1021, 1114})
_OWNER_LOCK_WAIT_S: Final = 1
"""How long a takeover or a check waits for the owner row before it kills the holder."""
_PACKET_MARGIN: Final = 1024
"""Room for the fence and what joins statements."""
_PACKET_BYTES_MAX: Final = 15 << 20
"""Below 16 MiB, where the protocol splits packets."""
_READ_ONLY_HINT: Final = "it is read-only: look the primary up again"


class MysqlStore:
    """One shard's tables in one database; see `port.Store`."""

    def __init__(self, settings: MysqlSettings, shard: int, faults: FaultHook = no_faults) -> None:
        self._settings = settings
        self._shard = shard
        self._faults = faults
        self._sql = sql.Statements(shard)
        self._link: MysqlLink | None = None
        self._is_busy = False
        self._connection_id = 0
        self._connected_ms = 0
        """When `_connection` was made, on the server's clock."""
        self._packet_bytes = 0
        self._unsafe_settings: str | None = None
        """Which settings of the server that `_link` reached may lose acknowledged writes."""
        self._is_read_only = False
        """That server takes no writes."""
        self._ownership: tuple[int, str] | None = None

    async def open(self) -> None:
        await self._run_exclusively(self._open)

    async def now_ms(self) -> int:
        (found,) = await self._read([sql.NOW_MS])
        return int(found.rows[0][0])

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        return await self._run_exclusively(lambda: self._take_over(self._require_link(), epoch, nonce))

    async def read_owner(self) -> Owner:
        return await self._run_exclusively(self._reconnect)

    async def flush(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        reads: list[bytes] = []
        if row_ids:
            reads += self._sql.read_rows(row_ids)
        if payload_limits:
            reads += self._sql.read_rows_with_payload(payload_limits)
        key_reads = self._sql.read_idempotency_keys(key_names) if key_names else []
        await self._run_exclusively(lambda: self._flush(self._require_link(), fence, reads, key_reads, decide))

    async def topics(self) -> list[TopicName]:
        (found,) = await self._read([self._sql.topics])
        return decode_topics(found)

    async def key_slots(self) -> list[int]:
        (found,) = await self._read([self._sql.key_slots])
        return [slot for (slot,) in found.rows]

    async def purge_markers(self) -> list[PurgeMarker]:
        (found,) = await self._read([self._sql.purge_markers])
        return decode_purge_markers(found)

    async def next_key_expiry_ms(self) -> int | None:
        (found,) = await self._read([self._sql.next_key_expiry])
        return int(found.rows[0][0]) if found.rows else None

    def reads(self) -> MysqlReads:
        return MysqlReads(self._settings, self._shard)

    async def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        (found,) = await self._read([self._sql.due_rows(low_ms, high_ms, after, limit)])
        return [DueRow(at, number) for at, number in found.rows]

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        return decode_rows(await self._read(self._sql.read_rows(ids)))

    async def next_due_ms(self, above_ms: int) -> int | None:
        (found,) = await self._read([self._sql.next_due_ms(above_ms)])
        return int(found.rows[0][0]) if found.rows else None

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    # ---------------------------------------------------------- the connection

    async def _run_exclusively(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Runs one call; whatever ends it without an answer ends the connection too."""
        if self._is_busy:
            raise RuntimeError(f"shard {self._shard}: a store runs one call at a time")
        self._is_busy = True
        try:
            return await work()
        except ServerError as error:
            self._disconnect()
            raise self._store_lost(error) from error
        except MysqlLinkLost as error:
            self._disconnect()
            raise self._store_lost(error) from error
        except (StoreLost, StoreUnusable, asyncio.CancelledError):
            self._disconnect()
            raise
        finally:
            self._is_busy = False

    def _require_link(self) -> MysqlLink:
        if self._link is None:
            raise StoreLost(f"{self._settings.location}: not connected; read the owner row first")
        return self._link

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abort()

    def _store_lost(self, error: Exception) -> StoreLost:
        hint = f"; {_READ_ONLY_HINT}" if getattr(error, "code", 0) in READ_ONLY_CODES else ""
        return StoreLost(f"{self._settings.location}: {error}{hint}")

    async def _connect(self) -> MysqlLink:
        self._disconnect()
        link = await MysqlLink.connect(self._settings)
        try:
            # The settings travel along: a server that comes back may have others than before.
            *_, found, server = await link.run(
                *sql.session_settings(self._settings.lock_wait_timeout_s), sql.SERVER_SETTINGS
            )
        except BaseException:
            link.abort()
            raise
        self._connection_id, packet_bytes, self._connected_ms = found.rows[0]
        self._packet_bytes = min(packet_bytes, _PACKET_BYTES_MAX) - _PACKET_MARGIN
        self._unsafe_settings = None if self._settings.unsafe_durability else unsafe_settings(server, self._settings)
        self._is_read_only = is_read_only(server)
        self._link = link
        return link

    def _check_server(self) -> None:
        """Raises `StoreLost` when the server, as it was when we connected, may lose what is written, or takes no writes."""
        if self._unsafe_settings is not None:
            raise StoreLost(self._unsafe_settings)
        if self._is_read_only:
            raise StoreLost(f"{self._settings.location}: {_READ_ONLY_HINT}")

    async def _open(self) -> None:
        try:
            link = await self._connect()
            if self._unsafe_settings is not None:
                raise StoreUnusable(self._unsafe_settings)
            self._check_server()
            await link.run(sql.set_autocommit(True))
            await prepare_tables(link, self._settings, self._shard)
            await link.run(sql.set_autocommit(False))
        except ServerError as error:
            if error.code in _NO_ACCESS_CODES:
                raise StoreUnusable(
                    f"{self._settings.location}: {error}; check user, password and database, and "
                    f"GRANT {RUN_RIGHTS} ON `{self._settings.database}`.* TO '{self._settings.user}'"
                ) from error
            raise

    async def _read(self, statements: Sequence[bytes]) -> list[Result]:
        async def work() -> list[Result]:
            *results, _ = await self._require_link().run(*statements, sql.ROLLBACK)
            return results

        return await self._run_exclusively(work)

    # --------------------------------------------------------------- the owner

    async def _take_over(self, link: MysqlLink, epoch: int, nonce: str) -> Owner:
        """Ends the former owner's connection before the row, which names it, forgets it.

        What a former owner sends later would be fenced out, but its writes travel with
        the fence: their locks would stay for as long as it does not read the answer.
        """
        self._ownership = (epoch, nonce)
        old = await self._lock_owner(link)
        if old is None:
            seen = await self._select_owner(link)
            self._check_not_superseded(seen)
            await self._kill(link, seen.connection)
            old = await self._lock_owner_or_fail(link)
        try:
            self._check_not_superseded(old)
        except Superseded:
            await link.run(sql.ROLLBACK)
            raise
        await self._kill(link, old.connection, old.clock_ms - old.offset_ms)
        if (old.epoch, old.nonce) == self._ownership:
            return await self._write_owner(link, old)
        return await self._write_owner(link, replace(old, epoch=epoch, nonce=nonce, flush=0))

    def _check_not_superseded(self, owner: Owner) -> None:
        """Raises `Superseded` when our claim comes after that of the owner row: epochs only go up."""
        assert self._ownership is not None
        if owner.epoch >= self._ownership[0] and (owner.epoch, owner.nonce) != self._ownership:
            raise Superseded(owner.epoch)

    async def _reconnect(self) -> Owner:
        """Reads the owner row over a new connection, under its lock, when the old one was ended.

        The lock alone proves that nothing older is still to take effect: COMMIT
        follows the fence's result, so a transaction that may commit holds it. A
        row that shows another owner needs no lock: ours is over for good, and
        its holder must not be disturbed.
        """
        before, since_ms = self._connection_id, self._connected_ms
        link = await self._connect()
        await self._kill(link, before, since_ms)
        await self._check_version(link)
        current = await self._lock_owner(link)
        if current is None:
            current = await self._select_owner(link)
            if (current.epoch, current.nonce) != self._ownership:
                return current
            await self._kill(link, current.connection)
            current = await self._lock_owner_or_fail(link)
        if (current.epoch, current.nonce) == self._ownership:
            return await self._write_owner(link, current)
        await link.run(sql.ROLLBACK)
        return current

    async def _check_version(self, link: MysqlLink) -> None:
        """Raises `StoreUnusable` when the tables have become newer than this program."""
        version = await read_version(link, self._shard)
        pending_migrations(version or 0, sql.MIGRATIONS, f"shard {self._shard} in {self._settings.location}")

    async def _lock_owner(self, link: MysqlLink, seconds: int = _OWNER_LOCK_WAIT_S) -> Owner | None:
        """Begins a transaction that holds the owner row's lock; None, and none begun, when it does not come."""
        patience = sql.set_lock_wait(seconds)
        usual = sql.set_lock_wait(self._settings.lock_wait_timeout_s)
        try:
            *_, found, _ = await link.run(patience, sql.BEGIN, self._sql.read_owner(lock=True), usual)
        except ServerError as error:
            if error.code not in _RETRYABLE_CODES:
                raise
            await link.run(sql.ROLLBACK, usual)
            return None
        return decode_owner(found)

    async def _lock_owner_or_fail(self, link: MysqlLink) -> Owner:
        owner = await self._lock_owner(link, self._settings.lock_wait_timeout_s)
        if owner is None:
            raise StoreLost(
                f"{self._settings.location}: the owner row of shard {self._shard} stays locked; "
                "end the transaction that holds it (see information_schema.INNODB_TRX)"
            )
        return owner

    async def _select_owner(self, link: MysqlLink) -> Owner:
        (found,) = await link.run(self._sql.read_owner())
        return decode_owner(found)

    async def _write_owner(self, link: MysqlLink, owner: Owner) -> Owner:
        """Writes the locked owner row, with this connection, and commits; flushes may follow. Raises `StoreLost`: the server is not fit for them."""
        self._check_server()
        new = replace(owner, connection=self._connection_id)
        await link.run(self._sql.set_owner(new))
        await link.run(sql.COMMIT)
        return new

    async def _kill(self, link: MysqlLink, connection_id: int, since_ms: int | None = None) -> None:
        """Ends another connection of ours, as far as rights go; it may be gone already.

        `since_ms`: it existed then; a server that was started later has given its number to another.
        """
        if connection_id in (0, self._connection_id):
            return
        try:
            ours, uptime, now = await link.run(sql.is_ours(connection_id), sql.UPTIME_S, sql.NOW_MS)
            # At the earliest: in doubt it is ended, as a lock that stays is worse than a connection made anew.
            started_ms = now.rows[0][0] - (int(uptime.rows[0][1]) + 1) * 1000
            if ours.rows[0][0] and (since_ms is None or started_ms <= since_ms):
                await link.run(sql.kill(connection_id))
        except ServerError:
            return

    # --------------------------------------------------------------- the flush

    async def _flush(
        self, link: MysqlLink, fence: Fence, reads: Sequence[bytes], key_reads: Sequence[bytes], decide: Decide
    ) -> None:
        self._faults("begin")
        committing = False

        def commit(_: Sequence[Result] = ()) -> bytes:
            """Every result was read, and none was an error: an error from here on is an unknown outcome, even one that the server sent."""
            nonlocal committing
            self._faults("written")
            committing = True
            return sql.COMMIT

        try:
            if reads or key_reads:
                await self._read_and_write(link, fence, reads, key_reads, decide, commit)
            else:
                await self._write(link, fence, decide, commit)
        except (ServerError, UnicodeEncodeError, OutOfRange) as error:
            if committing or (isinstance(error, ServerError) and error.code in READ_ONLY_CODES):
                raise
            await self._roll_back(link)
            await self._check_fence(link, fence)
            raise self._write_error(error) from error
        except (StoreLost, MysqlLinkLost, asyncio.CancelledError):
            raise
        except BaseException:
            await self._roll_back(link)
            raise
        self._faults("committed")

    async def _write(self, link: MysqlLink, fence: Fence, decide: Decide, commit: OnResults) -> None:
        """Nothing must be read: the first writes travel with the fence, and COMMIT follows the results of the last.

        What they did under a fence that matched nothing is rolled back.
        """
        first, *others = [*self._split_into_packets(self._statements_of(link, decide({}, {})))] or [[]]

        def fenced(results: list[Result]) -> bytes | None:
            self._faults("fenced")
            self._faults("read")
            return None if others else commit(results)

        await self._begin_with_fence(link, fence, first, fenced)
        if others:
            await self._send_packets(link, others, commit)

    async def _read_and_write(
        self,
        link: MysqlLink,
        fence: Fence,
        reads: Sequence[bytes],
        key_reads: Sequence[bytes],
        decide: Decide,
        commit: Callable[[Sequence[Result]], bytes],
    ) -> None:
        """In as few round trips as there are questions: the reads travel with the fence, and COMMIT follows the last results."""
        first, *others = self._split_into_packets([*reads, *key_reads])
        found = await self._begin_with_fence(link, fence, first)
        for packet in others:
            found += await link.run(*packet)
        self._faults("fenced")
        rows = {row.id: row for row in decode_rows(found[: len(reads)])}
        keys = decode_idempotency_keys(found[len(reads) :])
        self._faults("read")
        writes = [*self._split_into_packets(self._statements_of(link, decide(rows, keys)))]
        if writes:
            await self._send_packets(link, writes, commit)
        else:
            await link.run(commit(()))

    async def _send_packets(self, link: MysqlLink, packets: Sequence[Sequence[Statement]], commit: OnResults) -> None:
        """More packets of a transaction that was begun, and COMMIT when the results of the last are read."""
        *before, last = packets
        for packet in before:
            await link.run(*packet)
        await link.run(*last, on_results=commit)

    async def _begin_with_fence(
        self, link: MysqlLink, fence: Fence, statements: Sequence[Statement], on_results: OnResults | None = None
    ) -> list[Result]:
        """Begins the transaction with the fence; `statements` travel along, and their results are returned."""

        def fenced(results: list[Result]) -> bytes | None:
            if results[0].matched_row_count != 1:
                raise FencedOut("the fence matched no row")
            return None if on_results is None else on_results(results)

        first = self._sql.fence(fence)
        try:
            _, *results = await link.run(first if link.can_prepare else as_text(first), *statements, on_results=fenced)
        except FencedOut:
            await self._check_fence(link, fence)
            raise
        return results

    def _statements_of(self, link: MysqlLink, writes: Writes) -> Iterator[Statement]:
        """A flush's statements; in text, which is up to twice as long, on a link that prepares no more."""
        if link.can_prepare:
            return self._sql.write(writes, self._packet_bytes)
        return map(as_text, self._sql.write(writes, self._packet_bytes // 2))

    async def _check_fence(self, link: MysqlLink, fence: Fence) -> None:
        """A write may be refused before its fence's result is read: being fenced is the weightier reason."""
        if self._link is link:
            seen = await self._select_owner(link)
            if (seen.epoch, seen.nonce, seen.flush) != (fence.epoch, fence.nonce, fence.flush - 1):
                raise FencedOut(f"the owner row shows epoch {seen.epoch}, flush {seen.flush}")

    def _split_into_packets(self, statements: Iterable[Statement]) -> Iterator[list[Statement]]:
        """Statements that travel together, below the server's max_allowed_packet."""
        packet: list[Statement] = []
        size = 0
        for statement in statements:
            if len(statement) > self._packet_bytes:
                raise WriteRefused(
                    f"{self._settings.location}: a row of {len(statement)} bytes does not fit max_allowed_packet; raise it"
                )
            if packet and size + len(statement) + 1 > self._packet_bytes:
                yield packet
                packet, size = [], 0
            packet.append(statement)
            size += len(statement) + 1
        if packet:
            yield packet

    async def _roll_back(self, link: MysqlLink) -> None:
        """COMMIT was not sent, so closing the connection does as well where ROLLBACK fails."""
        try:
            await link.run(sql.ROLLBACK)
        except (ServerError, MysqlLinkLost):
            self._disconnect()

    def _write_error(self, error: ServerError | UnicodeEncodeError | OutOfRange) -> StoreError:
        if not isinstance(error, ServerError):
            return WriteRefused(str(error))
        if error.code == _DUPLICATE_KEY_CODE and self._sql.adds_idempotency_keys(error.statement):
            return IdempotencyKeyExists(str(error))
        full = error.code in _DISK_FULL_CODES
        hint = "; make room on the server's disk" if full else ""
        return WriteRefused(f"{error}{hint}", is_retryable=error.code in _RETRYABLE_CODES, is_full=full)
