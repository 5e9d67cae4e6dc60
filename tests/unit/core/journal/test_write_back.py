"""Which items a flush writes back."""

from __future__ import annotations

from foqs.core.items.item import State
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.journal_events import Base
from foqs.core.journal.write_back import WRITE_BACK_BYTES_MAX, WriteBackChoice
from tests.support.journal_rows import new_row

ROW = Base("n", "t", State.READY, None, 9, 0, 0)


def add_ended(dirty_items: DirtyItems, flush: int, *numbers: int) -> None:
    dirty_items.apply({number: DirtyItem((1, flush), ROW) for number in numbers}, ())


def add_young(dirty_items: DirtyItems, flush: int, *numbers: int) -> None:
    rows = {number: new_row(number) for number in numbers}
    dirty_items.apply({number: DirtyItem((1, flush), None, row=row) for number, row in rows.items()}, ())


def test_young_items_are_written_back_when_they_have_been_dirty_for_long() -> None:
    dirty_items, choice = DirtyItems(), WriteBackChoice(5_000, (1, 0), 0)
    for flush, now_ms in ((1, 1_000), (2, 2_000)):
        add_young(dirty_items, flush, flush)
        choice.on_committed((1, flush), now_ms)
    assert choice.numbers(dirty_items, 5_999, 100, 0) == []
    assert choice.numbers(dirty_items, 6_000, 100, 0) == [1]
    assert choice.numbers(dirty_items, 7_000, 100, 0) == [1, 2]


def test_replayed_items_count_as_dirty_since_the_takeover() -> None:
    dirty_items, choice = DirtyItems(), WriteBackChoice(5_000, (2, 0), 100)
    add_young(dirty_items, 9, 1)
    assert choice.numbers(dirty_items, 5_099, 100, 0) == []
    assert choice.numbers(dirty_items, 5_100, 100, 0) == [1]


def test_ended_items_fill_the_least_part_of_a_flush_at_once() -> None:
    dirty_items, choice = DirtyItems(), WriteBackChoice(5_000, (1, 0), 0)
    add_ended(dirty_items, 1, *range(1, 50))
    assert choice.numbers(dirty_items, 1, 100, 0) == list(range(1, 21))


def test_write_backs_never_exceed_their_most_part() -> None:
    dirty_items, choice = DirtyItems(), WriteBackChoice(5_000, (1, 0), 0)
    add_young(dirty_items, 1, *range(1, 200))
    choice.on_committed((1, 1), 0)
    assert choice.numbers(dirty_items, 9_000, 100, 0) == list(range(1, 61))


def test_items_are_written_back_before_their_time_if_a_bound_is_near() -> None:
    dirty_items, choice = DirtyItems(), WriteBackChoice(5_000, (1, 0), 0)
    add_young(dirty_items, 1, 1, 2)
    choice.on_committed((1, 1), 0)
    assert choice.numbers(dirty_items, 1, 100, 79) == []
    assert choice.numbers(dirty_items, 1, 100, 80) == [1, 2]


def test_ended_item_that_is_due_is_chosen_once() -> None:
    dirty_items, choice = DirtyItems(), WriteBackChoice(5_000, (1, 0), 0)
    add_ended(dirty_items, 1, 1)
    choice.on_committed((1, 1), 0)
    assert choice.numbers(dirty_items, 9_000, 100, 0) == [1]


def test_item_that_found_no_room_in_a_flush_stays_due() -> None:
    dirty_items, choice = DirtyItems(), WriteBackChoice(5_000, (1, 0), 0)
    assert choice.next_due_ms(dirty_items) is None
    add_young(dirty_items, 1, 1, 2)
    choice.on_committed((1, 1), 1_000)
    choice.on_committed((1, 2), 8_000)
    assert choice.next_due_ms(dirty_items) == 6_000
    assert choice.numbers(dirty_items, 9_000, 2, 0) == [1]
    dirty_items.apply({}, [1])
    assert choice.next_due_ms(dirty_items) == 6_000
    dirty_items.apply({}, [2])
    assert choice.next_due_ms(dirty_items) is None


def test_long_payloads_are_written_back_few_at_a_time_and_at_least_one() -> None:
    dirty_items, choice = DirtyItems(), WriteBackChoice(5_000, (1, 0), 0)
    sizes = [WRITE_BACK_BYTES_MAX // 2, WRITE_BACK_BYTES_MAX // 2, 1, WRITE_BACK_BYTES_MAX + 1, 1]
    for number, payload_bytes in enumerate(sizes, 1):
        row = new_row(number)
        row.payload_bytes = payload_bytes
        dirty_items.apply({number: DirtyItem((1, number), None, row=row)}, ())
        choice.on_committed((1, number), 0)
    written_back: list[list[int]] = []
    while found := choice.numbers(dirty_items, 9_000, 100, 0):
        written_back.append(found)
        dirty_items.apply({}, found)
    assert written_back == [[1, 2], [3], [4], [5]]
