"""Groups in the plainest form: the rows of one topic in one shard, and what they allow to deliver.

The rules of docs/design/groups.md without memory and speed: the specification of `foqs.core.groups`. The table is the
truth and outlives its owners.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from foqs.core.items.item import State

Key: TypeAlias = tuple[int, int, int]
"""(priority, deliver-after, number): the order of a group's line."""


@dataclass(slots=True, frozen=True)
class PlainItem:
    """A row. `after` is its place in the line; a nack does not change it."""

    number: int
    group: str
    priority: int
    after: int
    state: State
    attempt: int = 0
    token: int = 0

    @property
    def key(self) -> Key:
        return (self.priority, self.after, self.number)


Table: TypeAlias = dict[int, PlainItem]


class Place(enum.Enum):
    """What an item is in the line of its group."""

    WAITING = "ready, and never delivered"
    RETURNED = "ready, and delivered before"
    BACKING_OFF = "deferred, and delivered before"
    LEASED = "leased"


DELIVERED: Final = (Place.RETURNED, Place.BACKING_OFF, Place.LEASED)


def place_of(item: PlainItem | None) -> Place | None:
    """Return the place of an item; None if it is not in the line. It follows from state and attempt alone."""
    if item is None:
        return None
    if item.state is State.LEASED:
        return Place.LEASED
    if item.state is State.READY:
        return Place.RETURNED if item.attempt else Place.WAITING
    return Place.BACKING_OFF if item.state is State.DEFERRED and item.attempt else None


Line: TypeAlias = dict[int, tuple[Place, Key]]


def line_of(items: Iterable[PlainItem]) -> Line:
    return {item.number: (place, item.key) for item in items if (place := place_of(item)) is not None}


def offer_of(
    line: Mapping[int, tuple[Place, Key]], reserved: Collection[int], limit: int, run_max: int = 1
) -> list[int]:
    """Return the items of a group that may be reserved now, in order. In a strict group: the items of one run."""
    order = sorted(line, key=lambda number: line[number][1])
    ready = [n for n in order if n not in reserved and line[n][0] in (Place.WAITING, Place.RETURNED)]
    leased = {n for n in order if line[n][0] is Place.LEASED}
    if limit != 1:
        return ready[: max(0, limit - len(leased.union(reserved)))]
    if leased or reserved:
        return []
    delivered = [n for n in order if line[n][0] in DELIVERED]
    run: list[int] = []
    for number in delivered + [n for n in order if n not in delivered]:
        if number not in ready or len(run) == run_max:
            break
        run.append(number)
    return run


def behind_of(rows: Iterable[PlainItem], number: int) -> list[int]:
    """Return the leased items of a strict group behind a leased one, in the order of their run: they end with its early end."""
    leased = {row.number: row for row in rows if row.state is State.LEASED}
    together = [row for row in leased.values() if row.token == leased[number].token]
    run = [row.number for row in sorted(together, key=lambda row: (row.attempt == 1, row.key))]
    return run[run.index(number) + 1 :]


def write(table: Table, changes: Mapping[int, PlainItem | None]) -> None:
    for number, item in changes.items():
        if item is None:
            table.pop(number, None)
        else:
            table[number] = item
