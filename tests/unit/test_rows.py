"""What a shard's owner remembers of its rows."""

from __future__ import annotations

from dataclasses import replace

from foqs.core.item import Row
from foqs.core.rows import ROW_BYTES, RowCache
from tests.support.builders import row


def find(cache: RowCache, *numbers: int, payload: bool = False) -> tuple[dict[int, Row], list[int]]:
    found: dict[int, Row] = {}
    missing = cache.find(numbers, found, payload=payload)
    return found, missing


def test_a_kept_row_is_found_and_a_dropped_one_must_be_read() -> None:
    cache = RowCache(10_000)
    kept = row(1)
    cache.keep(kept)
    cache.keep(row(2))
    cache.drop(2)
    assert find(cache, 1, 2, 3) == ({1: kept}, [2, 3])


def test_a_row_without_its_payload_does_not_serve_where_the_payload_is_wanted() -> None:
    cache = RowCache(10_000)
    cache.keep(row(1, payload=None))
    assert find(cache, 1)[1] == []
    assert find(cache, 1, payload=True)[1] == [1]


def test_the_last_version_of_a_row_is_the_one_that_is_found() -> None:
    cache = RowCache(10_000)
    cache.keep(row(1))
    new = row(1, token=7, payload=b"longer than it was")
    cache.keep(new)
    assert find(cache, 1)[0] == {1: new}
    assert len(cache) == 1


def test_a_full_cache_takes_nothing_new_and_keeps_what_it_has() -> None:
    cache = RowCache(3 * (ROW_BYTES + 1))
    for number in range(1, 6):
        cache.keep(row(number))
    assert find(cache, *range(1, 6))[1] == [4, 5]
    cache.drop(2)
    cache.keep(row(9))
    assert find(cache, 9)[1] == []


def test_a_row_that_outgrows_a_full_cache_is_forgotten_and_never_stale() -> None:
    cache = RowCache(ROW_BYTES + 10)
    first = row(1)
    cache.keep(first)
    cache.keep(replace(first, metadata=b"m" * 100))
    assert find(cache, 1)[1] == [1]
    assert cache.bytes == 0


def test_bytes_are_given_back_to_the_last() -> None:
    cache = RowCache(100_000)
    for number in range(50):
        cache.keep(row(number + 1, payload=b"p" * number, metadata=b"m" * (50 - number)))
    for number in range(50):
        cache.keep(row(number + 1, payload=b"p"))
    assert cache.bytes == 50 * (ROW_BYTES + 1)
    for number in range(50):
        cache.drop(number + 1)
    assert (cache.bytes, len(cache)) == (0, 0)
