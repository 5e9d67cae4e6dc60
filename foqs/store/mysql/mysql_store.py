"""The store on MySQL or MariaDB: one connection for writing, READ COMMITTED, one transaction for each flush.

Always true: only a COMMIT commits, and it is sent only after every result was
read; that of a journal's reserve, which means nothing, goes with its DELETE. A
connection with unread results is closed and never used again; then nothing runs
until the owner row was read under its lock. Knows nothing of SQL text or of the
driver's internals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from struct import error as OutOfRange  # noqa: N812 - a number is too large for its column
from typing import Final, TypeVar

from foqs.core.flush.fence import Fence, Owner, Position
from foqs.core.flush.journal_rows import PayloadPlace, PositionedEvents, unpack_position
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import KeyName
from foqs.core.items.item import Row, TopicName
from foqs.store.mysql import mysql_session_sql as session_sql
from foqs.store.mysql import mysql_sql as sql
from foqs.store.mysql.mysql_driver import (
    NO_TLS_CODE,
    PREPARE_REFUSED_CODES,
    TLS_REMEDY,
    MysqlLink,
    MysqlLinkLost,
    MysqlSettings,
    OnResults,
    Result,
    ServerError,
    Statement,
)
from foqs.store.mysql.mysql_journal_sql import (
    JournalStatements,
    decode_events,
    decode_payloads,
    in_packets,
    parts_of_a_page,
    payload_reads,
)
from foqs.store.mysql.mysql_migrations import MIGRATIONS
from foqs.store.mysql.mysql_reads import MysqlReads
from foqs.store.mysql.mysql_rows import (
    decode_idempotency_keys,
    decode_owner,
    decode_processes,
    decode_purge_markers,
    decode_rows,
    decode_topics,
)
from foqs.store.mysql.mysql_schema import (
    READ_ONLY_CODES,
    is_read_only,
    prepare_tables,
    unsafe_settings,
)
from foqs.store.mysql.mysql_values import as_text
from foqs.store.mysql.schema_upgrade import RUN_RIGHTS, check_usable, read_state
from foqs.store.mysql.timer_filling import NO_SUCH_INDEX_CODE, are_timers_filled
from foqs.store.port import (
    Decide,
    DueRow,
    FaultHook,
    FencedOut,
    IdempotencyKeyExists,
    OtherCluster,
    StoreError,
    StoreLost,
    StoreUnusable,
    Superseded,
    WriteRefused,
    check_same_cluster,
    no_faults,
)

_T = TypeVar("_T")

_LOCK_WAIT_CODE: Final = 1205
_RETRYABLE_CODES: Final = frozenset({_LOCK_WAIT_CODE, 1213, *PREPARE_REFUSED_CODES})
"""Server errors for a lock wait that timed out, a deadlock, and a prepared statement, which is text the next time."""
_DUPLICATE_KEY_CODE: Final = 1062
_NO_ACCESS_CODES: Final = frozenset({1044, 1045, 1049, 1142, 1143, 1227, 1370, 1698, NO_TLS_CODE})
_DISK_FULL_CODES: Final = frozenset({1021, 1114})
_BAD_VALUE_CODES: Final = frozenset({1048, 1264, 1265, 1366, 1406})
"""Server errors for NULL, and for a value that is out of range, truncated, of another type, or too long."""
_OWNER_LOCK_WAIT_S: Final = 1
"""How long a takeover or a check waits for the owner row before it kills the holder."""
_PACKET_MARGIN: Final = 1024
"""The bytes of a packet that are left for the fence and for separators."""
PACKET_BYTES_MAX: Final = 15 << 20
"""The most bytes of a packet: below 16 MiB, where the protocol splits packets."""
_READ_ONLY_HINT: Final = "it is read-only: point the URL at the primary"


class MysqlStore:
    """One shard's tables in one database; see `port.Store`."""

    def __init__(self, settings: MysqlSettings, shard: int, faults: FaultHook = no_faults) -> None:
        self._settings = settings
        self._shard = shard
        self._faults = faults
        self._sql = sql.Statements(shard)
        self._journal_sql = JournalStatements(shard)
        self._link: MysqlLink | None = None
        self._is_busy = False
        self._connection_id = 0
        self._connected_ms = 0
        """When `_link` was connected, on the server's clock."""
        self._packet_bytes = 0
        self._unsafe_settings: str | None = None
        """Which settings of the server may lose acknowledged writes, as of the connect."""
        self._is_read_only = False
        """Whether the server accepts no writes, as of the connect."""
        self._ownership: tuple[int, str] | None = None
        self._excludes_older = False
        """Whether the server refuses a takeover by a host of the version before, as of the open. It never stops that."""
        self._timers_are_filled = False
        """Whether the timer table has the entries of all rows, as of this connection: a replica may not have them yet."""

    async def open(self) -> None:
        await self._run_exclusively(self._open)

    async def now_ms(self) -> int:
        (found,) = await self._read([session_sql.NOW_MS])
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

    async def journal_floor(self) -> Position | None:
        (found,) = await self._read([self._journal_sql.floor])
        return unpack_position(found.rows[0][0]) if found.rows else None

    async def journal_events(self, first: Position, bytes_max: int) -> list[PositionedEvents]:
        parts_max = parts_of_a_page(bytes_max)
        (found,) = await self._read([self._journal_sql.events(first, parts_max)])
        page, long = decode_events(found, parts_max)
        if long is not None:
            (found,) = await self._read([self._journal_sql.events_of(long)])
            page, _ = decode_events(found, len(found.rows) + 1)
        return page

    async def journal_payloads(self, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        payloads: dict[PayloadPlace, bytes] = {}
        for reads in in_packets(payload_reads(places)):
            payloads |= decode_payloads(reads, await self._read([*map(self._journal_sql.payload_parts, reads)]))
        return payloads

    async def next_key_expiry_ms(self, from_ms: int = 0) -> int | None:
        (found,) = await self._read([self._sql.next_key_expiry(from_ms)])
        return int(found.rows[0][0]) if found.rows else None

    @property
    def may_journal(self) -> bool:
        return self._excludes_older

    @property
    def frees_room_late(self) -> bool:
        return True

    async def shrink_journal_reserve(self, fence: Fence, reserve_bytes: int) -> None:
        async def work() -> None:
            link = self._require_link()
            shrink = self._journal_sql.shrink_reserve(fence, reserve_bytes)
            try:
                await link.run(shrink if link.can_prepare else as_text(shrink), session_sql.COMMIT)
            except ServerError as error:
                if error.code in READ_ONLY_CODES:
                    raise
                await self._roll_back(link)
                raise self._write_error(error) from error

        await self._run_exclusively(work)

    @property
    def full_refusals(self) -> tuple[int, str]:
        return 0, ""

    @property
    def journal(self) -> None:
        return None

    def begin_hand_over(self) -> None:
        """Do nothing: each flush writes rows."""

    def reads(self) -> MysqlReads:
        return MysqlReads(self._settings, self._shard)

    async def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        found = await self._read_timers(
            lambda is_filled: self._sql.due_rows(low_ms, high_ms, after, limit, is_filled=is_filled)
        )
        return [DueRow(at, number) for at, number in found.rows]

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        return decode_rows(await self._read(self._sql.read_rows(ids)))

    async def next_due_ms(self, above_ms: int, below_ms: int) -> int | None:
        found = await self._read_timers(
            lambda is_filled: self._sql.next_due_ms(above_ms, below_ms, is_filled=is_filled)
        )
        return int(found.rows[0][0]) if found.rows else None

    async def _read_timers(self, statement: Callable[[bool], bytes]) -> Result:
        """Read timers from their table, or, if it is not filled yet, from the index of all dues.

        The index may be dropped between the two reads; then the table is filled.
        """

        async def work() -> Result:
            link = self._require_link()
            if not self._timers_are_filled:
                self._timers_are_filled = await are_timers_filled(link, self._shard)
            try:
                found, _ = await link.run(statement(self._timers_are_filled), session_sql.ROLLBACK)
            except ServerError as error:
                if error.code != NO_SUCH_INDEX_CODE:
                    raise
                self._timers_are_filled = True
                _, found, _ = await link.run(session_sql.ROLLBACK, statement(True), session_sql.ROLLBACK)
            return found

        return await self._run_exclusively(work)

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    # ---------------------------------------------------------- the connection

    async def _run_exclusively(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Run one call, and return its result. Close the connection if the call leaves its state unknown.

        Raises:
            StoreLost: also for the errors of the driver.
        """
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
            # Read again with each connection: a restarted server may have other settings.
            *_, found, server = await link.run(
                *session_sql.session_settings(self._settings.lock_wait_timeout_s), session_sql.SERVER_SETTINGS
            )
        except BaseException:
            link.abort()
            raise
        self._connection_id, packet_bytes, self._connected_ms = found.rows[0]
        self._packet_bytes = min(packet_bytes, PACKET_BYTES_MAX) - _PACKET_MARGIN
        self._unsafe_settings = None if self._settings.unsafe_durability else unsafe_settings(server, self._settings)
        self._is_read_only = is_read_only(server)
        self._timers_are_filled = False
        self._link = link
        return link

    def _check_server(self) -> None:
        """Raise `StoreLost` if the server may lose acknowledged writes or accepts none, as of the connect."""
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
            await link.run(session_sql.set_autocommit(True))
            await prepare_tables(link, self._settings, self._shard)
            self._excludes_older = (await read_state(link, self._shard)).version == MIGRATIONS[-1].number
            await link.run(session_sql.set_autocommit(False))
        except ServerError as error:
            if error.code in _NO_ACCESS_CODES:
                raise StoreUnusable(f"{self._settings.location}: {error}; {self._access_remedy(error.code)}") from error
            raise

    def _access_remedy(self, code: int) -> str:
        if code == NO_TLS_CODE:
            return TLS_REMEDY
        grant = f"GRANT {RUN_RIGHTS} ON `{self._settings.database}`.* TO '{self._settings.user}'"
        tls = "" if self._settings.tls else f"; if the user or the server demands TLS, {TLS_REMEDY}"
        return f"check user, password and database, and {grant}{tls}"

    async def _read(self, statements: Sequence[bytes]) -> list[Result]:
        async def work() -> list[Result]:
            *results, _ = await self._require_link().run(*statements, session_sql.ROLLBACK)
            return results

        return await self._run_exclusively(work)

    # --------------------------------------------------------------- the owner

    async def _take_over(self, link: MysqlLink, epoch: int, nonce: str) -> Owner:
        """End the former owner's connection, then overwrite the owner row, which names that connection.

        A later flush of the former owner would be fenced, but its writes travel with
        the fence and would hold their locks until it reads the reply.
        """
        self._ownership = (epoch, nonce)
        old = await self._lock_owner(link)
        if old is None:
            holder = await self._select_owner(link)
            self._check_may_replace(holder)
            await self._kill(link, holder.connection)
            old = await self._lock_owner_or_fail(link)
        try:
            self._check_may_replace(old)
        except (Superseded, OtherCluster):
            await link.run(session_sql.ROLLBACK)
            raise
        await self._kill(link, old.connection, old.clock_ms - old.offset_ms)
        if (old.epoch, old.nonce) == self._ownership:
            return await self._write_owner(link, old)
        return await self._write_owner(link, replace(old, epoch=epoch, nonce=nonce, flush=0))

    def _check_may_replace(self, owner: Owner) -> None:
        """Raise unless this ownership's epoch is higher than the owner row's, or the row names this ownership.

        Raises:
            Superseded, OtherCluster: see `Store.take_over`.
        """
        assert self._ownership is not None
        check_same_cluster(owner, self._ownership[1])
        if owner.epoch >= self._ownership[0] and (owner.epoch, owner.nonce) != self._ownership:
            raise Superseded(owner.epoch)

    async def _reconnect(self) -> Owner:
        """End the old connection, then read the owner row under its lock over a new one.

        The lock proves that no older transaction can still commit: COMMIT follows the
        fence's result, so such a transaction holds the lock. If the row shows another
        owner, no lock is needed: this ownership has ended, and the owner must not be
        disturbed.
        """
        old_id, since_ms = self._connection_id, self._connected_ms
        link = await self._connect()
        await self._kill(link, old_id, since_ms)
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
        await link.run(session_sql.ROLLBACK)
        return current

    async def _check_version(self, link: MysqlLink) -> None:
        """Raise `StoreUnusable` if the tables are of another version than at the open."""
        check_usable(await read_state(link, self._shard), self._settings, self._shard)

    async def _lock_owner(self, link: MysqlLink, seconds: int = _OWNER_LOCK_WAIT_S) -> Owner | None:
        """Begin a transaction and lock the owner row. If the lock is not free in time, roll back and return None."""
        set_wait = session_sql.set_lock_wait(seconds)
        reset_wait = session_sql.set_lock_wait(self._settings.lock_wait_timeout_s)
        try:
            *_, found, _ = await link.run(set_wait, session_sql.BEGIN, self._sql.read_owner(lock=True), reset_wait)
        except ServerError as error:
            if error.code not in _RETRYABLE_CODES:
                raise
            await link.run(session_sql.ROLLBACK, reset_wait)
            return None
        return decode_owner(found)

    async def _lock_owner_or_fail(self, link: MysqlLink) -> Owner:
        owner = await self._lock_owner(link, self._settings.lock_wait_timeout_s)
        if owner is None:
            raise StoreLost(
                f"{self._settings.location}: the owner row of shard {self._shard} stays locked; if SHOW PROCESSLIST has a commit "
                "that waits for an ack, let a replica acknowledge; otherwise end the transaction that holds it (see "
                "information_schema.INNODB_TRX)"
            )
        return owner

    async def _select_owner(self, link: MysqlLink) -> Owner:
        (found,) = await link.run(self._sql.read_owner())
        return decode_owner(found)

    async def _write_owner(self, link: MysqlLink, owner: Owner) -> Owner:
        """Write the locked owner row with this connection, and commit. Raises `StoreLost`, as `_check_server`.

        The commit is a barrier, too: with semi-synchronous replication it returns when a replica has it and all before it,
        also what was read and no replica had acknowledged. A commit that changes nothing returns at once and proves nothing,
        and the row may have this connection's number since before a restart of the server. So it is written differently first.
        """
        self._check_server()
        new = replace(owner, connection=self._connection_id)
        if new == owner:
            await link.run(self._sql.set_owner(replace(owner, connection=0)))
        await link.run(self._sql.set_owner(new))
        await link.run(session_sql.COMMIT)
        return new

    async def _kill(self, link: MysqlLink, connection_id: int, since_ms: int | None = None) -> None:
        """End another connection of this user to this database, if its rights allow it. It may be closed already.

        A commit that waits for the ack of a replica, or behind one that does, is left alone: MariaDB would commit it without
        an ack. It holds the owner row until a replica acknowledges, and no other commit returns before that either.

        `since_ms`: the connection existed then. A server that started later reuses its id for another one.
        """
        if connection_id in (0, self._connection_id):
            return
        try:
            processes, uptime, now = await link.run(session_sql.PROCESSES, session_sql.UPTIME_S, session_sql.NOW_MS)
            found = decode_processes(processes).get(connection_id)
            own = (self._settings.user, self._settings.database)
            # The earliest possible start. In doubt the connection is ended: a lock that stays is worse
            # than one more connect.
            started_ms = now.rows[0][0] - (int(uptime.rows[0][1]) + 1) * 1000
            is_ours = found is not None and (found.user, found.database) == own
            is_committing = found is not None and found.is_committing
            if is_ours and not is_committing and (since_ms is None or started_ms <= since_ms):
                await link.run(session_sql.kill(connection_id))
        except ServerError:
            return

    # --------------------------------------------------------------- the flush

    async def _flush(
        self, link: MysqlLink, fence: Fence, reads: Sequence[bytes], key_reads: Sequence[bytes], decide: Decide
    ) -> None:
        self._faults("begin")
        committing = False

        def commit(_: Sequence[Result] = ()) -> bytes:
            """Return COMMIT, after all results were read without an error. Any later error means an unknown outcome."""
            nonlocal committing
            self._faults("written")
            committing = True
            return session_sql.COMMIT

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
        """Write without reads: the first writes travel with the fence, and COMMIT follows the last results.

        If the fence matches no row, these writes are rolled back.
        """
        first, *others = [*self._split_into_packets(self._statements_of(link, fence, decide({}, {})))] or [[]]

        def on_fenced(results: list[Result]) -> bytes | None:
            self._faults("fenced")
            self._faults("read")
            return None if others else commit(results)

        await self._begin_with_fence(link, fence, first, on_fenced)
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
        """Read and write in two round trips: the reads travel with the fence, and COMMIT follows the last results."""
        first, *others = self._split_into_packets([*reads, *key_reads])
        found = await self._begin_with_fence(link, fence, first)
        for packet in others:
            found += await link.run(*packet)
        self._faults("fenced")
        rows = {row.id: row for row in decode_rows(found[: len(reads)])}
        idempotency_keys = decode_idempotency_keys(found[len(reads) :])
        self._faults("read")
        writes = [*self._split_into_packets(self._statements_of(link, fence, decide(rows, idempotency_keys)))]
        if writes:
            await self._send_packets(link, writes, commit)
        else:
            await link.run(commit(()))

    async def _send_packets(self, link: MysqlLink, packets: Sequence[Sequence[Statement]], commit: OnResults) -> None:
        """Send more packets of a transaction, and COMMIT after the results of the last."""
        *others, last = packets
        for packet in others:
            await link.run(*packet)
        await link.run(*last, on_results=commit)

    async def _begin_with_fence(
        self, link: MysqlLink, fence: Fence, statements: Sequence[Statement], on_results: OnResults | None = None
    ) -> list[Result]:
        """Begin the transaction with the fence. Sends `statements` with it and returns their results."""

        def check_fence(results: list[Result]) -> bytes | None:
            if results[0].matched_row_count != 1:
                raise FencedOut("the owner row did not show what this host wrote last")
            return None if on_results is None else on_results(results)

        first = self._sql.fence(fence)
        try:
            _, *results = await link.run(
                first if link.can_prepare else as_text(first), *statements, on_results=check_fence
            )
        except FencedOut:
            await self._check_fence(link, fence)
            raise
        return results

    def _statements_of(self, link: MysqlLink, fence: Fence, writes: Writes) -> Iterator[Statement]:
        """Return a flush's statements. If the link cannot prepare, they are text, which is up to twice as long."""
        if link.can_prepare:
            return self._writes_of(fence, writes, self._packet_bytes, can_bulk=link.can_bulk)
        return map(as_text, self._writes_of(fence, writes, self._packet_bytes // 2))

    def _writes_of(
        self, fence: Fence, writes: Writes, packet_bytes: int, *, can_bulk: bool = False
    ) -> Iterator[Statement]:
        if writes.journal_trimmed is not None:
            yield self._journal_sql.trim_rows(writes.journal_trimmed)
        if writes.journal_emptied:
            yield from self._journal_sql.empty_rows(writes.journal_emptied)
        if writes.journal_reserve_bytes is not None:
            yield from self._journal_sql.set_reserve(writes.journal_reserve_bytes, packet_bytes)
        if writes.journal_row is not None:
            yield from self._journal_sql.add_row(fence.position, writes.journal_row, packet_bytes)
        yield from self._sql.write(writes, packet_bytes, can_bulk=can_bulk)

    async def _check_fence(self, link: MysqlLink, fence: Fence) -> None:
        """Raise `FencedOut` if the fence did not match: a write may fail before the fence's result is read."""
        if self._link is link:
            seen = await self._select_owner(link)
            if (seen.epoch, seen.nonce, seen.flush) != (fence.epoch, fence.nonce, fence.flush - 1):
                raise FencedOut(
                    f"the owner row shows epoch {seen.epoch}, flush {seen.flush}, which is not what this host wrote last"
                )

    def _split_into_packets(self, statements: Iterable[Statement]) -> Iterator[list[Statement]]:
        """Yield statements in groups that fit packets below the server's max_allowed_packet.

        Raises:
            WriteRefused: one statement alone does not fit.
        """
        packet: list[Statement] = []
        size = 0
        for statement in statements:
            if len(statement) > self._packet_bytes:
                raise WriteRefused(
                    f"{self._settings.location}: a row of {len(statement)} bytes does not fit max_allowed_packet; raise it",
                    is_bad_value=True,
                )
            if packet and size + len(statement) + 1 > self._packet_bytes:
                yield packet
                packet, size = [], 0
            packet.append(statement)
            size += len(statement) + 1
        if packet:
            yield packet

    async def _roll_back(self, link: MysqlLink) -> None:
        """Roll back. If ROLLBACK fails, close the connection: COMMIT was not sent, so that has the same effect."""
        try:
            await link.run(session_sql.ROLLBACK)
        except (ServerError, MysqlLinkLost):
            self._disconnect()

    def _write_error(self, error: ServerError | UnicodeEncodeError | OutOfRange) -> StoreError:
        if not isinstance(error, ServerError):
            return WriteRefused(str(error), is_bad_value=True)
        if error.code == _DUPLICATE_KEY_CODE and self._sql.adds_idempotency_keys(error.statement):
            return IdempotencyKeyExists(str(error))
        full = error.code in _DISK_FULL_CODES
        hint = "; make room on the server's disk" if full else ""
        return WriteRefused(
            f"{error}{hint}",
            is_retryable=error.code in _RETRYABLE_CODES,
            is_full=full,
            is_bad_value=error.code in _BAD_VALUE_CODES,
        )
