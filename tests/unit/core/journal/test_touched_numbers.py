"""What a record of a read holds."""

from __future__ import annotations

from foqs.core.journal.touched_numbers import ReadsUnderWay


def test_record_without_room_is_void() -> None:
    reads = ReadsUnderWay(2)
    touched = reads.begin_read()
    reads.on_committed({1: None, 2: None})
    assert not touched.is_void
    reads.on_committed({3: None})
    assert touched.is_void


def test_record_that_ended_is_forgotten() -> None:
    reads = ReadsUnderWay(2)
    touched = reads.begin_read()
    reads.end_read(touched)
    reads.on_committed({1: None})
    assert touched.numbers == {}
