"""What is known of one group, and which of its items may be delivered now.

Always true: the group knows all its items that were delivered and are not settled, and its waiting items up to the
boundary of its topic. A long group knows its waiting items only up to its own cut. Knows no other group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from foqs.core.groups.places import GroupPlace, Placed, token_of
from foqs.core.items.item import NUMBER_MAX, ORDER_KEY_BITS, OrderKey

STRICT: Final = 1
"""The limit of a strict group: its items are delivered in order, one run after the other."""
RUN_MAX: Final = 100
"""Items of a run."""
NO_LIMIT: Final = 1 << 40
"""The limit of the groups of a fair topic whose policy has none."""
BELOW_ALL: Final[OrderKey] = 0
"""Lower than every key, because no item has the number 0."""
ABOVE_ALL: Final[OrderKey] = 1 << ORDER_KEY_BITS
"""Higher than every key."""
KEYS_PER_UNIT: Final = 8
"""A group takes one unit of memory, and one more for this many known items. A unit is some hundred bytes."""

_NONE_RESERVED: Final[dict[int, OrderKey]] = {}
"""Shared by all groups without reservations: a dictionary takes 64 bytes. It stays empty."""


class Group:
    """The items of a group by place, and its permits.

    Attributes:
        waiting: the keys of its waiting items up to the boundary of the topic, or to the cut, in order.
        cut: above this key nothing is known of its waiting items; ABOVE_ALL: the boundary of the topic counts.
        returned, backing_off, leased: the keys of its items in the other places, in order. Those of leased items are their
            keys in their run.
        reserved: the items that dequeues have reserved, by number. Each has a permit. Its key is here, and not among
            `waiting`, while it waits; BELOW_ALL: it waits no more.
        heads: what was offered when the group was last settled, but for what was reserved since.
        first: in a fair topic, the key of the item that is offered. Its head has the turn of the group in it.
        turn, since_s, is_waiting, advances, busy, held, accounted_s: of a fair topic; see `TopicTurns`.
        units: its memory when it was last settled.
        loose_units: how much of it would be free if its waiting items were forgotten.
        noted_runs: the leased runs that its topic knows.
    """

    __slots__ = (
        "accounted_s",
        "advances",
        "backing_off",
        "busy",
        "cut",
        "first",
        "heads",
        "held",
        "is_waiting",
        "leased",
        "loose_units",
        "name",
        "noted_runs",
        "reserved",
        "returned",
        "since_s",
        "turn",
        "units",
        "waiting",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.reserved: dict[int, OrderKey] = _NONE_RESERVED
        self.heads: list[OrderKey] = []
        self.first: OrderKey = BELOW_ALL
        self.turn = 0
        self.since_s = 0.0
        self.is_waiting = False
        self.advances = 0
        self.busy = 0
        self.held = 0
        self.accounted_s = 0.0
        self.units = 0
        self.loose_units = 0
        self.noted_runs: Sequence[tuple[int, ...]] = ()
        self.forget()

    def forget(self) -> None:
        """Forget all items. Reservations stay."""
        self.waiting: list[OrderKey] = []
        self.cut: OrderKey = ABOVE_ALL
        self.returned: list[OrderKey] = []
        self.backing_off: list[OrderKey] = []
        self.leased: list[OrderKey] = []
        if self.reserved:
            self.reserved = dict.fromkeys(self.reserved, BELOW_ALL)

    # --------------------------------------------------------------- the rows

    def add(self, placed: Placed) -> None:
        """Add an item to a place. A waiting one above the cut stays unknown."""
        place, key = placed
        if place is GroupPlace.WAITING:
            if key & NUMBER_MAX in self.reserved:
                self.reserved[key & NUMBER_MAX] = key
                return
            if key > self.cut:
                return
        keys = self._keys(place)
        at = bisect_left(keys, key)
        if at == len(keys) or keys[at] != key:
            keys.insert(at, key)

    def discard(self, placed: Placed) -> None:
        """Remove an item from its place. An unknown one is ignored."""
        place, key = placed
        if place is GroupPlace.WAITING and self.reserved.get(key & NUMBER_MAX) == key:
            self.reserved[key & NUMBER_MAX] = BELOW_ALL
            return
        keys = self._keys(place)
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            del keys[at]

    def reserve(self, key: OrderKey) -> None:
        """Note that a dequeue has reserved an item."""
        at = bisect_left(self.waiting, key)
        is_waiting = at < len(self.waiting) and self.waiting[at] == key
        if is_waiting:
            del self.waiting[at]
        if not self.reserved:
            self.reserved = {}
        self.reserved[key & NUMBER_MAX] = key if is_waiting else BELOW_ALL

    def end_reservation(self, number: int, boundary: OrderKey) -> None:
        """Note that a reservation has ended. An item that waits, up to the boundary of the topic, is among the others again."""
        key = self.reserved.pop(number)
        if not self.reserved:
            self.reserved = _NONE_RESERVED
        if BELOW_ALL < key <= boundary:
            self.add((GroupPlace.WAITING, key))

    def known_waiting(self, boundary: OrderKey) -> list[OrderKey]:
        """Return the keys of its known waiting items, in order, with those that dequeues have reserved."""
        end = min(self.cut, boundary)
        return sorted([*self.waiting, *[key for key in self.reserved.values() if BELOW_ALL < key <= end]])

    def _keys(self, place: GroupPlace) -> list[OrderKey]:
        if place is GroupPlace.WAITING:
            return self.waiting
        if place is GroupPlace.LEASED:
            return self.leased
        return self.returned if place is GroupPlace.RETURNED else self.backing_off

    def keep_first(self, keys_max: int) -> None:
        """Forget the last waiting items if there are too many."""
        if len(self.waiting) > keys_max:
            del self.waiting[keys_max:]
            self.cut = self.waiting[-1]

    def forget_above(self, boundary: OrderKey) -> bool:
        """Forget the waiting items above the boundary of the topic, which has fallen. Return whether that changes anything."""
        is_cut_lower = self.cut < boundary
        end = bisect_right(self.waiting, boundary)
        if end == len(self.waiting) and (is_cut_lower or self.cut == ABOVE_ALL):
            return False
        del self.waiting[end:]
        self.cut = self.cut if is_cut_lower else ABOVE_ALL
        return True

    # -------------------------------------------------------------- its memory

    @property
    def is_held(self) -> bool:
        """Whether it must be in memory: an item was delivered and is not settled, or is reserved."""
        return bool(self.leased or self.returned or self.backing_off or self.reserved)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it need be known: it is not held, and no item waits up to the boundary of the topic."""
        return not self.waiting and self.cut == ABOVE_ALL and not self.is_held

    @property
    def may_wait(self) -> bool:
        """Whether an item of it waits or is returned, or may wait above its cut, also if nothing of it may be delivered now."""
        return bool(self.waiting or self.returned) or self.cut < ABOVE_ALL

    def count_units(self) -> tuple[int, int]:
        """Return how many units of memory it takes, and how many of these its waiting items."""
        loose = len(self.waiting) // KEYS_PER_UNIT
        held = (len(self.leased) + len(self.returned) + len(self.backing_off) + len(self.reserved)) // KEYS_PER_UNIT
        return 1 + loose + held, loose + (1 if self.waiting and not self.is_held else 0)

    # -------------------------------------------------------------- the offer

    def offer(self, limit: int) -> list[OrderKey]:
        """Return the items that may be reserved now, in order: as many as permits are free."""
        if limit == STRICT:
            return self.run(1)
        return self.waiting[: self._free_permits(limit)]

    def next_item(self, limit: int) -> OrderKey | None:
        """Return the first item of `offer`; None if there is none."""
        if limit == STRICT:
            return next(iter(self.run(1)), None)
        return self.waiting[0] if self.waiting and self._free_permits(limit) else None

    def run(self, run_max: int) -> list[OrderKey]:
        """Return the items of a strict group that may be reserved together now, in order: at most `run_max`.

        Delivered items come before all others. The first one that backs off ends the run.
        """
        if self.reserved or self.leased:
            return []
        if self.backing_off:
            return self.returned[: min(run_max, bisect_right(self.returned, self.backing_off[0]))]
        return [*self.returned[:run_max], *self.waiting[:run_max]][:run_max]

    def leased_runs(self) -> list[tuple[int, ...]]:
        """Return the leased runs of a strict group that have more than one item: their numbers, in order.

        There are several only if the limit was higher when they were leased.
        """
        if len(self.leased) < 2:
            return []
        runs = [tuple([key & NUMBER_MAX for key in keys]) for _, keys in groupby(self.leased, token_of)]
        return [run for run in runs if len(run) > 1]

    def has_leased(self, token: int) -> bool:
        """Return whether an item of a strict group is leased with this token."""
        at = bisect_left(self.leased, token, key=token_of)
        return at < len(self.leased) and token_of(self.leased[at]) == token

    def leased_behind(self, run_key: OrderKey) -> list[int]:
        """Return the numbers of the leased items of a strict group behind one of their run, which may have ended."""
        token = token_of(run_key)
        behind = self.leased[bisect_right(self.leased, run_key) :]
        return [key & NUMBER_MAX for key in behind if token_of(key) == token]

    def _free_permits(self, limit: int) -> int:
        if limit == NO_LIMIT:
            return NO_LIMIT
        busy = len(self.leased)
        if self.reserved and busy < limit:
            busy = len({key & NUMBER_MAX for key in self.leased}.union(self.reserved)) if busy else len(self.reserved)
        return max(0, limit - busy)

    def offers(self, key: OrderKey) -> bool:
        """Return whether an item is a head. In a fair topic, its key has the turn of the group there."""
        return key in self.heads or (bool(self.heads) and key == self.first)

    def items_before(self, key: OrderKey) -> int:
        """Return how many of its known READY items come before this one."""
        if key in self.returned:
            return bisect_left(self.returned, key)
        return len(self.returned) + bisect_left(self.waiting, key)

    def holders(self, key: OrderKey, limit: int) -> list[int] | None:
        """Return the numbers of the known items that must be settled, or delivered, before this READY one may be.

        None: the group does not hold it back.
        """
        if self.offers(key) or key & NUMBER_MAX in self.reserved:
            return None
        busy = [*self.reserved, *[each & NUMBER_MAX for each in self.leased]]
        if limit == STRICT:
            busy += [each & NUMBER_MAX for each in self.returned + self.backing_off if each != key]
        if len(set(busy)) < limit:
            busy += [each & NUMBER_MAX for each in self.waiting[: bisect_left(self.waiting, key)]]
        return list(dict.fromkeys(busy)) or None
