"""Reads a shard's MySQL tables beside its flushes, over its own connection.

Always true: each call is one round trip and one read-only transaction, so the
owner row and the rows are of one moment. A call waits for no lock. A call that
raises closes the connection. Knows nothing of SQL text or of the driver's
internals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from foqs.core.flush.fence import Fence
from foqs.core.flush.journal_rows import PayloadPlace
from foqs.core.items.idempotency_keys import own_key
from foqs.core.items.item import OrderKey, Row, State, TopicName
from foqs.core.items.row_filter import RowFilter
from foqs.store.mysql import mysql_session_sql as session_sql
from foqs.store.mysql import mysql_sql as sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings, Result, ServerError
from foqs.store.mysql.mysql_journal_sql import JournalStatements, decode_payloads, in_packets, payload_reads
from foqs.store.mysql.mysql_migrations import filling_position
from foqs.store.mysql.mysql_rows import decode_counts, decode_owner, decode_processes, decode_purge_markers, decode_rows
from foqs.store.port import ANY_LENGTH, DueRow, IdPage, IdRange, LeaseEnd, StoreLost, TopicCount, check_not_behind
from foqs.store.sql_rows import id_page, lease_ends_of, order_keys_of

_LONG_TIMEOUT_S: Final = 3_600.0
"""The time limit of a count or a sweep: it reads an index of the whole shard, and nothing waits for it."""
_IDLE_CHECKS_MAX: Final = 2


class MysqlReads:
    """A connection for reading; see `port.Reads`."""

    def __init__(self, settings: MysqlSettings, shard: int) -> None:
        self._settings = settings
        self._shard = shard
        self._sql = sql.Statements(shard)
        self._journal_sql = JournalStatements(shard)
        self._link: MysqlLink | None = None
        self._connection_id = 0
        """The server's id of `_link`."""
        self._in_snapshot = False
        self._is_busy = False
        self._is_closed = False
        self._timers_are_filled = False

    async def rows(self, committed: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        return decode_rows(
            await self._read(committed, self._sql.read_rows_with_payload(dict.fromkeys(ids, payload_bytes_max)))
        )

    async def ready_order_keys(
        self, committed: Fence, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        (found,) = await self._read(committed, [self._sql.ready_order_keys(topic, after, limit, purged_up_to)])
        return order_keys_of(found.rows)

    async def list_rows(
        self,
        committed: Fence,
        topic: TopicName,
        state: State,
        after: OrderKey | None,
        limit: int,
        purged_up_to: int = 0,
        *,
        with_payload: bool,
    ) -> list[Row]:
        statement = self._sql.list_rows(topic, state, after, limit, purged_up_to, with_payload=with_payload)
        return decode_rows(await self._read(committed, [statement]))

    async def rows_by_id(self, committed: Fence, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        read, found = await self._read_long(committed, self._sql.rows_by_id(namespace, only, ids))
        count, last = read.rows[0]
        return id_page(decode_rows([found]), ids, count, last)

    async def due_rows(self, committed: Fence, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        if not self._timers_are_filled:
            (found,) = await self._read(committed, [filling_position(self._shard)])
            self._timers_are_filled = bool(found.rows[0][0] == sql.FILLED)
        statement = self._sql.due_rows(None, high_ms, after, limit, is_filled=self._timers_are_filled)
        (found,) = await self._read_long(committed, [statement])
        return [DueRow(at, number) for at, number in found.rows]

    async def leases_in(self, committed: Fence, ranges: Sequence[tuple[int, int]], last_ms: int) -> list[DueRow]:
        (found,) = await self._read_long(committed, [self._sql.leases_in(ranges, last_ms)])
        return [DueRow(at, number) for at, number in found.rows]

    async def leases_of(
        self, committed: Fence, topics: Sequence[tuple[TopicName, OrderKey | None]], limit: int
    ) -> list[list[LeaseEnd]]:
        found = await self._read_long(committed, [self._sql.leases_of(topic, after, limit) for topic, after in topics])
        return [lease_ends_of(each.rows) for each in found]

    async def idempotency_keys_of(self, committed: Fence, untils: Mapping[int, int]) -> dict[int, bytes]:
        found = await self._read(committed, self._sql.idempotency_keys_of(untils))
        return {
            number: key
            for each in found
            for number, key, until_ms in each.rows
            if untils.get(number) == until_ms and own_key(key) is not None
        }

    async def journal_payloads(self, committed: Fence, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        payloads: dict[PayloadPlace, bytes] = {}
        for reads in in_packets(payload_reads(places)):
            statements = [*map(self._journal_sql.payload_parts, reads)]
            payloads |= decode_payloads(reads, await self._read(committed, statements))
        return payloads

    async def begin_snapshot(self, committed: Fence) -> None:
        await self._run([session_sql.BEGIN_READ, self._sql.read_owner()], committed)
        self._in_snapshot = True

    async def counts(self) -> list[TopicCount]:
        if not self._in_snapshot:
            raise StoreLost(
                f"{self._settings.location}: the snapshot was lost with its connection before it was counted"
            )
        self._allow_long_statements()
        counts, markers = await self._run_while_server_works([self._sql.counts, self._sql.purge_markers])
        purged = [self._sql.count_purged_rows(marker) for marker in decode_purge_markers(markers)]
        return decode_counts(counts, await self._run(purged) if purged else ())

    async def close(self) -> None:
        self._is_closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _read(self, committed: Fence, statements: Sequence[bytes]) -> list[Result]:
        if self._in_snapshot:
            raise RuntimeError("only counts may be read in a snapshot")
        _, _, *found, _ = await self._run(
            [session_sql.BEGIN_READ, self._sql.read_owner(), *statements, session_sql.COMMIT], committed
        )
        return found

    async def _read_long(self, committed: Fence, statements: Sequence[bytes]) -> list[Result]:
        """Read what may take long: it reads past the entries of all deleted rows that a snapshot holds.

        Later reads over this connection have the usual time limit again.
        """
        if self._in_snapshot:
            raise RuntimeError("only counts may be read in a snapshot")
        if self._link is None:
            await self._run([session_sql.NOW_MS])
        self._allow_long_statements()
        try:
            _, _, *found, _ = await self._run_while_server_works(
                [session_sql.BEGIN_READ, self._sql.read_owner(), *statements, session_sql.COMMIT], committed
            )
        finally:
            if self._link is not None:
                self._link.timeout_s = self._settings.statement_timeout_s
        return found

    def _allow_long_statements(self) -> None:
        if self._link is not None:
            self._link.timeout_s = max(self._link.timeout_s, _LONG_TIMEOUT_S)

    async def _run_while_server_works(
        self, statements: Sequence[bytes], committed: Fence | None = None
    ) -> list[Result]:
        """Run statements without a time limit, as long as the server works on them. Raises `StoreLost`.

        A network that lost the reply looks like a server that still counts. So another
        connection checks whether the server works. The reply may be on its way, so
        only the second check of an idle server gives up.
        """
        call = asyncio.ensure_future(self._run(statements, committed))
        idle_checks = 0
        try:
            while idle_checks < _IDLE_CHECKS_MAX:
                await asyncio.wait((call,), timeout=self._settings.statement_timeout_s)
                if call.done():
                    return call.result()
                idle_checks = 0 if await self._is_running() else idle_checks + 1
            raise StoreLost(f"{self._settings.location}: the reply to a long read was lost on its way")
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait((call,))
            if not call.cancelled():
                call.exception()  # marks it as retrieved: the caller may have been cancelled in the same moment

    async def _is_running(self) -> bool:
        """Return whether the server works on a statement of this connection. Raises `StoreLost` if it does not answer."""
        try:
            link = await MysqlLink.connect(self._settings)
            try:
                _, found = await link.run(session_sql.NAMES_AS_BYTES, session_sql.PROCESSES)
            finally:
                await link.close()
        except (ServerError, MysqlLinkLost) as error:
            raise StoreLost(f"{self._settings.location}: {error}") from error
        process = decode_processes(found).get(self._connection_id)
        return process is not None and process.command != "Sleep"

    async def _run(self, statements: Sequence[bytes], committed: Fence | None = None) -> list[Result]:
        """Run statements in one packet. With `committed`, the second one reads the owner row, which must show that flush."""
        if self._is_busy:
            raise RuntimeError(f"shard {self._shard}: a connection runs one call at a time")
        self._is_busy = True
        try:
            link = self._link or await self._connect()
            found = await link.run(*statements)
            if committed is not None:
                check_not_behind(committed, decode_owner(found[1]))
        except (ServerError, MysqlLinkLost) as error:
            self._disconnect()
            raise StoreLost(f"{self._settings.location}: {error}") from error
        except BaseException:
            self._disconnect()
            raise
        finally:
            self._is_busy = False
        return found

    async def _connect(self) -> MysqlLink:
        if self._is_closed:
            raise StoreLost(f"{self._settings.location}: the connection of these reads was closed")
        self._link = link = await MysqlLink.connect(self._settings)
        *_, found = await link.run(*session_sql.session_settings(self._settings.lock_wait_timeout_s, read_only=True))
        self._connection_id = found.rows[0][0]
        return link

    def _disconnect(self) -> None:
        self._in_snapshot = False
        link, self._link = self._link, None
        if link is not None:
            link.abort()
