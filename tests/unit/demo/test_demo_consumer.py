"""Tests of the demo's producer and consumer with a queue in memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from foqs.demo import demo_consumer, run_files
from foqs.demo.demo_consumer import DemoConsumer, chunks
from foqs.demo.demo_producer import ATTEMPTS_MAX, BATCH_ITEMS, DemoProducer
from foqs.demo.file_work import FileTask
from foqs.demo.ledger import RunLedger
from foqs.demo.run_files import FileEntry, PlantedFiles
from foqs_client import (
    Client,
    Delivery,
    Enqueued,
    Item,
    Nack,
    NotFound,
    Outcome,
    StaleLease,
    Topic,
    TopicPage,
    Unavailable,
)
from tests.support.aio import run


class Queue:
    """The part of a queue that the demo uses. Ignores delays; leases never end."""

    def __init__(self) -> None:
        self.items: dict[str, tuple[Item, int]] = {}
        self.leased: set[str] = set()
        self.dead: dict[str, bytes | None] = {}
        self.calls: list[tuple[str, int]] = []
        self.on_extend: Callable[[], None] = lambda: None
        self.stale_acks = 0

    async def enqueue(self, items: Sequence[Item]) -> list[Enqueued]:
        self.calls.append(("enqueue", len(items)))
        ids = [f"0-{len(self.items) + place}" for place in range(len(items))]
        self.items.update({id: (item, 0) for id, item in zip(ids, items, strict=True)})
        return [Enqueued(id) for id in ids]

    def _ready(self) -> Iterator[str]:
        return (id for id in self.items if id not in self.leased and id not in self.dead)

    async def topics(self, prefix: str) -> TopicPage:
        names = sorted({self.items[id][0].topic for id in self._ready()})
        return TopicPage(
            [Topic(name, 1, 0, 0, 0, None, None, None, False, False) for name in names if name.startswith(prefix)], None
        )

    async def dequeue(self, wants: Mapping[str, int], wait_ms: int, lease_ms: int) -> list[Delivery]:
        left = dict(wants)
        taken = []
        for id in list(self._ready()):
            item, attempt = self.items[id]
            if left.get(item.topic, 0):
                left[item.topic] -= 1
                self.leased.add(id)
                self.items[id] = (item, attempt + 1)
                taken.append(
                    Delivery(
                        id, attempt, item.topic, 0, item.payload, b"", attempt + 1, item.attempts_max or 0, lease_ms, 0
                    )
                )
        self.calls.append(("dequeue", len(taken)))
        return taken

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        self.calls.append(("ack", len(deliveries)))
        outcomes = []
        for delivery in deliveries:
            if self.stale_acks:
                self.stale_acks -= 1
                self.leased.discard(delivery.id)
                outcomes.append(Outcome(StaleLease("gone to another")))
            else:
                del self.items[delivery.id]
                outcomes.append(Outcome())
        return outcomes

    async def nack(self, nacks: Sequence[Nack]) -> list[Outcome]:
        self.calls.append(("nack", len(nacks)))
        for nack in nacks:
            self.leased.discard(nack.id)
            item, attempt = self.items[nack.id]
            if nack.dead or attempt == item.attempts_max:
                self.dead[nack.id] = nack.metadata
        return [Outcome() for _ in nacks]

    async def extend(self, leases: Sequence[tuple[str, int]], lease_ms: int) -> list[Outcome]:
        self.calls.append(("extend", len(leases)))
        self.on_extend()
        return [Outcome() if id in self.items else Outcome(NotFound("gone")) for id, _ in leases]


class Run:
    """A producer and a consumer on one queue."""

    def __init__(self, queue: Queue, paths: Sequence[str], planted_files: PlantedFiles) -> None:
        self.queue, self.ledger, self.planted_files = queue, RunLedger(), planted_files
        self.topics = run_files.topics_by_path([*planted_files.paths, *paths], "run")

    async def produce(self) -> None:
        await DemoProducer(cast(Client, self.queue), self.ledger, self.topics).run(self.planted_files)

    async def consume(self, pool: Executor, lease_ms: int = 60_000, idle_timeout_s: float = 60.0) -> None:
        client = cast(Client, self.queue)
        await DemoConsumer(client, self.ledger, "run/", pool, 2, lease_ms=lease_ms, idle_timeout_s=idle_timeout_s).run()


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def made(tmp_path: Path) -> Run:
    good, planted = tmp_path / "good", tmp_path / "planted"
    good.mkdir()
    planted.mkdir()
    for number in range(250):
        (good / f"{number}.py").write_text(f"number {number}")
    return Run(Queue(), run_files.find_files(good, None), PlantedFiles(planted))


def test_everything_is_enqueued_in_batches_and_settled_once(made: Run, pool: Executor) -> None:
    async def main() -> None:
        await asyncio.gather(made.produce(), made.consume(pool))

    run(main())
    assert [count for name, count in made.queue.calls if name == "enqueue"] == [5, BATCH_ITEMS, BATCH_ITEMS, 50]
    assert set(made.ledger.acks.values()) == {1}
    assert (len(made.ledger.acks), len(made.ledger.given_up)) == (250, 5)
    assert made.queue.items.keys() == made.queue.dead.keys()
    assert all(made.ledger.entries[path].sha256 == found for path, found in made.ledger.checksums.items())


def test_failed_item_is_retried_and_its_metadata_holds_the_reason(made: Run, pool: Executor) -> None:
    made.topics = {path: topic for path, topic in made.topics.items() if path in made.planted_files.paths}
    run(made.produce())
    run(made.consume(pool))
    assert made.ledger.retries == 5 * (ATTEMPTS_MAX - 1)
    reasons = [json.loads(metadata or b"") for metadata in made.queue.dead.values()]
    assert {reason["attempt"] for reason in reasons} == {ATTEMPTS_MAX}
    assert "the content does not match its checksum" in {reason["reason"] for reason in reasons}


def test_a_file_that_the_producer_cannot_read_has_no_item(made: Run, pool: Executor) -> None:
    made.topics["/nowhere/at/all.py"] = "run/py"
    run(made.produce())
    assert made.ledger.skipped == {"/nowhere/at/all.py": "No such file or directory"}
    assert len(made.ledger.entries) == len(made.topics) - 1


def test_the_consumer_acks_in_batches_and_never_holds_more_than_it_may(made: Run, pool: Executor) -> None:
    run(made.produce())
    run(made.consume(pool))
    acks = [count for name, count in made.queue.calls if name == "ack"]
    assert max(acks) == demo_consumer.CHUNK_ITEMS
    assert max(count for name, count in made.queue.calls if name == "dequeue") <= 2 * demo_consumer.IN_FLIGHT_PER_WORKER


def test_a_lease_is_extended_while_a_worker_is_busy(made: Run, pool: Executor) -> None:
    busy = threading.Event()
    made.queue.on_extend = busy.set
    for _ in range(2):
        pool.submit(busy.wait, 10)
    run(made.produce())
    run(made.consume(pool, lease_ms=30))
    in_hand = next(count for name, count in made.queue.calls if name == "dequeue")
    assert next(count for name, count in made.queue.calls if name == "extend") == in_hand
    assert made.ledger.extensions >= in_hand
    assert len(made.ledger.acks) == 250


def test_stale_ack_is_not_counted_and_the_item_is_processed_again(made: Run, pool: Executor) -> None:
    made.queue.stale_acks = 3
    run(made.produce())
    run(made.consume(pool))
    assert made.ledger.stale_leases == 3
    assert set(made.ledger.acks.values()) == {1}
    assert len(made.ledger.acks) == 250


def test_consumer_gives_up_if_an_item_never_arrives(made: Run, pool: Executor) -> None:
    run(made.produce())
    lost = next(iter(made.queue.items))
    del made.queue.items[lost]
    run(made.consume(pool, idle_timeout_s=0.3))
    while made.ledger.settled_count < 254:  # it may also give up while a busy machine stands still
        run(made.consume(pool, idle_timeout_s=0.3))
    assert not made.ledger.is_finished
    assert made.ledger.settled_count == 254


@pytest.mark.parametrize("payload", [b"hello", b"[]", b"{}", b'{"path": "/x", "size": 1, "sha256": ""}'])
def test_foreign_item_is_nacked_as_dead_and_has_no_effect(made: Run, pool: Executor, payload: bytes) -> None:
    run(made.produce())
    run(made.queue.enqueue([Item("run/py", payload)]))
    run(made.consume(pool))
    assert made.ledger.foreign_items == 1
    assert made.ledger.is_finished


def test_a_failed_enqueue_ends_the_producer(made: Run) -> None:
    async def refuse(items: Sequence[Item]) -> list[Enqueued]:
        return [Enqueued(None, Unavailable("away")) for _ in items]

    made.queue.enqueue = refuse  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        run(made.produce())
    assert made.ledger.complete_at is None


def test_chunks_are_bounded_by_count_and_size_and_keep_everything() -> None:
    sizes = [10] * 20 + [demo_consumer.CHUNK_BYTES * 5] + [demo_consumer.CHUNK_BYTES // 2] * 3
    delivery = Delivery("0-1", 1, "t", 0, b"", b"", 1, 3, 0, 0)
    pairs = [(delivery, FileTask(str(place), size, "")) for place, size in enumerate(sizes)]
    found = list(chunks(iter(pairs)))
    assert [pair for chunk in found for pair in chunk] == pairs
    assert [len(chunk) for chunk in found] == [demo_consumer.CHUNK_ITEMS, 4, 1, 2, 1]


def test_entry_has_all_inputs_of_a_task() -> None:
    entry = FileEntry("/x", "t", 3, "ab", is_planted=True)
    assert FileTask(**json.loads(entry.payload)) == FileTask("/x", 3, "ab")
