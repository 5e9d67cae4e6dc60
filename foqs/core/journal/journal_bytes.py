"""The bytes of a flush's events: columns, each in the shortest of a few forms.

    bytes  := version (1) | CRC-32 of version and columns (4) | columns
    column := count (4) | form (1) | values

    form            values
    constant  'c'   one number (8): all are equal
    ascending 'a'   the first number (8): each is one more than the one before
    plain           b, h, i or q: an array of the smallest type that holds them

A column of bytes is a column of lengths, -1 for None, and all bytes joined. None in a column of
numbers is -1: no such number is negative. Names are columns of places in a list of distinct topics.
The last column is that of groups. It is missing if no added item has one; then the version is 1, so
that a program which does not know groups reads these bytes, and takes others for newer, not for damaged.
All numbers are little-endian. What cannot be decoded is damage, and never guessed. A later version
keeps version and checksum.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is raised for bytes that are too short
from typing import Final
from zlib import crc32

from foqs.core.items.item import DeliveryPolicy, Row, State, TopicName
from foqs.core.journal.journal_events import Base, FlushEvents, ItemChange, Rewrite

VERSION: Final = 2
"""The latest version, of bytes with groups. Bytes of version 1 with groups exist too: they were written before there was version 2."""

_VERSION_WITHOUT_GROUPS: Final = 1
_NONE: Final = -1
_HEAD: Final = Struct("<BI")
_COLUMN: Final = Struct("<Ic")
_NUMBER: Final = Struct("<q")
_CONSTANT, _ASCENDING = b"c", b"a"
_PLAIN: Final = ((b"b", 1 << 7), (b"h", 1 << 15), (b"i", 1 << 31), (b"q", 1 << 63))
_SIZES: Final = {b"b": 1, b"h": 2, b"i": 4, b"q": 8}


class JournalDamaged(Exception):
    """The events of a flush cannot be decoded."""


class JournalTooNew(Exception):
    """The events of a flush were written by a newer program."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"its events have version {version}, and this program knows versions up to {VERSION}: "
            "run the newer foqs that wrote it"
        )


class ValueNotHeld(Exception):
    """The columns of events do not hold a value: a number beyond 64 bits, a text that UTF-8 does not have, or None."""


def encode_events(events: FlushEvents) -> bytes:
    """Return the bytes of these events. Payloads are not among them.

    Raises:
        ValueNotHeld: nothing of the flush can be journaled.
    """
    try:
        return _encoded(events)
    except (OverflowError, UnicodeEncodeError, StructError) as error:
        raise ValueNotHeld(f"the journal does not hold a value of this write: {error}") from error


def _encoded(events: FlushEvents) -> bytes:
    added, changed, bases = events.added, events.changed, events.bases
    rewritten = [(change.number, change.rewrite) for change in changed if change.rewrite is not None]
    names = [(each.namespace, each.topic) for each in chain[Row | ItemChange | Base](added, changed, bases.values())]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    columns = [
        *_bytes_column([name.encode() for topic in places for name in topic]),
        _column([places[name] for name in names]),
        _column([row.id for row in added]),
        _column([row.priority for row in added]),
        _column([row.deliver_after_ms for row in added]),
        _column([row.enqueued_at_ms for row in added]),
        _column([row.lease_ms for row in added]),
        _column(_optional([row.ttl_ms for row in added])),
        _column(_optional([row.expires_at_ms for row in added])),
        _column([row.policy for row in added]),
        _column([row.attempts_max for row in added]),
        _column([row.payload_bytes for row in added]),
        *_required_bytes_column([row.metadata for row in added]),
        *_bytes_column([row.trace_context for row in added]),
        *_lease_columns(added),
        _column([change.number for change in changed]),
        *_lease_columns(changed),
        _column([number for number, _ in rewritten]),
        _column([rewrite.priority for _, rewrite in rewritten]),
        _column([rewrite.deliver_after_ms for _, rewrite in rewritten]),
        _column(_optional([rewrite.expires_at_ms for _, rewrite in rewritten])),
        *_required_bytes_column([rewrite.metadata for _, rewrite in rewritten]),
        _column(events.ended),
        _column(list(bases)),
        _column([base.state for base in bases.values()]),
        _column(_optional([base.due_ms for base in bases.values()])),
        _column([base.payload_bytes for base in bases.values()]),
        _column([base.priority for base in bases.values()]),
        _column([base.deliver_after_ms for base in bases.values()]),
        _column(events.current),
    ]
    groups = [row.item_group for row in added]
    version = _VERSION_WITHOUT_GROUPS
    if groups.count(None) < len(groups):
        version = VERSION
        columns += _bytes_column(groups)
    body = b"".join(columns)
    return _HEAD.pack(version, _checksum(version, body)) + body


def decode_events(data: bytes) -> FlushEvents:
    """Return the events of these bytes.

    Raises:
        JournalDamaged: they are not what `encode_events` returns.
        JournalTooNew: a newer program has written them.
    """
    try:
        version, checksum = _HEAD.unpack_from(data)
        if _checksum(version, memoryview(data)[_HEAD.size :]) != checksum:
            raise JournalDamaged("the checksum of the events differs")
        if version not in (_VERSION_WITHOUT_GROUPS, VERSION):
            raise JournalTooNew(version)
        return _Decoder(data).events()
    except (StructError, ValueError, IndexError) as error:
        raise JournalDamaged(f"the events cannot be decoded: {error}") from error


def _checksum(version: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(bytes([version])))


def _optional(values: Iterable[int | None]) -> list[int]:
    return [_NONE if value is None else value for value in values]


def _lease_columns(items: Sequence[Row] | Sequence[ItemChange]) -> list[bytes]:
    """Return the columns that each event has."""
    return [
        _column([item.state for item in items]),
        _column(_optional([item.due_ms for item in items])),
        _column([item.token for item in items]),
        _column([item.attempt for item in items]),
        _column(_optional([item.first_delivered_at_ms for item in items])),
    ]


def _column(values: Sequence[int]) -> bytes:
    count = len(values)
    if not count:
        return _COLUMN.pack(0, _CONSTANT)
    first = values[0]
    # The three tests run in C. Nearly all columns of a flush are one of the first two.
    if values[-1] == first and values.count(first) == count:
        return _COLUMN.pack(count, _CONSTANT) + _NUMBER.pack(first)
    if values[-1] - first == count - 1 and list(values) == list(range(first, first + count)):
        return _COLUMN.pack(count, _ASCENDING) + _NUMBER.pack(first)
    limit = max(max(values), ~min(values))
    form = next((form for form, end in _PLAIN if limit < end), b"q")  # an array refuses what is too large for it
    numbers = array(form.decode(), values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return _COLUMN.pack(count, form) + numbers.tobytes()


def _required_bytes_column(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    if None in values:
        raise ValueNotHeld("the journal does not hold a value of this write: bytes are missing")
    return _bytes_column(values)


def _bytes_column(values: Sequence[bytes | None]) -> tuple[bytes, bytes]:
    lengths = _column([_NONE if value is None else len(value) for value in values])
    return lengths, b"".join([value for value in values if value])


class _Decoder:
    """Reads the columns of one flush, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = _HEAD.size

    def events(self) -> FlushEvents:
        names = [name.decode() for name in self._required_bytes()]
        places = [(names[2 * place], names[2 * place + 1]) for place in self._numbers()]
        added = self._added(places)
        changed = self._changed(places[len(added) :])
        ended = self._numbers()
        bases = self._bases(places[len(added) + len(changed) :])
        events = FlushEvents(added, changed, ended, bases, self._numbers())
        if added and self._at < len(self._data):
            for row, group in zip(added, self._bytes(), strict=True):
                row.item_group = group
        if self._at != len(self._data):
            raise JournalDamaged(f"{len(self._data) - self._at} bytes follow the events")
        return events

    def _added(self, places: Sequence[TopicName]) -> list[Row]:
        numbers, priorities, afters, enqueued, leases = (self._numbers() for _ in range(5))
        ttls, expiries = self._optional_numbers(), self._optional_numbers()
        policies, attempts_max, sizes = (self._numbers() for _ in range(3))
        metadata, traces = self._required_bytes(), self._bytes()
        states, dues, tokens, attempts, firsts = self._lease_columns()
        return [
            Row(
                number,
                namespace,
                topic,
                priorities[i],
                afters[i],
                enqueued[i],
                leases[i],
                ttls[i],
                expiries[i],
                DeliveryPolicy(policies[i]),
                attempts_max[i],
                sizes[i],
                None,
                metadata[i],
                State(states[i]),
                dues[i],
                tokens[i],
                attempts[i],
                traces[i],
                firsts[i],
            )
            for i, (number, (namespace, topic)) in enumerate(zip(numbers, places, strict=False))
        ]

    def _changed(self, places: Sequence[TopicName]) -> list[ItemChange]:
        numbers = self._numbers()
        states, dues, tokens, attempts, firsts = self._lease_columns()
        rewritten = self._numbers()
        columns = (self._numbers(), self._numbers(), self._optional_numbers(), self._required_bytes())
        rewrites = dict(zip(rewritten, map(Rewrite, *columns), strict=True))
        return [
            ItemChange(
                number,
                namespace,
                topic,
                State(states[i]),
                dues[i],
                tokens[i],
                attempts[i],
                firsts[i],
                rewrites.get(number),
            )
            for i, (number, (namespace, topic)) in enumerate(zip(numbers, places, strict=False))
        ]

    def _bases(self, places: Sequence[TopicName]) -> dict[int, Base]:
        numbers, states, dues, sizes = self._numbers(), self._numbers(), self._optional_numbers(), self._numbers()
        priorities, afters = self._numbers(), self._numbers()
        return {
            number: Base(namespace, topic, State(states[i]), dues[i], sizes[i], priorities[i], afters[i])
            for i, (number, (namespace, topic)) in enumerate(zip(numbers, places, strict=True))
        }

    def _lease_columns(self) -> tuple[list[int], list[int | None], list[int], list[int], list[int | None]]:
        return (
            self._numbers(),
            self._optional_numbers(),
            self._numbers(),
            self._numbers(),
            self._optional_numbers(),
        )

    def _numbers(self) -> list[int]:
        count, form = _COLUMN.unpack_from(self._data, self._at)
        self._at += _COLUMN.size
        if form in _SIZES:
            numbers = array(form.decode())
            numbers.frombytes(self._take_bytes(count * _SIZES[form]))
            if sys.byteorder == "big":
                numbers.byteswap()
            return numbers.tolist()
        if not count:
            return []
        (first,) = _NUMBER.unpack(self._take_bytes(_NUMBER.size))
        if form == _CONSTANT:
            return [first] * count
        if form == _ASCENDING:
            return list(range(first, first + count))
        raise JournalDamaged(f"a column has the form {form!r}")

    def _optional_numbers(self) -> list[int | None]:
        return [None if number == _NONE else number for number in self._numbers()]

    def _bytes(self) -> list[bytes | None]:
        lengths = self._numbers()
        ends = list(accumulate([max(length, 0) for length in lengths], initial=0))
        joined = self._take_bytes(ends[-1])
        return [
            None if length == _NONE else joined[start:end]
            for length, (start, end) in zip(lengths, pairwise(ends), strict=True)
        ]

    def _required_bytes(self) -> list[bytes]:
        return [value for value in self._bytes() if value is not None]

    def _take_bytes(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise JournalDamaged("the events end too early")
        self._at += size
        return taken
