"""Tests a stream out of a queue at each point where its driver may die: no item is lost, none is in two batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from foqs.testing import SyncFakeHost
from foqs_client import Delivery, Item, ItemFilter, Namespace, Outcome, SyncClient, Unreachable
from foqs_client.spark import item_reader, queue_stream
from foqs_client.spark.item_view_columns import STREAM_COLUMNS
from foqs_client.spark.job_error import SourceError
from foqs_client.spark.lease_renewal import StreamLeaseRenewal
from foqs_client.spark.queue_stream import Offset, QueueStream
from foqs_client.spark.source_options import StreamSourceOptions
from foqs_client.spark.staging import Staging
from tests.support.example_counts import examples

LEASE_MS = 60_000
START = Offset()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncFakeHost]:
    monkeypatch.setattr(queue_stream, "WAIT_MS", 0)
    for module in (queue_stream, item_reader):
        monkeypatch.setattr(module, "BACKOFF_S_MIN", 0.001)
        monkeypatch.setattr(module, "BACKOFF_S_MAX", 0.002)
    with SyncFakeHost({"namespace.lease_ms_max": 600_000}) as host:
        yield host


class Driver:
    """A driver of a query. `die` ends it without another word."""

    def __init__(self, client: Any, folder: Path, **options: Any) -> None:
        given = {"topics": ("t",), "lease_ms": LEASE_MS, "timeout_ms": 5_000, **options}
        self.options = StreamSourceOptions("foqs://fake", staging_location=str(folder / "staged"), **given)
        self.staging = Staging(self.options.staging_location, STREAM_COLUMNS)
        self.renewal = StreamLeaseRenewal(client, LEASE_MS)
        self.stream = QueueStream(self.options, client, self.staging, self.renewal)

    def lease_batch(self, start: Offset, items_max: int = 100) -> Offset:
        return self.stream.lease_batch(start, items_max, until_none_is_ready=False)

    def ids(self, end: Offset) -> list[str]:
        """Read the batch, as its tasks do."""
        parts = self.stream.partitions(end)
        return [
            item
            for groups in parts
            for batch in self.staging.read(end.file, groups)
            for item in batch["id"].to_pylist()
        ]

    def die(self) -> None:
        self.renewal.stop()


@pytest.fixture
def start_driver(fake: SyncFakeHost, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Return a function that starts a driver; the one before dies."""
    drivers: list[Driver] = []

    def start(client: Any = None, **options: Any) -> Driver:
        for driver in drivers[-1:]:
            driver.die()
        drivers.append(Driver(client or fake.client(), tmp_path, **options))
        return drivers[-1]

    yield start
    for driver in drivers[-1:]:
        driver.die()


def put(fake: SyncFakeHost, count: int, topic: str = "t") -> list[str]:
    return [
        each.require() for each in fake.client().enqueue([Item(topic, b"%d" % n, priority=n % 3) for n in range(count)])
    ]


def left(fake: SyncFakeHost, *states: str) -> int:
    return fake.client().count(ItemFilter(states=states or None)).items


def test_batch_has_the_best_items_first_and_is_acked_only_when_it_is_settled(
    fake: SyncFakeHost, start_driver: Callable[..., Driver]
) -> None:
    ids = put(fake, 30)
    driver = start_driver()
    first = driver.lease_batch(START, 10)
    assert (first.batch, first.rows) == (1, 10)
    assert sorted(driver.ids(first)) == sorted(ids[::3])
    assert left(fake, "leased") == 10
    second = driver.lease_batch(first, 100)
    assert left(fake) == 20
    assert sorted(driver.ids(second)) == sorted(set(ids) - set(ids[::3]))
    assert driver.lease_batch(second) == second
    assert left(fake) == 0
    assert [file.batch for file in driver.staging.staged_files()] == [2]


def test_rows_have_what_was_enqueued(fake: SyncFakeHost, start_driver: Callable[..., Driver]) -> None:
    [id_] = [
        each.require()
        for each in fake.client().enqueue(
            [Item("t", b"p\0", priority=-2, metadata=b"m", trace_context=b"trace", group="g")]
        )
    ]
    driver = start_driver()
    end = driver.lease_batch(START)
    [groups] = driver.stream.partitions(end)
    [row] = [row for batch in driver.staging.read(end.file, groups) for row in batch.to_pylist()]
    assert row.pop("enqueued_at") is not None
    assert row == {
        "id": id_, "shard": 0, "topic": "t", "priority": -2, "attempt": 1, "payload_bytes": 2, "metadata": b"m",
        "payload": b"p\0", "trace_context": b"trace", "item_group": "g",
    }  # fmt: skip


def test_driver_that_dies_before_its_offset_is_kept_releases_the_items_at_its_restart(
    fake: SyncFakeHost, start_driver: Callable[..., Driver]
) -> None:
    ids = put(fake, 5)
    lost = start_driver().lease_batch(START)
    driver = start_driver()
    end = driver.lease_batch(START)
    assert end.stream != lost.stream
    assert [file.name for file in driver.staging.staged_files()] == [end.file]
    assert sorted(driver.ids(end)) == sorted(ids)
    assert {view.attempt for view in fake.client().peek("t", "leased").items} == {1}
    put(fake, 3)
    lost = driver.lease_batch(end)
    driver = start_driver()
    again = driver.lease_batch(end)
    assert (again.batch, again.rows) == (lost.batch, 3) == (2, 3)
    assert left(fake) == 3


def test_batch_that_is_run_again_has_the_same_rows_and_is_acked_although_its_leases_have_ended(
    fake: SyncFakeHost, start_driver: Callable[..., Driver]
) -> None:
    put(fake, 5)
    driver = start_driver()
    end = driver.lease_batch(START)
    before = driver.ids(end)
    driver.die()
    fake.advance(3 * LEASE_MS)
    assert left(fake, "ready") == 5
    driver = start_driver()
    assert driver.ids(end) == before
    assert driver.lease_batch(end) == end
    assert left(fake) == 0


def test_driver_that_dies_between_commit_and_ack_acks_at_its_restart(
    fake: SyncFakeHost, start_driver: Callable[..., Driver]
) -> None:
    put(fake, 5)
    end = start_driver().lease_batch(START)
    driver = start_driver()
    fake.advance(3 * LEASE_MS)
    assert driver.lease_batch(end) == end
    driver.stream.settle(end)
    assert left(fake) == 0


def test_item_that_another_consumer_got_after_the_lease_is_left_to_it(
    fake: SyncFakeHost, start_driver: Callable[..., Driver], caplog: pytest.LogCaptureFixture
) -> None:
    put(fake, 5)
    driver = start_driver()
    end = driver.lease_batch(START)
    driver.die()
    fake.advance(2 * LEASE_MS)
    fake.client().dequeue({"t": 2}, lease_ms=LEASE_MS)
    assert start_driver().lease_batch(end) == end
    assert left(fake) == 2
    assert "batch 1: 2 items were delivered to another consumer, because the lease had ended" in caplog.text


def test_nothing_is_taken_before_the_last_batch_is_acked(
    fake: SyncFakeHost, start_driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(fake, 5)
    client = fake.client()
    driver = start_driver(client, timeout_ms=500)
    end = driver.lease_batch(START, 2)

    def fail(*args: object, **options: object) -> list[Outcome]:
        raise Unreachable("no host")

    with monkeypatch.context() as patched:
        patched.setattr(client, "ack", fail)
        with pytest.raises(SourceError, match="2 items of a finished batch could not be acked: UNREACHABLE"):
            driver.lease_batch(end)
    assert left(fake, "ready") == 3
    assert driver.lease_batch(end).rows == 3


def test_leases_are_extended_until_the_batch_is_settled(
    fake: SyncFakeHost, start_driver: Callable[..., Driver]
) -> None:
    put(fake, 4)
    driver = start_driver()
    end = driver.lease_batch(START, 3)
    for _ in range(3):
        fake.advance(LEASE_MS * 2 // 3)
        assert driver.renewal.renew()
    assert left(fake, "leased") == 3
    fake.advance(2 * LEASE_MS)
    assert left(fake, "ready") == 4
    assert driver.renewal.renew()
    assert left(fake, "leased") == 3, "nobody else got the items since"
    driver.stream.settle(end)
    assert left(fake) == 1


def test_location_belongs_to_the_latest_query(fake: SyncFakeHost, start_driver: Callable[..., Driver]) -> None:
    put(fake, 5)
    former = start_driver().lease_batch(START)
    driver = start_driver()
    end = driver.lease_batch(START)
    assert end.rows == 5
    for call in (driver.lease_batch, driver.ids):
        with pytest.raises(
            SourceError, match="belongs to another query, or to another driver of this one: start each query"
        ):
            call(former)
    assert left(fake, "leased") == 5


def test_former_driver_that_is_still_running_takes_and_releases_nothing(
    fake: SyncFakeHost, start_driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(fake, 4)
    zombie = start_driver()
    first = zombie.lease_batch(START, 2)
    driver = start_driver()
    seconds: list[Offset] = []

    def restart_meanwhile(end: Offset) -> None:
        """The restarted driver stages its next batch while the former one still acks the last one."""
        seconds.append(driver.lease_batch(first))

    with monkeypatch.context() as patched:
        patched.setattr(zombie.stream, "settle", restart_meanwhile)
        with pytest.raises(SourceError, match="or to another driver of this one"):
            zombie.lease_batch(first)
    assert driver.ids(seconds[0])
    assert left(fake, "leased") == 2
    with pytest.raises(SourceError, match="or to another driver of this one"):
        zombie.lease_batch(first)


def test_missing_file_of_the_last_batch_is_named_with_the_remedy_and_nothing_is_taken(
    fake: SyncFakeHost, start_driver: Callable[..., Driver]
) -> None:
    put(fake, 1)
    driver = start_driver()
    end = driver.lease_batch(START)
    driver.staging.delete(end.file)
    with pytest.raises(
        SourceError, match=r"are not in .*: the driver had them there; give driver and executors a folder"
    ):
        list(driver.staging.read(end.file, [0]))
    for call in (driver.ids, driver.lease_batch):
        with pytest.raises(SourceError, match=r"are not in .*: start the query with its former staging_location"):
            call(end)
    assert left(fake, "leased") == 1
    (Path(driver.options.staging_location) / "stream.json").unlink()
    with pytest.raises(SourceError, match="has no stream: start each query"):
        driver.lease_batch(end)


@pytest.mark.parametrize(
    "found", [5, {}, {"logOffset": 3}, {"stream": "s", "batch": 1, "file": "f"}, {**START.as_dict(), "more": 1}]
)
def test_offset_of_another_source_is_refused(found: object) -> None:
    with pytest.raises(SourceError, match="the checkpoint is of a query that reads another source: start each query"):
        Offset.parse(found)
    assert Offset.parse(START.as_dict()) == START


def test_unfinished_file_is_deleted(fake: SyncFakeHost, start_driver: Callable[..., Driver]) -> None:
    put(fake, 2)
    driver = start_driver()
    torn = driver.staging.writer(1)
    (Path(driver.options.staging_location) / torn.name).write_bytes(b"PAR1 and no more")
    assert driver.lease_batch(START).rows == 2
    assert torn.name not in {file.name for file in driver.staging.staged_files()}


@pytest.mark.parametrize("step", ["writer", "complete"])
def test_items_of_a_take_that_fails_are_released(
    step: str, fake: SyncFakeHost, start_driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(fake, 7)
    driver = start_driver()
    monkeypatch.setattr(queue_stream, "TAKE_ITEMS", 3)

    def full(*arguments: object) -> None:
        raise OSError("no space left on the device")

    with monkeypatch.context() as patched:
        patched.setattr(driver.staging, step, full)
        with pytest.raises(OSError, match="no space"):
            driver.lease_batch(START)
    assert (left(fake, "leased"), left(fake, "ready")) == (0, 7)
    end = driver.lease_batch(START)
    assert end.rows == 7
    attempts = [each for groups in driver.stream.partitions(end) for each in read_attempts(driver, end, groups)]
    assert set(attempts) == {1}


def read_attempts(driver: Driver, end: Offset, groups: list[int]) -> list[int]:
    return [each for batch in driver.staging.read(end.file, groups) for each in batch["attempt"].to_pylist()]


def test_topics_may_change_at_a_restart(fake: SyncFakeHost, start_driver: Callable[..., Driver]) -> None:
    put(fake, 2)
    put(fake, 3, "u")
    first = start_driver().lease_batch(START)
    driver = start_driver(topics=("u",))
    assert len(driver.ids(first)) == 2
    second = driver.lease_batch(first)
    assert second.rows == 3
    driver.stream.settle(second)
    assert left(fake) == 0


def test_paused_topics_are_not_waited_for(fake: SyncFakeHost, start_driver: Callable[..., Driver]) -> None:
    put(fake, 2)
    driver = start_driver(timeout_ms=60_000)
    assert driver.stream.count_ready() == 2
    fake.client().pause_topic("t")
    assert driver.stream.count_ready() == 0
    assert driver.stream.lease_batch(START, 100, until_none_is_ready=True) == START


def test_lease_that_the_namespace_does_not_allow_is_refused(
    fake: SyncFakeHost, start_driver: Callable[..., Driver]
) -> None:
    start_driver().stream.check()
    fake.client().update_namespace(Namespace("default", lease_ms_default=500, lease_ms_max=1_000))
    with pytest.raises(SourceError, match=r"the option lease_ms is 60000, .* allows leases of at most 1000 ms"):
        start_driver().stream.check()


def test_unusable_location_is_refused(fake: SyncFakeHost, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"the staging_location .* cannot be used: "):
        Staging(str(tmp_path / "file" / "staged"), STREAM_COLUMNS)
    with pytest.raises(SourceError, match="cannot be used: "):
        Staging("nonsense://bucket/staged", STREAM_COLUMNS)


class FlakyClient:
    """A client whose calls sometimes fail: before they are sent, or because their reply is lost."""

    def __init__(self, client: SyncClient, rng: Random) -> None:
        self._client = client
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def dequeue(self, *args: Any, **options: Any) -> list[Delivery]:
        return self._flaky(self._client.dequeue, *args, **options)  # type: ignore[no-any-return]

    def ack(self, leases: Sequence[Any], **options: Any) -> list[Outcome]:
        return self._flaky(self._client.ack, leases, **options)  # type: ignore[no-any-return]

    def release(self, leases: Sequence[Any], **options: Any) -> list[Outcome]:
        return self._flaky(self._client.release, leases, **options)  # type: ignore[no-any-return]

    def _flaky(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._rng.random() < 0.1:
            raise Unreachable("on purpose")
        result = call(*args, **options)
        if self._rng.random() < 0.1:
            raise Unreachable("the reply was lost on purpose")
        return result


class Died(Exception):
    """The driver was killed."""


@pytest.mark.parametrize(
    "seed", [*range(examples(6)), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 12))]
)
def test_each_item_is_in_one_batch_whenever_the_driver_dies(
    fake: SyncFakeHost, start_driver: Callable[..., Driver], seed: int
) -> None:
    """Plays Spark: a log of offsets, a log of commits, and a sink that writes each batch once."""
    rng = Random(seed)
    ids = put(fake, 60)
    offsets, commits, sink = [START], 0, dict[int, list[str]]()

    def perhaps_die() -> None:
        if rng.random() < 0.15:
            raise Died

    def run(driver: Driver) -> None:
        """Run batches until the driver dies."""
        nonlocal commits
        while True:
            if commits < len(offsets) - 1:
                found = driver.ids(offsets[-1])
                assert sink.setdefault(len(offsets) - 1, found) == found, "a batch that is run again has other rows"
                perhaps_die()
                commits += 1
                perhaps_die()
            end = driver.lease_batch(offsets[-1], rng.randint(1, 20))
            perhaps_die()
            if end != offsets[-1]:
                offsets.append(end)
                perhaps_die()
            elif rng.random() < 0.3:
                fake.advance(2 * LEASE_MS)

    for _ in range(60):
        try:
            run(start_driver(FlakyClient(fake.client(), rng)))
        except (Died, SourceError):
            if rng.random() < 0.3:
                fake.advance(2 * LEASE_MS)
    driver = start_driver()
    fake.advance(2 * LEASE_MS)
    while commits < len(offsets) - 1 or (end := driver.lease_batch(offsets[-1])) != offsets[-1]:
        if commits == len(offsets) - 1:
            offsets.append(end)
        sink.setdefault(len(offsets) - 1, driver.ids(offsets[-1]))
        commits = len(offsets) - 1
    assert Counter(item for rows in sink.values() for item in rows) == Counter(ids)
    assert left(fake) == 0
