"""What a shard's owner remembers of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foqs.core.items.item import Row, State
from foqs.core.memory.reservations import ROW_BYTES, Budget, LongestPayloads, PrefetchBudget, WrittenRowsBudget, size_of
from foqs.core.memory.row_cache import Prefetch, RowCache
from tests.support.builders import row

ONE = ROW_BYTES + 1
"""A row of the builder's: a payload of one byte."""


def cache(written_rows: int = 100, loaded_rows: int = 100) -> RowCache:
    return RowCache(Budget(written_rows * ONE, 1_000), PrefetchBudget(loaded_rows * ONE, 1_000), LongestPayloads())


def rows(*numbers: int, **changes: object) -> list[Row]:
    return [row(number, **changes) for number in numbers]


def here(rows_kept: RowCache, *numbers: int) -> list[int]:
    return [number for number in numbers if rows_kept.get(number) is not None]


def load(rows_kept: RowCache, *numbers: int) -> Prefetch:
    begun = rows_kept.start_prefetch("default", 1, numbers, 0.0)
    assert begun is not None
    return begun


# ------------------------------------------------------------------- written


def test_a_kept_row_is_found_and_a_dropped_one_must_be_read() -> None:
    kept, (one, two) = cache(), rows(1, 2)
    kept.store_written([one, two])
    kept.remove([2, 3])
    assert (kept.get(1), kept.get(2), kept.get(3)) == (one, None, None)
    assert len(kept) == 1


def test_the_last_version_of_a_row_is_the_one_that_is_found() -> None:
    kept = cache()
    kept.store_written(rows(1, 2))
    new = row(1, token=7, payload=b"longer than it was")
    kept.store_written([new, row(3)])
    assert kept.get(1) is new
    assert here(kept, 1, 2, 3) == [1, 2, 3]


def test_a_full_pool_takes_nothing_new_and_keeps_what_it_has() -> None:
    kept = cache(written_rows=3)
    kept.store_written(rows(1, 2))
    kept.store_written(rows(3, 4, 5))
    assert here(kept, *range(1, 6)) == [1, 2, 3]
    kept.store_written(rows(1, 9, token=5))
    assert here(kept, *range(1, 10)) == [1, 2, 3]
    assert [kept.get(1)] == rows(1, token=5)


def test_a_pool_is_full_as_well_when_it_has_all_the_rows_it_may_have() -> None:
    kept = RowCache(Budget(1_000_000, 2), PrefetchBudget(1_000_000, 1), LongestPayloads())
    kept.store_written(rows(1, 2, 3))
    kept.store_prefetched(rows(4, 5))
    assert here(kept, *range(1, 6)) == [1, 2, 4]


def test_a_row_that_outgrows_a_full_pool_is_forgotten_and_never_stale() -> None:
    kept = cache(written_rows=3)
    kept.store_written(rows(1, 2, 3))
    kept.store_written([replace(row(2), metadata=b"m" * 100), row(3, token=9), row(1, payload=None)])
    assert here(kept, 1, 2, 3) == [1, 3]
    assert [kept.get(3)] == rows(3, token=9)


def test_a_row_loaded_ahead_that_outgrows_its_pool_is_forgotten_and_leaves_no_trace() -> None:
    loaded = PrefetchBudget(2 * ONE, 10)
    kept = RowCache(Budget(100 * ONE, 100), loaded, LongestPayloads())
    kept.store_prefetched(rows(1, 2))
    kept.store_written(rows(1, payload=b"longer"))
    assert here(kept, 1, 2) == [2]
    kept.store_written(rows(1))
    assert loaded.items == 1
    kept.remove([1, 2])
    assert (loaded.items, loaded.bytes) == (0, 0)


# -------------------------------------------------------------------- loaded


def test_a_row_stays_in_the_pool_it_came_into() -> None:
    written, loaded = Budget(100 * ONE, 100), PrefetchBudget(100 * ONE, 100)
    kept = RowCache(written, loaded, LongestPayloads())
    kept.store_prefetched(rows(1, 2))
    kept.store_written(rows(2, 3, state=State.LEASED, payload=None))
    assert (written.items, written.bytes) == (1, ROW_BYTES)
    assert (loaded.items, loaded.bytes) == (2, ONE + ROW_BYTES)
    kept.remove([1, 2, 3])
    assert (written.bytes, loaded.bytes) == (0, 0)


def test_a_row_that_was_dropped_comes_back_into_the_pool_that_it_comes_into() -> None:
    written, loaded = Budget(100 * ONE, 100), PrefetchBudget(100 * ONE, 100)
    kept = RowCache(written, loaded, LongestPayloads())
    kept.store_prefetched(rows(1))
    kept.remove([1])
    kept.store_written(rows(1))
    kept.remove([1])
    assert (written.items, loaded.items) == (0, 0)


def test_what_is_here_already_is_newer_than_what_was_loaded() -> None:
    kept = cache()
    kept.store_written(rows(1, token=5))
    kept.store_prefetched(rows(1, 2))
    assert [kept.get(1), kept.get(2)] == [row(1, token=5), row(2)]


def test_only_what_is_not_here_is_loaded_in_the_order_asked_for() -> None:
    kept = cache()
    kept.store_written([row(1), row(2, payload=None)])
    assert load(kept, 9, 1, 2, 5).numbers == [9, 2, 5]
    assert kept.start_prefetch("default", 1, [9, 1], 0.0) is None


def test_no_more_is_loaded_than_there_is_room_for() -> None:
    kept = cache(loaded_rows=3)
    kept.finish_prefetch(load(kept, 1), rows(1))
    assert load(kept, *range(2, 9)).numbers == [2, 3]
    assert kept.start_prefetch("default", 1, [20], 0.0) is None


def test_room_set_aside_for_a_load_is_given_back_when_it_ends_or_fails() -> None:
    kept = cache(loaded_rows=20)
    for _ in range(30):
        kept.cancel_prefetch(load(kept, 1))
        kept.finish_prefetch(load(kept, 1), rows(1))
        kept.remove([1])


def test_what_was_written_to_since_its_load_began_is_not_taken_from_the_load() -> None:
    kept = cache(written_rows=0)
    loading = load(kept, 1, 2, 3)
    kept.store_written(rows(1, token=5))
    kept.remove([2])
    kept.finish_prefetch(loading, rows(1, 2, 3))
    assert here(kept, 1, 2, 3) == [3]


def test_a_later_load_does_not_make_a_former_one_trusted_again() -> None:
    kept = cache(written_rows=0)
    former = load(kept, 1)
    kept.store_written(rows(1, token=5))
    later = load(kept, 1)
    kept.finish_prefetch(former, rows(1))
    assert kept.get(1) is None
    kept.finish_prefetch(later, rows(1, token=5))
    assert [kept.get(1)] == rows(1, token=5)


def test_a_row_without_its_payload_gets_it_from_a_load_and_stays_as_it_is() -> None:
    kept = cache()
    loading = load(kept, 1, 2)
    kept.store_written([row(1, payload=None, token=5), row(2, payload=None, state=State.LEASED)])
    kept.finish_prefetch(loading, rows(1, 2, payload=b"p"))
    assert [kept.get(1)] == rows(1, payload=b"p", token=5)
    assert [kept.get(2)] == rows(2, payload=None, state=State.LEASED)


def test_a_cache_that_is_cleared_leaves_the_room_to_the_others() -> None:
    written, loaded = Budget(2 * ONE, 100), PrefetchBudget(2 * ONE, 100)
    one, other = RowCache(written, loaded, LongestPayloads()), RowCache(written, loaded, LongestPayloads())
    one.store_written(rows(1, 2))
    one.finish_prefetch(load(one, 3), rows(3))
    loading = load(one, 4)
    other.store_written(rows(1))
    assert here(other, 1) == []
    one.clear()
    assert (loaded.items, loaded.bytes) == (0, 0)
    one.finish_prefetch(loading, rows(4))
    assert len(one) == 0
    other.store_written(rows(1, 2))
    other.store_prefetched(rows(3, 4))
    assert here(other, 1, 2, 3, 4) == [1, 2, 3, 4]


# ---------------------------------------------------------------- everything

numbers = st.lists(st.integers(1, 12), unique=True, max_size=6)
sizes = st.integers(0, 300)


class AgainstATable(RuleBasedStateMachine):
    """A row that is here is the row in the table, and the budgets hold exactly what is here."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.loaded = WrittenRowsBudget(8 * ROW_BYTES, 9), PrefetchBudget(5 * ROW_BYTES, 6)
        self.caches = [RowCache(self.written, self.loaded, LongestPayloads()) for _ in range(2)]
        self.tables: list[dict[int, Row]] = [{}, {}]
        self.loads: list[tuple[int, Prefetch, list[Row]]] = []
        self.stale: list[tuple[int, Prefetch]] = []
        """Begun before the cache was cleared; they have no room set aside any more."""
        self.token = 0

    def version(self, number: int, size: int, *, payload: bool) -> Row:
        self.token += 1
        name = "default" if number % 2 else "other"
        content = b"p" * number if payload else None
        return row(number, namespace=name, token=self.token, metadata=b"m" * size, payload=content)

    @rule(at=st.integers(0, 1), numbers=numbers, size=sizes, payload=st.booleans())
    def write(self, at: int, numbers: Iterable[int], size: int, payload: bool) -> None:
        fresh = [self.version(number, size, payload=payload) for number in numbers]
        self.caches[at].store_written(fresh)
        self.tables[at].update({row.id: row for row in fresh})

    @rule(at=st.integers(0, 1), numbers=numbers)
    def delete(self, at: int, numbers: list[int]) -> None:
        self.caches[at].remove(numbers)
        for number in numbers:
            self.tables[at].pop(number, None)

    @rule(at=st.integers(0, 1), numbers=numbers)
    def begin_load(self, at: int, numbers: list[int]) -> None:
        begun = self.caches[at].start_prefetch("default", 1, [number for number in numbers if number % 2], 0.0)
        if begun is not None:
            self.loads.append((at, begun, []))

    @precondition(lambda self: self.loads)
    @rule(read=st.booleans())
    def read_or_end(self, read: bool) -> None:
        at, begun, found = self.loads[0]
        if read or not found:
            found[:] = [
                replace(self.tables[at][number], payload=b"p" * number)
                for number in begun.numbers
                if number in self.tables[at]
            ]
        if not read:
            self.caches[at].finish_prefetch(begun, found)
            self.loads.pop(0)

    @rule()
    def clear(self) -> None:
        for kept in self.caches:
            kept.clear()
        self.stale += [(at, begun) for at, begun, _ in self.loads]
        self.loads.clear()
        assert (self.written.bytes, self.loaded.bytes) == (0, 0)
        assert (self.written.items, self.loaded.items) == (0, 0)

    @precondition(lambda self: self.stale)
    @rule(read=st.booleans())
    def end_stale(self, read: bool) -> None:
        at, begun = self.stale.pop()
        if read:
            table = self.tables[at]
            found = [replace(table[n], payload=b"p" * n) for n in begun.numbers if n in table]
            self.caches[at].finish_prefetch(begun, found)
        else:
            self.caches[at].cancel_prefetch(begun)

    @invariant()
    def what_is_here_is_in_the_table(self) -> None:
        for kept, table in zip(self.caches, self.tables, strict=True):
            found = [found for number in range(1, 13) if (found := kept.get(number)) is not None]
            assert len(found) == len(kept)
            for one in found:
                assert replace(one, payload=None) == replace(table[one.id], payload=None)

    @invariant()
    def the_budgets_hold_what_is_here(self) -> None:
        found = [row for kept in self.caches for number in range(1, 13) if (row := kept.get(number)) is not None]
        claimed = sum(begun.reserved_bytes for _, begun, _ in self.loads)
        assert self.written.bytes + self.loaded.bytes == size_of(found) + claimed
        assert self.written.items + self.loaded.items == len(found) + sum(len(b.numbers) for _, b, _ in self.loads)
        for budget in (self.written, self.loaded):
            assert 0 <= budget.bytes <= budget.bytes_max
            assert 0 <= budget.items <= budget.items_max


TestAgainstATable = AgainstATable.TestCase
TestAgainstATable.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
