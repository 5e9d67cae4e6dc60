"""Encodes statements as MySQL packets and decodes the server's replies. No I/O.

A statement is text or a `BoundStatement`, which is prepared first and executed with
values. Consecutive text statements travel in one packet. Always true: replies are
read to their end, or the reader raises and must not be used again. Rows have the
values of the text protocol: integers as int, text of the connection's charset as
str, everything else as bytes. A bound statement returns no rows. Knows the classic
protocol without optional capabilities: results end with EOF packets, and no packet
is longer than 16 MiB.

    packet: length, 3 bytes, little-endian | number, 1 byte | content
    answer: OK | ERR | columns' number, a packet for each, EOF, a packet for each row, EOF
    execute: number, 4 bytes | flags, 1 byte | 1, 4 bytes | `BoundStatement.values`
    execute in bulk: number, 4 bytes | flags, 2 bytes | `BoundStatement.values` | `BoundStatement.rows`
    prepared: 0 | number, 4 bytes | columns, 2 bytes | parameters, 2 bytes | 3 bytes; then
        a packet for each parameter, EOF, a packet for each column, EOF
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

_QUERY: Final = b"\x03"
_PREPARE: Final = b"\x16"
_EXECUTE: Final = b"\x17"
_EXECUTE_IN_BULK: Final = b"\xfa"
_NO_CURSOR_ONE_EXECUTION: Final = b"\0\1\0\0\0"
_WITH_TYPES: Final = b"\x80\0"
_EXECUTE_HEADER_BYTES: Final = 10
"""Bytes of an execute packet before its values."""
_BULK_HEADER_BYTES: Final = 7
_CONTENT_BYTES_MAX: Final = 0xFFFFFE
_OK: Final = 0x00
_INFILE: Final = 0xFB
_EOF: Final = 0xFE
_ERR: Final = 0xFF
_MORE_RESULTS: Final = 0x08
"""The status bit that says that the reply to another statement follows."""
_NULL: Final = 0xFB
_BINARY_CHARSET: Final = 63
"""The charset of values that are not text."""
_INTEGER_TYPES: Final = frozenset({1, 2, 3, 8, 9, 13})
"""The column types TINY, SHORT, LONG, LONGLONG, INT24, YEAR."""

_Convert: TypeAlias = Callable[[bytes], Any] | None


@dataclass(slots=True)
class Result:
    """The result of one statement: the rows that it read, or how many rows its condition matched."""

    rows: list[tuple[Any, ...]]
    matched_row_count: int


@dataclass(slots=True, frozen=True)
class BoundStatement:
    """A statement with question marks and its values, for one execution.

    Attributes:
        sql: its text, with a question mark for each value.
        values: the NULL bits, a flag that types follow, the types, and the values that are not NULL.
            In bulk: the types.
        rows: None, or in bulk the values of each row that the statement is executed with, with a byte before
            each value that says whether it is NULL. Only for a server that can. They are joined only once, in the
            packet: a copy of many rows costs the system new pages.
    """

    sql: bytes
    values: bytes
    rows: Sequence[bytes] | None = None

    @property
    def is_bulk(self) -> bool:
        return self.rows is not None

    def __len__(self) -> int:
        """Return the bytes of its packet's content, in bulk at most."""
        length = _EXECUTE_HEADER_BYTES + len(self.values)
        return length if self.rows is None else length + sum(map(len, self.rows))

    def __bool__(self) -> bool:
        return len(self) > 0


Statement: TypeAlias = bytes | BoundStatement


class ServerError(Exception):
    """The server replied with an error; the link can still be used.

    `statement`: the refused one, of the statements that were sent together.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (error {code})")
        self.code = code
        self.statement: Statement = b""


class MysqlProtocolError(Exception):
    """The received bytes are no reply to the request."""


def query_packet(statements: Sequence[bytes]) -> bytes:
    """Return the packet that runs these statements.

    Raises:
        ValueError: they do not fit one packet.
    """
    first, *others = statements
    return b";".join([_packet_header(sum(map(len, statements)) + len(statements)) + _QUERY + first, *others])


def prepare_packet(sql: bytes) -> bytes:
    """Return the packet that prepares a statement. Raises ValueError, as `query_packet`."""
    return _packet_header(1 + len(sql)) + _PREPARE + sql


def request_packets(statements: Sequence[Statement], statement_ids: Mapping[bytes, int]) -> list[bytes]:
    """Return the packets that run these statements in order. The server replies to each packet separately.

    Raises ValueError, as `query_packet`.

    Args:
        statement_ids: the ids of prepared statements, by their text.
    """
    packets: list[bytes] = []
    text: list[bytes] = []
    for statement in statements:
        if isinstance(statement, bytes):
            text.append(statement)
            continue
        if text:
            packets.append(query_packet(text))
            text = []
        packets.append(_execute_packet(statement, statement_ids))
    if text:
        packets.append(query_packet(text))
    return packets


def _execute_packet(bound: BoundStatement, statement_ids: Mapping[bytes, int]) -> bytes:
    number = statement_ids[bound.sql].to_bytes(4, "little")
    if bound.rows is not None:
        header = _packet_header(len(bound) - _EXECUTE_HEADER_BYTES + _BULK_HEADER_BYTES)
        return b"".join((header, _EXECUTE_IN_BULK, number, _WITH_TYPES, bound.values, *bound.rows))
    return b"".join((_packet_header(len(bound)), _EXECUTE, number, _NO_CURSOR_ONE_EXECUTION, bound.values))


def _packet_header(length: int) -> bytes:
    """Return the header of the first packet of a command."""
    if length > _CONTENT_BYTES_MAX:
        raise ValueError(f"statements of {length} bytes do not fit one packet")
    return length.to_bytes(3, "little") + b"\0"


class PrepareReplyReader:
    """Reads the reply to one `prepare_packet`."""

    error: ServerError | None = None

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> int | None:
        """Read received bytes. Returns the statement's id once the reply is complete, else None.

        Raises:
            ServerError, MysqlProtocolError
        """
        self._buffer = data = self._buffer + data
        at, statement_id, packets_left = 0, 0, 1
        while packets_left:
            stop = at + 4 + int.from_bytes(data[at : at + 3], "little")
            if len(data) < max(stop, at + 4):
                return None
            if at == 0:
                if data[4:5] == bytes([_ERR]):
                    raise _server_error(data[5:stop])
                if data[4:5] != bytes([_OK]) or stop < 4 + 9:
                    raise MysqlProtocolError(f"the reply to a prepare begins with the unexpected byte {data[4:5]!r}")
                statement_id = int.from_bytes(data[5:9], "little")
                for count in (int.from_bytes(data[9:11], "little"), int.from_bytes(data[11:13], "little")):
                    packets_left += count + 1 if count else 0
            at, packets_left = stop, packets_left - 1
        if at != len(data):
            raise MysqlProtocolError("more bytes came than the reply has")
        return statement_id


class ReplyReader:
    """Reads the replies to `packet_count` packets.

    Args:
        results: results of an earlier request, to which those of these packets are added.

    Attributes:
        error: the first error, while other replies are still to be read.
    """

    def __init__(self, packet_count: int = 1, results: Sequence[Result] = ()) -> None:
        self.error: ServerError | None = None
        self._packets_left = packet_count
        """Packets without a complete reply."""
        self._results: list[Result] = [*results]
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._needed_bytes = 4
        """Fewer bytes than this hold no complete packet."""
        self._next_packet_number = 1
        # The state of the result that is being read.
        self._columns_left = 0
        self._is_reading_columns = False
        self._columns: list[_Convert] | None = None
        self._rows: list[tuple[Any, ...]] = []

        self._refused_at = 0

    @property
    def answered_count(self) -> int:
        """The number of statements that succeeded before the first error, if there is one."""
        return len(self._results) if self.error is None else self._refused_at

    def feed(self, data: bytes) -> list[Result] | None:
        """Read received bytes. Returns the results once all replies are complete, else None.

        Raises:
            ServerError: a statement failed. The later ones in its packet did not run; other packets did.
            MysqlProtocolError: the connection cannot be used any more.
        """
        self._chunks.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes < self._needed_bytes:
            return None
        if len(self._chunks) > 1:
            data = b"".join(self._chunks)
        at, end = 0, len(data)
        self._needed_bytes = 4
        while end - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 3], "little")
            if data[at + 3] != self._next_packet_number:
                raise MysqlProtocolError(f"packet {data[at + 3]} came where {self._next_packet_number} was expected")
            if stop > end:
                self._needed_bytes = stop - at
                break
            self._next_packet_number = self._next_packet_number + 1 & 0xFF
            if self._read_packet(data, at + 4, stop):
                self._packets_left -= 1
                self._next_packet_number = 1
                if not self._packets_left:
                    if self.error is not None:
                        raise self.error
                    if stop != end:
                        raise MysqlProtocolError("more bytes came than the reply has")
                    return self._results
            at = stop
        self._chunks = [data[at:]]
        self._buffered_bytes = end - at
        return None

    def _read_packet(self, data: bytes, at: int, end: int) -> bool:
        """Read one packet. Returns True after the last packet of a reply. Raises `MysqlProtocolError`."""
        if at == end:
            raise MysqlProtocolError("the server sent an empty packet")
        first_byte = data[at]
        if first_byte == _ERR:
            if self.error is None:
                self.error = _server_error(data[at + 1 : end])
                self._refused_at = len(self._results)
            self._columns, self._columns_left, self._is_reading_columns = None, 0, False
            self._rows = []
            return True
        if self._columns is None:
            return self._begin_result(data, at, first_byte)
        if self._columns_left:
            self._columns_left -= 1
            self._columns.append(_converter(data, end))
        elif first_byte == _EOF:  # no row: its first value would be longer than a packet
            return self._end_of_section(data[at + 3])
        else:
            self._rows.append(_row(data, at, self._columns))
        return False

    def _begin_result(self, data: bytes, at: int, first_byte: int) -> bool:
        """Read the first packet of a result. Returns True if the reply ends with it. Raises `MysqlProtocolError`."""
        if first_byte == _OK:
            matched, at = read_length(data, at + 1)
            _, at = read_length(data, at)
            self._results.append(Result([], matched))
            return not data[at] & _MORE_RESULTS
        if first_byte in (_INFILE, _EOF):
            raise MysqlProtocolError(f"a reply begins with the unexpected byte {first_byte:#x}")
        self._columns_left, _ = read_length(data, at)
        self._columns = []
        self._is_reading_columns = True
        return False

    def _end_of_section(self, status: int) -> bool:
        """Handle an EOF packet: the first one ends the columns, the second one the rows. Returns True if the reply ends."""
        if self._is_reading_columns:
            self._is_reading_columns = False
            return False
        self._results.append(Result(self._rows, len(self._rows)))
        self._rows = []
        self._columns = None
        return not status & _MORE_RESULTS


def _server_error(content: bytes) -> ServerError:
    text = content[8:] if content[2:3] == b"#" else content[2:]
    return ServerError(int.from_bytes(content[:2], "little"), text.decode(errors="replace"))


def _converter(data: bytes, end: int) -> _Convert:
    """Return the conversion of a column's values. Its description ends with charset, length, type, flags, decimals."""
    if data[end - 6] in _INTEGER_TYPES:
        return int
    return None if int.from_bytes(data[end - 12 : end - 10], "little") == _BINARY_CHARSET else bytes.decode


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length-encoded integer and the position after it."""
    first_byte = data[at]
    if first_byte < _NULL:
        return first_byte, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first_byte]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _row(data: bytes, at: int, columns: list[_Convert]) -> tuple[Any, ...]:
    """Decode one row: a length-encoded string, or NULL, for each column."""
    values: list[Any] = []
    add = values.append
    for convert in columns:
        length = data[at]
        if length == _NULL:
            add(None)
            at += 1
            continue
        if length < _NULL:
            at += 1
        else:
            length, at = read_length(data, at)
        value = data[at : at + length]
        at += length
        add(value if convert is None else convert(value))
    return tuple(values)
