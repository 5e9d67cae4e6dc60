"""The remembered ends of leases: ranges, slots, the bound of memory, and walks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.timing.lease_ends import NEVER_MS, SLOT_COST, LeaseEnds, group_by_due, pages_of

NOW = 1_700_000_000_000


def walked(ranges_max: int = 10_000) -> LeaseEnds:
    """Return the lease ends of an owner that has read all leases: there were none."""
    leases = LeaseEnds(ranges_max)
    leases.begin_lease_walk()
    leases.end_lease_walk(complete=True)
    return leases


def test_a_new_owner_knows_nothing_until_it_has_walked() -> None:
    leases = LeaseEnds(100)
    leases.remember(NOW + 10, [1], NOW)
    assert (leases.next_lease_walk_ms, leases.next_look_ms, leases.cost) == (0, NEVER_MS, 0)
    leases.begin_lease_walk()
    assert leases.next_lease_walk_ms == NEVER_MS
    leases.remember(NOW + 10, [1], NOW)
    leases.end_lease_walk(complete=False)
    assert leases.next_lease_walk_ms == 0
    leases.begin_lease_walk()
    leases.end_lease_walk(complete=True)
    assert (leases.next_lease_walk_ms, leases.next_look_ms) == (NEVER_MS, NOW + 10)


def test_consecutive_numbers_of_many_flushes_are_one_range() -> None:
    leases = walked()
    for flush in range(50):
        leases.remember(NOW + 30_000 + flush, [*range(flush * 10, flush * 10 + 10)][::-1], NOW)
    assert leases.cost <= 2 * SLOT_COST + 2
    assert leases.next_look_ms == NOW + 30_000
    look = leases.begin_look(NOW + 31_000)
    assert look is not None
    assert (look.ranges, look.due_ms, look.last_ms) == ([(0, 499)], NOW + 30_000, NOW + 30_049)
    assert (leases.cost, leases.next_look_ms) == (0, NEVER_MS)


def test_a_look_returns_only_slots_that_have_begun() -> None:
    leases = walked()
    assert leases.begin_look(NOW) is None
    leases.remember(NOW + 30_000, [1], NOW)
    leases.remember(NOW + 40_000, [2], NOW)
    assert leases.begin_look(NOW + 29_999) is None
    look = leases.begin_look(NOW + 30_000)
    assert look is not None
    assert look.ranges == [(1, 1)]
    assert leases.unapplied_from_ms() == NOW + 30_000
    leases.end_look()
    assert leases.unapplied_from_ms() == leases.next_look_ms == NOW + 40_000


def test_a_look_leaves_out_deleted_rows() -> None:
    leases = walked()
    leases.remember(NOW + 30_000, [*range(10)], NOW)
    leases.on_deleted([9, 2, 3])
    leases.remember(NOW + 30_001, [20, 21], NOW)
    leases.on_deleted([20])
    look = leases.begin_look(NOW + 31_000)
    assert look is not None
    assert look.ranges == [(0, 1), (4, 8), (21, 21)]


def test_there_is_no_look_if_all_rows_are_deleted() -> None:
    leases = walked()
    leases.remember(NOW + 30_000, [1, 2], NOW)
    leases.on_deleted([2, 1])
    assert leases.begin_look(NOW + 31_000) is None
    assert (leases.cost, leases.next_look_ms, leases.unapplied_from_ms()) == (0, NEVER_MS, NEVER_MS)


def test_a_look_covers_no_lease_that_ends_after_it() -> None:
    leases = walked()
    leases.remember(NOW + 30_000, [1], NOW)
    look = leases.begin_look(NOW + 30_000)
    assert look is not None
    assert leases.covers(1, look.last_ms)
    assert not leases.covers(1, look.last_ms + 1)


def test_a_look_that_failed_is_repeated_later_and_holds_the_watermark() -> None:
    leases = walked()
    leases.remember(NOW + 10, [1, 2, 9], NOW)
    assert leases.begin_look(NOW + 10) is not None
    leases.fail_look(NOW + 500)
    leases.fail_look(NOW + 900)
    assert (leases.next_look_ms, leases.unapplied_from_ms()) == (NOW + 500, NOW + 10)
    look = leases.begin_look(NOW + 500)
    assert look is not None
    assert look.ranges == [(1, 2), (9, 9)]
    leases.remember_failed(NOW + 10, [9], NOW + 700)
    leases.end_look()
    assert (leases.next_look_ms, leases.unapplied_from_ms()) == (NOW + 700, NOW + 10)


def test_the_leases_that_end_last_are_forgotten_and_walked() -> None:
    leases = walked(3 * SLOT_COST)
    for second in (1, 9, 5):
        leases.remember(NOW + 1_000 * second, [second], NOW)
    assert leases.next_lease_walk_ms == NOW + 9_000
    leases.remember(NOW + 9_500, [10], NOW)
    assert (leases.next_lease_walk_ms, leases.cost) == (NOW + 9_000, 2 * (SLOT_COST + 1))
    leases.remember(NOW + 2_000, [*range(100, 200, 2)], NOW)
    assert leases.cost <= 3 * SLOT_COST
    assert leases.next_lease_walk_ms <= NOW + 5_000


def test_an_eighth_of_the_room_becomes_free_at_once() -> None:
    """Each time costs a sort of all slots, so it must not happen for each new slot."""
    leases = walked(64 * (SLOT_COST + 1))
    for second in range(65):
        leases.remember(NOW + 10_000 * (200 - second), [second * 10], NOW)
    forgotten_from_ms = leases.next_lease_walk_ms
    assert leases.cost == 56 * (SLOT_COST + 1)
    for second in range(65, 73):
        leases.remember(NOW + 10_000 * (200 - second), [second * 10], NOW)
    assert leases.next_lease_walk_ms == forgotten_from_ms == NOW + 10_000 * (200 - 8)


def test_what_is_forgotten_during_a_walk_needs_another_walk() -> None:
    leases = walked(2 * SLOT_COST)
    leases.remember(NOW + 1_000, [1], NOW)
    leases.begin_lease_walk()
    leases.remember(NOW + 500, [2], NOW)
    assert leases.unread_from_ms == NOW + 1_000
    leases.end_lease_walk(complete=True)
    assert leases.next_lease_walk_ms == NOW + 1_000
    assert leases.covers(1, NOW + 1_000)
    assert leases.covers(2, NOW + 500)
    assert not leases.covers(3, NOW + 500)


def test_dues_are_grouped() -> None:
    assert group_by_due([(5, 1), (6, 2), (5, 3)]) == {5: [1, 3], 6: [2]}
    assert group_by_due([]) == {}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=8), st.integers(1, 20), st.integers(1, 4))
def test_pages_hold_the_numbers_of_all_ranges_within_both_limits(
    spans: list[tuple[int, int]], numbers_max: int, ranges_max: int
) -> None:
    ranges, start = [], 0
    for gap, length in spans:
        ranges.append((start + gap, start + gap + length))
        start += gap + length + 1
    pages = pages_of(ranges, numbers_max, ranges_max)
    flat = [number for page in pages for first, last in page for number in range(first, last + 1)]
    assert flat == [number for first, last in ranges for number in range(first, last + 1)]
    for page in pages:
        assert 0 < sum(last - first + 1 for first, last in page) <= numbers_max
        assert len(page) <= ranges_max


_DELAYS = st.one_of(st.integers(1, 400), st.integers(1, 100_000))
_STEPS = st.one_of(
    st.tuples(st.just("lease"), st.tuples(_DELAYS, st.sets(st.integers(0, 60), min_size=1, max_size=20))),
    st.tuples(st.just("settle"), st.integers(0, 60)),
    st.tuples(st.just("delete"), st.sets(st.integers(0, 60), min_size=1, max_size=20)),
    st.tuples(st.just("pass"), _DELAYS),
    st.tuples(st.just("look"), st.sampled_from(["works", "fails", "refused"])),
    st.tuples(st.just("begin walk"), st.none()),
    st.tuples(st.just("read page"), st.none()),
    st.tuples(st.just("end walk"), st.booleans()),
)


@pytest.mark.parametrize("ranges_max", [10_000, 3 * SLOT_COST])
@given(steps=st.lists(_STEPS, max_size=60))
def test_no_lease_is_forgotten_whatever_happens(ranges_max: int, steps: list[tuple[str, Any]]) -> None:
    """Leases are written and settled, looks and walks succeed or fail, and time passes, in any order."""
    leases = LeaseEnds(ranges_max)
    table: dict[int, int] = {}
    """The end of each lease."""
    deleted: set[int] = set()
    unread: list[int] | None = None
    """What the walk under way has not read yet."""
    now_ms, watermark_ms = NOW, 0

    def write(due_ms: int, numbers: list[int]) -> None:
        table.update(dict.fromkeys(numbers, due_ms))
        leases.remember(due_ms, numbers, now_ms)

    for kind, value in steps:
        if kind == "lease":
            if numbers := list(value[1] - deleted):
                write(max(now_ms + value[0], watermark_ms), numbers)
        elif kind == "settle":
            table.pop(value, None)
        elif kind == "delete":
            deleted |= value
            for number in value:
                table.pop(number, None)
            leases.on_deleted(list(value))
        elif kind == "pass":
            now_ms += value
        elif kind == "look" and (look := leases.begin_look(now_ms)) is not None:
            if value == "fails":
                leases.fail_look(now_ms + 100)
            else:
                for first, last in look.ranges:
                    for number in range(first, last + 1):
                        due_ms = table.get(number)
                        if due_ms is None or due_ms > look.last_ms:
                            continue
                        if due_ms > now_ms:
                            leases.remember(due_ms, [number], now_ms)
                        elif value == "refused":
                            leases.remember_failed(due_ms, [number], now_ms + 100)
                        else:
                            del table[number]
                leases.end_look()
        elif kind == "begin walk" and unread is None and leases.next_lease_walk_ms <= now_ms:
            leases.begin_lease_walk()
            unread = sorted(table)
        elif kind == "read page" and unread:
            for number in unread[:10]:
                due_ms = table.get(number)
                if due_ms is None:
                    continue
                if due_ms > now_ms:
                    leases.remember(due_ms, [number], now_ms)
                else:
                    del table[number]
            del unread[:10]
        elif kind == "end walk" and unread is not None:
            leases.end_lease_walk(complete=value and not unread)
            unread = None
        leases.check()
        for number, due_ms in table.items():
            assert leases.covers(number, due_ms)
            assert due_ms >= min(leases.unapplied_from_ms(), leases.unread_from_ms)
