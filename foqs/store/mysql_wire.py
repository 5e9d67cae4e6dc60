"""The bytes that a MySQL server answers a packet of statements with, as results. No I/O.

Always true: replies are read to their end or the reader raises and is of no more
use; a result's rows are what the text protocol sends: integers as int, text of
the connection's charset as str, everything else as bytes. Knows the classic
protocol without the options that the driver does not ask for: results end with
EOF packets, no packet is longer than 16 MiB.

    packet: length, 3 bytes, little-endian | number, 1 byte | content
    answer: OK | ERR | columns' number, a packet for each, EOF, a packet for each row, EOF
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

_QUERY: Final = b"\x03"
_CONTENT_BYTES_MAX: Final = 0xFFFFFE
_OK: Final = 0x00
_INFILE: Final = 0xFB
_EOF: Final = 0xFE
_ERR: Final = 0xFF
_MORE: Final = 0x08
"""The status bit that says that another statement's answer follows."""
_NULL: Final = 0xFB
_BINARY: Final = 63
"""The charset of what is no text."""
_INTEGERS: Final = frozenset({1, 2, 3, 8, 9, 13})
"""The column types TINY, SHORT, LONG, LONGLONG, INT24, YEAR."""

_Convert: TypeAlias = Callable[[bytes], Any] | None


@dataclass(slots=True)
class Result:
    """What one statement gave: the rows it read, or how many rows its condition matched."""

    rows: list[tuple[Any, ...]]
    matched: int


class ServerError(Exception):
    """The server answered with an error; the link is still in step.

    `statement`: the one that it refused, of those that were sent together.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (error {code})")
        self.code = code
        self.statement = b""


class OutOfStep(Exception):
    """What came is no answer to what was sent."""


def query(statements: tuple[bytes, ...]) -> bytes:
    """The packet that asks for these.

    Raises:
        ValueError: it would be longer than one packet may be.
    """
    length = sum(map(len, statements)) + len(statements)
    if length > _CONTENT_BYTES_MAX:
        raise ValueError(f"statements of {length} bytes do not fit one packet")
    first, *others = statements
    return b";".join([length.to_bytes(3, "little") + b"\0" + _QUERY + first, *others])


class Replies:
    """Reads the answers to one `query` packet."""

    def __init__(self) -> None:
        self._results: list[Result] = []
        self._chunks: list[bytes] = []
        self._held = 0
        self._wanted = 4
        """Fewer bytes than this need no look."""
        self._number = 1
        # The answer that is half read: how many columns are still to come, what to make of those that came.
        self._columns_left = 0
        self._reading_columns = False
        self._columns: list[_Convert] | None = None
        self._rows: list[tuple[Any, ...]] = []

    @property
    def count(self) -> int:
        """So many statements were answered without an error."""
        return len(self._results)

    def feed(self, data: bytes) -> list[Result] | None:
        """Takes what arrived; the results once all are there, else None.

        Raises:
            ServerError: a statement failed; those after it did not run.
            OutOfStep: the connection is of no more use.
        """
        self._chunks.append(data)
        self._held += len(data)
        if self._held < self._wanted:
            return None
        if len(self._chunks) > 1:
            data = b"".join(self._chunks)
        at, end = 0, len(data)
        self._wanted = 4
        while end - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 3], "little")
            if data[at + 3] != self._number:
                raise OutOfStep(f"packet {data[at + 3]} came where {self._number} was expected")
            if stop > end:
                self._wanted = stop - at
                break
            self._number = self._number + 1 & 0xFF
            if self._packet(data, at + 4, stop):
                if stop != end:
                    raise OutOfStep("more came than was asked for")
                return self._results
            at = stop
        self._chunks = [data[at:]]
        self._held = end - at
        return None

    def _packet(self, data: bytes, at: int, end: int) -> bool:
        """Reads one packet; True after the last."""
        if at == end:
            raise OutOfStep("an empty packet")
        head = data[at]
        if head == _ERR:
            raise _error(data[at + 1 : end])
        if self._columns is None:
            return self._answer(data, at, head)
        if self._columns_left:
            self._columns_left -= 1
            self._columns.append(_converter(data, end))
        elif head == _EOF:  # no row: its first value would be longer than a packet
            return self._end_of_part(data[at + 3])
        else:
            self._rows.append(_row(data, at, self._columns))
        return False

    def _answer(self, data: bytes, at: int, head: int) -> bool:
        """The first packet of an answer."""
        if head == _OK:
            matched, at = _integer(data, at + 1)
            _, at = _integer(data, at)
            self._results.append(Result([], matched))
            return not data[at] & _MORE
        if head in (_INFILE, _EOF):
            raise OutOfStep(f"an answer that begins with {head}")
        self._columns_left, _ = _integer(data, at)
        self._columns = []
        self._reading_columns = True
        return False

    def _end_of_part(self, status: int) -> bool:
        """An EOF packet ends the columns, and then the rows."""
        if self._reading_columns:
            self._reading_columns = False
            return False
        self._results.append(Result(self._rows, len(self._rows)))
        self._rows = []
        self._columns = None
        return not status & _MORE


def _error(content: bytes) -> ServerError:
    text = content[8:] if content[2:3] == b"#" else content[2:]
    return ServerError(int.from_bytes(content[:2], "little"), text.decode(errors="replace"))


def _converter(data: bytes, end: int) -> _Convert:
    """What to make of a column's values, by the end of its description: charset, length, type, flags, decimals."""
    if data[end - 6] in _INTEGERS:
        return int
    return None if int.from_bytes(data[end - 12 : end - 10], "little") == _BINARY else bytes.decode


def _integer(data: bytes, at: int) -> tuple[int, int]:
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
            length, at = _integer(data, at)
        value = data[at : at + length]
        at += length
        add(value if convert is None else convert(value))
    return tuple(values)
