"""The least queue that can stand between callers and MariaDB in Python, one item a call.

Always true: it writes, on the product's own tables, what a flush must write (a
fence, deletes, leases, inserts, then COMMIT), answers after the commit, gathers
while it commits, and inserts already leased what somebody waits for; its callers
send the calls of a turn as one. It has one shard, one topic and one client of each
role, and forgets everything that makes a queue: priorities, lease ends, limits,
checks of what comes, answers that fail. So much of what one item costs is the
machine's, the database's and the interpreter's. Judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from foqs.core.item import State, make_number
from perf import limit
from perf.lib import rows
from perf.lib.caller import NOTHING, Batch, Caller, Put, Taken, all_durable
from perf.lib.packets import AsyncConnection, query, query_bytes
from perf.lib.servers import DATABASE, MariaDb

PUT, TAKE, DONE = b"P", b"T", b"D"
_COUNT: Final = struct.Struct("<I")
_ID: Final = struct.Struct("<q")
_ITEM: Final = struct.Struct("<qI")
_SWEEP_S: Final = 0.02
_SPAWN: Final = multiprocessing.get_context("spawn")

Wait = tuple[float, "asyncio.Future[Taken]"]


@contextlib.contextmanager
def serving(server: MariaDb) -> Iterator[tuple[str, int]]:
    """A server process on empty tables, until the block ends: (its address, its process id)."""
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


# -------------------------------------------------------------------- frames


class _Frames(asyncio.Protocol):
    """What comes over a connection: a length, a kind and what belongs to it."""

    def __init__(self, take: Callable[[asyncio.WriteTransport, bytes, bytes], None]) -> None:
        self._take = take
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        start, end = 0, len(data)
        while end - start >= _COUNT.size:
            begin = start + _COUNT.size
            stop = begin + _COUNT.unpack_from(data, start)[0]
            if stop > end:
                break
            self._take(self._transport, data[begin : begin + 1], data[begin + 1 : stop])
            start = stop
        self._data = data[start:]


def _frame(kind: bytes, body: bytes) -> bytes:
    return _COUNT.pack(1 + len(body)) + kind + body


def _items(body: bytes) -> list[tuple[int, bytes]]:
    found, start = [], 0
    while start < len(body):
        number, size = _ITEM.unpack_from(body, start)
        start += _ITEM.size + size
        found.append((number, body[start - size : start]))
    return found


def _packed(items: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join([_ITEM.pack(number, len(payload)) + payload for number, payload in items])


# -------------------------------------------------------------------- server


async def _serve(listener: socket.socket, database: Path) -> None:
    connection = await AsyncConnection.connect(database, DATABASE)
    for text in limit.SESSION:
        await connection.run(query(text))
    shard = _Shard(connection)
    await asyncio.get_running_loop().create_server(lambda: _Frames(shard.take), sock=listener)
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
        """A call of whoever is connected; one that is no put makes him the consumer."""
        if kind == PUT:
            items = []
            for _, payload in _items(body):
                self._born += 1
                items.append((make_number(rows.EPOCH, self._born), payload))
            self._puts.append((transport, items))
        else:
            self._consumer = transport
            if kind == DONE:
                self._dones += [number for (number,) in _ID.iter_unpack(body)]
            else:
                self._wanted += _COUNT.unpack(body)[0]
        self._wake.set()

    async def run(self) -> None:
        commit = query("COMMIT")
        while True:
            leased = [self._ready.popleft() for _ in range(min(self._wanted, len(self._ready)))]
            self._wanted -= len(leased)
            puts, self._puts = self._puts, []
            dones, self._dones = self._dones, []
            born = [item for _, items in puts for item in items]
            direct = 0 if self._ready else min(self._wanted, len(born))
            self._wanted -= direct
            if not (leased or born or dones):
                self._wake.clear()
                await self._wake.wait()
                continue
            self._flushes += 1
            await self._connection.run(_packet(self._flushes, sorted(dones), leased, born, direct))
            await self._connection.run(commit)
            self._ready += born[direct:]
            if leased or direct:
                self._consumer.write(_frame(TAKE, _packed([*leased, *born[:direct]])))
            if dones:
                self._consumer.write(_frame(DONE, _COUNT.pack(len(dones))))
            for transport, items in puts:
                transport.write(_frame(PUT, _COUNT.pack(len(items))))


_COLUMNS: Final = ", ".join(rows.values(0, b"", leased_by=None)).encode()
_IDS: Final = b",".join


def _packet(
    flush: int,
    dones: Sequence[int],
    leased: Sequence[tuple[int, bytes]],
    born: Sequence[tuple[int, bytes]],
    direct: int,
) -> bytes:
    """One flush up to its COMMIT; so many of what is born, the first ones, are leased at once."""
    lease = b"state = %d, due_ms = %d, token = %d, attempt = 1" % (
        State.LEASED, rows.NOW_MS + rows.LEASE_MS, rows.EPOCH << 43 | flush,
    )  # fmt: skip
    texts = [
        b"START TRANSACTION",
        b"UPDATE foqs_0_owner SET flush = %d, clock_ms = %d WHERE one = 1 AND epoch = %d AND nonce = '%b' AND flush = %d"
        % (flush, rows.NOW_MS + flush, rows.EPOCH, rows.NONCE.encode(), flush - 1),
    ]
    if dones:
        texts.append(b"DELETE FROM foqs_0_item WHERE id IN (%b)" % _IDS([b"%d" % number for number in dones]))
    if leased:
        ids = _IDS([b"%d" % number for number, _ in leased])
        texts.append(b"UPDATE foqs_0_item SET %b WHERE id IN (%b)" % (lease, ids))
    if born:
        token = rows.EPOCH << 43 | flush
        values = [_row(item, token) for item in born[:direct]] + [_row(item, None) for item in born[direct:]]
        texts.append(b"INSERT INTO foqs_0_item (%b) VALUES %b" % (_COLUMNS, b",".join(values)))
    return query_bytes(b";".join(texts))


def _row(item: tuple[int, bytes], token: int | None) -> bytes:
    number, payload = item
    head = b"(%d,'default','perf',0,%d,%d,%d,NULL,NULL,0,0,%d,_binary'%b',''," % (
        number, rows.NOW_MS, rows.NOW_MS, rows.LEASE_MS, len(payload),
        payload.replace(b"\\", b"\\\\").replace(b"'", b"\\'"),
    )  # fmt: skip
    if token is None:
        return head + b"%d,NULL,0,0)" % State.READY
    return head + b"%d,%d,%d,1)" % (State.LEASED, rows.NOW_MS + rows.LEASE_MS, token)


# ------------------------------------------------------------------- callers


class LeastSession:
    """One connection, and callers that share it, of calls of one item."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._transport: asyncio.WriteTransport | None = None
        self._outgoing: dict[bytes, list[bytes]] = {}
        self._putting: deque[asyncio.Future[None]] = deque()
        self._finishing: deque[asyncio.Future[None]] = deque()
        self._taking: deque[Wait] = deque()
        self._owed = 0
        """So many were asked for by callers that have given up since."""
        self._stash: deque[tuple[int, bytes]] = deque()
        self._sweeper: asyncio.Task[None] | None = None

    async def caller(self) -> Caller:
        if self._transport is None:
            self._loop = asyncio.get_running_loop()
            host, _, port = self._place.rpartition(":")
            self._transport, _ = await self._loop.create_connection(lambda: _Frames(self._answered), host, int(port))
            self._sweeper = self._loop.create_task(self._sweep())
        return self

    async def put(self, items: Batch) -> Put:
        (payload,) = items.payloads
        await self._sent(PUT, _ITEM.pack(0, len(payload)) + payload, self._putting)
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        if self._stash:
            number, payload = self._stash.popleft()
            return (number,), (payload,)
        future: asyncio.Future[Taken] = self._loop.create_future()
        self._taking.append((time.monotonic() + wait_ms / 1000, future))
        if self._owed:
            self._owed -= 1
        else:
            self._send(TAKE, b"")
        return await future

    async def done(self, handles: Sequence[Any]) -> None:
        await self._sent(DONE, _ID.pack(handles[0]), self._finishing)

    async def close(self) -> None:
        """A caller's end, and the session's: nobody calls any more."""
        if self._sweeper is not None and not self._taking:
            self._sweeper.cancel()

    async def _sent(self, kind: bytes, body: bytes, answers: deque[asyncio.Future[None]]) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        answers.append(future)
        self._send(kind, body)
        await future

    def _send(self, kind: bytes, body: bytes) -> None:
        """Together with the others of this turn."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.setdefault(kind, []).append(body)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        assert self._transport is not None
        for kind, bodies in outgoing.items():
            self._transport.write(_frame(kind, _COUNT.pack(len(bodies)) if kind == TAKE else b"".join(bodies)))

    def _answered(self, transport: asyncio.WriteTransport, kind: bytes, body: bytes) -> None:
        if kind == TAKE:
            for number, payload in _items(body):
                if self._taking:
                    self._taking.popleft()[1].set_result(((number,), (payload,)))
                else:
                    self._owed -= 1
                    self._stash.append((number, payload))
            return
        answers = self._putting if kind == PUT else self._finishing
        for _ in range(_COUNT.unpack(body)[0]):
            answers.popleft().set_result(None)

    async def _sweep(self) -> None:
        """Ends the waits that are over; what was asked for them is for whoever comes next."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            while self._taking and self._taking[0][0] <= now:
                self._taking.popleft()[1].set_result(NOTHING)
                self._owed += 1
