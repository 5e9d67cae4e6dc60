"""The rows that the owner of a shard remembers."""

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
from tests.support.example_counts import examples

ONE = ROW_BYTES + 1
"""The size of a row of the builder, whose payload is one byte."""


def new_cache(written_rows: int = 100, prefetched_rows: int = 100) -> RowCache:
    return RowCache(Budget(written_rows * ONE, 1_000), PrefetchBudget(prefetched_rows * ONE, 1_000), LongestPayloads())


def rows(*numbers: int, **changes: object) -> list[Row]:
    return [row(number, **changes) for number in numbers]


def cached(cache: RowCache, *numbers: int) -> list[int]:
    return [number for number in numbers if cache.get(number) is not None]


def start(cache: RowCache, *numbers: int) -> Prefetch:
    prefetch = cache.start_prefetch("default", 1, numbers, 0.0)
    assert prefetch is not None
    return prefetch


# ------------------------------------------------------------------- written


def test_a_full_pool_keeps_its_rows_and_accepts_no_new_ones() -> None:
    cache = new_cache(written_rows=3)
    cache.store_written(rows(1, 2))
    cache.store_written(rows(3, 4, 5))
    assert cached(cache, *range(1, 6)) == [1, 2, 3]
    cache.store_written(rows(1, 9, token=5))
    assert cached(cache, *range(1, 10)) == [1, 2, 3]
    assert [cache.get(1)] == rows(1, token=5)


def test_a_row_that_outgrows_a_full_pool_is_dropped_and_never_stale() -> None:
    cache = new_cache(written_rows=3)
    cache.store_written(rows(1, 2, 3))
    cache.store_written([replace(row(2), metadata=b"m" * 100), row(3, token=9), row(1, payload=None)])
    assert cached(cache, 1, 2, 3) == [1, 3]
    assert [cache.get(3)] == rows(3, token=9)


def test_rows_that_have_not_grown_stay_if_others_outgrow_a_full_pool() -> None:
    small, large = row(1), row(2, payload=b"p" * 100)
    cache = RowCache(Budget(size_of([small, large]), 2), PrefetchBudget(0, 0), LongestPayloads())
    cache.store_written([small, large])
    cache.store_written([replace(small, metadata=b"m" * 60), large])
    assert cached(cache, 1, 2) == [2]


def test_a_prefetched_row_that_outgrows_its_pool_is_dropped_and_releases_its_room() -> None:
    prefetched = PrefetchBudget(2 * ONE, 10)
    cache = RowCache(Budget(100 * ONE, 100), prefetched, LongestPayloads())
    cache.store_prefetched(rows(1, 2))
    cache.store_written(rows(1, payload=b"longer"))
    assert cached(cache, 1, 2) == [2]
    cache.store_written(rows(1))
    assert prefetched.items == 1
    cache.remove([1, 2])
    assert (prefetched.items, prefetched.bytes) == (0, 0)


# ------------------------------------------------------------------ prefetch


def test_a_row_stays_in_its_pool() -> None:
    written, prefetched = Budget(100 * ONE, 100), PrefetchBudget(100 * ONE, 100)
    cache = RowCache(written, prefetched, LongestPayloads())
    cache.store_prefetched(rows(1, 2))
    cache.store_written(rows(2, 3, state=State.LEASED, payload=None))
    assert (written.items, written.bytes) == (1, ROW_BYTES)
    assert (prefetched.items, prefetched.bytes) == (2, ONE + ROW_BYTES)
    cache.remove([1, 2, 3])
    assert (written.bytes, prefetched.bytes) == (0, 0)


def test_a_removed_row_may_return_into_the_other_pool() -> None:
    written, prefetched = Budget(100 * ONE, 100), PrefetchBudget(100 * ONE, 100)
    cache = RowCache(written, prefetched, LongestPayloads())
    cache.store_prefetched(rows(1))
    cache.remove([1])
    cache.store_written(rows(1))
    cache.remove([1])
    assert (written.items, prefetched.items) == (0, 0)


def test_only_rows_without_a_cached_payload_are_read_in_the_given_order() -> None:
    cache = new_cache()
    cache.store_written([row(1), row(2, payload=None)])
    assert start(cache, 9, 1, 2, 5).numbers == [9, 2, 5]
    assert cache.start_prefetch("default", 1, [9, 1], 0.0) is None


def test_rows_written_since_a_prefetch_began_are_not_stored_from_it() -> None:
    cache = new_cache(written_rows=0)
    prefetch = start(cache, 1, 2, 3)
    cache.store_written(rows(1, token=5))
    cache.remove([2])
    cache.finish_prefetch(prefetch, rows(1, 2, 3))
    assert cached(cache, 1, 2, 3) == [3]


def test_a_later_prefetch_does_not_make_an_outdated_one_valid_again() -> None:
    cache = new_cache(written_rows=0)
    former = start(cache, 1)
    cache.store_written(rows(1, token=5))
    later = start(cache, 1)
    cache.finish_prefetch(former, rows(1))
    assert cache.get(1) is None
    cache.finish_prefetch(later, rows(1, token=5))
    assert [cache.get(1)] == rows(1, token=5)


def test_a_cached_row_without_payload_gets_it_from_a_prefetch_and_stays_as_it_is() -> None:
    cache = new_cache()
    prefetch = start(cache, 1, 2)
    cache.store_written([row(1, payload=None, token=5), row(2, payload=None, state=State.LEASED)])
    cache.finish_prefetch(prefetch, rows(1, 2, payload=b"p"))
    assert [cache.get(1)] == rows(1, payload=b"p", token=5)
    assert [cache.get(2)] == rows(2, payload=None, state=State.LEASED)


def test_the_longest_payload_that_was_read_is_recorded_even_of_a_row_that_was_read_without_it() -> None:
    longest = LongestPayloads()
    cache = RowCache(Budget(0, 0), PrefetchBudget(100 * ONE, 100), longest)
    cache.finish_prefetch(start(cache, 1), [])
    assert longest.payload_bytes_max("default") == 0
    cache.finish_prefetch(start(cache, 1, 2), [row(1, payload=None, payload_bytes=9), row(2, payload=b"pp")])
    assert longest.payload_bytes_max("default") == 9


def test_a_cleared_cache_releases_its_room_for_the_others() -> None:
    written, prefetched = Budget(2 * ONE, 100), PrefetchBudget(2 * ONE, 100)
    one, other = RowCache(written, prefetched, LongestPayloads()), RowCache(written, prefetched, LongestPayloads())
    one.store_written(rows(1, 2))
    one.finish_prefetch(start(one, 3), rows(3))
    prefetch = start(one, 4)
    other.store_written(rows(1))
    assert cached(other, 1) == []
    one.clear()
    assert (prefetched.items, prefetched.bytes) == (0, 0)
    one.finish_prefetch(prefetch, rows(4))
    assert len(one) == 0
    other.store_written(rows(1, 2))
    other.store_prefetched(rows(3, 4))
    assert cached(other, 1, 2, 3, 4) == [1, 2, 3, 4]


# --------------------------------------------------------------------- model

numbers = st.lists(st.integers(1, 12), unique=True, max_size=6)
sizes = st.integers(0, 300)


class AgainstATable(RuleBasedStateMachine):
    """A cached row equals the row in the table, and the budgets count exactly the cached rows and the reservations."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.prefetched = WrittenRowsBudget(8 * ROW_BYTES, 9), PrefetchBudget(5 * ROW_BYTES, 6)
        self.caches = [RowCache(self.written, self.prefetched, LongestPayloads()) for _ in range(2)]
        self.tables: list[dict[int, Row]] = [{}, {}]
        self.prefetches: list[tuple[int, Prefetch, list[Row]]] = []
        self.stale: list[tuple[int, Prefetch]] = []
        """Prefetches that began before the cache was cleared, so they have no reservation any more."""
        self.token = 0

    def version(self, number: int, size: int, *, payload: bool) -> Row:
        self.token += 1
        namespace = "default" if number % 2 else "other"
        content = b"p" * number if payload else None
        return row(number, namespace=namespace, token=self.token, metadata=b"m" * size, payload=content)

    @rule(at=st.integers(0, 1), numbers=numbers, size=sizes, payload=st.booleans())
    def write(self, at: int, numbers: Iterable[int], size: int, payload: bool) -> None:
        written = [self.version(number, size, payload=payload) for number in numbers]
        self.caches[at].store_written(written)
        self.tables[at].update({row.id: row for row in written})

    @rule(at=st.integers(0, 1), numbers=numbers)
    def delete(self, at: int, numbers: list[int]) -> None:
        self.caches[at].remove(numbers)
        for number in numbers:
            self.tables[at].pop(number, None)

    @rule(at=st.integers(0, 1), numbers=numbers)
    def start_prefetch(self, at: int, numbers: list[int]) -> None:
        prefetch = self.caches[at].start_prefetch("default", 1, [number for number in numbers if number % 2], 0.0)
        if prefetch is not None:
            self.prefetches.append((at, prefetch, []))

    @precondition(lambda self: self.prefetches)
    @rule(read=st.booleans())
    def read_or_end(self, read: bool) -> None:
        at, prefetch, found = self.prefetches[0]
        if read or not found:
            found[:] = [
                replace(self.tables[at][number], payload=b"p" * number)
                for number in prefetch.numbers
                if number in self.tables[at]
            ]
        if not read:
            self.caches[at].finish_prefetch(prefetch, found)
            self.prefetches.pop(0)

    @rule()
    def clear(self) -> None:
        for cache in self.caches:
            cache.clear()
        self.stale += [(at, prefetch) for at, prefetch, _ in self.prefetches]
        self.prefetches.clear()
        assert (self.written.bytes, self.prefetched.bytes) == (0, 0)
        assert (self.written.items, self.prefetched.items) == (0, 0)

    @precondition(lambda self: self.stale)
    @rule(read=st.booleans())
    def end_stale(self, read: bool) -> None:
        at, prefetch = self.stale.pop()
        if read:
            table = self.tables[at]
            found = [replace(table[n], payload=b"p" * n) for n in prefetch.numbers if n in table]
            self.caches[at].finish_prefetch(prefetch, found)
        else:
            self.caches[at].cancel_prefetch(prefetch)

    @invariant()
    def cached_rows_are_in_the_table(self) -> None:
        for cache, table in zip(self.caches, self.tables, strict=True):
            found = [found for number in range(1, 13) if (found := cache.get(number)) is not None]
            assert len(found) == len(cache)
            for one in found:
                assert replace(one, payload=None) == replace(table[one.id], payload=None)

    @invariant()
    def budgets_count_the_cached_and_reserved_rows(self) -> None:
        found = [row for cache in self.caches for number in range(1, 13) if (row := cache.get(number)) is not None]
        reserved = sum(prefetch.reserved_bytes for _, prefetch, _ in self.prefetches)
        assert self.written.bytes + self.prefetched.bytes == size_of(found) + reserved
        assert self.written.items + self.prefetched.items == len(found) + sum(
            len(prefetch.numbers) for _, prefetch, _ in self.prefetches
        )
        for pool in (self.written, self.prefetched):
            assert 0 <= pool.bytes <= pool.bytes_max
            assert 0 <= pool.items <= pool.items_max


TestAgainstATable = AgainstATable.TestCase
TestAgainstATable.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
