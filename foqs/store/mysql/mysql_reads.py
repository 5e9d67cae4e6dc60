"""Reading a shard's MySQL tables beside its flushes: a connection of its own.

Always true: each call is one round trip and one transaction that only reads, so
the owner row and what is read with it are of one moment; it waits for no lock;
a call that ends in any other way than with its answer ends the connection.
Knows nothing of SQL's text or of the driver's ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from foqs.core.flush.fence import Fence
from foqs.core.items.item import OrderKey, Row, State, TopicName
from foqs.store.mysql import mysql_sql as sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings, Result, ServerError
from foqs.store.mysql.mysql_rows import decode_counts, decode_owner, decode_purge_markers, decode_rows
from foqs.store.port import ANY_LENGTH, StoreLost, TopicCount, check_not_behind
from foqs.store.sql_rows import order_keys_of

_COUNTS_TIMEOUT_S: Final = 3_600.0
"""Counting reads an index of the whole shard, with pauses: three million rows take 5 seconds, with nothing that waits for it."""
_IDLE_CHECKS_MAX: Final = 2


class MysqlReads:
    """A connection for reading; see `port.Reads`."""

    def __init__(self, settings: MysqlSettings, shard: int) -> None:
        self._settings = settings
        self._shard = shard
        self._sql = sql.Statements(shard)
        self._link: MysqlLink | None = None
        self._connection_id = 0
        """The server's number of `_link`."""
        self._in_snapshot = False
        self._is_busy = False
        self._is_closed = False

    async def rows(self, committed: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        return decode_rows(
            await self._read(committed, self._sql.read_rows_with_payload(dict.fromkeys(ids, payload_bytes_max)))
        )

    async def ready_keys(
        self, committed: Fence, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        (found,) = await self._read(committed, [self._sql.ready_keys(topic, after, limit, purged_up_to)])
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
        asked = self._sql.list_rows(topic, state, after, limit, purged_up_to, with_payload=with_payload)
        return decode_rows(await self._read(committed, [asked]))

    async def idempotency_key_of(self, committed: Fence, number: int, until_ms: int) -> bytes | None:
        (found,) = await self._read(committed, [self._sql.idempotency_key_of(number, until_ms)])
        return found.rows[0][0] if found.rows else None

    async def begin_snapshot(self, committed: Fence) -> None:
        await self._run([sql.BEGIN_READ, self._sql.read_owner()], committed)
        self._in_snapshot = True

    async def counts(self) -> list[TopicCount]:
        if not self._in_snapshot:
            raise StoreLost(f"{self._settings.location}: there is no snapshot to count in")
        if self._link is not None:
            self._link.timeout_s = max(self._link.timeout_s, _COUNTS_TIMEOUT_S)
        found, cuts = await self._run_while_server_works([self._sql.counts, self._sql.purge_markers])
        of_cuts = [self._sql.count_purged_rows(cut) for cut in decode_purge_markers(cuts)]
        return decode_counts(found, await self._run(of_cuts) if of_cuts else ())

    async def close(self) -> None:
        self._is_closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _read(self, committed: Fence, statements: Sequence[bytes]) -> list[Result]:
        if self._in_snapshot:
            raise RuntimeError("only counts may be read in a snapshot")
        _, _, *found, _ = await self._run([sql.BEGIN_READ, self._sql.read_owner(), *statements, sql.COMMIT], committed)
        return found

    async def _run_while_server_works(self, statements: Sequence[bytes]) -> list[Result]:
        """Asks what may take as long as it likes, for as long as the server works on it.

        A network that swallows the answer looks like a server that still counts, so the
        server is asked, over another connection, whether it does. An answer may be on
        its way: only the second look at a server that does nothing gives up.
        """
        asking = asyncio.ensure_future(self._run(statements))
        idle_looks = 0
        try:
            while idle_looks < _IDLE_CHECKS_MAX:
                await asyncio.wait((asking,), timeout=self._settings.statement_timeout_s)
                if asking.done():
                    return asking.result()
                idle_looks = 0 if await self._is_running() else idle_looks + 1
            raise StoreLost(f"{self._settings.location}: the answer to a count was lost")
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait((asking,))

    async def _is_running(self) -> bool:
        """Whether the server works on what our connection has asked. Raises `StoreLost`: it does not answer."""
        try:
            link = await MysqlLink.connect(self._settings)
            try:
                (found,) = await link.run(sql.is_running(self._connection_id))
            finally:
                await link.close()
        except (ServerError, MysqlLinkLost) as error:
            raise StoreLost(f"{self._settings.location}: {error}") from error
        return bool(found.rows[0][0])

    async def _run(self, statements: Sequence[bytes], committed: Fence | None = None) -> list[Result]:
        """One packet; with `committed`, its second statement reads the owner row, which must show that flush."""
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
            raise StoreLost(f"{self._settings.location}: these reads were closed")
        self._link = link = await MysqlLink.connect(self._settings)
        *_, found = await link.run(*sql.session_settings(self._settings.lock_wait_timeout_s, read_only=True))
        self._connection_id = found.rows[0][0]
        return link

    def _disconnect(self) -> None:
        self._in_snapshot = False
        link, self._link = self._link, None
        if link is not None:
            link.abort()
