"""Bugs to plant in a store that journals: what is laid over a read, and what an unknown outcome means.

Bugs of its core are planted in tests/unit/core/journal/test_flush_journal.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foqs.core.flush.fence import Owner
from foqs.core.items.item import Row, State, TopicName
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.touched_numbers import ReadsUnderWay, TouchedNumbers
from foqs.store.journaled import journaled_reads
from foqs.store.journaled.journal_memory import JournalMemory
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import TopicCount
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def written_rows_not_recorded() -> None:
    """A read does not know which rows flushes wrote meanwhile: a young item that is written back may be in no page."""

    def on_committed(self: ReadsUnderWay, touched: Mapping[int, DirtyItem | None]) -> None:
        pass

    plant(ReadsUnderWay, "on_committed", on_committed)


def rows_win() -> None:
    """A row that was read counts, whatever the journal says of its item."""

    def overlay(self: DirtyItems, row: Row) -> Row | None:
        return row

    plant(DirtyItems, "overlay", overlay)


def ready_items_without_rows_unread() -> None:
    """A refill finds no READY items that have no row."""
    former = DirtyItems.order_keys

    def order_keys(
        self: DirtyItems, topic: TopicName, state: State, after: Any, keys_max: int, purged_up_to: int = 0
    ) -> list[int]:
        return [] if state is State.READY else former(self, topic, state, after, keys_max, purged_up_to)

    plant(DirtyItems, "order_keys", order_keys)


def dirty_items_uncounted() -> None:
    """The counts after a takeover are those of the rows alone."""

    async def difference(numbers: Any, items: Any, markers: Any) -> list[TopicCount]:
        return []

    plant(journaled_reads, "_difference", difference)


def unknown_flush_forgotten() -> None:
    """A flush whose outcome was unknown, and which was committed, is not applied to the memory."""

    def resolve(self: JournaledStore, owner: Owner) -> None:
        self._planned, self._is_unresolved = None, False

    plant(JournaledStore, "_resolve", resolve)


def unknown_flush_applied() -> None:
    """A flush whose outcome was unknown is applied to the memory, whether it was committed or not."""

    def resolve(self: JournaledStore, owner: Owner) -> None:
        planned, self._planned, self._is_unresolved = self._planned, None, False
        if planned is not None:
            self.memory.apply(planned)

    plant(JournaledStore, "_resolve", resolve)


def stale_rows_count() -> None:
    """A row of a page counts although the journal has changed its item, or a flush has written it since."""

    def is_known(self: JournalMemory, number: int, touched: TouchedNumbers) -> bool:
        return False

    plant(JournalMemory, "is_known", is_known)


BUGS: Final[Mapping[str, Bug]] = {
    "journal-written-rows-not-recorded": Bug(written_rows_not_recorded, (10, 13, 15, 20), first_seed=15),
    "journal-rows-win": Bug(rows_win, (4, 5, 6, 13, 15, 20)),
    "journal-ready-items-unread": Bug(ready_items_without_rows_unread, (13, 15)),
    "journal-dirty-items-uncounted": Bug(dirty_items_uncounted, (15,)),
    "journal-unknown-flush-forgotten": Bug(unknown_flush_forgotten, (1, 2, 4, 15, 20)),
    "journal-unknown-flush-applied": Bug(unknown_flush_applied, (1, 2, 4, 15, 20)),
    "journal-stale-rows": Bug(stale_rows_count, (13, 15), 60, first_seed=47),
}
"""To be played with stores that journal."""
