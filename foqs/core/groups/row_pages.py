"""The pages of rows that fill the groups of one topic from the store: which is read next, and what it adds.

First all items that were delivered are read, then pages of waiting ones. A *refill* begins at the boundary of the topic, and
raises it. A *look-up* begins at the cut of a long group that has few known items left, and raises all cuts that lie within the
page; so look-ups sweep over the topic, and serve all groups on their way. Refills and look-ups take turns. The boundary of a fair
topic is also raised without demand, as long as there is room.

Always true: one page at a time. What flushes change while it is read is noted in it, and nothing else is remembered from page
to page but the boundary, the cuts, and how far the first read has come. Knows no table and no window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foqs.core.groups.group import ABOVE_ALL, BELOW_ALL, STRICT, Group
from foqs.core.groups.group_page import GroupPage, PageKind
from foqs.core.groups.group_room import GroupRoom
from foqs.core.groups.places import UNGROUPED, GroupPlace
from foqs.core.groups.strict_items import StrictItems
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.groups.topic_heads import TopicHeads
from foqs.core.items.item import OrderKey, Row, State


class RowPages:
    """The pages of one topic.

    Attributes:
        starved: groups that nothing holds back, and that know no item, so that a look-up finds their heads.
    """

    def __init__(self, groups: TopicGroups, heads: TopicHeads, strict_items: StrictItems, room: GroupRoom) -> None:
        self.starved: Final[dict[Group, None]] = {}
        self._groups: Final = groups
        self._heads: Final = heads
        self._strict_items: Final = strict_items
        self._room: Final = room
        self._swept_to: OrderKey = BELOW_ALL
        """Where the last look-up has ended. The next one begins here, or at the next cut of a short group."""
        self._short: Final[dict[Group, None]] = {}
        """Groups with a cut that have few known items left. The starved ones are among them."""
        self._unfilled: Final[dict[Group, None]] = {}
        """Groups whose cut is where the last look-up has ended, and that know fewer items than they may."""
        self._is_low = False
        """Whether more heads are wanted than are known."""
        self._is_wanted = False
        """Whether any were ever wanted."""
        self._last_kind = PageKind.DELIVERED

    # ---------------------------------------------------------------- demand

    def request_more(self) -> None:
        """Have more heads read: a dequeue wants more than are known."""
        self._is_low = self._is_wanted = True

    def sort(self, group: Group, keys_max: int, *, backs_off: bool) -> None:
        """Note what look-ups may do for a group that has changed. One that backs off, or has no cut, needs none.

        Args:
            keys_max: how many waiting items of it may be known.
        """
        is_long = group.cut < ABOVE_ALL and not backs_off
        is_short = is_long and len(group.waiting) * 4 < keys_max
        if is_short:
            self._short[group] = None
        else:
            self._short.pop(group, None)
        if is_short and not group.waiting and not group.is_held:
            self.starved[group] = None
        else:
            self.starved.pop(group, None)
        if is_long and group.cut == self._swept_to and len(group.waiting) < keys_max:
            self._unfilled[group] = None
        else:
            self._unfilled.pop(group, None)

    def forget_all(self) -> None:
        """Forget what look-ups may do: all groups were forgotten."""
        for each in (self._short, self.starved, self._unfilled):
            each.clear()

    @property
    def _is_eager(self) -> bool:
        """Whether the boundary is raised although no dequeue wants more: other groups of a fair topic wait above it.

        With the room that is left, the next items do not lower it again at once.
        """
        room = self._room
        return self._groups.turns is not None and self._is_wanted and room.units * 4 < room.units_max * 3

    @property
    def reads_ahead(self) -> bool:
        """Whether the boundary is being raised although no dequeue wants more."""
        groups = self._groups
        return groups.is_read and self._is_eager and groups.boundary < ABOVE_ALL and not self._room.is_full

    @property
    def next_kind(self) -> PageKind | None:
        """What the next page is read for; None if none is needed. Refills and look-ups take turns."""
        groups, room = self._groups, self._room
        if groups.page is not None:
            return None
        if not groups.is_read:
            has_begun = groups.read_to > BELOW_ALL or groups.unread_states != groups.delivered_states()
            # A memory that is full of held groups waits for them to end, but not if they wait for the read.
            may_go_on = room.units < room.units_max or not self._heads.group_of
            return PageKind.DELIVERED if (self._is_low or has_begun) and may_go_on else None
        wants_refill = self.reads_ahead or (self._is_low and groups.boundary < ABOVE_ALL and not room.is_full)
        if (self._short or self._unfilled) and not (wants_refill and self._last_kind is PageKind.LOOKUP):
            return PageKind.LOOKUP
        return PageKind.REFILL if wants_refill else None

    # ----------------------------------------------------------------- pages

    def start_page(self, rows_max: int) -> GroupPage | None:
        """Return the page to read next, of at most `rows_max` rows. `finish_page` or `cancel_page` ends it."""
        groups, room, kind = self._groups, self._room, self.next_kind
        if kind is None:
            return None
        state, after = State.READY, groups.boundary
        if kind is PageKind.DELIVERED:
            state, after = groups.unread_states[0], groups.read_to
        elif kind is PageKind.LOOKUP:
            after = self._next_cut()
        else:
            self._is_low = False
            # It does not fill the memory, whatever its rows are.
            rows_max = max(1, min(rows_max, room.units_max - room.units))
        self._last_kind = kind
        groups.page = GroupPage(kind, state, after, rows_max)
        return groups.page

    def _next_cut(self) -> OrderKey:
        """Return where the next look-up begins."""
        if self._unfilled:
            return self._swept_to
        cuts = [group.cut for group in self._short]
        return min([cut for cut in cuts if cut >= self._swept_to], default=min(cuts))

    def finish_page(self, page: GroupPage, rows: Sequence[Row]) -> None:
        """Use a page, between two flushes, when all commits are known. `LimitedTopic.settle` follows.

        Args:
            rows: what the page shows, as it was at some moment since the read began: all that there was, if they are
                fewer than its `rows_max`.
        """
        groups = self._groups
        if page is not groups.page:
            return
        if page.is_void:
            self.cancel_page(page)
            return
        groups.page = None
        end = page.end(rows)
        if page.kind is PageKind.DELIVERED:
            self._add_delivered(page, rows, end)
        elif page.kind is PageKind.LOOKUP:
            self._raise_cuts(page, rows, min(end, groups.boundary))
        else:
            self._raise_boundary(page, rows, end)

    def cancel_page(self, page: GroupPage) -> None:
        """End a read that failed, or is void. It will be made again."""
        if page is self._groups.page:
            self._groups.page = None
            if page.kind is PageKind.REFILL:
                self._is_low = True

    def _add_delivered(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        """Add the delivered items of a page. Behind the last one, all are known."""
        groups = self._groups
        is_strict = groups.limit == STRICT
        if is_strict and page.state is not State.LEASED:
            for row in rows:
                if not page.is_changed(row.id):
                    self._strict_items.note_row(None, row)
        for row_name, placed in page.unchanged(rows, is_strict=is_strict):
            name = groups.own_name(row_name, placed[1])
            if placed[0] is not GroupPlace.WAITING and groups.is_remembered(name, placed[0]):
                group = groups.by_name.get(name) or groups.add(name)
                group.add(placed)
                groups.touched[group] = None
        # Returned items that a flush has changed may be offered now, too.
        changed = page.changed_names()
        groups.touched.update([(groups.by_name[name], None) for name in changed if name in groups.by_name])
        groups.read_to = end
        if end == ABOVE_ALL:
            groups.read_to = BELOW_ALL
            del groups.unread_states[0]
            if not groups.unread_states:
                groups.is_read = True
                self._strict_items.find_superseded()
                # No item waits at or below the boundary, so only returned ones are heads.
                groups.touched.update([(group, None) for group in groups.by_name.values() if group.returned])

    def _raise_cuts(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        """Raise the cuts that lie within the page, of short groups and of those that have items there."""
        groups = self._groups
        keys: dict[str, list[OrderKey]] = {}
        for name, key in page.waiting(rows, end, is_strict=groups.limit == STRICT):
            keys.setdefault(groups.own_name(name, key), []).append(key)
        found = dict.fromkeys([*self._short, *self._unfilled])
        found.update([(groups.by_name[name], None) for name in keys if name in groups.by_name])
        self._swept_to = end
        groups.touched.update(self._unfilled)
        for group in found:
            if page.after <= group.cut < end:
                cut, group.cut = group.cut, ABOVE_ALL if end >= groups.boundary else end
                for key in keys.get(group.name, ()):
                    if key > cut:
                        group.add((GroupPlace.WAITING, key))
                groups.touched[group] = None

    def _raise_boundary(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        """Add the waiting items of a page. Long groups read them later."""
        groups = self._groups
        for row_name, key in page.waiting(rows, end, is_strict=groups.limit == STRICT):
            name = groups.own_name(row_name, key)
            if name == UNGROUPED:
                groups.ungrouped.add(key)
                continue
            group = groups.by_name.get(name) or groups.add(name)
            group.add((GroupPlace.WAITING, key))
            groups.touched[group] = None
        groups.boundary = end

    # ----------------------------------------------------------------- check

    def check(self) -> None:
        """Assert that look-ups are for groups in memory, and that unfilled ones have their cuts where the last one has ended."""
        for group in (*self._short, *self.starved, *self._unfilled):
            assert self._groups.get(group.name) is group, f"{group.name} is short, and not in memory"
        assert all(group.cut == self._swept_to < ABOVE_ALL for group in self._unfilled)
