"""An owner of a topic's groups that is made of the real parts: `LimitedTopic` and a ready index that holds its heads.

It does what a shard does. The table is that of `plain_groups`. Tests replace single methods, of the owner or of a part of its
topic, by planted mistakes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.core.groups.group import STRICT
from foqs.core.groups.group_page import GroupPage
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.groups.places import UNGROUPED, Placed, line_place
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.items.item import OrderKey, Row, TopicName, order_key_number, unpack_order_key
from foqs.core.memory.ready_index import ReadyIndex
from tests.support import builders
from tests.support.group_differences import differences_of_groups
from tests.support.plain_groups import Key, PlainItem, Table, write

TOPIC: Final[TopicName] = ("namespace", "topic")
INDEX_KEYS_MAX: Final = 10_000


@dataclass(slots=True, eq=False)
class CoreRead:
    """A page that is being read. `rows`: what it shows; None: it shows the table as it is at its end."""

    page: GroupPage
    rows: list[Row] | None


class CoreGroupOwner:
    """The owner. It checks nothing, so that histories must find mistakes."""

    mistakes: Sequence[type] = ()
    """Classes of parts of the topic, in place of theirs."""
    page_rows = 2

    def __init__(
        self, table: Table, limit: int, units_max: int, keys_max: int = 9, turns: TopicTurns | None = None
    ) -> None:
        self.table = table
        self.limited = LimitedTopic(limit, units_max, keys_max, turns)
        for mistake in self.mistakes:
            _replace_part(self.limited, mistake)
        self.groups, self.pages, self.room = self.limited.groups, self.limited.pages, self.limited.room
        self.index = ReadyIndex(INDEX_KEYS_MAX, INDEX_KEYS_MAX)
        self.index.set_source(TOPIC, self.limited.heads, self.groups.boundary)
        self.read: CoreRead | None = None
        self.reserved: set[int] = set()
        self.superseded: list[int] = []
        """Items whose leases a flush must end, because the first read has found them behind returned ones."""
        self.reads_begun = 0

    def window(self) -> list[OrderKey]:
        return self.index.peek(TOPIC, INDEX_KEYS_MAX)

    def heads(self) -> list[tuple[Key, str]]:
        """Return the first head of each group in the window, in order."""
        heads: dict[str, Key] = {}
        for key in self.window():
            item = self.table.get(order_key_number(key))
            heads.setdefault("a row that is gone" if item is None else item.group, unpack_order_key(key))
        return sorted((key, name) for name, key in heads.items())

    # ----------------------------------------------------------------- deliver

    def reserve_best(self, run_max: int = 1) -> list[int]:
        if run_max == 1 or self.groups.limit != STRICT:
            keys = self.index.reserve(TOPIC, 1)
        else:
            keys = self.index.reserve_run(TOPIC, run_max)
        numbers = [order_key_number(key) for key in keys]
        self.reserved.update(numbers)
        return numbers

    def behind(self, number: int) -> list[int]:
        """Return the known leased items behind one, whose lease ends early."""
        run = self.limited.strict_items.leased_runs.get(number, (number,))
        return [*run[run.index(number) + 1 :]]

    def give_back(self, numbers: Iterable[int]) -> None:
        self.end_reservations(list(numbers))
        self.settle()

    def end_reservations(self, numbers: Collection[int]) -> None:
        self.index.confirm_reservations(numbers)
        self.reserved.difference_update(numbers)

    # ------------------------------------------------------------------- flush

    def commit(self, changes: Mapping[int, PlainItem | None], leased: Collection[int] = ()) -> None:
        """Write rows, and then follow them. `leased` are reservations that end with this flush, delivered or not."""
        before = {number: self.table.get(number) for number in changes}
        is_purge = len(changes) > 1 and not any(changes.values()) and len(changes) == len(self.table)
        write(self.table, changes)
        if is_purge:
            self.limited.purge()
        else:
            for number, new in changes.items():
                item = new or before[number]
                if item is not None:
                    if self.groups.limit == STRICT:
                        self.limited.strict_items.note_row(None, None if new is None else row_of(new))
                    self.groups.follow(item.group, self.placed(before[number]), self.placed(new))
        # The permits of leased items return after their rows have changed: the order is free.
        self.end_reservations(leased)
        self.settle()

    def placed(self, item: PlainItem | None) -> Placed | None:
        return None if item is None else line_place(row_of(item), is_strict=self.groups.limit == STRICT)

    def settle(self) -> None:
        """Let the window follow the heads."""
        changes = self.limited.settle()
        self.superseded += [event.id for event in self.limited.strict_items.take_superseded()]
        self.index.set_heads(TOPIC, changes.removed, changes.added, changes.boundary, is_reset=changes.is_reset)

    def set_limit(self, limit: int) -> None:
        self.limited.set_limit(limit)
        self.settle()

    # ------------------------------------------------------------------- reads

    def start_read(self) -> bool:
        """Begin to read a page, if one is needed. Every third one shows the table as it is at its end."""
        page = self.pages.start_page(self.page_rows)
        if page is None:
            return False
        self.reads_begun += 1
        self.read = CoreRead(page, None if self.reads_begun % 3 == 0 else self.rows_of(page))
        return True

    def finish_read(self) -> None:
        assert self.read is not None
        read, self.read = self.read, None
        self.pages.finish_page(read.page, self.rows_of(read.page) if read.rows is None else read.rows)
        self.settle()

    def rows_of(self, page: GroupPage) -> list[Row]:
        rows = [row_of(item) for item in self.table.values() if item.state is page.state]
        return sorted([row for row in rows if row.order_key > page.after], key=key_of)[: page.rows_max]

    def read_all(self) -> None:
        """Read until no page is needed for what is in memory, and a head is known if there is one."""
        for _ in range(10_000):
            if not self.window():
                self.pages.request_more()
            if self.read is not None or self.start_read():
                self.finish_read()
            elif self.window() or self.pages.next_kind is None:
                return
        raise AssertionError("it reads without end")


class CheckedCoreGroupOwner(CoreGroupOwner):
    """An owner that also compares its memory with the table whenever it has changed."""

    def settle(self) -> None:
        super().settle()
        self.check()

    def reserve_best(self, run_max: int = 1) -> list[int]:
        taken = super().reserve_best(run_max)
        self.check()
        return taken

    def check(self) -> None:
        self.limited.check()
        self.index.check()
        heads = self.limited.heads.window_heads()
        assert self.window() == heads, f"invariant 13: the window has {self.window()}, and the heads are {heads}"
        if self.groups.is_read:
            rows = [row_of(item) for item in self.table.values()]
            differences = [*differences_of_groups(self.groups, rows)]
            assert not differences, differences


def owner_with(mistake: type) -> type[CoreGroupOwner]:
    """Return an owner with a mistake, which checks nothing itself: the histories must find it."""
    if issubclass(mistake, CoreGroupOwner):
        return mistake
    return type(mistake.__name__, (CoreGroupOwner,), {"mistakes": (mistake,)})


def _replace_part(limited: LimitedTopic, mistake: type) -> None:
    """Make an object of this class of the part of a topic that it inherits from, or of the topic itself."""
    parts = (limited, limited.groups, limited.heads, limited.strict_items, limited.room, limited.pages)
    [part] = [each for each in parts if issubclass(mistake, type(each))]
    part.__class__ = mistake


def row_of(item: PlainItem) -> Row:
    return builders.row(
        item.number,
        item_group=None if item.group == UNGROUPED else item.group.encode(),
        priority=item.priority,
        deliver_after_ms=item.after,
        state=item.state,
        attempt=item.attempt,
        token=item.token,
    )


def key_of(row: Row) -> OrderKey:
    return row.order_key
