"""A MySQL client of prebuilt packets: the minimal cost of a driver in Python.

Always true: the packet of a query is built before it is timed, and every result is
read and checked before the next query is sent. Connects to a local server over its
socket, as a user without a password. Knows nothing of queues.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, cast

_PROTOCOL_41: Final = 0x200
_CAPABILITIES: Final = (
    1  # long passwords
    | 2  # an UPDATE reports the rows it matched
    | 8  # a database to begin with
    | _PROTOCOL_41
    | 0x2000  # transactions
    | 0x8000  # today's authentication
    | 0x10000  # several statements in a query
    | 0x20000  # several results
    | 0x80000  # named authentication
)
_MORE_RESULTS: Final = 8
_PACKET_BYTES_MAX: Final = (1 << 24) - 1
_READ_BYTES: Final = 1 << 18


class QueryFailed(Exception):
    """The server refused a statement. `code` is its error number."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (error {code})")
        self.code = code


class Result(NamedTuple):
    """The result of one statement."""

    rows: list[list[bytes | None]]
    matched: int


def query(*statements: str) -> bytes:
    """Return the packet of statements that are sent together."""
    return query_bytes(";".join(statements).encode())


def query_bytes(text: bytes) -> bytes:
    """Return the packet of a query's text."""
    size = len(text) + 1
    if size >= _PACKET_BYTES_MAX:
        raise ValueError(f"a query of {size} bytes needs two packets")
    return size.to_bytes(3, "little") + b"\0\x03" + text


class Replies:
    """Parses bytes into the results of one query. Does no input or output itself."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._data = b""
        self._results: list[Result] = []
        self._rows: list[list[bytes | None]] = []
        self._columns = 0
        self._marks = 0

    def feed(self, data: bytes) -> list[Result] | None:
        """Return the results once they are complete. Raise QueryFailed."""
        data = self._data + data if self._data else data
        position, end = 0, len(data)
        while end - position >= 4:
            size = int.from_bytes(data[position : position + 3], "little")
            if end - position - 4 < size:
                break
            start = position + 4
            position = start + size
            if self._packet(data, start, size):
                results, self._results = self._results, []
                self._data = b""
                return results
        self._data = data[position:]
        return None

    def _packet(self, data: bytes, start: int, size: int) -> bool:
        """Parse one packet. Return whether it was the query's last."""
        first = data[start]
        if first == 0xFF:
            self._reset()
            raise QueryFailed(
                int.from_bytes(data[start + 1 : start + 3], "little"), data[start + 9 : start + size].decode()
            )
        if not self._columns:
            if first:
                self._columns, self._marks, self._rows = first, 0, []
                return False
            matched, after = _length(data, start + 1)
            _, after = _length(data, after)
            self._results.append(Result([], matched))
            return not data[after] & _MORE_RESULTS
        if first == 0xFE and size < 9:
            self._marks += 1
            if self._marks == 1:
                return False
            self._results.append(Result(self._rows, len(self._rows)))
            self._columns = 0
            return not data[start + 3] & _MORE_RESULTS
        if self._marks:
            self._rows.append(_row(data, start, self._columns))
        return False


class Connection:
    """A blocking connection."""

    def __init__(self, path: Path, database: str) -> None:
        self._socket = _connected(path, database)
        self._replies = Replies()

    def run(self, packet: bytes) -> list[Result]:
        """Send a query's packet and read all of its results. Raise QueryFailed."""
        self._socket.sendall(packet)
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            results = self._replies.feed(data)
            if results is not None:
                return results

    def close(self) -> None:
        self._socket.close()


class AsyncConnection(asyncio.Protocol):
    """A connection on an event loop, with one query at a time."""

    def __init__(self) -> None:
        self._replies = Replies()
        self._waiting: asyncio.Future[list[Result]] | None = None
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, path: Path, database: str) -> AsyncConnection:
        connection = cls()
        opened = _connected(path, database)
        opened.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=opened)
        return connection

    async def run(self, packet: bytes) -> list[Result]:
        """Do the same as `Connection.run`."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(packet)
        return await self._waiting

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        waiting = self._waiting
        assert waiting is not None
        try:
            results = self._replies.feed(data)
        except QueryFailed as error:
            waiting.set_exception(error)
        else:
            if results is not None:
                waiting.set_result(results)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError("the server closed the connection"))


def run_all(connection: Connection, statements: Iterable[str]) -> None:
    """Runs statements one by one."""
    for statement in statements:
        connection.run(query(statement))


def _connected(path: Path, database: str) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.connect(str(path))
        _log_in(opened, database)
    except BaseException:
        opened.close()
        raise
    return opened


def _log_in(opened: socket.socket, database: str) -> None:
    _read_packet(opened)
    answer = (
        _CAPABILITIES.to_bytes(4, "little")
        + (1 << 24).to_bytes(4, "little")
        + b"\x2d"  # utf8mb4
        + bytes(23)
        + b"root\0"
        + b"\0"  # an empty password
        + database.encode()
        + b"\0mysql_native_password\0"
    )
    opened.sendall(len(answer).to_bytes(3, "little") + b"\1" + answer)
    reply = _read_packet(opened)
    if reply[0] == 0xFE:
        opened.sendall(b"\0\0\0\3")
        reply = _read_packet(opened)
    if reply[0] == 0xFF:
        raise QueryFailed(int.from_bytes(reply[1:3], "little"), reply[9:].decode(errors="replace"))


def _read_packet(opened: socket.socket) -> bytes:
    header = _read_exactly(opened, 4)
    return _read_exactly(opened, int.from_bytes(header[:3], "little"))


def _read_exactly(opened: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = opened.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the server closed the connection")
        data += part
    return data


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length-encoded number and the position after it."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _row(data: bytes, at: int, columns: int) -> list[bytes | None]:
    row: list[bytes | None] = []
    for _ in range(columns):
        if data[at] == 0xFB:
            row.append(None)
            at += 1
            continue
        size, at = _length(data, at)
        row.append(data[at : at + size])
        at += size
    return row
