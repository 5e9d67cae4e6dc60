"""The minimum between a producer, a database and a consumer in Python, each in its own process.

Holds `once`. A producer sends a message to a server, which runs a prebuilt flush (a
fence and one row) and COMMIT, and then sends the message to a consumer. There are no
calls, topics, batches or queue: this part of a delivery's time is due to the
machine, the database and the interpreter. Does not judge.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from perf import limit
from perf.lib.alarm import Alarm
from perf.lib.packets import AsyncConnection, query
from perf.lib.report import percentile
from perf.lib.servers import DATABASE, MariaDb

_STAMP_BYTES: Final = 20
"""A message begins with the nanosecond at which it was due to be sent."""
_PATIENCE_S: Final = 60.0
_SPAWN: Final = multiprocessing.get_context("spawn")


def once(rate: float, seconds: float, payload_bytes: int) -> dict[str, float]:
    """Send messages at random moments, `rate` a second. Return how long each took from its due time to its arrival."""
    count = max(5, round(rate * seconds))
    with MariaDb() as server, _listener() as serving, _listener() as consuming:
        connection = server.connect()
        limit.mariadb_tables(connection, 0)
        connection.close()
        results: Any = _SPAWN.Queue()
        ready = _SPAWN.Barrier(3)
        to_server, to_consumer = (each.getsockname()[1] for each in (serving, consuming))
        mains: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
            (_serve, (serving, server.socket, to_consumer, ready)),
            (_consume, (consuming, ready, results)),
            (_produce, (to_server, rate, ready)),
        )
        processes = [
            _SPAWN.Process(target=_run, args=(main, *given, count, payload_bytes), daemon=True) for main, given in mains
        ]
        try:
            for process in processes:
                process.start()
            took_ms, lasted_s = limit.result(results, processes, seconds + _PATIENCE_S)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
    took_ms.sort()
    return {
        "items_per_s": (count - 1) / lasted_s,
        "delivery_p50_ms": percentile(took_ms, 0.5) or 0.0,
        "delivery_p99_ms": percentile(took_ms, 0.99) or 0.0,
    }


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _run(main: Callable[..., Any], *given: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*given))


class _Inbox(asyncio.Protocol):
    """Splits the bytes of a connection into messages of one size."""

    def __init__(self, size: int) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self._size = size
        self._data = b""

    def data_received(self, data: bytes) -> None:
        data, size = self._data + data, self._size
        end = len(data) - len(data) % size
        for start in range(0, end, size):
            self.messages.put_nowait(data[start : start + size])
        self._data = data[end:]


async def _connect(port: int) -> asyncio.WriteTransport:
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
    return cast(asyncio.WriteTransport, transport)


async def _serve(listener: socket.socket, database: Path, to: int, ready: Any, count: int, size: int) -> None:
    connection = await AsyncConnection.connect(database, DATABASE)
    for text in limit.SESSION:
        await connection.run(query(text))
    inbox, commit = _Inbox(size), query("COMMIT")
    flushes = limit.packets("foqs_0", "insert", 1, count, size)
    consumer = await _connect(to)
    await asyncio.get_running_loop().create_server(lambda: inbox, sock=listener)
    ready.wait(_PATIENCE_S)
    for flush, expected in flushes:
        message = await inbox.messages.get()
        if [found.matched for found in await connection.run(flush)] != expected:
            raise AssertionError("a statement did not match the rows it names")
        await connection.run(commit)
        consumer.write(message)
    await inbox.messages.get()


async def _consume(listener: socket.socket, ready: Any, results: Any, count: int, size: int) -> None:
    inbox = _Inbox(size)
    await asyncio.get_running_loop().create_server(lambda: inbox, sock=listener)
    ready.wait(_PATIENCE_S)
    took_ms, came_s = [], []
    for _ in range(count):
        message = await inbox.messages.get()
        took_ms.append((time.monotonic_ns() - int(message[:_STAMP_BYTES])) / 1e6)
        came_s.append(time.monotonic())
    results.put((took_ms, came_s[-1] - came_s[0]))


async def _produce(to: int, rate: float, ready: Any, count: int, size: int) -> None:
    server = await _connect(to)
    ready.wait(_PATIENCE_S)
    alarm, rng, at_ns = Alarm(), random.Random(0), time.monotonic_ns()
    tail = b"x" * (size - _STAMP_BYTES)
    for _ in range(count):
        at_ns += round(rng.expovariate(rate) * 1e9)
        await alarm.until(at_ns)
        server.write(b"%020d" % at_ns + tail)
    alarm.close()
    server.close()
