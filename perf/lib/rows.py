"""The flushes that the limit program runs, as prebuilt steps.

Always true: the tables are the product's own, and the statements are the shortest
that do the work of a flush. Every flush but a bare one is fenced. A run finishes
every item that it writes if the shape says so. Knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from foqs.core.items.item import DeliveryPolicy, NewItem, make_number
from foqs.core.items.life import new_row
from foqs.store.row_columns import COLUMNS, MYSQL_NONES

EPOCH: Final = 1
NONCE: Final = "0123456789abcdef0123456789abcdef"
NOW_MS: Final = 1_800_000_000_000
LEASE_MS: Final = 30_000
NOTHING: Final = range(0)
IDLE_RATE: Final = 50.0
"""Flushes per second: few enough that the machine idles between them, and enough for a median."""


@dataclass(slots=True, frozen=True)
class Flush:
    """One transaction: its number, 0 without a fence, and the ids of the items that it changes.

    Attributes:
        born: the items that it inserts, already leased if `born_leased`.
        leased: the items that it leases. It reads their payloads before if `read`.
        done: the items that it deletes.
    """

    number: int
    born: range
    leased: range = NOTHING
    done: range = NOTHING
    born_leased: bool = False
    read: bool = False

    @property
    def token(self) -> int:
        """The token of the leases of this flush."""
        return EPOCH << 43 | self.number


@dataclass(slots=True, frozen=True)
class Shape:
    """The work of a flush.

    Attributes:
        flushes: makes the flushes of a whole run from the ids that each inserts.
        shards: the number of shards that run it at once.
        bare: whether a flush is one statement, which is its own transaction.
        rate: flushes a second, at random moments; None: one after the other.
    """

    name: str
    says: str
    flushes: Callable[[Sequence[range]], Iterator[Flush]]
    rows: int | None = None
    shards: int = 2
    bare: bool = False
    rate: float | None = None


def batches(size: int, count: int) -> list[range]:
    """Return the ids of the items of `count` flushes of `size`."""
    return [
        range(make_number(EPOCH, 1 + turn * size), make_number(EPOCH, 1 + turn * size) + size) for turn in range(count)
    ]


def values(number: int, payload: Any, *, leased_by: Flush | None) -> dict[str, Any]:
    """Return the columns of a row: READY, or leased by a flush. `payload` may be a placeholder."""
    item = NewItem("default", "perf", 0, 0, None, LEASE_MS, None, DeliveryPolicy.AT_LEAST_ONCE, 0, payload, b"")
    row = new_row(item, number, NOW_MS, NOW_MS)
    if leased_by is not None:
        row = row.with_lease(NOW_MS + LEASE_MS, leased_by.token, NOW_MS)
    found = {name: getattr(row, name) for name in COLUMNS}
    return {name: int(value) if isinstance(value, IntEnum) else value for name, value in found.items()}


def mysql_values(number: int, payload: Any, *, leased_by: Flush | None) -> dict[str, Any]:
    """Return `values` as a table of MySQL has them."""
    row = values(number, payload, leased_by=leased_by)
    return row | {name: none for name, none in MYSQL_NONES.items() if row[name] is None}


def _insert(born: Sequence[range]) -> Iterator[Flush]:
    for number, ids in enumerate(born, 1):
        yield Flush(number, ids)


def _combined(born: Sequence[range], *, read: bool = False) -> Iterator[Flush]:
    """Flush n inserts batch n, leases batch n - 1 and deletes batch n - 2."""
    padded = [NOTHING, NOTHING, *born, NOTHING, NOTHING]
    for number, (done, leased, ids) in enumerate(zip(padded, padded[1:], padded[2:], strict=False), 1):
        yield Flush(number, ids, leased, done, read=read)


def _born_leased(born: Sequence[range]) -> Iterator[Flush]:
    """Flush n inserts batch n already leased and deletes batch n - 1."""
    for number, (done, ids) in enumerate(zip([NOTHING, *born], [*born, NOTHING], strict=True), 1):
        yield Flush(number, ids, done=done, born_leased=True)


def _bare(born: Sequence[range]) -> Iterator[Flush]:
    for ids in born:
        yield Flush(0, ids)


SHAPES: Final = (
    Shape("insert", "fence, insert", _insert),
    Shape("combined", "fence, delete, lease, insert", _combined),
    Shape("combined-read", "the same, payloads read before they are leased", lambda born: _combined(born, read=True)),
    Shape("born-leased", "fence, delete, insert already leased", _born_leased),
    Shape("bare-commit", "one row, one statement, no fence, one shard", _bare, rows=1, shards=1, bare=True),
    Shape(
        "rested-commit", "the same, 50 a second at random moments", _bare, rows=1, shards=1, bare=True, rate=IDLE_RATE
    ),
)


def shape(name: str) -> Shape:
    """Return the shape of that name."""
    return next(known for known in SHAPES if known.name == name)
