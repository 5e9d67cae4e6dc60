"""One estimate of a database's clock for all shards of a host, and the times at which items arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.timing.arrivals import Arrivals
from foqs.core.timing.database_clock import DatabaseClock
from foqs.core.timing.shard_clock import ShardClock

START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
SLEW = 50
SKEW_MS_MAX = 100


class World:
    """A steady clock, and databases of one host whose clocks are ahead of it."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.arrivals = Arrivals(SKEW_MS_MAX)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def restarted(self) -> World:
        """Return the world of the host's next run."""
        self.arrivals = Arrivals(SKEW_MS_MAX)
        return self

    def database(self, ahead_ms: int = START_MS) -> DatabaseClock:
        clock = DatabaseClock(self.monotonic_ms, SLEW, SKEW_MS_MAX, self.arrivals)
        clock.on_sample(self.now_ms + ahead_ms, self.now_ms)
        return clock


steps = st.lists(
    st.tuples(
        st.integers(0, 30_000), st.integers(0, 3), st.integers(-HOUR_MS, HOUR_MS), st.integers(0, 50), st.booleans()
    ),
    min_size=1,
    max_size=30,
)
"""(time passes, a shard, the database's clock steps, a round trip, whether the shard is taken over)."""


@given(steps)
def test_no_item_arrives_before_the_one_before_it_whatever_its_shard_and_its_clock(
    moves: list[tuple[int, int, int, int, bool]],
) -> None:
    world, ahead_ms = World(), START_MS
    database = world.database()
    clocks = {shard: database.start_shard_clock(world.now_ms + ahead_ms, 0, 0, 0) for shard in range(2)}
    last_ms = database.arrival_ms()
    for passed_ms, shard, step_ms, round_trip_ms, is_taken_over in moves:
        world.now_ms += passed_ms
        ahead_ms += step_ms
        requested_at_ms = world.now_ms
        database_ms = world.now_ms + ahead_ms
        world.now_ms += round_trip_ms
        database.on_sample(database_ms, requested_at_ms)
        if is_taken_over:
            saved_ms, offset_ms = clocks[shard].now_and_offset_ms() if shard in clocks else (database_ms + step_ms, 0)
            if len(clocks) > 1 and shard in clocks:
                database.end_shard_clock(clocks[shard])
            clocks[shard] = database.start_shard_clock(database_ms, saved_ms, offset_ms, 0)
        arrival_ms = database.arrival_ms()
        assert arrival_ms >= last_ms
        last_ms = arrival_ms


@given(st.integers(-90, 90), st.integers(-90, 90), st.integers(0, HOUR_MS), st.integers(-HOUR_MS, HOUR_MS))
def test_the_clocks_of_two_shards_agree_once_each_has_corrected_its_first_difference(
    one_ms: int, other_ms: int, passed_ms: int, step_ms: int
) -> None:
    world = World()
    database = world.database()
    one = database.start_shard_clock(world.now_ms + START_MS, 1, one_ms, 0)
    other = database.start_shard_clock(world.now_ms + START_MS, 1, other_ms, 0)
    world.now_ms += (90 + SKEW_MS_MAX) * 1_000 // SLEW
    database.on_sample(world.now_ms + START_MS + step_ms, world.now_ms)
    world.now_ms += passed_ms
    assert one.now_and_offset_ms() == other.now_and_offset_ms()


takeovers = st.lists(
    st.tuples(
        st.sampled_from((0, 1, 40, 5_000)),
        st.integers(0, 2),
        st.sampled_from((0, 0, 50, -50, HOUR_MS, -HOUR_MS)),
        st.sampled_from(("accept", "accept", "move", "restart")),
    ),
    max_size=30,
)
"""(time passes, a shard, the database's clock steps, what happens)."""


@given(takeovers)
def test_a_host_places_new_items_behind_those_of_its_shards_whatever_it_took_over_and_restarted(
    moves: list[tuple[int, int, int, str]],
) -> None:
    """Each owner row holds what its last flush has saved. Without its items a shard is taken over by another host."""
    world, ahead_ms = World(), START_MS
    saved = dict.fromkeys(range(3), (0, 0, 0))
    last_ms = dict.fromkeys(saved, 0)
    database = world.database()
    clocks: dict[int, ShardClock] = {}
    for passed_ms, shard, step_ms, event in moves:
        world.now_ms += passed_ms
        ahead_ms += step_ms
        if event == "restart":
            database, clocks = world.restarted().database(ahead_ms), {}
        database.on_sample(world.now_ms + ahead_ms, world.now_ms)
        if event == "move" and shard in clocks:
            database.end_shard_clock(clocks.pop(shard))
        if is_taken_over := shard not in clocks:
            clocks[shard] = database.start_shard_clock(world.now_ms + ahead_ms, *saved[shard])
        arrival_ms = database.arrival_ms()
        assert arrival_ms >= max(last_ms[of] for of in clocks)
        assert arrival_ms > last_ms[shard] or not is_taken_over
        last_ms[shard] = arrival_ms
        saved[shard] = (*clocks[shard].now_and_offset_ms(), database.last_arrival_ms)


def test_a_restarted_host_places_new_items_behind_those_of_its_last_run() -> None:
    world = World()
    now_ms = world.now_ms + START_MS
    one = world.database()
    one.start_shard_clock(now_ms, now_ms, 0, 0)
    one.start_shard_clock(now_ms, now_ms + HOUR_MS, HOUR_MS, 0)  # a shard whose former owner saw another time
    saved_ms = one.arrival_ms()
    assert saved_ms == now_ms + HOUR_MS + 1
    world.now_ms += 2_000
    two = world.restarted().database()
    clock = two.start_shard_clock(world.now_ms + START_MS, now_ms, 0, one.last_arrival_ms)
    assert two.arrival_ms() == saved_ms + 1
    assert clock.now_ms() == world.now_ms + START_MS - SKEW_MS_MAX
    world.now_ms += HOUR_MS
    assert two.arrival_ms() == world.now_ms + START_MS


def test_the_arrival_clock_starts_again_with_the_first_shard_after_the_last_one_ended() -> None:
    world = World()
    database = world.database()
    clock = database.start_shard_clock(world.now_ms + START_MS, 0, 0, 0)
    database.end_shard_clock(clock)
    world.now_ms += 48 * HOUR_MS  # and the steady clock ran too fast
    database.on_sample(world.now_ms + START_MS - 17_000, world.now_ms)
    database.start_shard_clock(world.now_ms + START_MS - 17_000, 0, 0, 0)
    assert 0 <= database.arrival_ms() - (world.now_ms + START_MS - 17_000) <= 1


def test_items_of_two_databases_are_in_order_although_a_third_one_is_far_ahead() -> None:
    world = World()
    ahead_ms = (10_000, 50, 0)
    far, ahead, behind = databases = [world.database(START_MS + each_ms) for each_ms in ahead_ms]
    for database, each_ms in zip(databases, ahead_ms, strict=True):
        database.start_shard_clock(world.now_ms + START_MS + each_ms, 0, 0, 0)
    times = [database.arrival_ms() - world.now_ms - START_MS for database in (behind, far, ahead, behind, far)]
    assert times == [0, 10_000, 50, 50, 10_000]
