"""The token bucket of a namespace's rate, and the count of the last minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.limits.token_bucket import MinuteCount, TokenBucket


def passes(bucket: TokenBucket, items: int, per_minute: int, now_s: float) -> bool:
    """Consume the items if they may pass now; return whether they did."""
    if bucket.wait_s(items, per_minute, now_s):
        return False
    bucket.consume(items, per_minute, now_s)
    return True


def test_full_bucket_passes_items_of_one_minute_at_once_and_then_refills_with_time() -> None:
    bucket = TokenBucket()
    assert passes(bucket, 60, 60, 1_000.0)
    assert not passes(bucket, 1, 60, 1_000.0)
    assert bucket.wait_s(5, 60, 1_000.0) == pytest.approx(5.0)
    assert passes(bucket, 5, 60, 1_005.0)
    assert not passes(bucket, 1, 60, 1_005.5)


def test_a_change_of_the_rate_applies_at_once() -> None:
    bucket = TokenBucket()
    assert passes(bucket, 60, 60, 0.0)
    assert bucket.wait_s(60, 600, 0.0) == pytest.approx(6.0)
    assert passes(bucket, 60, 600, 6.0)
    assert bucket.wait_s(1, 1, 6.0) == pytest.approx(60.0)


def test_a_bucket_that_was_unused_for_a_minute_is_full() -> None:
    bucket = TokenBucket()
    bucket.consume(60, 60, 100.0)
    assert not bucket.is_full(159.0)
    assert bucket.is_full(160.0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=60), st.sampled_from([15, 30, 60, 240]))
def test_t_minutes_pass_at_most_the_items_of_t_plus_1_minutes(calls: list[tuple[int, int]], per_minute: int) -> None:
    bucket = TokenBucket()
    now_s = 0.0
    passed: list[tuple[float, int]] = []
    # The plain bucket counts in sixtieths of an item: each second adds `per_minute` of them.
    plain = 60 * per_minute
    for pause_s, items in calls:
        now_s += pause_s
        plain = min(60 * per_minute, plain + pause_s * per_minute)
        may_pass = items * 60 <= plain
        if may_pass:
            plain -= items * 60
        assert (bucket.wait_s(items, per_minute, now_s) <= 1e-9) == may_pass or abs(items * 60 - plain) < 1
        if may_pass:
            bucket.consume(items, per_minute, now_s)
            passed.append((now_s, items))
    for place, (start_s, _) in enumerate(passed):
        total = 0
        for at_s, items in passed[place:]:
            total += items
            assert total <= per_minute + (at_s - start_s) * per_minute / 60 + 1e-6


def test_items_at_a_constant_rate_are_counted_exactly() -> None:
    count = MinuteCount()
    for second in range(200):
        count.add(3, 1_000.0 + second)
    assert count.last_minute(1_200.0) == 180
    assert count.last_minute(1_230.0) == 90  # half of them are older than a minute
    assert count.last_minute(1_320.0) == 0


def test_a_burst_is_forgotten_after_two_minutes_at_most() -> None:
    count = MinuteCount()
    count.add(100, 59.0)
    assert count.last_minute(59.5) == 100
    assert count.last_minute(120.0) == 0
