"""What a record of a read holds."""

from __future__ import annotations

from foqs.core.items.item import State
from foqs.core.journal.dirty_items import DirtyItem
from foqs.core.journal.touched_numbers import ReadsUnderWay, TouchedRow
from tests.support.journal_rows import new_row


def test_longest_record_is_void_if_all_together_have_too_many_numbers() -> None:
    reads = ReadsUnderWay(4)
    longest = reads.begin_read()
    reads.on_committed({1: None, 2: None})
    later = reads.begin_read()
    reads.on_committed({3: None})
    assert not longest.is_void
    reads.on_committed({4: None})
    assert (longest.is_void, later.is_void) == (True, False)
    assert later.numbers == {3: None, 4: None}
    reads.on_committed({5: None, 6: None})
    assert not later.is_void


def test_record_that_ended_is_forgotten() -> None:
    reads = ReadsUnderWay(2)
    touched = reads.begin_read()
    reads.end_read(touched)
    reads.on_committed({1: None})
    assert touched.numbers == {}


def test_record_has_what_reads_need_of_a_row_as_it_is_now() -> None:
    reads = ReadsUnderWay(9)
    touched = reads.begin_read()
    reads.on_committed({1: DirtyItem((1, 1), None, row=new_row(1, payload=b"p" * 9)), 2: None})
    row = new_row(1, state=State.LEASED, due_ms=70)
    reads.on_committed({1: DirtyItem((1, 1), None, row=row)})
    known = TouchedRow(("n", "t"), State.LEASED, row.order_key, 70)
    assert touched.numbers == {1: known, 2: None}
    assert touched.in_topic(("n", "t")) == {1: known}
    assert (known.timer_due_ms, touched.is_touched_after(1, 1), touched.is_touched_after(2, 1)) == (None, True, False)
    reads.on_committed({1: None})
    assert (touched.numbers, dict(touched.in_topic(("n", "t")))) == ({1: None, 2: None}, {})
