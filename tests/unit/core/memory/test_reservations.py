"""The budgets for cached rows, and how they are divided among namespaces."""

from __future__ import annotations

from foqs.core.items.item import Row
from foqs.core.memory.reservations import ROW_BYTES, PrefetchBudget, WrittenRowsBudget, size_of
from tests.support.builders import row


def rows(namespace: str, count: int) -> list[Row]:
    return [row(number, namespace=namespace, payload=b"p" * 488) for number in range(1, count + 1)]


ROW = size_of(rows("a", 1))


def budget_for(rows_max: int) -> PrefetchBudget:
    """Return a budget with bytes for `rows_max` rows and a count of ten times that. `a`, `b` and `c` have read such rows."""
    new = PrefetchBudget(rows_max * ROW, 10 * rows_max)
    for namespace in "abc":
        new.reserve(namespace, 1, 0, 0.0)
        new.learn_row_bytes(namespace, rows(namespace, 3))
    return new


def load(pool: PrefetchBudget, namespace: str, count: int, now_s: float, weight: float = 1) -> int:
    """Add as many rows as fit, and return how many."""
    reserved, size = pool.reserve(namespace, weight, count, now_s)
    pool.release_reservation(namespace, reserved, size)
    pool.add(rows(namespace, reserved), reserved * ROW)
    return reserved


def unload(pool: PrefetchBudget, namespace: str, count: int) -> None:
    pool.remove(rows(namespace, count), count * ROW)


def test_the_size_of_a_row_is_its_payload_its_metadata_its_trace_its_group_and_a_constant() -> None:
    assert size_of([row(payload=b"12345", metadata=b"12"), row(payload=None, metadata=b"1")]) == 2 * ROW_BYTES + 8
    assert size_of([row(payload=b"", trace_context=b"123"), row(payload=b"")]) == 2 * ROW_BYTES + 3
    assert size_of([row(payload=b"", item_group=b"12"), row(payload=b"")]) == 2 * ROW_BYTES + 2


def test_a_namespace_may_hold_as_many_written_rows_as_are_left_free() -> None:
    for written in (WrittenRowsBudget(100 * ROW, 1_000), WrittenRowsBudget(1_000 * ROW, 100)):

        def admitted(*offered: Row, pool: WrittenRowsBudget = written) -> int:
            fitting = pool.new_rows_that_fit(list(offered), size_of(offered))
            pool.add(fitting, size_of(fitting))
            return len(fitting)

        assert admitted(*rows("a", 90)) == 50
        assert admitted(*rows("a", 1)) == 0
        assert admitted(*rows("b", 90), *rows("c", 1)) == 25 + 1
        assert admitted(*rows("c", 90), *rows("b", 1)) == 11
        written.remove(rows("a", 50), 50 * ROW)
        written.remove(rows("b", 25) + rows("c", 12), 37 * ROW)
        assert (written.items, written.bytes) == (0, 0)
        assert admitted(*rows("a", 30), *rows("b", 90)) == 30 + 35


def test_reserved_room_is_not_reserved_twice() -> None:
    pool = budget_for(10)
    assert pool.reserve("a", 1, 7, 10.0) == (7, 7 * ROW)
    assert pool.reserve("a", 1, 7, 10.0)[0] == 3
    pool.release_reservation("a", 7, 7 * ROW)
    assert pool.reserve("a", 1, 70, 10.0)[0] == 7


def test_two_namespaces_that_want_all_end_with_half_each() -> None:
    pool = budget_for(100)
    assert load(pool, "a", 500, 10.0) == 100
    assert load(pool, "b", 500, 10.1) == 0
    unload(pool, "a", 60)
    assert load(pool, "a", 500, 10.2) == 10
    assert load(pool, "b", 500, 10.3) == 50


def test_shares_are_by_weight() -> None:
    pool = budget_for(100)
    pool.reserve("b", 3, 0, 10.0)
    assert load(pool, "a", 500, 10.0) == 50
    assert load(pool, "a", 500, 10.0) == 0
    unload(pool, "a", 30)
    assert load(pool, "b", 500, 10.0, weight=3) == 75


def test_half_of_the_budget_is_first_come_first_served() -> None:
    pool = budget_for(100)
    for namespace in "abc":
        pool.reserve(namespace, 1, 0, 10.0)
    assert load(pool, "a", 500, 10.0) == 50
    assert load(pool, "b", 500, 10.0) == 33
    assert load(pool, "c", 500, 10.0) == 17
    unload(pool, "a", 20)
    assert load(pool, "a", 500, 10.0) == 3
    assert load(pool, "c", 500, 10.0) == 16


def test_a_namespace_without_rows_and_recent_requests_has_no_share() -> None:
    pool = budget_for(100)
    pool.reserve("b", 1, 0, 10.0)
    assert load(pool, "a", 500, 10.9) == 50
    assert load(pool, "a", 500, 11.0) == 50


def test_inactive_namespaces_are_forgotten_unless_they_hold_rows() -> None:
    pool = budget_for(100)
    load(pool, "a", 1, 0.0)
    for number in range(2_000):
        pool.reserve(f"n{number}", 1, 0, float(number))
    assert pool.namespace_count < 200
    load(pool, "b", 1, 5_000.0)
    pool.learn_row_bytes("b", rows("b", 1))
    assert load(pool, "b", 500, 5_000.0) == 49


def test_rows_that_are_expected_to_be_too_large_are_tried_one_by_one() -> None:
    pool = budget_for(10)
    pool.learn_row_bytes("a", [row(namespace="a", payload=b"p" * 1_000_000)])
    assert pool.reserve("a", 1, 500, 10.0) == (1, 10 * ROW)
    assert pool.reserve("a", 1, 500, 10.0) == (0, 0)
    pool.release_reservation("a", 1, 10 * ROW)
    pool.learn_row_bytes("a", rows("a", 1))
    assert pool.reserve("a", 1, 500, 10.0)[0] == 10
