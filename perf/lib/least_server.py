"""The server process of the minimal queue between callers and MariaDB in Python.

Always true: on the product's own tables it writes what a flush must write (a fence,
deletes, leases, inserts, and COMMIT after their results). It replies after the
commit, batches calls during a commit, and inserts items already leased if a caller
waits for them. It has one shard, one topic and one client of each role, and leaves
out the rest of a queue: priorities, lease ends, limits, checks of requests, errors.
This part of an item's cost is due to the machine, the database and the interpreter.
Does not judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import uvloop

from foqs.core.items.item import make_number
from foqs.store.row_columns import FIRST_LEASE_COLUMNS
from perf import limit
from perf.lib import rows
from perf.lib.least import COUNT, DONE, ID, PUT, TAKE, Frames, frame, items_in, packed
from perf.lib.packets import AsyncConnection, query, query_bytes
from perf.lib.servers import DATABASE, MariaDb

_SPAWN: Final = multiprocessing.get_context("spawn")

_Items = Sequence[tuple[int, bytes]]


@contextlib.contextmanager
def serving(server: MariaDb) -> Iterator[tuple[str, int]]:
    """Run a server process on empty tables until the block ends. Yield (its address, its process id)."""
    connection = server.connect()
    limit.mariadb_tables(connection, 0)
    connection.close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        process = _SPAWN.Process(target=_run, args=(listener, server.socket), daemon=True)
        process.start()
    assert process.pid is not None
    try:
        yield f"{host}:{port}", process.pid
    finally:
        process.kill()
        process.join()


def _run(listener: socket.socket, database: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(listener, database))


async def _serve(listener: socket.socket, database: Path) -> None:
    connection = await AsyncConnection.connect(database, DATABASE)
    for text in limit.SESSION:
        await connection.run(query(text))
    shard = _Shard(connection)
    await asyncio.get_running_loop().create_server(lambda: Frames(shard.take), sock=listener)
    await shard.run()


class _Shard:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._puts: list[tuple[asyncio.WriteTransport, list[tuple[int, bytes]]]] = []
        self._dones: list[int] = []
        self._wanted = 0
        self._ready: deque[tuple[int, bytes]] = deque()
        self._flushes = 0
        self._born = 0
        self._wake = asyncio.Event()

    def take(self, transport: asyncio.WriteTransport, kind: bytes, body: bytes) -> None:
        """Handle a call of a connection. A call other than a put makes it the consumer's."""
        if kind == PUT:
            items = []
            for _, payload in items_in(body):
                self._born += 1
                items.append((make_number(rows.EPOCH, self._born), payload))
            self._puts.append((transport, items))
        else:
            self._consumer = transport
            if kind == DONE:
                self._dones += [number for (number,) in ID.iter_unpack(body)]
            else:
                self._wanted += COUNT.unpack(body)[0]
        self._wake.set()

    async def run(self) -> None:
        commit = query("COMMIT")
        while True:
            leased = [self._ready.popleft() for _ in range(min(self._wanted, len(self._ready)))]
            self._wanted -= len(leased)
            puts, self._puts = self._puts, []
            dones, self._dones = self._dones, []
            born = [item for _, items in puts for item in items]
            direct = min(self._wanted, len(born))
            self._wanted -= direct
            if not (leased or born or dones):
                self._wake.clear()
                await self._wake.wait()
                continue
            self._flushes += 1
            packet, expected = _flush(self._flushes, sorted(dones), leased, born[:direct], born[direct:])
            if [result.matched for result in await self._connection.run(packet)] != expected:
                raise AssertionError("a statement did not match the rows it names")
            await self._connection.run(commit)
            self._ready += born[direct:]
            if leased or direct:
                self._consumer.write(frame(TAKE, packed([*leased, *born[:direct]])))
            if dones:
                self._consumer.write(frame(DONE, COUNT.pack(len(dones))))
            for transport, items in puts:
                transport.write(frame(PUT, COUNT.pack(len(items))))


def _flush(number: int, dones: Sequence[int], leased: _Items, direct: _Items, born: _Items) -> tuple[bytes, list[int]]:
    """Return a flush up to its COMMIT, and the row count of each statement. `direct` are inserted leased."""
    flush = rows.Flush(number, rows.NOTHING)
    texts = [
        b"START TRANSACTION",
        b"UPDATE foqs_0_owner SET flush = %d, clock_ms = %d WHERE one = 1 AND epoch = %d AND nonce = '%b' AND flush = %d"
        % (number, rows.NOW_MS + number, rows.EPOCH, rows.NONCE.encode(), number - 1),
    ]
    expected = [0, 1]
    if dones:
        texts.append(_DELETE % b",".join([b"%d" % done for done in dones]))
        expected.append(len(dones))
    if leased:
        ids = b",".join([b"%d" % item for item, _ in leased])
        texts.append(_UPDATE % (_LEASE % flush.token, ids))
        expected.append(len(leased))
    if direct or born:
        values = [_BORN_LEASED % (*_columns(item), flush.token) for item in direct]
        values += [_BORN % _columns(item) for item in born]
        texts.append(_INSERT + b",".join(values))
        expected.append(len(values))
    return query_bytes(b";".join(texts)), expected


def _columns(item: tuple[int, bytes]) -> tuple[int, int, bytes]:
    number, payload = item
    return number, len(payload), payload.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


_NO_FLUSH: Final = rows.Flush(0, rows.NOTHING)


def _row(leased_by: rows.Flush | None) -> bytes:
    """Return the template of a new row's values: its id, its payload's size, its payload and, if leased, the token."""
    row = rows.mysql_values(0, b"", leased_by=leased_by) | {"id": "%d", "payload_bytes": "%d", "payload": "'%b'"}
    if leased_by is not None:
        row["token"] = "%d"
    return f"({', '.join(map(_literal, row.values()))})".encode()


def _literal(value: object) -> str:
    if isinstance(value, bytes):
        return f"'{value.decode()}'"
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) and "%" not in value else str(value)


_DELETE: Final = b"DELETE foqs_0_item FROM foqs_0_item FORCE INDEX (PRIMARY) WHERE id IN (%b)"
_UPDATE: Final = b"UPDATE foqs_0_item FORCE INDEX (PRIMARY) SET %b WHERE id IN (%b)"
_INSERT: Final = f"INSERT INTO foqs_0_item ({', '.join(rows.values(0, b'', leased_by=None))}) VALUES ".encode()
_BORN: Final = _row(None)
_BORN_LEASED: Final = _row(_NO_FLUSH)
_LEASE: Final = ", ".join(
    f"{name} = {'%d' if name == 'token' else value}"
    for name, value in rows.values(0, b"", leased_by=_NO_FLUSH).items()
    if name in FIRST_LEASE_COLUMNS
).encode()
