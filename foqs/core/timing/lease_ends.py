"""Remembers when the leases of one shard end, so that the database needs no index of them.

The leases of one flush mostly have consecutive numbers and the same end. So ranges of
numbers are remembered in slots of time, and an ack need not remove anything from them. At
the slot's time the owner reads which rows of its ranges are still LEASED. It leaves out
the numbers that are known to be deleted, mostly all of them: beside an old snapshot the
database still has those rows, and reading them would be expensive.

Always true between two flushes: a lease that ends before `unread_from_ms` is in a slot,
or is being looked at. Leases that end later may be unknown here; a *lease walk* over all
LEASED rows finds them. A takeover begins with a lease walk, because nothing is known. If there
are more ranges than fit, those that end last are forgotten, an eighth at once, and `unread_from_ms` falls to
the earliest end that was forgotten. Reads no clock and no table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import le
from typing import Final

from foqs.core.timing.deleted_numbers import DeletedNumbers, Range

SLOT_COST: Final = 24
"""A slot takes as much memory as this number of ranges."""
NEVER_MS: Final = (1 << 63) - 1
_SHIFT_MAX: Final = 10
"""A slot is at most 2 ** 10 ms long."""
_SLOTS_PER_LEASE_BITS: Final = 7
"""A lease is divided into at least 64 slots."""


class Slot:
    """Ranges of leases whose ends are close to each other.

    Attributes:
        due_ms: no lease of it ends earlier.
        look_ms: the moment at which to look at its rows: `due_ms`, or later after a failure.
        last_ms: no lease of it ends later.
        ranges: first and last numbers, one after the other.
    """

    __slots__ = ("due_ms", "last_ms", "look_ms", "ranges")

    def __init__(self, due_ms: int, look_ms: int) -> None:
        self.due_ms = due_ms
        self.look_ms = look_ms
        self.last_ms = due_ms
        self.ranges: array[int] = array("q")

    def cost(self) -> int:
        """Return how many of the `lease_ranges_max` ranges it uses."""
        return SLOT_COST + len(self.ranges) // 2

    def check(self) -> None:
        """Assert that it has ranges, and is looked at when its first lease ends, or later."""
        assert self.due_ms <= min(self.look_ms, self.last_ms), (
            "invariant 10: a slot of leases is looked at before they end"
        )
        firsts, lasts = self.ranges[::2], self.ranges[1::2]
        assert firsts and all(map(le, firsts, lasts)), f"invariant 10: a slot of leases has the ranges {self.ranges}"


class Look:
    """Leases to look at: LEASED rows of `ranges` whose leases end by `last_ms`. The ranges are sorted and disjoint."""

    __slots__ = ("due_ms", "last_ms", "ranges")

    def __init__(self, due_ms: int, last_ms: int, ranges: list[Range]) -> None:
        self.due_ms = due_ms
        self.last_ms = last_ms
        self.ranges = ranges


class LeaseEnds:
    """The lease ends of one shard.

    Args:
        ranges_max: how many ranges are remembered, of 16 bytes each; a slot counts as `SLOT_COST`.
    """

    def __init__(self, ranges_max: int) -> None:
        self.ranges_max = ranges_max
        self._deleted = DeletedNumbers()
        self._slots: dict[int, Slot] = {}
        self._cost = 0
        self._next_ms = NEVER_MS
        self._look: Look | None = None
        self._is_lease_walk_running = False
        self._forgotten_from_ms = 0
        """The earliest end that the lease walk under way may miss, because it was forgotten since it began; else `unread_from_ms`."""
        self.lease_walk_count = 0
        """Ended lease walks."""
        self.unread_from_ms = 0
        """A lease that ends at this moment or later may be unknown here, until a lease walk has read it."""

    @property
    def next_look_ms(self) -> int:
        """When to look at the next slot; `NEVER_MS` if there is none."""
        return self._next_ms

    @property
    def next_lease_walk_ms(self) -> int:
        """When the next lease walk is needed."""
        return NEVER_MS if self._is_lease_walk_running else self.unread_from_ms

    @property
    def cost(self) -> int:
        """The memory in use, in ranges."""
        return self._cost

    @property
    def is_lease_walk_running(self) -> bool:
        """Whether a lease walk is under way."""
        return self._is_lease_walk_running

    def unapplied_from_ms(self) -> int:
        """Return a moment before which no lease ends that is still to be applied."""
        dues = [slot.due_ms for slot in self._slots.values()]
        if self._look is not None:
            dues.append(self._look.due_ms)
        return min(self.unread_from_ms, min(dues, default=NEVER_MS))

    # ------------------------------------------------------------- remembering

    def remember(self, due_ms: int, numbers: list[int], now_ms: int) -> None:
        """Remember that the leases of these numbers, at least one, end at `due_ms`. They are committed."""
        self._add(due_ms, due_ms, due_ms, _ranges_of(numbers), now_ms)

    def remember_failed(self, due_ms: int, numbers: list[int], look_ms: int) -> None:
        """Remember leases that have ended and whose end could not be written. They are looked at again at `look_ms`."""
        self._add(due_ms, due_ms, look_ms, _ranges_of(numbers), look_ms)

    def on_deleted(self, numbers: list[int]) -> None:
        """Remember that the rows of these numbers, at least one, were deleted. That is committed. No look reads them."""
        self._deleted.add(_ranges_of(numbers))

    def _add(self, due_ms: int, last_ms: int, look_ms: int, ranges: Sequence[Range], now_ms: int) -> None:
        if due_ms >= self._forgotten_from_ms:
            return  # the next lease walk finds them
        shift = min(max((look_ms - now_ms).bit_length() - _SLOTS_PER_LEASE_BITS, 0), _SHIFT_MAX)
        key = look_ms >> shift << 4 | shift
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(due_ms, look_ms)
            self._cost += SLOT_COST
        else:
            slot.due_ms = min(slot.due_ms, due_ms)
            slot.look_ms = min(slot.look_ms, look_ms)
        slot.last_ms = max(slot.last_ms, last_ms)
        self._next_ms = min(self._next_ms, slot.look_ms)
        kept = slot.ranges
        before = len(kept)
        for first, last in ranges:
            if kept and kept[-1] + 1 == first:
                kept[-1] = last
            else:
                kept.append(first)
                kept.append(last)
        self._cost += (len(kept) - before) // 2
        if self._cost > self.ranges_max:
            self._forget_last()

    def _forget_last(self) -> None:
        """Forget the slots that end last. The next lease walk finds their leases, and all that end later.

        An eighth of the room becomes free, so that many slots share the cost of the sort.
        """
        slots = self._slots
        cost_max = self.ranges_max * 7 // 8
        by_due = sorted(slots, key=lambda key: slots[key].due_ms)
        while by_due and self._cost > cost_max:
            slot = slots.pop(by_due.pop())
            self._cost -= slot.cost()
            self._forgotten_from_ms = min(self._forgotten_from_ms, slot.due_ms)
        self.unread_from_ms = min(self.unread_from_ms, self._forgotten_from_ms)
        self._find_next()

    def _find_next(self) -> None:
        self._next_ms = min([slot.look_ms for slot in self._slots.values()], default=NEVER_MS)

    # ----------------------------------------------------------------- looking

    def begin_look(self, now_ms: int) -> Look | None:
        """Return the leases to look at now, without those of deleted rows; None if there are none.

        `end_look` or `fail_look` must follow.

        Call it between two flushes, so that every lease that was written is remembered.
        """
        due = [(key, slot) for key, slot in self._slots.items() if slot.look_ms <= now_ms]
        if not due:
            return None
        ranges: list[Range] = []
        for key, slot in due:
            del self._slots[key]
            self._cost -= slot.cost()
            numbers = slot.ranges
            ranges += [(numbers[at], numbers[at + 1]) for at in range(0, len(numbers), 2)]
        self._find_next()
        left = self._deleted.without_deleted(_merged(ranges))
        if not left:
            return None
        look = Look(min([slot.due_ms for _, slot in due]), max([slot.last_ms for _, slot in due]), left)
        self._look = look
        return look

    def end_look(self) -> None:
        """End the look: its rows were read, and all that are LEASED are applied or remembered again."""
        self._look = None

    def fail_look(self, retry_ms: int) -> None:
        """End the look: its rows could not be read, or not applied. They are looked at again at `retry_ms`."""
        look, self._look = self._look, None
        if look is not None:
            self._add(look.due_ms, look.last_ms, retry_ms, look.ranges, retry_ms)

    # ----------------------------------------------------------------- lease walks

    def begin_lease_walk(self) -> None:
        """Begin a lease walk. The caller must remember or apply every LEASED row, then call `end_lease_walk`."""
        self._is_lease_walk_running = True
        self._forgotten_from_ms = NEVER_MS

    def end_lease_walk(self, *, complete: bool) -> None:
        """End the lease walk; `complete`: it read all LEASED rows."""
        self._is_lease_walk_running = False
        self.lease_walk_count += 1
        if not complete:
            self._forgotten_from_ms = min(self._forgotten_from_ms, self.unread_from_ms)
        self.unread_from_ms = self._forgotten_from_ms

    # ------------------------------------------------------------------- check

    def check(self) -> None:
        """Assert what the slots alone show of what is always true.

        They know no row: `uncovered_leases` in `tests/support/memory_check.py` asks `covers` about each LEASED row.
        """
        slots = self._slots.values()
        assert self._cost == sum([slot.cost() for slot in slots]), (
            "invariant 18: the memory of lease ends is miscounted"
        )
        assert self._cost <= self.ranges_max, f"invariant 18: {self._cost} ranges of lease ends are remembered"
        next_ms = min([slot.look_ms for slot in slots], default=NEVER_MS)
        assert self._next_ms == next_ms, f"invariant 10: the next look is at {self._next_ms} instead of {next_ms}"
        for slot in slots:
            slot.check()
        assert self.unread_from_ms <= self._forgotten_from_ms, (
            "invariant 10: a lease walk will not read what was forgotten"
        )
        assert self._is_lease_walk_running or self.unread_from_ms == self._forgotten_from_ms, (
            "invariant 10: leases are left to a lease walk that does not begin in time"
        )

    def covers(self, number: int, due_ms: int) -> bool:
        """Return whether this lease is looked at when it ends, or found by a lease walk."""
        if due_ms >= self.unread_from_ms:
            return True
        if not self._deleted.without_deleted([(number, number)]):
            return False  # no look reads it
        look = self._look
        if (
            look is not None
            and look.due_ms <= due_ms <= look.last_ms
            and any(first <= number <= last for first, last in look.ranges)
        ):
            return True
        for slot in self._slots.values():
            numbers = slot.ranges
            if slot.due_ms <= due_ms <= slot.last_ms and any(
                numbers[at] <= number <= numbers[at + 1] for at in range(0, len(numbers), 2)
            ):
                return True
        return False


def group_by_due(leases: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Return the numbers of (due_ms, number) pairs, by due."""
    groups: dict[int, list[int]] = {}
    for due_ms, number in leases:
        groups.setdefault(due_ms, []).append(number)
    return groups


def pages_of(ranges: Sequence[Range], numbers_max: int, ranges_max: int) -> list[list[Range]]:
    """Divide ranges into pages. A page has at most `numbers_max` numbers and `ranges_max` ranges. A long range is divided too."""
    pages: list[list[Range]] = []
    page: list[Range] = []
    room = numbers_max
    for start, last in ranges:
        first = start
        while first <= last:
            if not room or len(page) >= ranges_max:
                pages.append(page)
                page, room = [], numbers_max
            stop = min(last, first + room - 1)
            page.append((first, stop))
            room -= stop - first + 1
            first = stop + 1
    if page:
        pages.append(page)
    return pages


def _ranges_of(numbers: list[int]) -> Sequence[Range]:
    """Return the ranges of these numbers, in order."""
    ordered = sorted(numbers)
    if ordered[-1] - ordered[0] == len(ordered) - 1:
        return ((ordered[0], ordered[-1]),)
    ranges: list[Range] = []
    first = last = ordered[0]
    for number in ordered:
        if number > last + 1:
            ranges.append((first, last))
            first = number
        last = number
    ranges.append((first, last))
    return ranges


def _merged(ranges: list[Range]) -> list[Range]:
    """Return sorted, disjoint ranges of the same numbers."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged
