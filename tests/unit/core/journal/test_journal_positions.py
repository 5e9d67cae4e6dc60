"""What of the journal a flush trims."""

from __future__ import annotations

from foqs.core.flush.journal_rows import JournalRange
from foqs.core.journal.journal_positions import ROWS_PER_TRIM, JournalPositions


def with_rows(*positions: tuple[int, int]) -> JournalPositions:
    rows = JournalPositions()
    for position in positions:
        rows.add_row(position, 10)
    return rows


def test_rows_below_the_floor_are_trimmed_from_the_oldest_on() -> None:
    rows = with_rows((1, 5), (1, 7), (2, 1))
    assert rows.range_to_trim((1, 5)) is None
    assert rows.range_to_trim((2, 1)) == JournalRange((1, 5), (2, 1))
    rows.on_trimmed(JournalRange((1, 5), (2, 1)))
    assert (len(rows), rows.live_bytes) == (1, 10)
    rows.add_row((2, 2), 5)
    assert rows.range_to_trim((2, 3)) == JournalRange((2, 1), (2, 3))


def test_one_flush_trims_a_bounded_number_of_rows() -> None:
    rows = with_rows(*[(1, flush) for flush in range(1, ROWS_PER_TRIM + 10)])
    first = rows.range_to_trim((1, 500))
    assert first == JournalRange((1, 1), (1, ROWS_PER_TRIM + 1))
    assert rows.bytes_to_trim((1, 500)) == 10 * ROWS_PER_TRIM
    rows.on_trimmed(first)
    assert rows.range_to_trim((1, 500)) == JournalRange((1, ROWS_PER_TRIM + 1), (1, 500))


def test_exactly_as_many_rows_as_one_flush_trims_are_trimmed_up_to_the_floor() -> None:
    rows = with_rows(*[(1, flush) for flush in range(1, ROWS_PER_TRIM + 1)])
    assert rows.range_to_trim((1, 500)) == JournalRange((1, 1), (1, 500))
