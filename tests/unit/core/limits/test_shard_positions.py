"""What an owner publishes bounds what is lost if its region dies, whenever that is, and mistakes in it are found."""

from __future__ import annotations

from random import Random

import pytest

from foqs.core.limits import shard_positions
from foqs.core.limits.shard_positions import ALLOWANCE_MIN, PositionPoint, ShardPositions
from foqs_contract.errors import Overloaded
from shardmgr.positions import LostRange, ShardPosition, lost_range

MAX_LAG_MS = 2_000
EPOCH = 7
SERVERS = ("b", "c")


def admit(positions: ShardPositions, count: int, now_ms: int) -> None:
    """Accept new items as a shard does. Raises Overloaded."""
    positions.check(count, now_ms)
    positions.on_accepted(count)


class Owner:
    """One ownership that accepts items, flushes and publishes, with two replicas, until it dies."""

    def __init__(self, rng: Random, *, keeps_replicas: bool) -> None:
        self.rng = rng
        self.keeps_replicas = keeps_replicas
        self.replicates = rng.random() < 0.5
        """It does for most of the time; otherwise seldom."""
        self.now_ms = 1_000
        self.positions = ShardPositions(1, self.now_ms)
        self.positions.set_bound(MAX_LAG_MS)
        self.waiting: list[tuple[int, int]] = []
        """The accepted calls: how many items, and when."""
        self.inserted = [0]
        """By flush, the items up to it."""
        self.accepted_ms = [0]
        """By flush, when the newest of its items was accepted."""
        self.committed_ms = [self.now_ms]
        self.replicas = dict.fromkeys(SERVERS, 0)
        self.stored: ShardPosition | None = None
        self.in_flight: ShardPosition | None = None

    def step(self) -> None:
        self.now_ms += self.rng.randrange(1, 120)
        self.rng.choice(
            (self.enqueue, self.enqueue, self.flush, self.replicate, self.sample, self.publish, self.answer)
        )()

    def enqueue(self) -> None:
        count = self.rng.choice((0, 1, 10, 300, 900))
        try:
            admit(self.positions, count, self.now_ms)
        except Overloaded:
            return
        self.waiting.append((count, self.now_ms))

    def flush(self) -> None:
        calls = self.waiting[: self.rng.randrange(4)]
        del self.waiting[: len(calls)]
        # Some are refused, or repeat a key.
        count = sum(count if self.rng.random() < 0.8 else 0 for count, _ in calls)
        self.inserted.append(self.inserted[-1] + count)
        self.accepted_ms.append(max((at for _, at in calls), default=0))
        self.committed_ms.append(self.now_ms)

    def replicate(self) -> None:
        if not self.replicates and self.rng.random() < 0.95:
            return
        server = self.rng.choice(SERVERS)
        self.replicas[server] = self.rng.randint(self.replicas[server], len(self.inserted) - 1)
        if not self.keeps_replicas and self.rng.random() < 0.03:
            self.replicas[server] = 0  # it is rebuilt from a backup

    def sample(self) -> None:
        self.positions.sample(self.now_ms, len(self.inserted) - 1, self.inserted[-1])
        for server in SERVERS:
            # The row is read again, or the replica is not reached.
            if self.replicas[server] == 0 or self.rng.random() < 0.8:
                self.positions.confirm(server, self.replicas[server])

    def publish(self) -> None:
        if self.in_flight is None:
            self.positions.sample(self.now_ms, len(self.inserted) - 1, self.inserted[-1])
            pending = sum(count for count, _ in self.waiting)
            points, most = self.positions.publication(self.now_ms, pending, SERVERS)
            self.in_flight = ShardPosition(1, "main", EPOCH, 3, points, most)

    def answer(self) -> None:
        if self.in_flight is not None:
            chance = self.rng.random()
            if chance < 0.8:
                self.stored = self.in_flight
            if chance < 0.6:
                self.positions.on_published()  # otherwise the outcome is unknown, or it was not written
            self.in_flight = None

    def check(self) -> None:
        """Check what would be said if the region died now, and the registry had either publication."""
        for server, flush in self.replicas.items():
            real = self.inserted[-1] - self.inserted[flush]
            for stored in (self.stored, self.in_flight or self.stored):
                if stored is None:
                    assert self.inserted[-1] == 0
                    continue
                found = lost_range(stored, EPOCH, flush)
                assert found is not None
                assert found.items_max is not None
                assert found.items_min <= real <= found.items_max, (server, flush, real, found)
                assert found.flushes_min <= len(self.inserted) - 1 - flush

    def check_bound(self) -> None:
        """Check that the items that no replica has were accepted within the bound, since the first of them was committed."""
        flush = max(self.replicas.values())
        lost = [at for at in range(flush + 1, len(self.inserted)) if self.inserted[at] > self.inserted[at - 1]]
        if lost and self.keeps_replicas:
            assert self.accepted_ms[lost[-1]] - self.committed_ms[lost[0]] < MAX_LAG_MS


def play(seed: int) -> Owner:
    rng = Random(seed)
    owner = Owner(rng, keeps_replicas=seed % 2 == 0)
    for _ in range(rng.randrange(20, 200)):
        owner.step()
        owner.check()
        owner.check_bound()
    return owner


def test_loss_is_within_the_range_and_the_bound_at_every_moment() -> None:
    inserted = [play(seed).inserted[-1] for seed in range(100)]
    assert sum(each > ALLOWANCE_MIN for each in inserted) > 30


def _is_found(seeds: range = range(200)) -> bool:
    for seed in seeds:
        try:
            play(seed)
        except AssertionError:
            return True
    return False


def test_first_items_that_are_accepted_before_a_publication_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(self: ShardPositions, shard: int, now_ms: int) -> None:
        original(self, shard, now_ms)
        self._admitted_max = ALLOWANCE_MIN

    original = ShardPositions.__init__
    monkeypatch.setattr(ShardPositions, "__init__", init)
    assert _is_found()


def test_maximum_that_is_used_before_it_is_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def publication(self: ShardPositions, now_ms: int, pending: int, servers: tuple[str, ...]) -> object:
        found = original(self, now_ms, pending, servers)
        self.on_published()
        return found

    original = ShardPositions.publication
    monkeypatch.setattr(ShardPositions, "publication", publication)
    assert _is_found()


def test_smaller_maximum_counts_as_soon_as_it_may_be_read() -> None:
    positions = ShardPositions(1, 0)
    positions.publication(0, 0, SERVERS)
    positions.on_published()
    with pytest.raises(Overloaded):
        admit(positions, ALLOWANCE_MIN * 5, 0)
    positions.publication(10, 0, SERVERS)
    positions.on_published()
    positions.publication(9_000, 0, SERVERS)
    with pytest.raises(Overloaded):
        admit(positions, ALLOWANCE_MIN * 5, 9_000)
    admit(positions, ALLOWANCE_MIN, 9_000)


def test_items_that_wait_and_are_not_counted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ShardPositions.publication
    monkeypatch.setattr(
        ShardPositions, "publication", lambda self, now_ms, pending, servers: original(self, now_ms, 0, servers)
    )
    assert _is_found()


def test_flush_that_is_behind_its_count_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ShardPositions.sample
    monkeypatch.setattr(
        ShardPositions,
        "sample",
        lambda self, now_ms, flush, inserted: original(self, now_ms, max(0, flush - 1), inserted),
    )
    assert _is_found()


def test_lag_by_the_newest_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nearest(self: ShardPositions) -> None:
        self._nearest = self._samples[-1]

    monkeypatch.setattr(ShardPositions, "_find_nearest", find_nearest)
    assert _is_found()


def test_no_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardPositions, "is_near", lambda self, now_ms: True)
    assert _is_found()


def test_owner_accepts_again_when_a_replica_is_near() -> None:
    positions = ShardPositions(1, 0)
    positions.set_bound(1_000)
    with pytest.raises(Overloaded, match="publishes its position"):
        admit(positions, 1, 0)
    positions.publication(0, 0, SERVERS)
    positions.on_published()
    admit(positions, 10, 0)
    positions.sample(100, 1, 10)
    positions.sample(600, 1, 10)
    assert positions.lag_ms("b", 700) == 700
    with pytest.raises(Overloaded, match=r"max_lag_ms is 1000; acks go on"):
        admit(positions, 1, 1_000)
    assert not positions.accepts_items(1_000)
    positions.confirm("b", 1)
    assert positions.lag_ms("b", 1_000) == 0
    admit(positions, 1, 1_000)


def test_idle_shard_accepts_although_its_replicas_are_away() -> None:
    positions = ShardPositions(1, 0)
    positions.set_bound(1_000)
    positions.publication(0, 0, SERVERS)
    positions.on_published()
    positions.sample(60_000, 40, 0)
    admit(positions, 1, 60_900)


def test_call_with_more_items_than_the_allowance_is_accepted_after_the_next_publication() -> None:
    positions = ShardPositions(1, 0)
    positions.publication(0, 0, SERVERS)
    positions.on_published()
    with pytest.raises(Overloaded):
        admit(positions, ALLOWANCE_MIN * 5, 0)
    assert positions.needs_publication
    positions.publication(10, 0, SERVERS)
    positions.on_published()
    admit(positions, ALLOWANCE_MIN * 5, 10)


def test_samples_and_points_are_bounded() -> None:
    positions = ShardPositions(1, 0)
    for at in range(1, 2_000):
        positions.sample(at, at, at)
    points, _ = positions.publication(2_000, 0, SERVERS)
    assert len(positions._samples) <= shard_positions._SAMPLES_MAX
    assert len(points) <= 10
    assert points[0] == PositionPoint(0, 0)
    assert points[-1] == PositionPoint(1_999, 1_999)


def test_lag_of_hours_is_known_to_an_eighth() -> None:
    positions = ShardPositions(1, 0)
    behind = [1_000, 60_000, 3_600_000, 8_000_000]
    for at in range(100, 9_000_001, 100):
        positions.sample(at, at, at)
    assert len(positions._samples) <= shard_positions._SAMPLES_MAX
    for lag_ms in behind:
        positions.confirm("b", 9_000_000 - lag_ms)
        assert lag_ms <= positions.lag_ms("b", 9_000_000) <= lag_ms * 9 // 8


def test_bound_of_a_minute_holds_for_replicas_that_are_always_half_a_minute_behind() -> None:
    positions = ShardPositions(1, 0)
    positions.set_bound(60_000)
    for at in range(100, 600_001, 100):
        positions.sample(at, at, at)
        positions.confirm("b", at - 30_000 if at > 30_000 else None)
        assert positions.is_near(at)


def test_range_by_the_epoch_of_the_row() -> None:
    published = ShardPosition(1, "main", EPOCH, 3, [(0, 0), (5, 50), (9, 90)], 1_090)
    assert lost_range(None, EPOCH, 3) is None
    assert lost_range(published, EPOCH + 1, 0) == LostRange(0, 0, 0)
    assert lost_range(published, EPOCH - 1, 99) == LostRange(9, 90, None)
    assert lost_range(published, EPOCH, 5) == LostRange(4, 40, 1_040)
    assert lost_range(published, EPOCH, 6) == LostRange(3, 0, 1_040)
    assert lost_range(published, EPOCH, 12) == LostRange(0, 0, 1_000)
    assert lost_range(published, EPOCH + 1, 0, is_complete=False) is None
    assert lost_range(published, EPOCH, 5, is_complete=False) == LostRange(4, 40, None)
