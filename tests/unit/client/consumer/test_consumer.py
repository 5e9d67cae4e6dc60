"""Tests the consumer loop with a whole host in memory under virtual time; plain functions run in real threads."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from foqs.store.in_memory.memory_store import MemoryStore
from foqs.testing import FakeHost
from foqs_client import Client, Deliveries, InvalidArgument, Item, Nack, Outcome, UnknownOutcome, Unreachable
from foqs_client.consumer import Consumer, Counts, Dead, Discard, Job, NotBegun, Retry
from foqs_client.consumer.handler_outcome import HandlerOutcome
from foqs_client.consumer.handler_runners import TaskRunner
from tests.support.aio import run
from tests.support.child_handlers import wrong_end
from tests.support.consumer_stories import play, until, worked
from tests.support.wrong_ends import survive_wrong_ends

LEASE_MS = 30_000


def test_return_acks_the_item_and_each_exception_has_its_outcome() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        seen: list[tuple[bytes, int, bytes]] = []

        async def handle(job: Job) -> None:
            seen.append((job.payload, job.attempt, job.metadata))
            if job.attempt > 1:
                return
            if job.payload == b"fails":
                raise ValueError("no such address")
            if job.payload == b"again":
                raise Retry(delay_ms=5_000, metadata=b"half done")
            if job.payload == b"dead":
                raise Dead("nobody can do this")
            if job.payload == b"unwanted":
                raise Discard

        await client.enqueue([Item("t", name) for name in (b"fine", b"fails", b"again", b"dead", b"unwanted")])
        await client.enqueue([Item("t", b"kept", metadata=b"mine")])
        counts = await worked(client, handle, ["t"], lambda: len(seen) == 8)
        assert counts == Counts(done=4, retried=2, dead=1, discarded=1)
        assert seen[6:] == [(b"fails", 2, b"failed: ValueError: no such address"), (b"again", 2, b"half done")]
        [dead] = await fake.items("t")
        assert (dead.state, dead.payload, dead.metadata) == ("dead", b"dead", b"nobody can do this")

    play(story)


def test_item_whose_handler_cannot_begin_is_released_without_an_attempt_and_pauses_grow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        loop = asyncio.get_running_loop()
        back_s = loop.time() + 15
        begun: list[int] = []
        refused_count = 0

        def handle(job: Job) -> None:
            nonlocal refused_count
            if loop.time() < back_s:
                refused_count += 1
                raise NotBegun(ConnectionError("the database is away"))
            begun.append(job.attempt)

        async def handle_async(job: Job) -> None:
            handle(job)

        await client.enqueue([Item("t", attempts_max=1)] * 3)
        counts = await worked(client, handle_async, ["t"], lambda: len(begun) == 3)
        assert begun == [1, 1, 1]
        assert counts == Counts(done=3, released=refused_count)
        assert 3 * 4 <= refused_count <= 3 * 12

    with caplog.at_level(logging.INFO, "foqs.consumer"):
        play(story)
    assert [record.getMessage() for record in caplog.records if record.name == "foqs.consumer"] == [
        "handlers cannot begin: the database is away; their items are released until they can",
        "handlers begin again",
    ]


def test_item_that_fails_in_its_last_attempt_is_counted_and_logged_as_dead(caplog: pytest.LogCaptureFixture) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        async def handle(job: Job) -> None:
            if job.payload == b"again":
                raise Retry(delay_ms=5_000)
            raise ValueError("no such address")

        await client.enqueue([Item("t", attempts_max=2), Item("u", b"again", attempts_max=1), Item("v")])
        consumer = Consumer(client, handle, ["*"], rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        await until(lambda: consumer.counts.dead == 2)
        consumer.stop()
        counts = await running
        assert counts.dead == 2
        assert [dead.state for topic in "tu" for dead in await fake.items(topic)] == ["dead", "dead"]

    with caplog.at_level(logging.WARNING, "foqs.consumer"):
        play(story)
    texts = [re.sub(r"item \d\S+", "item ID", record.getMessage()) for record in caplog.records]
    assert [text for text in texts if " of t " in text] == [
        "attempt 1 of 2 of item ID of t failed: ValueError: no such address",
        "attempt 2 of 2 of item ID of t failed, and it was the last attempt: ValueError: no such address",
    ]
    assert "attempt 1 of 1 of item ID of u failed, and it was the last attempt: its handler asked for a retry" in texts
    assert "attempt 1, no maximum, of item ID of v failed: ValueError: no such address" in texts


def test_item_of_one_delivery_and_expired_item_are_gone_after_their_last_attempt() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        async def handle(job: Job) -> None:
            await asyncio.sleep(10)
            raise ValueError("no such address")

        await client.enqueue(
            [Item("once", at_most_once=True, attempts_max=1), Item("short", ttl_ms=5_000, attempts_max=1)]
        )
        consumer = Consumer(client, handle, ["*"], rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        await until(lambda: consumer.counts.dead == 2)
        consumer.stop()
        await running
        assert [item for topic in ("once", "short") for item in await fake.items(topic)] == []

    play(story)


async def wrong_end_async(job: Job) -> None:
    wrong_end(job)


@pytest.mark.parametrize("handler", [wrong_end_async, wrong_end])
def test_wrong_end_of_a_handler_keeps_no_slot_and_harms_no_other_item(handler: Any) -> None:
    run(survive_wrong_ends(handler, concurrency=1))


def test_handler_that_cannot_be_started_keeps_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    submit, failures = TaskRunner.submit, 0

    def failing_at_first(self: TaskRunner, job: Job, on_done: Any) -> None:
        nonlocal failures
        if job.attempt == 1:
            failures += 1
            raise ConnectionError("no collector of spans")
        submit(self, job, on_done)

    async def story(fake: FakeHost, client: Client) -> None:
        seen: list[bytes] = []

        async def handle(job: Job) -> None:
            seen.append(job.metadata)

        monkeypatch.setattr(TaskRunner, "submit", failing_at_first)
        await client.enqueue([Item("t"), Item("t")])
        counts = await worked(client, handle, ["t"], lambda: len(seen) == 2, concurrency=1)
        assert (counts, failures) == (Counts(done=2, retried=2), 2)
        assert seen == [b"failed: ConnectionError: no collector of spans"] * 2

    play(story)


def test_delay_that_a_host_refuses_gives_the_backoff_of_the_namespace() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        attempts: list[int] = []

        async def handle(job: Job) -> None:
            attempts.append(job.attempt)
            if job.attempt == 1:
                raise Retry(2**62, b"half done" if job.payload else None)

        await client.enqueue([Item("t"), Item("t", b"x")])
        counts = await worked(client, handle, ["t"], lambda: len(attempts) == 4)
        assert counts == Counts(done=2, retried=2)

    play(story)


def test_failure_reason_replaces_an_earlier_reason_but_not_the_producers_metadata() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        seen: list[bytes] = []

        async def handle(job: Job) -> None:
            seen.append(job.metadata)
            if job.attempt < 3:
                raise ValueError(f"attempt {job.attempt}")

        await client.enqueue([Item("t", metadata=b"mine")])
        await worked(client, handle, ["t"], lambda: len(seen) == 3)
        assert seen == [b"mine"] * 3
        seen.clear()
        await client.enqueue([Item("t")])
        await worked(client, handle, ["t"], lambda: len(seen) == 3)
        assert seen == [b"", b"failed: ValueError: attempt 1", b"failed: ValueError: attempt 2"]

    play(story)


def test_namespace_that_forbids_metadata_gets_nacks_without_reasons() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        seen: list[int] = []

        async def handle(job: Job) -> None:
            seen.append(job.attempt)
            if job.attempt == 1:
                raise ValueError("no")

        await client.enqueue([Item("t")])
        counts = await worked(client, handle, ["t"], lambda: len(seen) == 2)
        assert (counts.retried, counts.done, counts.lost) == (1, 1, 0)

    play(story, {"namespace.metadata_bytes_max": 0})


def test_pattern_finds_existing_and_later_topics() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        seen: list[str] = []

        async def handle(job: Job) -> None:
            seen.append(job.topic)

        async def later() -> None:
            await asyncio.sleep(5)
            await client.enqueue([Item("mail.b"), Item("other")])

        await client.enqueue([Item("mail.a"), Item("mail")])
        adding = asyncio.ensure_future(later())
        await worked(client, handle, ["mail.*"], lambda: len(seen) == 2)
        await adding
        assert seen == ["mail.a", "mail.b"]

    play(story)


def test_waiting_consumer_gets_an_item_of_a_known_topic_at_once() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        loop = asyncio.get_running_loop()
        seen: list[float] = []

        async def handle(job: Job) -> None:
            seen.append(loop.time())

        consumer = Consumer(client, handle, ["t"], rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        for moment in (3.1, 4.7, 9.3):
            await asyncio.sleep(moment - loop.time())
            await client.enqueue([Item("t")])
            await until(lambda: bool(seen))
            assert seen.pop() - moment <= 0.05  # without waiting for a timer
        consumer.stop()
        assert (await running).done == 3

    play(story)


def test_stop_releases_waiting_items_and_waits_for_running_handlers() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        begun: list[bytes] = []

        async def handle(job: Job) -> None:
            begun.append(job.payload)
            await asyncio.sleep(60)  # longer than the lease

        await client.enqueue([Item("t", b"%d" % n) for n in range(10)])
        counts = await worked(
            client, handle, ["t"], lambda: len(begun) == 3, concurrency=3, in_flight=8, stop_timeout_s=90.0
        )
        assert counts == Counts(done=3, released=5)
        left = await fake.items("t")
        assert [(view.state, view.attempt) for view in left] == [("ready", 0)] * 7

    play(story)


def test_handler_that_exceeds_the_stop_timeout_is_cancelled_and_its_item_released() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        loop = asyncio.get_running_loop()
        lost: list[bool] = []

        async def handle(job: Job) -> None:
            try:
                await asyncio.sleep(1_000)
            finally:
                lost.append(job.lost)

        await client.enqueue([Item("t")])
        consumer = Consumer(client, handle, ["t"], stop_timeout_s=5.0, rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        await until(lambda: consumer.counts.running == 1)
        begun = loop.time()
        consumer.stop()
        assert await running == Counts(released=1)
        assert 5.0 <= loop.time() - begun <= 6.5
        assert lost == [True]
        [view] = await fake.items("t")
        assert (view.state, view.attempt) == ("ready", 0)

    play(story)


def test_items_of_a_dequeue_in_flight_are_released_after_a_stop() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        async def handle(job: Job) -> None:
            raise AssertionError("nothing may be begun")

        consumer = Consumer(client, handle, ["t"], rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        await asyncio.sleep(5.3)
        consumer.stop()  # a call waits at the host
        await client.enqueue([Item("t")])
        assert await running == Counts(released=1)
        [view] = await fake.items("t")
        assert (view.state, view.attempt) == ("ready", 0)

    play(story)


def test_abort_ends_at_once() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        loop = asyncio.get_running_loop()

        async def handle(job: Job) -> None:
            await asyncio.sleep(1_000)

        await client.enqueue([Item("t")])
        consumer = Consumer(client, handle, ["t"], rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        await until(lambda: consumer.counts.running == 1)
        consumer.stop()
        await asyncio.sleep(1)
        begun = loop.time()
        consumer.abort()
        await running
        assert loop.time() == begun
        [view] = await fake.items("t")
        assert view.state == "leased"

    play(story)


def test_failed_calls_are_retried_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        failing = True
        seen: list[str] = []

        def flaky(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def tried(*args: Any, **options: Any) -> Any:
                if failing:
                    raise Unreachable("no host answers")
                return await call(*args, **options)

            return tried

        async def handle(job: Job) -> None:
            seen.append(job.topic)

        client.dequeue = flaky(client.dequeue)  # type: ignore[method-assign, assignment]
        client.topics = flaky(client.topics)  # type: ignore[method-assign, assignment]
        consumer = Consumer(client, handle, ["a", "b.*"], rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        await client.enqueue([Item("a"), Item("b.1")])
        await asyncio.sleep(30)
        failing = False
        await until(lambda: len(seen) == 2)
        consumer.stop()
        assert (await running).done == 2

    with caplog.at_level(logging.INFO, "foqs.consumer"):
        play(story)
    messages = [record.getMessage() for record in caplog.records if record.name == "foqs.consumer"]
    assert sorted(messages) == [
        "dequeue failed: UNREACHABLE: no host answers; it is retried until it works",
        "dequeue works again",
        "topic discovery failed: UNREACHABLE: no host answers; it is retried until it works",
        "topic discovery works again",
    ]


def test_shards_that_cannot_deliver_are_logged_once_and_when_they_can_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        replies = [*[Deliveries((), 2)] * 3, *[Deliveries()] * 3]
        asked = asyncio.Event()

        async def dequeue(*arguments: Any, **options: Any) -> Deliveries:
            await asyncio.sleep(0.1)
            if len(replies) == 1:
                asked.set()
            return replies.pop(0) if len(replies) > 1 else replies[0]

        client.dequeue = dequeue  # type: ignore[method-assign]
        consumer = Consumer(client, ignore, ["t"], rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        await asked.wait()
        consumer.stop()
        await running

    async def ignore(job: Job) -> None:
        """Do nothing."""

    with caplog.at_level(logging.INFO, "foqs.consumer"):
        play(story)
    assert [record.getMessage() for record in caplog.records if record.name == "foqs.consumer"] == [
        "2 shards may hold items and cannot deliver them now; foqs shard list says why",
        "no shard with items is unavailable any more",
    ]


def test_ack_with_an_unknown_outcome_is_retried() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        ack, tries = client.ack, 0

        async def unsure(leases: Sequence[Any], **options: Any) -> list[Outcome]:
            nonlocal tries
            tries += 1
            if tries == 1:
                await ack(leases, **options)  # it was written, and the reply is lost
            if tries < 4:
                raise UnknownOutcome("no reply")
            return await ack(leases, **options)

        client.ack = unsure  # type: ignore[method-assign]

        async def handle(job: Job) -> None: ...

        await client.enqueue([Item("t"), Item("t")])
        consumer = Consumer(client, handle, ["t"], rng=Random(1))
        running = asyncio.ensure_future(consumer.run())
        await until(lambda: consumer.counts.done == 2)
        consumer.stop()
        assert await running == Counts(done=2)
        assert tries == 4
        assert await fake.items("t") == []

    play(story)


def test_items_in_flight_and_running_handlers_stay_within_their_limits() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        dequeue = client.dequeue
        running = most = held_most = done = 0

        async def asked(wants: Mapping[str, int], *, items_max: int | None = None, **options: Any) -> Deliveries:
            nonlocal held_most
            assert items_max is not None
            found = await dequeue(wants, items_max=items_max, **options)
            leased = sum([topic.leased for topic in (await client.topics()).topics])
            held_most = max(held_most, leased)
            return found

        client.dequeue = asked  # type: ignore[method-assign]

        async def handle(job: Job) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01 * (int(job.payload) % 5))
            running -= 1
            done += 1

        await client.enqueue([Item(f"t{n % 7}", b"%d" % n) for n in range(500)])
        counts = await worked(client, handle, ["t?"], lambda: done == 500, concurrency=5, in_flight=13)
        assert counts.done == 500
        assert most == 5
        assert held_most == 13

    play(story)


def test_surplus_items_of_a_host_are_released() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        dequeue = client.dequeue

        async def generous(wants: Mapping[str, int], *, items_max: int | None = None, **options: Any) -> Deliveries:
            return await dequeue(dict.fromkeys(wants, 9), **options)

        client.dequeue = generous  # type: ignore[method-assign]
        attempts: list[int] = []

        async def handle(job: Job) -> None:
            await asyncio.sleep(1)
            attempts.append(job.attempt)

        await client.enqueue([Item("t") for _ in range(9)])
        counts = await worked(client, handle, ["t"], lambda: len(attempts) == 9, concurrency=2, in_flight=2)
        assert counts == Counts(done=9)
        assert attempts == [1] * 9

    play(story)


def test_calls_shrink_to_the_limit_of_the_host() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        done = 0

        async def handle(job: Job) -> None:
            nonlocal done
            done += 1

        for start in range(0, 60, 3):
            await client.enqueue([Item(f"t{n}") for n in range(start, start + 3)])
        counts = await worked(client, handle, ["*"], lambda: done == 60, concurrency=40)
        assert counts.done == 60

    play(story, {"calls.items_per_call_max": 3, "calls.topics_per_call_max": 7})


@pytest.mark.parametrize("call", ["dequeue", "ack", "nack", "release", "extend"])
def test_internal_error_ends_the_consumer(call: str) -> None:
    """Covers every call to the hosts. Otherwise an item that cannot be settled would stay in flight for ever."""

    async def story(fake: FakeHost, client: Client) -> None:
        async def broken(*args: Any, **options: Any) -> Any:
            raise ZeroDivisionError

        async def handle(job: Job) -> None:
            if call == "extend":
                await asyncio.sleep(LEASE_MS / 1_000)
            elif call == "release":
                consumer.stop()
                await asyncio.sleep(0.1)  # the other item is released meanwhile
            elif call == "nack":
                raise ValueError

        await client.enqueue([Item("t"), Item("t")])
        setattr(client, call, broken)
        consumer = Consumer(client, handle, ["t"], lease_ms=LEASE_MS, concurrency=1, in_flight=4, rng=Random(1))
        with pytest.raises(ZeroDivisionError):
            await consumer.run()

    play(story)


def test_item_whose_outcome_cannot_be_read_is_nacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(error: BaseException | None, metadata: bytes) -> HandlerOutcome:
        monkeypatch.undo()  # only once
        raise ZeroDivisionError

    async def story(fake: FakeHost, client: Client) -> None:
        async def handle(job: Job) -> None:
            attempts.append(job.attempt)
            if job.attempt == 2:
                consumer.stop()

        attempts: list[int] = []
        await client.enqueue([Item("t")])
        monkeypatch.setattr("foqs_client.consumer.consumer.outcome_of", broken)
        consumer = Consumer(client, handle, ["t"], rng=Random(1))
        counts = await consumer.run()
        assert (counts.retried, counts.done, attempts) == (1, 1, [1, 2])

    play(story)


def test_plain_functions_run_in_as_many_threads_as_the_concurrency() -> None:
    async def main() -> None:
        async with FakeHost() as fake:
            client = fake.client()
            together = threading.Barrier(3, timeout=30)
            names: set[str] = set()

            def handle(job: Job) -> None:
                names.add(threading.current_thread().name)
                together.wait()
                if job.payload == b"fails" and job.attempt == 1:
                    raise Retry(delay_ms=0)

            await client.enqueue([Item("t", b"fails") for _ in range(3)])
            consumer = Consumer(client, handle, ["t"], concurrency=3)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: consumer.counts.done == 3)
            consumer.stop()
            assert await running == Counts(done=3, retried=3)
            assert len(names) == 3
            assert threading.current_thread().name not in names

    run(main())


def test_stop_does_not_wait_for_a_thread_that_does_not_end() -> None:
    async def main() -> None:
        async with FakeHost() as fake:
            client = fake.client()
            go_on = threading.Event()
            lost: list[bool] = []

            def handle(job: Job) -> None:
                go_on.wait(30)
                lost.append(job.lost)

            await client.enqueue([Item("t")])
            consumer = Consumer(client, handle, ["t"], stop_timeout_s=0.05)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: consumer.counts.running == 1)
            consumer.stop()
            assert await running == Counts(released=1)
            [view] = await fake.items("t")
            assert (view.state, view.attempt) == ("ready", 0)
            go_on.set()
            await until(lambda: lost == [True])

    run(main())


def test_plain_function_that_returns_a_coroutine_fails_with_a_clear_reason() -> None:
    async def main() -> None:
        async with FakeHost({"namespace.backoff_ms_min": 60_000}) as fake:
            client = fake.client()

            async def work(job: Job) -> None: ...

            await client.enqueue([Item("t")])
            consumer = Consumer(client, lambda job: work(job), ["t"])
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: consumer.counts.retried == 1)
            consumer.stop()
            await running
            [view] = await fake.items("t")
            assert view.metadata is not None
            assert b"async def" in view.metadata

    run(main())


@pytest.mark.parametrize(
    ("topics", "options", "field"),
    [
        ([], {}, "topics"),
        ("mail", {}, "topics"),
        (["a"], {"concurrency": 0}, "concurrency"),
        (["a"], {"concurrency": 5, "in_flight": 4}, "in_flight"),
        (["a"], {"weights": {"a": 0}}, "weights"),
        (["a"], {"processes": 2}, "processes"),
    ],
)
def test_wrong_argument_is_refused_by_name(topics: Any, options: dict[str, Any], field: str) -> None:
    async def handle(job: Job) -> None: ...

    with pytest.raises(InvalidArgument, match=field):
        Consumer(Client("foqs://127.0.0.1:1"), handle, topics, **options)


def test_nack_has_the_values_of_the_exception() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        nack = client.nack
        sent: list[Any] = []

        async def noted(nacks: Sequence[Any], **options: Any) -> list[Outcome]:
            sent.extend(nacks)
            return await nack(nacks, **options)

        client.nack = noted  # type: ignore[method-assign]

        async def handle(job: Job) -> None:
            raise Retry(delay_ms=77_000, metadata=b"m")

        await client.enqueue([Item("t")])
        await worked(client, handle, ["t"], lambda: bool(sent))
        [one] = sent
        assert one == Nack(one.id, one.token, 77_000, metadata=b"m")

    play(story)


@pytest.mark.parametrize("flush_s", [0.02, 0.9, 1.8, 4.0, 12.0])
def test_every_item_is_done_even_if_the_flushes_of_the_host_are_slow(
    flush_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = MemoryStore.flush

    async def slow(self: MemoryStore, *arguments: Any) -> None:
        await asyncio.sleep(flush_s)
        await flush(self, *arguments)

    async def story(fake: FakeHost, client: Client) -> None:
        seen: list[bytes] = []

        async def handle(job: Job) -> None:
            seen.append(job.payload)

        await client.enqueue([Item("t", b"%d" % n) for n in range(50)])
        monkeypatch.setattr(MemoryStore, "flush", slow)
        begun_s = asyncio.get_running_loop().time()
        await worked(client, handle, ["t"], lambda: len(set(seen)) == 50)
        assert asyncio.get_running_loop().time() - begun_s < 10 + 12 * flush_s
        assert len(seen) == 50

    play(story)
