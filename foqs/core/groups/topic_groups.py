"""The groups of one topic in memory, from which the heads of the topic follow.

A fair topic has `TopicTurns`: each group offers one item, and the turn of the group stands in the key of its head in place of
the time. All heads are offered, whatever the boundary is, and the boundary is raised as long as there is room. An item without
a group is a group of its own.

Always true between two flushes, once the rows of delivered items were read (`is_read`):

- All items that were delivered and are not settled are in memory, and so are all reserved ones. Their groups are *held*.
- So are all waiting items up to the boundary, but for those of a long group above its cut.

So a group that is not in memory holds no permit, and no item of it waits at or below the boundary: a new one there comes first
in its group, and needs no read. Pages of rows in the order of delivery raise the boundary. If the memory is full, the boundary
falls. If held groups alone fill it, the topic is *full*: nothing is delivered of other groups until some have ended. No head,
permit or turn is stored. Knows no window and no table; see docs/design/groups.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from itertools import islice
from typing import Final

from foqs.core.groups.group import ABOVE_ALL, BELOW_ALL, KEYS_PER_UNIT, NO_LIMIT, STRICT, Group
from foqs.core.groups.group_page import GroupPage, PageKind
from foqs.core.groups.places import UNGROUPED, GroupPlace, Placed, group_name, run_key, token_of
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.groups.ungrouped_items import UngroupedItems
from foqs.core.items.item import NUMBER_MAX, OrderKey, Row, State, unpack_order_key, with_turn

GROUP_KEYS_MAX: Final = 64
"""Waiting items of one group in memory, or as many as the limit if that is more. Others are read when a quarter of them is left."""
FAIR_KEYS_MAX: Final = 1_000
"""The same for a fair topic of few groups: two pages, so that a group with very many items reads each row about once."""
_PARKED_KEYS_MAX: Final = KEYS_PER_UNIT - 1
"""The same for a group that backs off, if the memory is full: these items take no unit."""
_ROOM_PART: Final = 8
"""A memory that is full gives up this part of itself, so that it is not full again soon."""


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


class TopicGroups:
    """The groups of one topic.

    After each flush, read or end of reservations, `settle` returns how the heads have changed.

    Args:
        limit: how many items of a group may be leased at once; 1: strict order.
        units_max: the memory for groups, in units; see `Group.count_units`. Held groups may exceed it. It may be changed,
            and counts from the next `settle` on.
        keys_max: waiting items of one group in memory, if the limit is not higher. In a fair topic less, if there are many groups.
        turns: of a fair topic. `limit` may be `NO_LIMIT` then.
    """

    def __init__(
        self, limit: int, units_max: int, keys_max: int = GROUP_KEYS_MAX, turns: TopicTurns | None = None
    ) -> None:
        self.limit = limit
        self.units_max = units_max
        self.turns: Final = turns
        self._group_units = 0
        """What the groups took when they were settled last."""
        self._loose_units = 0
        """How much of it would be free if all waiting items were forgotten."""
        self.is_full = False
        """Whether the memory is full, so that no other group is read until some of these have ended."""
        self.prefetched_left = 0
        """Of a fair topic, how many of the prefetched items were not reserved yet, about."""
        self.forgotten_groups = 0
        """Groups that have left the memory because it was full."""
        self.boundary: OrderKey = BELOW_ALL
        """All waiting items up to this key are known."""
        self._keys_max: Final = keys_max
        self._states = self._states_to_read()
        """The states of which rows of delivered items are still to be read."""
        self.is_read = not self._states
        """Whether the rows of delivered items were read. Only returned ones are delivered before; see `offer`."""
        self._after: OrderKey = BELOW_ALL
        """Up to which key the rows of the first of these states were read."""
        self._groups: dict[str, Group] = {}
        self._head_groups: dict[OrderKey, Group] = {}
        """The group of each head."""
        self._ungrouped = UngroupedItems()
        self._reserved: dict[int, Group] = {}
        """The group of each reserved item, by its number."""
        self.leased_runs: dict[int, tuple[int, ...]] = {}
        """The run of each leased item of a strict group, by its number: those that have more than one."""
        self.backoff_ends: dict[int, int] = {}
        """When the items that back off in strict groups are READY again, by number: the keys have their places."""
        self._ended: dict[tuple[str, int], OrderKey] = {}
        """While delivered items are read: the first item of each run of a strict group, by group and token, that came back."""
        self._superseded: dict[int, int] = {}
        """Leased items, and their tokens, that this read has found behind one of their run that came back."""
        self._touched: dict[Group, None] = {}
        """Groups whose heads may have changed since they were settled."""
        self._short: dict[Group, None] = {}
        """Groups with a cut that have few known items left."""
        self._starved: dict[Group, None] = {}
        """Those of them that nothing holds back, and that know no item."""
        self._swept_to: OrderKey = BELOW_ALL
        """Where the last look-up has ended. The next one begins here, or at the next cut of a short group."""
        self._unfilled: dict[Group, None] = {}
        """Groups whose cut is there, and that know fewer items than they may."""
        self._parked: dict[Group, None] = {}
        """Groups that wait for the end of a backoff, and whose waiting items take memory."""
        self._is_low = False
        """Whether more heads are wanted than are known."""
        self._is_wanted = False
        """Whether any were ever wanted."""
        self._page: GroupPage | None = None
        """The page that is being read."""
        self._last_kind = PageKind.DELIVERED
        self._changes: dict[OrderKey, bool] = {}
        """Keys that have become heads since `settle`, or are none any more."""
        self._above: set[OrderKey] = set()
        """Heads above the end of the window: of groups with returned items."""
        self._window_end: OrderKey = BELOW_ALL
        self._is_reset = False

    def __len__(self) -> int:
        return len(self._groups)

    def __bool__(self) -> bool:
        return len(self) > 0

    # --------------------------------------------------------------- queries

    def get(self, name: str) -> Group | None:
        """Return what is known of a group; None if it is not in memory."""
        return self._groups.get(name)

    def groups(self) -> list[Group]:
        """Return the groups in memory."""
        return [*self._groups.values()]

    def some_groups(self, groups_max: int) -> list[Group]:
        """Return at most this many groups in memory. In a fair topic, items without a group are among them."""
        return [*islice(self._groups.values(), groups_max)]

    @property
    def is_partial(self) -> bool:
        """Whether the topic may have READY items that are not in memory, apart from those above the cuts of groups."""
        return not self.is_read or self.boundary < ABOVE_ALL

    @property
    def is_unread(self) -> bool:
        """Whether no waiting item was read yet."""
        return not self.is_read or self.boundary == BELOW_ALL

    def ungrouped_keys(self) -> Sequence[OrderKey]:
        """Return the keys of the known waiting items without a group, in order."""
        return self._ungrouped.keys

    def window_heads(self) -> list[OrderKey]:
        """Return what must be in the window now, in order."""
        return sorted(key for key in (*self._head_groups, *self._ungrouped.heads()) if key <= self._window_end)

    def holders(self, name: str, key: OrderKey) -> list[int] | None:
        """Return what holds a READY item back; see `Group.holders`. An empty list: there is no room for it, or for its group."""
        group = self._groups.get(self._own_name(name, key))
        found = None if group is None else group.holders(key, self.limit)
        is_head = key in self._head_groups or (group is not None and bool(group.heads) and group.first == key)
        if found is not None or not self.is_full or is_head or key in self._ungrouped:
            return found
        return [] if group is None or not self.is_read else None

    def place_in_turn(self, name: str, key: OrderKey) -> tuple[OrderKey | None, int]:
        """Return where a READY item of a fair topic waits: the head of its group, and how many known items of the group come before it.

        None: the group offers nothing, or is not known yet.
        """
        group = self._groups.get(self._own_name(name, key))
        return (None, 0) if group is None or not group.heads else (group.heads[0], group.items_before(key))

    def items_before(self, name: str, key: OrderKey) -> int | None:
        """Return how many known READY items of its group come before a READY item; None if its group is not in memory."""
        group = self._groups.get(self._own_name(name, key))
        return None if group is None else group.items_before(key)

    def oldest_ms(self, groups_max: int) -> int | None:
        """Return the lowest deliver_after_ms of known READY items, also of those that their group holds back.

        Examines the first items of at most `groups_max` groups, so the result is approximate.
        """
        first = [*self._ungrouped.keys[:1]]
        for group in islice(self._groups.values(), groups_max):
            first += [*group.waiting[:1], *group.returned[:1]]
        return min((unpack_order_key(key)[1] for key in first), default=None)

    # -------------------------------------------------------------- delivery

    @property
    def takes_turns(self) -> bool:
        """Whether a reserved head may be followed by the next one of its group at once."""
        return self.turns is not None

    @property
    def gives_runs(self) -> bool:
        """Whether a head may be reserved together with items behind it: the groups are strict."""
        return self.limit == STRICT

    def reserve(self, order_keys: Iterable[OrderKey]) -> None:
        """Take the permits of heads that a dequeue has reserved."""
        for key in order_keys:
            group = self._head_groups.pop(key, None)
            if group is not None:
                group.heads.remove(key)
                self._take_permit(group, key)
            elif key in self._ungrouped:
                self._ungrouped.reserved[key & NUMBER_MAX] = key

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
            group = self._head_groups.pop(key, None)
            if group is not None and self.turns is not None:
                for head in self._take_turn(group, self.turns):
                    heappush(following, head)
        following.sort()
        return reserved, used, following

    def reserve_run(self, head: OrderKey, items_max: int, is_free: Callable[[int], bool]) -> list[OrderKey]:
        """Reserve a head of a strict group, and the items of its run behind it. Return all of them, in order.

        A run ends before an item of which something waits to be written: its lease would come later than those behind it.
        """
        group = self._head_groups.pop(head, None)
        if group is None:
            self.reserve((head,))
            return [head]
        run = group.run(items_max) if self.is_read and self.limit == STRICT else group.run(1)
        size = next((size for size, key in enumerate(run) if not is_free(key & NUMBER_MAX)), len(run))
        behind = run[1:size]
        if self.turns is None:
            group.heads.remove(head)
            self._take_permit(group, head)
        else:
            self._take_turn(group, self.turns, 1 + len(behind))
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
            self._head_groups[head] = group
        return group.heads

    def _fair_heads(self, group: Group) -> list[OrderKey]:
        """Return what a group of a fair topic offers: one head at most."""
        first = group.next_item(self.limit) if self.is_read else next(iter(self.offer(group)), None)
        if first is None:
            return []
        group.first = first
        return [with_turn(first, group.turn)]

    def waited_s(self, head: OrderKey) -> float | None:
        """Return how long the group of a head has waited for its turn; None if there is no such head, or no turn."""
        group = self._head_groups.get(head)
        return None if group is None or self.turns is None else self.turns.waited_s(group)

    def upcoming(self, heads: Iterable[OrderKey]) -> Iterator[tuple[OrderKey, OrderKey]]:
        """Yield the known items of a fair topic in turn, as if nothing else changed: each as (its key as a head, its key).

        Args:
            heads: the first heads in order. No item of another group comes before the last of them.
        """
        turns = self.turns
        if turns is None:
            return
        served = turns.served
        line = [(head, 0, self._head_groups[head]) for head in heads if head in self._head_groups]
        while line:
            head, place, group = line[0]
            offer = group.waiting if self.limit == NO_LIMIT else group.offer(self.limit)
            yield head, offer[place] if place else group.first
            place, turn = place + 1, unpack_order_key(head)[1]
            served = max(served, turn)
            if place < len(offer) and self.is_read:
                turn = turns.next_turn(group.name, turn, served)
                heapreplace(line, (with_turn(offer[place], turn), place, group))
            else:
                heappop(line)

    def end_reservations(self, numbers: Iterable[int]) -> None:
        """Return permits: reservations were given back, or a flush has settled them. What they are now, rows say."""
        for number in numbers:
            group = self._reserved.pop(number, None)
            if group is not None:
                group.end_reservation(number, self.boundary)
                self._touched[group] = None
            elif (key := self._ungrouped.end_reservation(number)) is not None:
                self._changes[key] = True

    def _take_permit(self, group: Group, key: OrderKey) -> None:
        group.reserve(key)
        self._reserved[key & NUMBER_MAX] = group

    # ------------------------------------------------------------ after a flush

    def follow(self, name: str, old: Placed | None, new: Placed | None) -> None:
        """Give one changed row, before and after, to its group. In any order within a flush; `settle` comes at its end."""
        if self.turns is not None:
            placed = old or new
            name = name if placed is None else self._own_name(name, placed[1])
            new = None if new is not None and not self._is_remembered(name, new[0]) else new
        if self._page is not None:
            self._page.note(name, old, new)
        if name == UNGROUPED:
            self._follow_ungrouped(old, new)
            return
        if new is None and old is not None and not self._is_remembered(name, old[0]):
            return
        group = self._groups.get(name)
        if old is not None and group is not None:
            group.discard(old)
        if new is not None and (new[0] is not GroupPlace.WAITING or new[1] <= self.boundary):
            group = group or self._add_group(name)
            group.add(new)
        if group is not None:
            self._touched[group] = None

    def note_row(self, old: Row | None, new: Row | None) -> None:
        """Note what places do not say of a changed row in a topic with strict groups: when it is READY again, and that it came back."""
        if old is not None and old.state is State.DEFERRED:
            self.backoff_ends.pop(old.id, None)
        if new is None or not new.attempt or new.item_group is None:
            return
        if new.state is State.DEFERRED:
            self.backoff_ends[new.id] = new.ready_at_ms
        if not self.is_read and new.token and new.state in (State.DEFERRED, State.READY):
            self._note_ended(new)

    def _note_ended(self, row: Row) -> None:
        """Note that an item came back, if others of its run may still be leased."""
        name, key = group_name(row), run_key(row)
        token = token_of(key)
        if State.LEASED not in self._states:
            group = self._groups.get(name)
            if group is None or not group.has_leased(token):
                return
        self._ended[name, token] = min(key, self._ended.get((name, token), key))

    def _add_group(self, name: str) -> Group:
        group = self._groups[name] = Group(name)
        if self.turns is not None:
            self.turns.add(group)
        return group

    def _own_name(self, name: str, key: OrderKey) -> str:
        """Return the name under which the group of an item is known. In a fair topic, an item without one is a group."""
        return f"{UNGROUPED}{key & NUMBER_MAX}" if name == UNGROUPED and self.turns is not None else name

    @property
    def _counts_leases(self) -> bool:
        """Whether leased items are remembered."""
        return self.limit < NO_LIMIT or (self.turns is not None and self.turns.by_time)

    def _is_remembered(self, name: str, place: GroupPlace) -> bool:
        """Return whether an item is remembered in this place. Leases of items without a group lock nothing."""
        return place is not GroupPlace.LEASED or (self._counts_leases and not name.startswith(UNGROUPED))

    def _follow_ungrouped(self, old: Placed | None, new: Placed | None) -> None:
        """Follow an item without a group. Leases lock nothing, and are not remembered."""
        if old is not None and old[0] is GroupPlace.WAITING:
            self._ungrouped.discard(old[1])
            self._changes[old[1]] = False
        if new is not None and new[0] is GroupPlace.WAITING and new[1] <= self.boundary:
            self._add_ungrouped(new[1])

    def _add_ungrouped(self, key: OrderKey) -> None:
        if self._ungrouped.add(key):
            self._changes[key] = True

    def purge(self) -> None:
        """Forget all groups: the topic has no rows any more. Reservations stay until their flush ends them."""
        self._forget_all()
        self.is_read, self.boundary = True, ABOVE_ALL

    def set_limit(self, limit: int) -> None:
        """Follow the topic's policy. Leases and reservations stay. Strict order needs other reads, so it forgets all groups."""
        has_other_places = (limit == STRICT) != (self.limit == STRICT) or (limit == NO_LIMIT) != (
            self.limit == NO_LIMIT
        )
        self.limit = limit
        if has_other_places:
            self._forget_all()
            self._states, self._after = self._states_to_read(), BELOW_ALL
            self.is_read, self.boundary = not self._states, BELOW_ALL
        else:
            self._touched = dict.fromkeys(self._groups.values())

    def _states_to_read(self) -> list[State]:
        """Return the states in which rows of delivered items hold their group."""
        if self.limit == STRICT:
            return [State.LEASED, State.DEFERRED, State.READY]
        return [State.LEASED] if self._counts_leases else []

    def _forget_all(self) -> None:
        """Forget all that is known, and make the read under way void."""
        kept = {group.name: group for group in self._reserved.values()}
        self._groups = kept
        self.leased_runs.clear()
        self.backoff_ends.clear()
        self._ended.clear()
        self._superseded.clear()
        for group in kept.values():
            group.forget()
            group.heads = []
            group.noted_runs = ()
        self._ungrouped.keys.clear()
        self._head_groups.clear()
        self._above.clear()
        self._changes.clear()
        for each in (self._short, self._starved, self._unfilled, self._parked):
            each.clear()
        self._touched = dict.fromkeys(kept.values())
        self._group_units = sum([group.units for group in kept.values()])
        self._loose_units = sum([group.loose_units for group in kept.values()])
        self._page = None
        self._is_reset = True

    # -------------------------------------------------------------- the heads

    def settle(self) -> HeadChanges:
        """Compute the heads of touched groups, and keep the bound of the memory. Return how the heads have changed."""
        self._settle_touched()
        if self.units > self.units_max and self._loose_units + self._ungrouped.units:
            self._make_room()
        self._note_full()
        if self.is_full and self._parked and self._loose_units * _ROOM_PART >= self.units_max:
            self._shorten_parked()
        return self._take_changes()

    def _note_full(self) -> None:
        self.is_full = self.units > self._units_target and (self.is_full or self.units >= self.units_max)

    def _shorten_parked(self) -> None:
        """Forget most waiting items of groups that back off: they take memory that other groups need sooner."""
        for group in self._parked:
            group.keep_first(_PARKED_KEYS_MAX)
        self._touched = dict.fromkeys(self._parked)
        self._settle_touched()
        self._note_full()

    def offer(self, group: Group) -> list[OrderKey]:
        """Return the items of a group that may be reserved now, in order.

        The read of delivered items ends with READY ones, in order. All others are known then, so a returned item that
        this read has passed is the first of its group.
        """
        if self.is_read:
            return group.offer(self.limit)
        if self._states != [State.READY]:
            return []
        return [key for key in group.offer(self.limit) if key <= self._after]

    @property
    def units(self) -> int:
        """The memory that was taken when the groups were settled last."""
        return self._group_units + self._ungrouped.units

    @property
    def _units_target(self) -> int:
        """How much memory is taken after room was made."""
        return min(self.units_max - self.units_max // _ROOM_PART, self.units_max - 1)

    def _settle_touched(self) -> None:
        keys_max = self._group_keys_max
        for group in self._touched:
            self._settle_group(group, keys_max)
        self._touched = {}

    def _settle_group(self, group: Group, keys_max: int) -> None:
        group.keep_first(keys_max)
        if group.cut >= self.boundary:
            group.cut = ABOVE_ALL
        heads, former = self._heads(group), group.heads
        if heads != former:
            new, gone = set(heads), set(former)
            for key in gone - new:
                del self._head_groups[key]
                self._changes[key] = False
            for key in new - gone:
                self._head_groups[key] = group
                self._changes[key] = True
            group.heads = heads
        if group.noted_runs or (len(group.leased) > 1 and self.limit == STRICT):
            self._note_runs(group)
        self._group_units -= group.units
        self._loose_units -= group.loose_units
        if group.is_empty:
            group.units = group.loose_units = 0
            del self._groups[group.name]
            if self.turns is not None:
                self.turns.remove(group)
            self._sort(group, is_short=False, is_starved=False, is_unfilled=False, is_parked=False)
            return
        group.units, group.loose_units = group.count_units()
        self._group_units += group.units
        self._loose_units += group.loose_units
        backs_off = bool(group.backing_off) and not heads
        is_long = group.cut < ABOVE_ALL and not backs_off
        is_short = is_long and len(group.waiting) * 4 < keys_max
        self._sort(
            group,
            is_short=is_short,
            is_starved=is_short and not group.waiting and not group.is_held,
            is_unfilled=is_long and group.cut == self._swept_to and len(group.waiting) < keys_max,
            is_parked=backs_off and len(group.waiting) > _PARKED_KEYS_MAX,
        )

    def _note_runs(self, group: Group) -> None:
        for run in group.noted_runs:
            for number in run:
                del self.leased_runs[number]
        group.noted_runs = group.leased_runs() if self.limit == STRICT else ()
        for run in group.noted_runs:
            self.leased_runs.update(dict.fromkeys(run, run))

    def take_superseded(self) -> dict[int, int]:
        """Return the leased items, and their tokens, that the read of delivered items has found behind ones that came back, once.

        Their leases are over: an item before them in their run ended early while nobody knew the group.
        """
        superseded, self._superseded = self._superseded, {}
        return superseded

    @property
    def _group_keys_max(self) -> int:
        """How many waiting items of a group may be known."""
        if self.turns is None:
            return max(self._keys_max, self.limit)
        share = KEYS_PER_UNIT * self.units_max // (2 * max(1, len(self._groups)))
        return min(self._keys_max, max(_PARKED_KEYS_MAX, share))

    def _heads(self, group: Group) -> list[OrderKey]:
        """Return the heads of a group. One that begins to wait gets its turn, and keeps it while it is locked."""
        turns = self.turns
        if turns is None:
            return self.offer(group)
        turns.account(group)
        heads = self._fair_heads(group)
        if heads and not group.is_waiting:
            turns.begin_wait(group)
            heads = [with_turn(group.first, group.turn)]
        elif not heads and not group.may_wait:
            group.is_waiting = False
        return heads

    def _sort(self, group: Group, *, is_short: bool, is_starved: bool, is_unfilled: bool, is_parked: bool) -> None:
        """Note what look-ups may do for a group, and whether it may do with fewer items."""
        for groups, is_in in (
            (self._short, is_short),
            (self._starved, is_starved),
            (self._unfilled, is_unfilled),
            (self._parked, is_parked),
        ):
            if is_in:
                groups[group] = None
            else:
                groups.pop(group, None)

    def _make_room(self) -> None:
        """Lower the boundary, and forget what waits above it. Held groups stay. In a fair topic, long groups give room first."""
        if self.turns is not None:
            keys_max = self._group_keys_max
            self._touched = {group: None for group in self._groups.values() if len(group.waiting) > keys_max}
            self._settle_touched()
            if self.units <= self._units_target:
                return
        # With each of these keys, one unit is given back.
        keys = self._ungrouped.keys[KEYS_PER_UNIT - 1 :: KEYS_PER_UNIT]
        for group in self._groups.values():
            if group.waiting and not group.is_held:
                keys.append(group.waiting[0])
            keys += group.waiting[KEYS_PER_UNIT - 1 :: KEYS_PER_UNIT]
        keys.sort()
        excess = min(self.units - self._units_target, len(keys))
        if excess:
            self.boundary = keys[-excess] - 1
        before = len(self._groups)
        self._changes.update(dict.fromkeys(self._ungrouped.forget_above(self.boundary), False))
        self._touched = {group: None for group in self._groups.values() if group.forget_above(self.boundary)}
        self._settle_touched()
        self.forgotten_groups += before - len(self._groups)
        if self._page is not None and self._page.kind is PageKind.REFILL:
            self._page.is_void = True  # it begins above the boundary

    def _take_changes(self) -> HeadChanges:
        """Return what has changed since the last call. A full topic offers the heads that it knows in any case."""
        end = ABOVE_ALL if self.is_full or self.turns is not None else self.boundary
        removed = [key for key, is_head in self._changes.items() if not is_head]
        new = [key for key, is_head in self._changes.items() if is_head]
        self._changes = {}
        self._above.difference_update(removed)
        if end < self._window_end:
            self._above.update([key for key in self._head_groups if key > end])
        self._above.update([key for key in new if key > end])
        added = [key for key in new if key <= end]
        if end > self._window_end:
            found = [key for key in self._above if key <= end]
            self._above.difference_update(found)
            added += found
        self._window_end = end
        is_reset, self._is_reset = self._is_reset, False
        if end == ABOVE_ALL:
            is_unread = self.boundary < ABOVE_ALL and not self.is_full
            may_find_more = self._starved or not self.is_read or is_unread
            return HeadChanges(removed, sorted(set(added)), ABOVE_ALL - 1 if may_find_more else None, is_reset)
        return HeadChanges(removed, sorted(set(added)), end, is_reset)

    # ----------------------------------------------------------------- reads

    def request_more(self) -> None:
        """Have more heads read: a dequeue wants more than are known."""
        self._is_low = self._is_wanted = True

    @property
    def _is_eager(self) -> bool:
        """Whether the boundary is raised although no dequeue wants more: other groups of a fair topic wait above it.

        With the room that is left, the next items do not lower it again at once.
        """
        return self.turns is not None and self._is_wanted and self.units * 4 < self.units_max * 3

    @property
    def reads_ahead(self) -> bool:
        """Whether the boundary is being raised although no dequeue wants more."""
        return self.is_read and self._is_eager and self.boundary < ABOVE_ALL and not self.is_full

    @property
    def next_kind(self) -> PageKind | None:
        """What the next page is read for; None if none is needed. Refills and look-ups take turns."""
        if self._page is not None:
            return None
        if not self.is_read:
            has_begun = self._after > BELOW_ALL or self._states != self._states_to_read()
            # A memory that is full of held groups waits for them to end, but not if they wait for the read.
            may_go_on = self.units < self.units_max or not self._head_groups
            return PageKind.DELIVERED if (self._is_low or has_begun) and may_go_on else None
        wants_refill = self.reads_ahead or (self._is_low and self.boundary < ABOVE_ALL and not self.is_full)
        if (self._short or self._unfilled) and not (wants_refill and self._last_kind is PageKind.LOOKUP):
            return PageKind.LOOKUP
        return PageKind.REFILL if wants_refill else None

    def start_page(self, rows_max: int) -> GroupPage | None:
        """Return the page to read next, of at most `rows_max` rows. `finish_page` or `cancel_page` ends it."""
        kind = self.next_kind
        if kind is None:
            return None
        state, after = State.READY, self.boundary
        if kind is PageKind.DELIVERED:
            state, after = self._states[0], self._after
        elif kind is PageKind.LOOKUP:
            after = self._next_cut()
        else:
            self._is_low = False
            # It does not fill the memory, whatever its rows are.
            rows_max = max(1, min(rows_max, self.units_max - self.units))
        self._last_kind = kind
        self._page = GroupPage(kind, state, after, rows_max)
        return self._page

    def _next_cut(self) -> OrderKey:
        """Return where the next look-up begins. Look-ups sweep over the topic, so that each serves all groups on its way."""
        if self._unfilled:
            return self._swept_to
        cuts = [group.cut for group in self._short]
        return min([cut for cut in cuts if cut >= self._swept_to], default=min(cuts))

    def finish_page(self, page: GroupPage, rows: Sequence[Row]) -> None:
        """Use a page, between two flushes, when all commits are known. `settle` follows.

        Args:
            rows: what the page shows, as it was at some moment since the read began: all that there was, if they are
                fewer than its `rows_max`.
        """
        if page is not self._page:
            return
        if page.is_void:
            self.cancel_page(page)
            return
        self._page = None
        end = page.end(rows)
        if page.kind is PageKind.DELIVERED:
            self._add_delivered(page, rows, end)
        elif page.kind is PageKind.LOOKUP:
            self._raise_cuts(page, rows, min(end, self.boundary))
        else:
            self._raise_boundary(page, rows, end)

    def cancel_page(self, page: GroupPage) -> None:
        """End a read that failed, or is void. It will be made again."""
        if page is self._page:
            self._page = None
            if page.kind is PageKind.REFILL:
                self._is_low = True

    def _add_delivered(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        is_strict = self.limit == STRICT
        if is_strict and page.state is not State.LEASED:
            for row in rows:
                if not page.is_changed(row.id):
                    self.note_row(None, row)
        for row_name, placed in page.unchanged(rows, is_strict=is_strict):
            name = self._own_name(row_name, placed[1])
            if placed[0] is not GroupPlace.WAITING and self._is_remembered(name, placed[0]):
                group = self._groups.get(name) or self._add_group(name)
                group.add(placed)
                self._touched[group] = None
        # Returned items that a flush has changed may be offered now, too.
        self._touched.update([(self._groups[name], None) for name in page.changed_names() if name in self._groups])
        self._after = end
        if end == ABOVE_ALL:
            self._after = BELOW_ALL
            del self._states[0]
            if not self._states:
                self.is_read = True
                self._find_superseded()
                # No item waits at or below the boundary, so only returned ones are heads.
                self._touched.update([(group, None) for group in self._groups.values() if group.returned])

    def _find_superseded(self) -> None:
        for (name, token), key in self._ended.items():
            group = self._groups.get(name)
            if group is not None:
                self._superseded.update(dict.fromkeys(group.leased_behind(key), token))
        self._ended.clear()

    def _raise_cuts(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        """Raise the cuts that lie within the page, of short groups and of those that have items there."""
        keys: dict[str, list[OrderKey]] = {}
        for name, key in page.waiting(rows, end, is_strict=self.limit == STRICT):
            keys.setdefault(self._own_name(name, key), []).append(key)
        found = dict.fromkeys([*self._short, *self._unfilled])
        found.update([(self._groups[name], None) for name in keys if name in self._groups])
        self._swept_to = end
        self._touched.update(self._unfilled)
        for group in found:
            if page.after <= group.cut < end:
                cut, group.cut = group.cut, ABOVE_ALL if end >= self.boundary else end
                for key in keys.get(group.name, ()):
                    if key > cut:
                        group.add((GroupPlace.WAITING, key))
                self._touched[group] = None

    def _raise_boundary(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        """Add the waiting items of a page. Long groups read them later."""
        for row_name, key in page.waiting(rows, end, is_strict=self.limit == STRICT):
            name = self._own_name(row_name, key)
            if name == UNGROUPED:
                self._add_ungrouped(key)
                continue
            group = self._groups.get(name) or self._add_group(name)
            group.add((GroupPlace.WAITING, key))
            self._touched[group] = None
        self.boundary = end

    # ----------------------------------------------------------------- check

    def check(self) -> None:
        """Assert what is always true between two flushes, as far as memory alone shows it."""
        assert not self._touched, "groups were not settled"
        for name, group in self._groups.items():
            self._check_group(name, group)
        assert set(self._head_groups) == {key for group in self._groups.values() for key in group.heads}
        assert sorted(self._reserved) == sorted(n for group in self._groups.values() for n in group.reserved)
        assert self._group_units == sum([group.units for group in self._groups.values()])
        assert self._loose_units == sum([group.loose_units for group in self._groups.values()])
        assert self._above == {key for key in self._head_groups if key > self._window_end}
        runs = [run for group in self._groups.values() for run in group.noted_runs]
        assert self.leased_runs == {number: run for run in runs for number in run}
        waiting = [*self._ungrouped.keys, *[key for group in self._groups.values() for key in group.waiting]]
        assert max(waiting, default=BELOW_ALL) <= self.boundary, "an item above the boundary is known"
        others = [group.name for group in self._groups.values() if group.waiting and not group.is_held]
        assert self.units <= self.units_max or not others, (
            f"invariant 18: {self.units} units of {self.units_max} are taken"
        )
        for group in (*self._short, *self._starved, *self._unfilled, *self._parked):
            assert self._groups.get(group.name) is group, f"{group.name} is short, and not in memory"
        assert all(group.cut == self._swept_to < ABOVE_ALL for group in self._unfilled)

    def _check_group(self, name: str, group: Group) -> None:
        offer = self.offer(group) if self.turns is None else self._fair_heads(group)
        assert group.name == name
        runs = group.leased_runs() if self.limit == STRICT else []
        assert [*group.noted_runs] == runs, f"{name} has leased {runs}, and its topic knows {group.noted_runs}"
        assert not group.is_empty, f"{name} is in memory for nothing"
        assert group.cut == ABOVE_ALL or group.cut < self.boundary
        assert group.turn >= 0 and (self.turns is None or group.is_waiting or not group.heads)
        assert group.heads == offer, f"invariant 13: {name} has {group.heads}, and offers {offer}"
        for number in group.reserved:
            assert self._reserved.get(number) is group, f"invariant 23: the permit of {number} is lost"
        for key in group.heads:
            assert self._head_groups.get(key) is group, f"invariant 13: the group of the head {key} is unknown"
