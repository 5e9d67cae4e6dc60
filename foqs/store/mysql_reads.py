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

from foqs.core.fence import Fence
from foqs.core.item import Key, Row, State, TopicName
from foqs.store import sql_mysql as sql
from foqs.store.mysql_driver import Link, LinkLost, MysqlSettings, Result, ServerError
from foqs.store.mysql_rows import counts_in, cuts_in, owner_in, rows_in
from foqs.store.port import ANY_LENGTH, StoreLost, TopicCount, check_past
from foqs.store.sql_rows import keys_of

_COUNTS_TIMEOUT_S: Final = 3_600.0
"""Counting reads an index of the whole shard, with pauses: three million rows take 5 seconds, with nothing that waits for it."""
_IDLE_LOOKS_MAX: Final = 2


class MysqlReads:
    """A connection for reading; see `port.Reads`."""

    def __init__(self, settings: MysqlSettings, shard: int) -> None:
        self._settings = settings
        self._shard = shard
        self._sql = sql.Statements(shard)
        self._link: Link | None = None
        self._connection = 0
        """The server's number of `_link`."""
        self._in_snapshot = False
        self._busy = False
        self._closed = False

    async def rows(self, past: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        return rows_in(await self._read(past, self._sql.load_rows(dict.fromkeys(ids, payload_bytes_max))))

    async def ready(self, past: Fence, topic: TopicName, after: Key | None, limit: int, last_cut: int = 0) -> list[Key]:
        (found,) = await self._read(past, [self._sql.ready(topic, after, limit, last_cut)])
        return keys_of(found.rows)

    async def listed(
        self,
        past: Fence,
        topic: TopicName,
        state: State,
        after: Key | None,
        limit: int,
        last_cut: int = 0,
        *,
        payload: bool,
    ) -> list[Row]:
        asked = self._sql.listed(topic, state, after, limit, last_cut, payload=payload)
        return rows_in(await self._read(past, [asked]))

    async def key_of(self, past: Fence, number: int, until_ms: int) -> bytes | None:
        (found,) = await self._read(past, [self._sql.key_of(number, until_ms)])
        return found.rows[0][0] if found.rows else None

    async def snapshot(self, past: Fence) -> None:
        await self._ask([sql.BEGIN_READ, self._sql.read_owner()], past)
        self._in_snapshot = True

    async def counts(self) -> list[TopicCount]:
        if not self._in_snapshot:
            raise StoreLost(f"{self._settings.where}: there is no snapshot to count in")
        if self._link is not None:
            self._link.timeout_s = max(self._link.timeout_s, _COUNTS_TIMEOUT_S)
        found, cuts = await self._watched([self._sql.counts, self._sql.cuts])
        of_cuts = [self._sql.count_cut(cut) for cut in cuts_in(cuts)]
        return counts_in(found, await self._ask(of_cuts) if of_cuts else ())

    async def close(self) -> None:
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _read(self, past: Fence, statements: Sequence[bytes]) -> list[Result]:
        if self._in_snapshot:
            raise RuntimeError("only counts may be read in a snapshot")
        _, _, *found, _ = await self._ask([sql.BEGIN_READ, self._sql.read_owner(), *statements, sql.COMMIT], past)
        return found

    async def _watched(self, statements: Sequence[bytes]) -> list[Result]:
        """Asks what may take as long as it likes, for as long as the server works on it.

        A network that swallows the answer looks like a server that still counts, so the
        server is asked, over another connection, whether it does. An answer may be on
        its way: only the second look at a server that does nothing gives up.
        """
        asking = asyncio.ensure_future(self._ask(statements))
        idle_looks = 0
        try:
            while idle_looks < _IDLE_LOOKS_MAX:
                await asyncio.wait((asking,), timeout=self._settings.statement_timeout_s)
                if asking.done():
                    return asking.result()
                idle_looks = 0 if await self._is_running() else idle_looks + 1
            raise StoreLost(f"{self._settings.where}: the answer to a count was lost")
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait((asking,))

    async def _is_running(self) -> bool:
        """Whether the server works on what our connection has asked. Raises `StoreLost`: it does not answer."""
        try:
            link = await Link.connect(self._settings)
            try:
                (found,) = await link.run(sql.is_running(self._connection))
            finally:
                await link.close()
        except (ServerError, LinkLost) as error:
            raise StoreLost(f"{self._settings.where}: {error}") from error
        return bool(found.rows[0][0])

    async def _ask(self, statements: Sequence[bytes], past: Fence | None = None) -> list[Result]:
        """One packet; with `past`, its second statement reads the owner row, which must show that flush."""
        if self._busy:
            raise RuntimeError(f"shard {self._shard}: a connection runs one call at a time")
        self._busy = True
        try:
            link = self._link or await self._connect()
            found = await link.run(*statements)
            if past is not None:
                check_past(past, owner_in(found[1]))
        except (ServerError, LinkLost) as error:
            self._drop()
            raise StoreLost(f"{self._settings.where}: {error}") from error
        except BaseException:
            self._drop()
            raise
        finally:
            self._busy = False
        return found

    async def _connect(self) -> Link:
        if self._closed:
            raise StoreLost(f"{self._settings.where}: these reads were closed")
        self._link = link = await Link.connect(self._settings)
        *_, found = await link.run(*sql.session(self._settings.lock_wait_timeout_s, reads=True))
        self._connection = found.rows[0][0]
        return link

    def _drop(self) -> None:
        self._in_snapshot = False
        link, self._link = self._link, None
        if link is not None:
            link.abort()
