"""The heads of the groups of one topic: which items dequeues may reserve, and what its window follows.

Always true between two flushes: the heads of a group are what it offers, less what was reserved since. A head that is reserved
takes a permit of its group, which returns when the reservation ends. The window holds all heads up to its end.

In a fair topic each group has one head, with the turn of the group in its key in place of the time. When it is reserved, the
next one takes its place in the same step, with its new turn. No head or turn is stored. Reads nothing, and knows no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Final

from foqs.core.groups.group import BELOW_ALL, NO_LIMIT, STRICT, Group
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.items.item import NUMBER_MAX, OrderKey, unpack_order_key, with_turn


@dataclass(slots=True)
class HeadChanges:
    """What a window of heads must follow: first the removed keys, then the added ones, and nothing above the boundary stays.

    Attributes:
        removed: keys that are no heads any more. They need not be in the window.
        added: new heads at or below the boundary, in order. If `is_reset`, all of them: the window is emptied before.
        boundary: above it there may be heads that a read would find; None: a read would find none now.
    """

    removed: list[OrderKey]
    added: list[OrderKey]
    boundary: OrderKey | None
    is_reset: bool = False


class TopicHeads:
    """The heads of the groups of one topic. It is the `HeadSource` of its window.

    Attributes:
        group_of: the group of each head. Items without a group, which are all heads, are not here.
        prefetched_left: of a fair topic, how many of the prefetched items were not reserved yet, about.
    """

    def __init__(self, groups: TopicGroups) -> None:
        self.group_of: Final[dict[OrderKey, Group]] = {}
        self.prefetched_left = 0
        self._groups: Final = groups
        self._turns: Final = groups.turns
        self._changes: dict[OrderKey, bool] = {}
        """Keys that have become heads since `take_changes`, or are none any more."""
        self._above: Final[set[OrderKey]] = set()
        """Heads above the end of the window: of groups with returned items."""
        self._window_end: OrderKey = BELOW_ALL
        self._is_reset = False

    # -------------------------------------------------------------- delivery

    @property
    def takes_turns(self) -> bool:
        """Whether a reserved head may be followed by the next one of its group at once."""
        return self._turns is not None

    @property
    def gives_runs(self) -> bool:
        """Whether a head may be reserved together with items behind it: the groups are strict."""
        return self._groups.limit == STRICT

    def reserve(self, order_keys: Iterable[OrderKey]) -> None:
        """Take the permits of heads that a dequeue has reserved."""
        ungrouped = self._groups.ungrouped
        for key in order_keys:
            group = self.group_of.pop(key, None)
            if group is not None:
                group.heads.remove(key)
                self._take_permit(group, key)
            elif key in ungrouped:
                ungrouped.reserved[key & NUMBER_MAX] = key

    def reserve_in_turn(
        self, heads: Sequence[OrderKey], count: int, last: OrderKey
    ) -> tuple[list[OrderKey], int, list[OrderKey]]:
        """Reserve heads of fair groups one after the other, and those that follow them. See `HeadSource`."""
        reserved: list[OrderKey] = []
        following: list[OrderKey] = []
        used = 0
        while len(reserved) < count:
            follows = bool(following) and (used == len(heads) or following[0] < heads[used])
            if not follows and used == len(heads):
                break
            key = following[0] if follows else heads[used]
            if key > last:
                break
            if follows:
                heappop(following)
            else:
                used += 1
            reserved.append(key)
            group = self.group_of.pop(key, None)
            if group is not None and self._turns is not None:
                for head in self._take_turn(group, self._turns):
                    heappush(following, head)
        following.sort()
        return reserved, used, following

    def reserve_run(self, head: OrderKey, items_max: int, is_free: Callable[[int], bool]) -> list[OrderKey]:
        """Reserve a head of a strict group, and the items of its run behind it. Return all of them, in order.

        A run ends before an item of which something waits to be written: its lease would come later than those behind it.
        """
        group = self.group_of.pop(head, None)
        if group is None:
            self.reserve((head,))
            return [head]
        groups = self._groups
        run = group.run(items_max) if groups.is_read and groups.limit == STRICT else group.run(1)
        size = next((size for size, key in enumerate(run) if not is_free(key & NUMBER_MAX)), len(run))
        behind = run[1:size]
        if self._turns is None:
            group.heads.remove(head)
            self._take_permit(group, head)
        else:
            self._take_turn(group, self._turns, 1 + len(behind))
        for key in behind:
            self._take_permit(group, key)
        return [head, *behind]

    def _take_turn(self, group: Group, turns: TopicTurns, items: int = 1) -> list[OrderKey]:
        """Take the permit of the first item of a group, whose turn has come. Return its next head, if it has one."""
        self.prefetched_left = max(0, self.prefetched_left - items)
        turns.serve(group, items)
        self._take_permit(group, group.first)
        group.heads = self._fair_heads(group)
        for head in group.heads:
            self.group_of[head] = group
        return group.heads

    def _take_permit(self, group: Group, key: OrderKey) -> None:
        group.reserve(key)
        self._groups.reserved[key & NUMBER_MAX] = group

    def end_reservations(self, numbers: Iterable[int]) -> None:
        """Return permits: reservations were given back, or a flush has settled them. What they are now, rows say."""
        groups = self._groups
        for number in numbers:
            group = groups.reserved.pop(number, None)
            if group is not None:
                group.end_reservation(number, groups.boundary)
                groups.touched[group] = None
            else:
                groups.ungrouped.end_reservation(number)

    def waited_s(self, head: OrderKey) -> float | None:
        """Return how long the group of a head has waited for its turn; None if there is no such head, or no turn."""
        group = self.group_of.get(head)
        return None if group is None or self._turns is None else self._turns.waited_s(group)

    def upcoming(self, heads: Iterable[OrderKey]) -> Iterator[tuple[OrderKey, OrderKey]]:
        """Yield the known items of a fair topic in turn, as if nothing else changed: each as (its key as a head, its key).

        Args:
            heads: the first heads in order. No item of another group comes before the last of them.
        """
        turns, groups = self._turns, self._groups
        if turns is None:
            return
        served = turns.served
        line = [(head, 0, self.group_of[head]) for head in heads if head in self.group_of]
        while line:
            head, place, group = line[0]
            offer = group.waiting if groups.limit == NO_LIMIT else group.offer(groups.limit)
            yield head, offer[place] if place else group.first
            place, turn = place + 1, unpack_order_key(head)[1]
            served = max(served, turn)
            if place < len(offer) and groups.is_read:
                turn = turns.next_turn(group.name, turn, served)
                heapreplace(line, (with_turn(offer[place], turn), place, group))
            else:
                heappop(line)

    # ------------------------------------------------------------- the window

    def update(self, group: Group) -> None:
        """Compute the heads of a group that has changed. One that begins to wait gets its turn, and keeps it while it is locked."""
        turns, former = self._turns, group.heads
        if turns is None:
            heads = self._groups.offer(group)
        else:
            turns.account(group)
            heads = self._fair_heads(group)
            if heads and not group.is_waiting:
                turns.begin_wait(group)
                heads = [with_turn(group.first, group.turn)]
            elif not heads and not group.may_wait:
                group.is_waiting = False
        if heads != former:
            new, gone = set(heads), set(former)
            for key in gone - new:
                del self.group_of[key]
                self._changes[key] = False
            for key in new - gone:
                self.group_of[key] = group
                self._changes[key] = True
            group.heads = heads

    def _fair_heads(self, group: Group) -> list[OrderKey]:
        """Return what a group of a fair topic offers: one head at most."""
        groups = self._groups
        first = group.next_item(groups.limit) if groups.is_read else next(iter(groups.offer(group)), None)
        if first is None:
            return []
        group.first = first
        return [with_turn(first, group.turn)]

    def take_changes(self, end: OrderKey, boundary: OrderKey | None) -> HeadChanges:
        """Return what has changed since the last call.

        Args:
            end: the end of the window from now on.
            boundary: see `HeadChanges`.
        """
        changes, self._changes = self._changes, {}
        ungrouped = self._groups.ungrouped
        if ungrouped.changes:
            changes |= ungrouped.changes
            ungrouped.changes.clear()
        removed = [key for key, is_head in changes.items() if not is_head]
        new = [key for key, is_head in changes.items() if is_head]
        self._above.difference_update(removed)
        if end < self._window_end:
            self._above.update([key for key in self.group_of if key > end])
        self._above.update([key for key in new if key > end])
        added = [key for key in new if key <= end]
        if end > self._window_end:
            found = [key for key in self._above if key <= end]
            self._above.difference_update(found)
            added += found
        self._window_end = end
        is_reset, self._is_reset = self._is_reset, False
        return HeadChanges(removed, sorted(set(added)), boundary, is_reset)

    def window_heads(self) -> list[OrderKey]:
        """Return what must be in the window now, in order."""
        return sorted(key for key in (*self.group_of, *self._groups.ungrouped.heads()) if key <= self._window_end)

    def forget_all(self) -> None:
        """Forget all heads. The window is emptied."""
        self.group_of.clear()
        self._above.clear()
        self._changes.clear()
        self._is_reset = True

    # ----------------------------------------------------------------- check

    def check(self) -> None:
        """Assert that each group has the heads that it offers, and that all are known here."""
        groups = self._groups.by_name.values()
        for group in groups:
            offer = self._groups.offer(group) if self._turns is None else self._fair_heads(group)
            assert group.turn >= 0 and (self._turns is None or group.is_waiting or not group.heads)
            assert group.heads == offer, f"invariant 13: {group.name} has {group.heads}, and offers {offer}"
            for key in group.heads:
                assert self.group_of.get(key) is group, f"invariant 13: the group of the head {key} is unknown"
        assert set(self.group_of) == {key for group in groups for key in group.heads}
        assert self._above == {key for key in self.group_of if key > self._window_end}
