"""The shard clock: monotonic, of bounded rate, and following the database's clock even if that jumps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.timing.arrivals import Arrivals
from foqs.core.timing.database_clock import DatabaseClock
from foqs.core.timing.shard_clock import ShardClock, initial_time_ms

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
SLEW = 50


class Clocks:
    """A steady clock and a database's clock, which tests advance."""

    def __init__(self, database_ms: int = START_MS) -> None:
        self.steady_ms = 5_000
        self.database_ms = database_ms

    def monotonic_ms(self) -> int:
        return self.steady_ms

    def time(self, start_ms: int = START_MS, slew: int = SLEW) -> ShardClock:
        self.database = DatabaseClock(self.monotonic_ms, slew, 0, Arrivals(0))
        self.database.on_sample(self.database_ms, self.steady_ms)
        return self.database.start_shard_clock(self.database_ms, 1, start_ms - self.database_ms, 0)

    def pass_ms(self, ms: int) -> None:
        self.steady_ms += ms
        self.database_ms += ms

    def sample(self, there_ms: int = 0, back_ms: int = 0) -> None:
        requested_at_ms = self.steady_ms
        self.pass_ms(there_ms)
        database_ms = self.database_ms
        self.pass_ms(back_ms)
        self.database.on_sample(database_ms, requested_at_ms)


steps = st.tuples(
    st.integers(0, 20_000),  # time passes
    st.one_of(st.just(0), st.integers(-50 * HOUR_MS, 50 * HOUR_MS)),  # the database's clock steps
    st.tuples(st.integers(0, 500), st.integers(0, 500)),  # a sample's request and response times
)


@given(st.lists(steps, max_size=30), st.integers(1, 500), st.integers(-HOUR_MS, HOUR_MS))
def test_it_never_goes_back_and_never_runs_faster_or_slower_than_its_bound(
    moves: list[tuple[int, int, tuple[int, int]]], slew: int, apart_ms: int
) -> None:
    clocks = Clocks()
    time = clocks.time(START_MS + apart_ms, slew)
    last_ms, last_steady_ms = time.now_ms(), clocks.steady_ms

    def check() -> None:
        nonlocal last_ms, last_steady_ms
        now_ms, passed_ms = time.now_ms(), clocks.steady_ms - last_steady_ms
        assert passed_ms * (1_000 - slew) // 1_000 - 1 <= now_ms - last_ms <= passed_ms * (1_000 + slew) // 1_000 + 1
        assert now_ms >= last_ms
        last_ms, last_steady_ms = now_ms, clocks.steady_ms

    for passed_ms, step_ms, (there_ms, back_ms) in moves:
        clocks.pass_ms(passed_ms)
        check()
        clocks.database_ms += step_ms
        clocks.sample(there_ms, back_ms)
        check()


@given(st.integers(-48 * HOUR_MS, 48 * HOUR_MS), st.integers(0, 300), st.integers(0, 300))
def test_after_a_step_of_hours_it_returns_to_the_database_s_clock(step_ms: int, there_ms: int, back_ms: int) -> None:
    clocks = Clocks()
    time = clocks.time()
    clocks.database_ms += step_ms
    clocks.sample(there_ms, back_ms)
    for _ in range(10):
        clocks.pass_ms(abs(step_ms) * 1_000 // SLEW // 10 + 1)
        clocks.sample(there_ms, back_ms)
    clocks.pass_ms(20 * (there_ms + back_ms) + 20)
    assert abs(time.now_ms() - clocks.database_ms) <= there_ms + back_ms + 1
    assert abs(time.now_and_offset_ms()[1]) <= there_ms + back_ms + 1


def test_it_corrects_a_difference_at_its_rate_and_then_runs_like_the_steady_clock() -> None:
    clocks = Clocks()
    time = clocks.time(START_MS - 100)
    assert time.now_and_offset_ms()[1] == -100
    clocks.pass_ms(1_000)
    assert time.now_ms() == START_MS - 100 + 1_050
    assert time.now_and_offset_ms()[1] == -50
    clocks.pass_ms(9_000)
    assert time.now_ms() == clocks.database_ms
    assert time.now_and_offset_ms()[1] == 0


def test_a_difference_below_the_uncertainty_of_the_sample_is_not_corrected() -> None:
    clocks = Clocks()
    time = clocks.time()
    clocks.sample(there_ms=400, back_ms=400)
    clocks.pass_ms(10_000)
    assert time.now_ms() == clocks.database_ms
    assert time.now_and_offset_ms()[1] == 0


def test_a_slow_sample_does_not_discard_the_former_estimate() -> None:
    clocks = Clocks()
    time = clocks.time(START_MS - 1_000)
    clocks.sample(there_ms=3_000, back_ms=3_000)
    clocks.pass_ms(60_000)
    assert time.now_ms() == clocks.database_ms


def test_frequent_samples_lose_nothing_to_rounding() -> None:
    clocks = Clocks()
    time = clocks.time(START_MS - 100)
    for _ in range(2_000):
        clocks.pass_ms(1)
        clocks.sample()
    assert time.now_ms() == clocks.database_ms


def test_time_counts_while_the_machine_sleeps() -> None:
    clocks = Clocks()
    time = clocks.time()
    clocks.pass_ms(8 * HOUR_MS)
    assert time.now_ms() == START_MS + 8 * HOUR_MS


@given(st.integers(-HOUR_MS, HOUR_MS), st.integers(1, 500), st.integers(0, 10_000), st.integers(-10, 2 * HOUR_MS))
def test_a_wait_ends_exactly_at_its_time(apart_ms: int, slew: int, before_ms: int, ahead_ms: int) -> None:
    clocks = Clocks()
    time = clocks.time(START_MS + apart_ms, slew)
    clocks.pass_ms(before_ms)
    until_ms = time.now_ms() + ahead_ms
    wait_ms = time.wait_ms(until_ms)
    assert wait_ms >= 0
    if wait_ms:
        clocks.pass_ms(wait_ms - 1)
        assert time.now_ms() < until_ms
        clocks.pass_ms(1)
    assert time.now_ms() >= until_ms


def test_new_shard_starts_at_the_database_clock() -> None:
    assert initial_time_ms(START_MS, 0, 0, 500) == START_MS


def test_new_owner_continues_the_time_of_the_former_owner_even_if_the_database_clock_is_hours_off() -> None:
    saved_ms = START_MS + 3 * HOUR_MS
    assert initial_time_ms(START_MS + 700, saved_ms, 3 * HOUR_MS, 0) == saved_ms + 700


def test_a_new_owner_never_starts_before_the_saved_time() -> None:
    assert initial_time_ms(START_MS - HOUR_MS, START_MS, 0, 500) == START_MS


@given(st.integers(0, 10_000), st.integers(-500, 500))
def test_no_lease_ends_early_because_another_server_has_another_clock(passed_ms: int, apart_ms: int) -> None:
    true_ms = START_MS + passed_ms
    assert START_MS <= initial_time_ms(true_ms + apart_ms, START_MS, 0, 500) <= max(START_MS, true_ms)


def test_it_catches_up_only_while_it_is_behind_the_database_s_clock() -> None:
    clocks = Clocks()
    time = clocks.time(START_MS - 100)
    assert time.is_catching_up
    clocks.pass_ms(1_999)
    assert time.is_catching_up
    clocks.pass_ms(1)
    assert not time.is_catching_up
    assert not clocks.time(START_MS + 60_100).is_catching_up
