"""Rows and journal together are the memory, and what a table would hold that is written through.

The rules of docs/design/journal.md, over random histories with an owner that dies after any statement.
Each rule has a planted mistake that breaks it, and each mistake must be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from tests.support.example_counts import examples
from tests.support.journal_histories import Count, History, play
from tests.support.plain_journal import PlainOwner, PlainRead
from tests.support.plain_journal_tables import FIRST_POSITION, Changed, Dirty, Flush, OwnerRow, Position, Value

HISTORIES: Final = examples(400)
PLANTED_HISTORIES_MAX: Final = 400
"""A planted mistake must be found within this many."""


class CommitsWithStatements(PlainOwner):
    commits_with_statements = True


@pytest.mark.parametrize("owner_type", [PlainOwner, CommitsWithStatements])
def test_rows_and_journal_are_the_memory_and_the_truth(owner_type: type[PlainOwner]) -> None:
    for seed in range(HISTORIES):
        difference = play(seed, owner_type)
        assert difference is None, difference


# ------------------------------------------------------------- planted mistakes


class TrimsAnyRow(PlainOwner):
    """A journal row is deleted when no living item needs it, wherever it lies."""

    def floor(self, flush: Flush) -> Position:
        return FIRST_POSITION

    def rows_to_trim(self, flush: Flush) -> list[Position]:
        living = {number for number, each in flush.dirty_after.items() if each.value is not None}
        rows = self.tables.journal
        return [place for place in self.journal if not any(event.number in living for event in rows[place])]


class ForgetsAckBeforeRow(PlainOwner):
    """The ack of an item may be trimmed although the item's row is still there."""

    def floor(self, flush: Flush) -> Position:
        living = [each.first for each in flush.dirty_after.values() if each.value is not None]
        return min(living, default=flush.position)


class ForgetsWriteBack(PlainOwner):
    """A write-back is not recorded."""

    def record_write_back(self, number: int, flush: Flush) -> None:
        pass


class ForgetsDirectWrite(PlainOwner):
    """A row of a dirty item is written directly, and that is not recorded."""

    def record_direct_write(self, number: int, flush: Flush) -> None:
        pass


class AcceptsAnyPredecessor(PlainOwner):
    """A flush does not ask for the flush before it."""

    def fence_matches(self, flush: Flush, row: OwnerRow) -> bool:
        return row.epoch == flush.position[0]


class LetsRowWin(PlainOwner):
    """A row that exists counts, although there are later events."""

    def overlay(self, number: int, value: Value | None) -> Value | None:
        return self.tables.rows.get(number, value)


class ForgetsWrittenBackItems(PlainRead):
    """A page does not have the items that got their rows while it was read."""

    def written_back_since(self, owner: PlainOwner) -> list[tuple[int, Value]]:
        return []


class StrandsItems(PlainOwner):
    read_type = ForgetsWrittenBackItems


class BelievedPage(PlainRead):
    """A page counts as it was read."""

    def counts(self, number: int, owner: PlainOwner) -> bool:
        return True


class BelievesPages(PlainOwner):
    read_type = BelievedPage


class ClearsMarkerEarly(PlainOwner):
    """A purge marker is cleared when its rows are deleted, although the journal has events that it covers."""

    def may_clear(self, topic: str, last: int, flush: Flush) -> bool:
        return not self._has_covered_rows(topic, last)


class LeavesRefusedItems(PlainOwner):
    """An item whose row is refused is not carried forward."""

    def carry_forward(self, number: int, each: Dirty, flush: Flush) -> None:
        pass


class CarriesWithoutPayload(PlainOwner):
    """An item is carried forward as a change, so its payload is trimmed."""

    def carry_forward(self, number: int, each: Dirty, flush: Flush) -> None:
        flush.events.append(Changed(number, each.value, each.base))
        each.first = flush.position


class BelievesTimers(PlainOwner):
    """A scan believes the timer entries of rows that are not current."""

    def entry_counts(self, number: int) -> bool:
        return self.value(number) is not None


class ForgetsDues(PlainOwner):
    """A scan does not find what is due of dirty items."""

    def remembered_dues(self) -> set[tuple[int, int]]:
        return set()


class RepeatsWithoutNewAttempt(History):
    """COMMIT travels with the statements, and the attempt of an unknown flush stays valid."""

    def raise_attempt(self) -> None:
        pass


class CountsTwice(History):
    """The rows are counted later than what they lack, so an item that got its row in between is in both."""

    def rows_to_count(self, count: Count) -> Mapping[int, Value]:
        return self.tables.rows


@pytest.mark.parametrize(
    "mistake",
    [
        TrimsAnyRow,
        ForgetsAckBeforeRow,
        ForgetsWriteBack,
        ForgetsDirectWrite,
        AcceptsAnyPredecessor,
        LetsRowWin,
        StrandsItems,
        BelievesPages,
        ClearsMarkerEarly,
        LeavesRefusedItems,
        CarriesWithoutPayload,
        BelievesTimers,
        ForgetsDues,
    ],
)
def test_planted_mistake_of_an_owner_is_found(mistake: type[PlainOwner]) -> None:
    assert any(play(seed, mistake) for seed in range(PLANTED_HISTORIES_MAX))


def test_late_attempt_that_commits_is_found() -> None:
    assert any(play(seed, CommitsWithStatements, RepeatsWithoutNewAttempt) for seed in range(PLANTED_HISTORIES_MAX))


def test_item_that_gets_its_row_during_a_count_and_counts_twice_is_found() -> None:
    assert any(play(seed, PlainOwner, CountsTwice) for seed in range(PLANTED_HISTORIES_MAX))
