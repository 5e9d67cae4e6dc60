"""Rows as a host would write them, and the flushes that a limit program runs.

Always true: a flush of a shape is the product's own statements (`foqs.store`),
fenced, and every item that a run of a shape writes is also finished by it where
the shape says so. Knows nothing of connections or of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from foqs.core.fence import Fence, Owner
from foqs.core.item import Delivery, Row, State, make_number
from foqs.store.port import Writes

EPOCH: Final = 1
NONCE: Final = "0123456789abcdef0123456789abcdef"
NOW_MS: Final = 1_800_000_000_000
LEASE_MS: Final = 30_000
OWNER: Final = Owner(EPOCH, NONCE, 0, NOW_MS, 0)
NO_WRITES: Final = Writes()


@dataclass(slots=True, frozen=True)
class Flush:
    """One transaction: the writes, and which of them are updates of constant values (a lease) by id alone."""

    fence: Fence | None
    writes: Writes
    leased: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class Shape:
    """What a flush carries.

    Attributes:
        flushes: (rows of each flush in turn) to the flushes of a whole run.
        shards: how many run it at once.
    """

    name: str
    says: str
    flushes: Callable[[list[list[Row]]], Iterator[Flush]]
    rows: int | None = None
    shards: int = 2


def new_rows(first: int, count: int, payload: bytes) -> list[Row]:
    """READY rows as an enqueue writes them, without a TTL."""
    return [
        Row(
            id=make_number(EPOCH, number),
            namespace="default",
            topic="perf",
            priority=0,
            deliver_after_ms=NOW_MS,
            enqueued_at_ms=NOW_MS,
            lease_ms=LEASE_MS,
            ttl_ms=None,
            expires_at_ms=None,
            policy=Delivery.AT_LEAST_ONCE,
            attempts_max=0,
            payload_bytes=len(payload),
            payload=payload,
            metadata=b"",
            state=State.READY,
            due_ms=None,
            token=0,
            attempt=0,
        )
        for number in range(first, first + count)
    ]


def leased(row: Row, flush: int) -> Row:
    """The row as a hand-out leaves it."""
    return replace(row, state=State.LEASED, due_ms=NOW_MS + LEASE_MS, token=EPOCH << 43 | flush, attempt=1)


def _fence(number: int) -> Fence:
    return Fence(EPOCH, NONCE, number, NOW_MS + number)


def _ids(rows: list[Row]) -> list[int]:
    return [row.id for row in rows]


def _insert(batches: list[list[Row]]) -> Iterator[Flush]:
    for number, rows in enumerate(batches, 1):
        yield Flush(_fence(number), Writes(inserts=rows))


def _combined(batches: list[list[Row]], *, constant: bool) -> Iterator[Flush]:
    """Flush n inserts batch n, leases batch n - 1 and deletes batch n - 2."""
    empty: list[Row] = []
    for number, fresh in enumerate([*batches, empty, empty], 1):
        second = batches[number - 2] if 2 <= number <= len(batches) + 1 else empty
        third = batches[number - 3] if number >= 3 else empty
        if constant:
            yield Flush(_fence(number), Writes(deletes=_ids(third), inserts=fresh), tuple(_ids(second)))
        else:
            updates = [leased(row, number) for row in second]
            yield Flush(_fence(number), Writes(deletes=_ids(third), updates=updates, inserts=fresh))


def _born_leased(batches: list[list[Row]]) -> Iterator[Flush]:
    """Flush n inserts batch n already leased and deletes batch n - 1."""
    empty: list[Row] = []
    for number, fresh in enumerate([*batches, empty], 1):
        before = batches[number - 2] if number >= 2 else empty
        yield Flush(_fence(number), Writes(deletes=_ids(before), inserts=[leased(row, number) for row in fresh]))


def _bare(batches: list[list[Row]]) -> Iterator[Flush]:
    for rows in batches:
        yield Flush(None, Writes(inserts=rows))


SHAPES: Final = (
    Shape("insert", "fence, insert", _insert),
    Shape(
        "combined", "fence, delete, lease (values of each row), insert", lambda rows: _combined(rows, constant=False)
    ),
    Shape("combined-constant", "the same; lease by constant values", lambda rows: _combined(rows, constant=True)),
    Shape("born-leased", "fence, delete, insert already leased", _born_leased),
    Shape("bare-commit", "one row, one statement, no fence, one shard", _bare, rows=1, shards=1),
)
