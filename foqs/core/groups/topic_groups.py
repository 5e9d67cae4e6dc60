"""The groups of one topic in memory: what each holds. `Group.offer` says which of its items may be delivered now.

Always true between two flushes, once the rows of delivered items were read (`is_read`):

- All items that were delivered and are not settled are in memory, and so are all reserved ones. Their groups are *held*.
- So are all waiting items up to the boundary, but for those of a long group above its cut.

So a group that is not in memory holds no permit, and no item of it waits at or below the boundary: a new one there comes first
in its group, and needs no read. In a fair topic, an item without a group is a group of its own.

No permit is stored. Knows no window, no table and no bound of the memory; see docs/design/groups.md.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from foqs.core.groups.group import ABOVE_ALL, BELOW_ALL, NO_LIMIT, STRICT, Group
from foqs.core.groups.group_page import GroupPage
from foqs.core.groups.places import UNGROUPED, GroupPlace, Placed
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.groups.ungrouped_items import UngroupedItems
from foqs.core.items.item import NUMBER_MAX, OrderKey, State


class TopicGroups:
    """The groups of one topic.

    Args:
        limit: how many items of a group may be leased at once; 1: strict order.
        turns: of a fair topic. `limit` may be `NO_LIMIT` then.
    """

    def __init__(self, limit: int, turns: TopicTurns | None = None) -> None:
        self.limit = limit
        self.turns: Final = turns
        self.by_name: dict[str, Group] = {}
        """The groups in memory, those first that came first."""
        self.ungrouped: Final = UngroupedItems()
        """In a fair topic, there are none."""
        self.reserved: Final[dict[int, Group]] = {}
        """The group of each reserved item, by its number: its permits."""
        self.touched: dict[Group, None] = {}
        """Groups of which something has changed since they were settled."""
        self.page: GroupPage | None = None
        """The page that is being read. It notes what changes meanwhile."""
        self.begin_reads()

    def begin_reads(self) -> None:
        """Let all rows be read: none is known."""
        self.boundary: OrderKey = BELOW_ALL
        """All waiting items up to this key are known."""
        self.unread_states = self.delivered_states()
        """The states of which rows of delivered items are still to be read, the one that is being read first."""
        self.read_to: OrderKey = BELOW_ALL
        """Up to which key the rows of this state were read."""
        self.is_read = not self.unread_states
        """Whether the rows of delivered items were read. Only returned ones are delivered before; see `offer`."""

    def delivered_states(self) -> list[State]:
        """Return the states in which rows of delivered items hold their group."""
        if self.limit == STRICT:
            return [State.LEASED, State.DEFERRED, State.READY]
        return [State.LEASED] if self._counts_leases else []

    def __len__(self) -> int:
        return len(self.by_name)

    def __bool__(self) -> bool:
        return len(self) > 0

    # --------------------------------------------------------------- queries

    def get(self, name: str) -> Group | None:
        """Return what is known of a group; None if it is not in memory."""
        return self.by_name.get(name)

    def some_groups(self, groups_max: int) -> list[Group]:
        """Return at most this many groups in memory. In a fair topic, items without a group are among them."""
        return [*islice(self.by_name.values(), groups_max)]

    @property
    def is_partial(self) -> bool:
        """Whether the topic may have READY items that are not in memory, apart from those above the cuts of groups."""
        return not self.is_read or self.boundary < ABOVE_ALL

    @property
    def is_unread(self) -> bool:
        """Whether no waiting item was read yet."""
        return not self.is_read or self.boundary == BELOW_ALL

    def offer(self, group: Group) -> list[OrderKey]:
        """Return the items of a group that may be reserved now, in order.

        The read of delivered items ends with READY ones, in order. All others are known then, so a returned item that
        this read has passed is the first of its group.
        """
        if self.is_read:
            return group.offer(self.limit)
        if self.unread_states != [State.READY]:
            return []
        return [key for key in group.offer(self.limit) if key <= self.read_to]

    # --------------------------------------------------------------- changes

    def follow(self, name: str, old: Placed | None, new: Placed | None) -> None:
        """Give one changed row, before and after, to its group. In any order within a flush; `LimitedTopic.settle` comes at its end."""
        if self.turns is not None:
            placed = old or new
            name = name if placed is None else self.own_name(name, placed[1])
            new = None if new is not None and not self.is_remembered(name, new[0]) else new
        if self.page is not None:
            self.page.note(name, old, new)
        if name == UNGROUPED:
            self._follow_ungrouped(old, new)
            return
        if new is None and old is not None and not self.is_remembered(name, old[0]):
            return
        group = self.by_name.get(name)
        if old is not None and group is not None:
            group.discard(old)
        if new is not None and (new[0] is not GroupPlace.WAITING or new[1] <= self.boundary):
            group = group or self.add(name)
            group.add(new)
        if group is not None:
            self.touched[group] = None

    def _follow_ungrouped(self, old: Placed | None, new: Placed | None) -> None:
        """Follow an item without a group. Leases lock nothing, and are not remembered."""
        if old is not None and old[0] is GroupPlace.WAITING:
            self.ungrouped.discard(old[1])
        if new is not None and new[0] is GroupPlace.WAITING and new[1] <= self.boundary:
            self.ungrouped.add(new[1])

    def own_name(self, name: str, key: OrderKey) -> str:
        """Return the name under which the group of an item is known. In a fair topic, an item without one is a group."""
        return f"{UNGROUPED}{key & NUMBER_MAX}" if name == UNGROUPED and self.turns is not None else name

    @property
    def _counts_leases(self) -> bool:
        """Whether leased items are remembered."""
        return self.limit < NO_LIMIT or (self.turns is not None and self.turns.by_time)

    def is_remembered(self, name: str, place: GroupPlace) -> bool:
        """Return whether an item is remembered in this place. Leases of items without a group lock nothing."""
        return place is not GroupPlace.LEASED or (self._counts_leases and not name.startswith(UNGROUPED))

    def add(self, name: str) -> Group:
        """Add a group that is not in memory."""
        group = self.by_name[name] = Group(name)
        if self.turns is not None:
            self.turns.add(group)
        return group

    def forget_all(self) -> None:
        """Forget all that is known, and leave the page that is being read. Reservations stay until their flush ends them."""
        self.by_name = {group.name: group for group in self.reserved.values()}
        for group in self.by_name.values():
            group.forget()
            group.heads = []
            group.noted_runs = ()
        self.ungrouped.forget_all()
        self.touched = dict.fromkeys(self.by_name.values())
        self.page = None

    # ----------------------------------------------------------------- check

    def check(self) -> None:
        """Assert what is always true between two flushes, as far as memory alone shows it."""
        assert not self.touched, "groups were not settled"
        for name, group in self.by_name.items():
            assert group.name == name
            assert not group.is_empty, f"{name} is in memory for nothing"
            assert group.cut == ABOVE_ALL or group.cut < self.boundary
            for number in group.reserved:
                assert self.reserved.get(number) is group, f"invariant 23: the permit of {number} is lost"
        assert sorted(self.reserved) == sorted(n for group in self.by_name.values() for n in group.reserved)
        waiting = [*self.ungrouped.keys, *[key for group in self.by_name.values() for key in group.waiting]]
        assert max(waiting, default=BELOW_ALL) <= self.boundary, "an item above the boundary is known"
