"""What is known of one group, and which of its items may be delivered now.

Always true: the group knows the items of its rows, in each place up to the boundary of that
place. What it offers is certain, whatever lies above the boundaries. Knows no other group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from foqs.core.groups.known_keys import ABOVE_ALL, BELOW_ALL, NO_ITEMS, NOTHING_KNOWN, KnownKeys
from foqs.core.groups.places import GroupPlace, Placed
from foqs.core.items.item import NUMBER_MAX, OrderKey

STRICT: Final = 1
"""The limit of a strict group: its items are delivered in order, one run after the other."""
UNGROUPED: Final = "\0"
"""The name of the line of all items without a group. It has no limit, and no group has this name."""


class Group:
    """The items of a group by place, and its permits.

    Attributes:
        known: the items of each place.
        reserved: the numbers of the items that dequeues have reserved. Each has a permit.
        heads: what was offered when the group was last settled, but for what was reserved since.
        listed: the head by which `LastHeads` has the group; BELOW_ALL if it has not.
    """

    __slots__ = ("heads", "known", "listed", "name", "reserved")

    def __init__(self, name: str, known: list[KnownKeys]) -> None:
        self.name = name
        self.known = known
        self.reserved: tuple[int, ...] = ()
        self.heads: list[OrderKey] = []
        self.listed: OrderKey = BELOW_ALL

    # --------------------------------------------------------------- the rows

    def add(self, placed: Placed) -> None:
        """Add an item to a place."""
        place, key = placed
        known = self.known[place]
        if known is NO_ITEMS:
            self.known[place] = KnownKeys([key], ABOVE_ALL)
        else:
            known.add(key)

    def discard(self, placed: Placed) -> None:
        """Remove an item from its place."""
        place, key = placed
        known = self.known[place]
        known.discard(key)
        if not known.keys and known.boundary == ABOVE_ALL:
            self.known[place] = NO_ITEMS

    def limit_to(self, keys_max: int, leases_max: int) -> None:
        """Forget the last items of each place that has too many."""
        for known in self.known[: GroupPlace.LEASED]:
            known.limit_to(keys_max)
        self.known[GroupPlace.LEASED].limit_to(leases_max)

    def waiting_start(self, limit: int | None) -> OrderKey | None:
        """Return the key above which only waiting items are unknown; None if others may be."""
        waiting, *others = self.known if limit is not None else self.known[: GroupPlace.LEASED]
        return None if waiting.boundary == BELOW_ALL or not all(known.has_all for known in others) else waiting.boundary

    @property
    def is_empty(self) -> bool:
        """Whether it has no known items and no reservations."""
        return not self.reserved and not any(known.keys for known in self.known)

    def is_short(self, limit: int | None, keys_min: int = 1) -> bool:
        """Return whether some place has fewer than `keys_min` known items, and its rows may have more."""
        for known in self.known[: GroupPlace.LEASED]:
            if known.boundary != ABOVE_ALL and len(known.keys) < keys_min:
                return True
        leased = self.known[GroupPlace.LEASED]
        return limit is not None and leased.boundary != ABOVE_ALL and len(leased.keys) < limit

    # -------------------------------------------------------------- the offer

    def offer(self, limit: int | None) -> list[OrderKey]:
        """Return the items that may be reserved now, in order: as many as permits are free."""
        if limit == STRICT:
            return self.run(1)
        waiting, returned = self.known[GroupPlace.WAITING], self.known[GroupPlace.RETURNED]
        # Above the boundary of one place, an unknown item of it may come before the next one of the other place.
        end = min(waiting.boundary, returned.boundary)
        ready = sorted(waiting.keys + returned.keys) if returned.keys else waiting.keys
        if ready and ready[-1] > end:
            ready = ready[: bisect_right(ready, end)]
        if self.reserved:
            ready = [key for key in ready if key & NUMBER_MAX not in self.reserved]
        return ready[: len(ready) if limit is None else self._free_permits(limit)]

    def run(self, run_max: int) -> list[OrderKey]:
        """Return the items of a strict group that may be reserved together now, in order: at most `run_max`.

        Delivered items come before all others. The first one that backs off ends the run.
        """
        leased = self.known[GroupPlace.LEASED]
        if self.reserved or leased.keys or leased.boundary != ABOVE_ALL:
            return []
        returned, backing_off = self.known[GroupPlace.RETURNED], self.known[GroupPlace.BACKING_OFF]
        end = min(returned.boundary, backing_off.boundary)
        if backing_off.keys:
            end = min(end, backing_off.keys[0])
        elif end == ABOVE_ALL:
            return (returned.keys + self.known[GroupPlace.WAITING].keys)[:run_max]
        return returned.keys[: min(run_max, bisect_right(returned.keys, end))]

    def holders(self, key: OrderKey, limit: int) -> list[int] | None:
        """Return the numbers of the known items that must be settled, or delivered, before this READY one may be.

        None: it may be delivered now. An empty list: what holds it back is not in memory.
        """
        number = key & NUMBER_MAX
        if key in self.heads or number in self.reserved:
            return None
        busy = [*self.reserved, *[each & NUMBER_MAX for each in self.known[GroupPlace.LEASED].keys]]
        if limit == STRICT:
            delivered = self.known[GroupPlace.RETURNED].keys + self.known[GroupPlace.BACKING_OFF].keys
            busy += [each & NUMBER_MAX for each in delivered if each != key]
        if len(set(busy)) < limit:
            waiting = self.known[GroupPlace.WAITING].keys
            busy += [each & NUMBER_MAX for each in waiting[: bisect_left(waiting, key)]]
        return list(dict.fromkeys(busy))

    def _free_permits(self, limit: int) -> int:
        """Return how many permits are free; 0 if there may be more leases than are known."""
        leased = self.known[GroupPlace.LEASED]
        if leased.boundary != ABOVE_ALL and len(leased.keys) < limit:
            return 0
        busy = len(leased.keys)
        if self.reserved:
            busy = len({key & NUMBER_MAX for key in leased.keys}.union(self.reserved)) if busy else len(self.reserved)
        return max(0, limit - busy)


def no_items(limit: int | None) -> list[KnownKeys]:
    """Return what is known of a group without items. Leases are remembered only if they are limited."""
    return [NO_ITEMS, NO_ITEMS, NO_ITEMS, NOTHING_KNOWN if limit is None else NO_ITEMS]
