"""The bytes that statements are sent to a MySQL server in, and its answers, as results. No I/O.

Statements are text, of which those that stand together travel in one packet, or
`Bound`: prepared before, and executed with values. Always true: replies are read to
their end or the reader raises and is of no more use; a result's rows are what the
text protocol sends: integers as int, text of the connection's charset as str,
everything else as bytes; what is bound gives no rows. Knows the classic protocol
without the options that the driver does not ask for: results end with EOF packets,
no packet is longer than 16 MiB.

    packet: length, 3 bytes, little-endian | number, 1 byte | content
    answer: OK | ERR | columns' number, a packet for each, EOF, a packet for each row, EOF
    execute: number, 4 bytes | flags, 1 byte | 1, 4 bytes | `Bound.values`
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
_NO_CURSOR_ONE_EXECUTION: Final = b"\0\1\0\0\0"
_EXECUTE_HEADER_BYTES: Final = 10
"""Of an execute's packet, before its values."""
_CONTENT_BYTES_MAX: Final = 0xFFFFFE
_OK: Final = 0x00
_INFILE: Final = 0xFB
_EOF: Final = 0xFE
_ERR: Final = 0xFF
_MORE_RESULTS: Final = 0x08
"""The status bit that says that another statement's answer follows."""
_NULL: Final = 0xFB
_BINARY_CHARSET: Final = 63
"""The charset of what is no text."""
_INTEGER_TYPES: Final = frozenset({1, 2, 3, 8, 9, 13})
"""The column types TINY, SHORT, LONG, LONGLONG, INT24, YEAR."""

_Convert: TypeAlias = Callable[[bytes], Any] | None


@dataclass(slots=True)
class Result:
    """What one statement gave: the rows it read, or how many rows its condition matched."""

    rows: list[tuple[Any, ...]]
    matched_row_count: int


@dataclass(slots=True, frozen=True)
class BoundStatement:
    """A statement with question marks, for one execution.

    Attributes:
        sql: its text, for as many values as it has question marks.
        values: which of them are NULL, that their types follow, their types, and those that are not NULL.
    """

    sql: bytes
    values: bytes

    def __len__(self) -> int:
        """Bytes of its packet's content."""
        return _EXECUTE_HEADER_BYTES + len(self.values)


Statement: TypeAlias = bytes | BoundStatement


class ServerError(Exception):
    """The server answered with an error; the link is still in step.

    `statement`: the one that it refused, of those that were sent together.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (error {code})")
        self.code = code
        self.statement: Statement = b""


class MysqlProtocolError(Exception):
    """What came is no answer to what was sent."""


def query_packet(statements: Sequence[bytes]) -> bytes:
    """The packet that asks for these.

    Raises:
        ValueError: it would be longer than one packet may be.
    """
    first, *others = statements
    return b";".join([_packet_header(sum(map(len, statements)) + len(statements)) + _QUERY + first, *others])


def prepare_packet(sql: bytes) -> bytes:
    """The packet that has a statement prepared. Raises ValueError, as `query`."""
    return _packet_header(1 + len(sql)) + _PREPARE + sql


def request_packets(statements: Sequence[Statement], statement_ids: Mapping[bytes, int]) -> list[bytes]:
    """What asks for these, in order, each packet answered by itself; `statement_ids` are those of prepared statements.

    Raises ValueError, as `query`.
    """
    found: list[bytes] = []
    text: list[bytes] = []
    for statement in statements:
        if isinstance(statement, bytes):
            text.append(statement)
            continue
        if text:
            found.append(query_packet(text))
            text = []
        found.append(_execute_packet(statement, statement_ids))
    if text:
        found.append(query_packet(text))
    return found


def _execute_packet(bound: BoundStatement, statement_ids: Mapping[bytes, int]) -> bytes:
    number = statement_ids[bound.sql].to_bytes(4, "little")
    return b"".join((_packet_header(len(bound)), _EXECUTE, number, _NO_CURSOR_ONE_EXECUTION, bound.values))


def _packet_header(length: int) -> bytes:
    """Of a packet, the first that is sent."""
    if length > _CONTENT_BYTES_MAX:
        raise ValueError(f"statements of {length} bytes do not fit one packet")
    return length.to_bytes(3, "little") + b"\0"


class PrepareReplyReader:
    """Reads the answer to one `prepare` packet."""

    error: ServerError | None = None

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> int | None:
        """Takes what arrived; the statement's number once all is there, else None. Raises ServerError, MysqlProtocolError."""
        self._buffer = held = self._buffer + data
        at, number, left = 0, 0, 1
        while left:
            stop = at + 4 + int.from_bytes(held[at : at + 3], "little")
            if len(held) < max(stop, at + 4):
                return None
            if at == 0:
                if held[4:5] == bytes([_ERR]):
                    raise _error(held[5:stop])
                if held[4:5] != bytes([_OK]) or stop < 4 + 9:
                    raise MysqlProtocolError(f"an answer that begins with {held[4:5]!r} to what was to be prepared")
                number = int.from_bytes(held[5:9], "little")
                for count in (int.from_bytes(held[9:11], "little"), int.from_bytes(held[11:13], "little")):
                    left += count + 1 if count else 0
            at, left = stop, left - 1
        if at != len(held):
            raise MysqlProtocolError("more came than was asked for")
        return number


class ReplyReader:
    """Reads the answers to so many of `packet_count`.

    Args:
        results: of what was asked before, which those of these packets are added to.

    Attributes:
        error: what the first of them was refused with, while others are still to be read.
    """

    def __init__(self, packet_count: int = 1, results: Sequence[Result] = ()) -> None:
        self.error: ServerError | None = None
        self._packets_left = packet_count
        """Those that are not answered yet."""
        self._results: list[Result] = [*results]
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._needed_bytes = 4
        """Fewer bytes than this need no look."""
        self._next_packet_number = 1
        # The answer that is half read: how many columns are still to come, what to make of those that came.
        self._columns_left = 0
        self._is_reading_columns = False
        self._columns: list[_Convert] | None = None
        self._rows: list[tuple[Any, ...]] = []

        self._refused_at = 0

    @property
    def answered_count(self) -> int:
        """So many statements were answered before the first that was refused, where one was."""
        return len(self._results) if self.error is None else self._refused_at

    def feed(self, data: bytes) -> list[Result] | None:
        """Takes what arrived; the results once all are there, else None.

        Raises:
            ServerError: a statement failed; those after it in its packet did not run, other packets did.
            MysqlProtocolError: the connection is of no more use.
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
                        raise MysqlProtocolError("more came than was asked for")
                    return self._results
            at = stop
        self._chunks = [data[at:]]
        self._buffered_bytes = end - at
        return None

    def _read_packet(self, data: bytes, at: int, end: int) -> bool:
        """Reads one packet; True after the last that answers one of ours."""
        if at == end:
            raise MysqlProtocolError("an empty packet")
        head = data[at]
        if head == _ERR:
            if self.error is None:
                self.error = _error(data[at + 1 : end])
                self._refused_at = len(self._results)
            self._columns, self._columns_left, self._is_reading_columns = None, 0, False
            self._rows = []
            return True
        if self._columns is None:
            return self._begin_result(data, at, head)
        if self._columns_left:
            self._columns_left -= 1
            self._columns.append(_converter(data, end))
        elif head == _EOF:  # no row: its first value would be longer than a packet
            return self._end_of_section(data[at + 3])
        else:
            self._rows.append(_row(data, at, self._columns))
        return False

    def _begin_result(self, data: bytes, at: int, head: int) -> bool:
        """The first packet of an answer."""
        if head == _OK:
            matched, at = read_length(data, at + 1)
            _, at = read_length(data, at)
            self._results.append(Result([], matched))
            return not data[at] & _MORE_RESULTS
        if head in (_INFILE, _EOF):
            raise MysqlProtocolError(f"an answer that begins with {head}")
        self._columns_left, _ = read_length(data, at)
        self._columns = []
        self._is_reading_columns = True
        return False

    def _end_of_section(self, status: int) -> bool:
        """An EOF packet ends the columns, and then the rows."""
        if self._is_reading_columns:
            self._is_reading_columns = False
            return False
        self._results.append(Result(self._rows, len(self._rows)))
        self._rows = []
        self._columns = None
        return not status & _MORE_RESULTS


def _error(content: bytes) -> ServerError:
    text = content[8:] if content[2:3] == b"#" else content[2:]
    return ServerError(int.from_bytes(content[:2], "little"), text.decode(errors="replace"))


def _converter(data: bytes, end: int) -> _Convert:
    """What to make of a column's values, by the end of its description: charset, length, type, flags, decimals."""
    if data[end - 6] in _INTEGER_TYPES:
        return int
    return None if int.from_bytes(data[end - 12 : end - 10], "little") == _BINARY_CHARSET else bytes.decode


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer, and where what follows begins."""
    head = data[at]
    if head < _NULL:
        return head, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[head]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _row(data: bytes, at: int, columns: list[_Convert]) -> tuple[Any, ...]:
    """One row: a length-encoded string, or NULL, for each column."""
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
