"""How the room for rows loaded ahead is divided between namespaces."""

from __future__ import annotations

from foqs.core.items.item import Row
from foqs.core.memory.reservations import ROW_BYTES, Budget, PrefetchBudget, WrittenRowsBudget, size_of
from tests.support.builders import row


def rows(namespace: str, count: int) -> list[Row]:
    return [row(number, namespace=namespace, payload=b"p" * 488) for number in range(1, count + 1)]


ROW = size_of(rows("a", 1))


def budget(of_rows: int) -> PrefetchBudget:
    """Room for so many rows in bytes, ten times as many in number; `a`, `b` and `c` are known to load such rows."""
    new = PrefetchBudget(of_rows * ROW, 10 * of_rows)
    for namespace in "abc":
        new.reserve(namespace, 1, 0, 0.0)
        new.learn_row_bytes(namespace, rows(namespace, 3))
    return new


def load(of: PrefetchBudget, namespace: str, count: int, now_s: float, weight: float = 1) -> int:
    """Loads as many rows as there is room for."""
    claimed, size = of.reserve(namespace, weight, count, now_s)
    of.release_reservation(namespace, claimed, size)
    of.add(rows(namespace, claimed), claimed * ROW)
    return claimed


def unload(of: PrefetchBudget, namespace: str, count: int) -> None:
    of.remove(rows(namespace, count), count * ROW)


def test_a_row_takes_its_payload_its_metadata_and_what_a_row_costs() -> None:
    assert size_of([row(payload=b"12345", metadata=b"12"), row(payload=None, metadata=b"1")]) == 2 * ROW_BYTES + 8


def test_those_that_fit_are_taken_and_one_that_is_too_large_stands_in_nobodys_way() -> None:
    small = Budget(2 * ROW_BYTES + 30, 10)
    offered = [row(1, payload=b"p" * 20), row(2, payload=b"p" * 20), row(3, payload=b"p" * 10)]
    assert small.rows_that_fit(offered, size_of(offered)) == [offered[0], offered[2]]
    assert Budget(1_000_000, 2).rows_that_fit(offered, size_of(offered)) == offered[:2]


def test_of_rows_just_written_a_namespace_may_hold_as_much_as_is_left_free() -> None:
    for written in (WrittenRowsBudget(100 * ROW, 1_000), WrittenRowsBudget(1_000 * ROW, 100)):

        def admitted(*offered: Row, of: WrittenRowsBudget = written) -> int:
            taken = of.new_rows_that_fit(list(offered), size_of(offered))
            of.add(taken, size_of(taken))
            return len(taken)

        assert admitted(*rows("a", 90)) == 50
        assert admitted(*rows("a", 1)) == 0
        assert admitted(*rows("b", 90), *rows("c", 1)) == 25 + 1
        assert admitted(*rows("c", 90), *rows("b", 1)) == 11
        written.remove(rows("a", 50), 50 * ROW)
        written.remove(rows("b", 25) + rows("c", 12), 37 * ROW)
        assert (written.items, written.bytes) == (0, 0)
        assert admitted(*rows("a", 30), *rows("b", 90)) == 30 + 35


def test_a_namespace_alone_may_have_everything() -> None:
    assert load(budget(100), "a", 500, 10.0) == 100


def test_room_set_aside_is_not_given_twice() -> None:
    pool = budget(10)
    assert pool.reserve("a", 1, 7, 10.0) == (7, 7 * ROW)
    assert pool.reserve("a", 1, 7, 10.0)[0] == 3
    pool.release_reservation("a", 7, 7 * ROW)
    assert pool.reserve("a", 1, 70, 10.0)[0] == 7


def test_two_that_want_everything_end_with_half_each() -> None:
    pool = budget(100)
    assert load(pool, "a", 500, 10.0) == 100
    assert load(pool, "b", 500, 10.1) == 0
    unload(pool, "a", 60)
    assert load(pool, "a", 500, 10.2) == 10
    assert load(pool, "b", 500, 10.3) == 50


def test_shares_are_by_weight() -> None:
    pool = budget(100)
    pool.reserve("b", 3, 0, 10.0)
    assert load(pool, "a", 500, 10.0) == 50
    assert load(pool, "a", 500, 10.0) == 0
    unload(pool, "a", 30)
    assert load(pool, "b", 500, 10.0, weight=3) == 75


def test_half_of_it_is_for_whoever_comes_first() -> None:
    pool = budget(100)
    for namespace in "abc":
        pool.reserve(namespace, 1, 0, 10.0)
    assert load(pool, "a", 500, 10.0) == 50
    assert load(pool, "b", 500, 10.0) == 33
    assert load(pool, "c", 500, 10.0) == 17
    unload(pool, "a", 20)
    assert load(pool, "a", 500, 10.0) == 3
    assert load(pool, "c", 500, 10.0) == 16


def test_who_neither_holds_nor_asked_a_moment_ago_has_no_share() -> None:
    pool = budget(100)
    pool.reserve("b", 1, 0, 10.0)
    assert load(pool, "a", 500, 10.9) == 50
    assert load(pool, "a", 500, 11.0) == 50


def test_who_holds_something_keeps_a_share_however_long_ago_it_asked() -> None:
    pool = budget(100)
    load(pool, "b", 10, 10.0)
    assert load(pool, "a", 500, 90.0) == 50


def test_the_number_of_rows_is_divided_as_their_bytes_are() -> None:
    pool = PrefetchBudget(1_000_000_000, 100)
    pool.reserve("b", 1, 0, 10.0)
    assert load(pool, "a", 70, 10.0) == 50
    assert load(pool, "b", 70, 10.0) == 50


def test_large_rows_once_seen_are_expected_again() -> None:
    pool = budget(100)
    pool.learn_row_bytes("a", [row(namespace="a", payload=b"p" * (10 * ROW - ROW_BYTES))])
    assert pool.reserve("a", 1, 500, 10.0)[0] == 10


def test_namespaces_that_count_no_longer_are_forgotten_and_those_that_hold_something_are_not() -> None:
    pool = budget(100)
    load(pool, "a", 1, 0.0)
    for number in range(2_000):
        pool.reserve(f"n{number}", 1, 0, float(number))
    assert pool.namespace_count < 200
    load(pool, "b", 1, 5_000.0)
    pool.learn_row_bytes("b", rows("b", 1))
    assert load(pool, "b", 500, 5_000.0) == 49


def test_rows_expected_to_be_too_large_are_tried_one_by_one() -> None:
    pool = budget(10)
    pool.learn_row_bytes("a", [row(namespace="a", payload=b"p" * 1_000_000)])
    assert pool.reserve("a", 1, 500, 10.0) == (1, 10 * ROW)
    assert pool.reserve("a", 1, 500, 10.0) == (0, 0)
    pool.release_reservation("a", 1, 10 * ROW)
    pool.learn_row_bytes("a", rows("a", 1))
    assert pool.reserve("a", 1, 500, 10.0)[0] == 10
