"""The row groups of an outbox: which rows wait in memory, and which are left to a sweep.

Holds `RowGroups`. Always true: the waiting rows of a group are in order of ids; no row of
a held group waits, and none of a cut group from its cut on, because a row of the group with a
lower id may have been forgotten; both are read again by a sweep that begins afterwards. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

_BY_ID = attrgetter("id")

PLACE_BYTES: Final = 8_192
"""A row takes a place for each of these bytes of its payload, and at least one. Limits count places, and so bound memory."""


@dataclass(slots=True, frozen=True)
class OutboxRow:
    """A committed row of the outbox.

    Attributes:
        row_group: rows of one group are sent in order; None: it has no order.
        item: what is sent, or a FoqsError with which the row is refused; the core does not read it.
        may_be_queued: an earlier send of it was never answered.
        places: see `PLACE_BYTES`.
    """

    id: int
    row_group: str | None = None
    item: object = field(default=None, compare=False)
    may_be_queued: bool = False
    places: int = field(default=1, compare=False)


def places_of_bytes(payload_bytes: int) -> int:
    """Return the places that a row with a payload of this length takes."""
    return max(1, -(-payload_bytes // PLACE_BYTES))


def places_of(rows: Iterable[OutboxRow]) -> int:
    """Return the places that rows take together."""
    return sum([row.places for row in rows])


def first_within(rows: Iterable[OutboxRow], places: int) -> list[OutboxRow]:
    """Return the first rows that fit into these places. The last one may take more than are left, or a long one never fitted."""
    found: list[OutboxRow] = []
    for row in rows:
        if places <= 0:
            break
        places -= row.places
        found.append(row)
    return found


def first_of_groups(rows: Iterable[OutboxRow]) -> list[OutboxRow]:
    """Return the first row of each group, and all rows without one, by id."""
    first: dict[str, OutboxRow] = {}
    ordered = sorted(rows, key=_BY_ID)
    return [row for row in ordered if row.row_group is None or first.setdefault(row.row_group, row) is row]


class RowGroups:
    """The row groups of one ownership. At its beginning all are held.

    Args:
        held_max: beyond this number of groups that are held or cut, all are held.
    """

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._waiting: dict[str, list[OutboxRow]] = {}
        self._waiting_ids: set[int] = set()
        self.waiting_places = 0
        """The places that all waiting rows take."""
        self._sent: Counter[str] = Counter()
        self._doubted: Counter[str] = Counter()
        self._parked: dict[str, list[int]] = {}
        self._held: set[str] = set()
        self._cut: dict[str, int] = {}
        """Groups of which the rows from this id on are left to the next sweep. Those below wait and are sent."""
        self._cut_all: int | None = None
        """The rows of all groups from this id on are left to the next sweep, because the last one has ended before it."""
        self._are_all_held = True
        self._releasing: set[str] = set()
        """Held groups that the sweep under way finds."""
        self._are_all_released = False
        self._behind: set[str] = set()
        """Groups with forgotten rows behind a parked one, or behind one in doubt."""

    @property
    def wants_sweep(self) -> bool:
        """Whether rows were left to a sweep that has not begun."""
        return self._are_all_held or bool(self._held) or self.has_cuts

    @property
    def has_cuts(self) -> bool:
        """Whether the rows of a group from some id on were left to a sweep."""
        return bool(self._cut) or self._cut_all is not None

    def begin_sweep(self) -> None:
        """The sweep finds the rows of all groups that are held now."""
        self._releasing = self._held.union(self._cut)
        self._are_all_released = self._are_all_held or self._cut_all is not None
        self._held, self._cut, self._cut_all, self._are_all_held = set(), {}, None, False

    def end_sweep(self, before: int | None = None) -> None:
        """The sweep has come to the last row that was read, or it ends before the row of an id. The rest is left to the next one."""
        self._releasing, self._are_all_released = set(), False
        self._cut_all = before
        if before is not None:
            for group in list(self._waiting):
                self._remove_from(group, before)

    def hold(self, group: str) -> None:
        """Forget the waiting rows of a group, and leave the group to the next sweep."""
        self._forget_waiting(group)
        self._held.add(group)
        self._bound_held()

    def cut(self, group: str, id: int) -> None:
        """Leave the rows of a group from this id on to the next sweep. Those below it go on."""
        self._remove_from(group, id)
        self._cut[group] = min(id, self._cut.get(group, id))
        self._bound_held()

    def is_cut(self, group: str, id: int) -> bool:
        """Return whether a row was left to the next sweep because there was no room."""
        return id >= self._cut.get(group, id + 1) or (self._cut_all is not None and id >= self._cut_all)

    def _remove_from(self, group: str, id: int) -> None:
        """Forget the waiting rows of a group from this id on."""
        waiting = self._waiting.get(group, [])
        place = bisect_left(waiting, id, key=_BY_ID)
        self._remove_ids(waiting[place:])
        del waiting[place:]
        if not waiting:
            self._waiting.pop(group, None)

    def _bound_held(self) -> None:
        if len(self._held) + len(self._cut) > self._held_max:
            self.hold_all()

    def hold_all(self) -> None:
        """Leave all groups to the next sweep."""
        self._waiting.clear()
        self._waiting_ids.clear()
        self.waiting_places = 0
        self._held, self._cut, self._are_all_held = set(), {}, True

    def make_room(self, places: int) -> None:
        """Cut the groups whose rows wait for a reply: together they keep their first ones, in about these places."""
        groups = [group for group in self._waiting if self._sent[group]]
        for group in groups:
            waiting = self._waiting.get(group, [])
            beyond = waiting[len(first_within(waiting, places // len(groups))) :]
            if beyond:
                self.cut(group, beyond[0].id)

    def is_left_to_sweep(self, group: str, id: int, swept_to: int | None) -> bool:
        """Return whether a row does not wait now. A sweep will find it.

        Args:
            swept_to: the sweep under way will find it, if its id is above this one. None: the sweep has found it, or there is none.
        """
        if self._doubted[group] or self._is_behind_parked(group, id):
            self._behind.add(group)
            return True
        if self._are_all_held or group in self._held or self.is_cut(group, id):
            return True
        return swept_to is not None and id > swept_to and (self._are_all_released or group in self._releasing)

    def add_waiting(self, group: str, row: OutboxRow) -> None:
        insort(self._waiting.setdefault(group, []), row, key=_BY_ID)
        self._waiting_ids.add(row.id)
        self.waiting_places += row.places

    def is_waiting(self, id: int) -> bool:
        return id in self._waiting_ids

    @property
    def free_places(self) -> int:
        """The places of the waiting rows of groups of which none is sent."""
        return sum([places_of(rows) for group, rows in self._waiting.items() if not self._sent[group]])

    def _forget_waiting(self, group: str) -> list[OutboxRow]:
        """Remove and return the waiting rows of a group."""
        rows = self._waiting.pop(group, [])
        self._remove_ids(rows)
        return rows

    def _remove_ids(self, rows: Iterable[OutboxRow]) -> None:
        for row in rows:
            self._waiting_ids.discard(row.id)
            self.waiting_places -= row.places

    def take_runs(self, places: int, run_rows_max: int) -> list[list[OutboxRow]]:
        """Remove and return the next rows of each group of which none is sent, at most `run_rows_max` of each."""
        runs: list[list[OutboxRow]] = []
        for group in [group for group in self._waiting if not self._sent[group]]:
            waiting = self._waiting[group]
            run = first_within(waiting, min(places, run_rows_max))
            if not run:
                break
            places -= places_of(run)
            del waiting[: len(run)]
            self._remove_ids(run)
            if not waiting:
                del self._waiting[group]
            runs.append(run)
        return runs

    # ------------------------------------------------------------ rows that were sent, and parked rows

    def add_sent(self, group: str) -> None:
        self._sent[group] += 1

    def is_sent(self, group: str) -> bool:
        """Whether a row of the group was sent and has no outcome."""
        return self._sent[group] > 0

    def remove_sent(self, group: str) -> None:
        self._sent[group] -= 1
        if not self._sent[group]:
            del self._sent[group]

    def add_doubt(self, group: str) -> None:
        """A row is in doubt, for as long as its shard does not answer. Forget the rows behind it meanwhile."""
        self._doubted[group] += 1
        if self._forget_waiting(group):
            self._behind.add(group)

    def remove_doubt(self, group: str) -> None:
        self._doubted[group] -= 1
        if not self._doubted[group]:
            del self._doubted[group]
            self._release_behind(group)

    def park(self, group: str, id: int) -> None:
        """Hold the rows of the group behind a parked one, until it is dropped or in the queue."""
        insort(self._parked.setdefault(group, []), id)
        waiting = self._forget_waiting(group)
        if any(row.id > id for row in waiting):
            self._behind.add(group)
        for row in waiting:
            if row.id < id:
                self.add_waiting(group, row)

    def unpark(self, group: str, id: int) -> None:
        """A parked row was dropped, or is in the queue. The next sweep finds the rows behind it."""
        parked = self._parked[group]
        parked.remove(id)
        if not parked:
            del self._parked[group]
        if not self._doubted[group]:
            self._release_behind(group)

    def _release_behind(self, group: str) -> None:
        """Leave the group to a sweep, if rows of it were forgotten. A row that is behind another one still is left again."""
        if group in self._behind:
            self._behind.discard(group)
            self.hold(group)

    def _is_behind_parked(self, group: str, id: int) -> bool:
        parked = self._parked.get(group)
        return parked is not None and parked[0] < id
