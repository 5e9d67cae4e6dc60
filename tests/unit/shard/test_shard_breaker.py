"""A shard's breaker: when it opens, what it refuses, and how it closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.item import NewItem, parse_id
from foqs.core.items.life import EventKind
from foqs.queue.engine import Engine, EngineSettings
from foqs.queue.port import EnqueueOutcome
from foqs.shard.observer import NullObserver
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import StoreLost, WriteRefused
from foqs_contract.errors import DeadlineExceeded, FoqsError, Unavailable, UnknownOutcome
from tests.support.builders import engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.inner_parts import writer_of
from tests.support.method_gate import start_task

STUCK_S = 0.1 * 5
"""A flush that waits this long opens the breaker."""
RESET_S = 1.0


def settings(*shards: int, **changes: Any) -> EngineSettings:
    values = {
        "breaker_window_ms": 1_000,
        "breaker_latency_ms_max": 100,
        "breaker_error_percent": 50,
        "breaker_flushes_min": 5,
        "breaker_reset_ms": int(RESET_S * 1000),
    }
    return engine_settings(*shards, **(values | changes))


def stuck(monkeypatch: pytest.MonkeyPatch, shard: int) -> Callable[[], None]:
    """Hold the flushes of one shard. Returns the function that lets them continue."""
    resumed = asyncio.Event()
    original = MemoryStore.flush

    async def flush(self: MemoryStore, *arguments: Any) -> None:
        if self._shard == shard:
            await resumed.wait()
        await original(self, *arguments)

    monkeypatch.setattr(MemoryStore, "flush", flush)
    return resumed.set


def full(writes: Writes) -> WriteRefused | None:
    """Refuse new items, as a full disk would."""
    return WriteRefused("no room on the disk", is_full=True) if writes.inserts else None


async def offer(caller: Caller, items: Sequence[NewItem], timeout_s: float = 5.0) -> list[EnqueueOutcome]:
    """Enqueue, and return an id or an error for each item, even if the whole call is refused."""
    try:
        return await caller.enqueue(items, timeout_s)
    except Unavailable as error:
        return [error] * len(items)


async def opened(world: World, caller: Caller, engine: Engine) -> None:
    """Open the breaker of shard 1 with a disk that is full for new items."""
    world.database.refuse = full
    await world.until(lambda: engine.shards[1].breaker_state == "closed")
    while engine.shards[1].breaker_state != "open":
        (error,) = await offer(caller, [new_item()])
        assert isinstance(error, Unavailable)


async def half_open(world: World) -> tuple[Engine, Caller]:
    """Make an engine with one shard and a half-open breaker. The disk is still full."""
    engine = await world.engine(settings(1))
    caller = Caller(world, engine)
    await opened(world, caller, engine)
    await world.until(lambda: engine.shards[1].breaker_state == "half-open")
    return engine, caller


# ------------------------------------------------------------------------ opening


def test_a_flush_without_a_reply_opens_the_breaker_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        resume = stuck(monkeypatch, 1)
        flushing = start_task(offer(caller, [new_item("begun")], 30.0))
        await world.pass_s(0.01)
        queued = start_task(offer(caller, [new_item("queued")], 30.0))
        start = world.loop.time()
        (error,) = await queued
        assert isinstance(error, Unavailable)
        assert error.retry_after_ms
        assert STUCK_S - 0.02 <= world.loop.time() - start <= STUCK_S + 0.2
        (error,) = await offer(caller, [new_item("later")], 30.0)
        assert isinstance(error, Unavailable)
        assert not flushing.done()
        resume()
        ok((await flushing)[0])
        assert [topic for topic, _ in world.rows()] == ["begun"]
        await world.until(lambda: engine.shards[1].breaker_state == "half-open")
        await caller.put("again")
        assert engine.shards[1].breaker_state == "closed"

    run_in_world(story)


def test_the_breaker_stays_open_while_a_flush_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        resume = stuck(monkeypatch, 1)
        flushing = start_task(offer(caller, [new_item("begun")], 30.0))
        await world.until(lambda: engine.shards[1].breaker_state == "open")
        await world.pass_s(5 * RESET_S)
        assert engine.shards[1].breaker_state == "open"
        resume()
        await flushing
        await world.until(lambda: engine.shards[1].breaker_state == "half-open", within_s=0.2)

    run_in_world(story)


def test_another_shard_accepts_new_items_and_its_breaker_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1, 2))
        caller = Caller(world, engine)
        resume = stuck(monkeypatch, 1)
        calls = []
        while engine.shards[1].breaker_state != "open":
            calls.append(start_task(offer(caller, [new_item()], 30.0)))
            await world.pass_s(0.02)
        for _ in range(50):
            assert parse_id((await caller.put(timeout_s=0.5))[0], "id")[0] == 2
            await world.pass_s(0.02)
        assert engine.shards[2].breaker_state == "closed"
        resume()
        results = [result for call in calls for result in await call]
        assert all(isinstance(result, str | Unavailable) for result in results)
        assert sum(isinstance(result, str) for result in results) + 50 == len(world.rows())

    run_in_world(story)


@pytest.mark.parametrize(
    "refusal", [WriteRefused("a deadlock", is_retryable=True), WriteRefused("no room", is_full=True)]
)
def test_failed_flushes_open_the_breaker_and_acks_continue(refusal: WriteRefused) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        await caller.put(count=3)
        held = await caller.get(count=2)
        world.database.refuse = lambda writes: refusal if writes.inserts else None
        await world.pass_s(1.0)
        calls = [start_task(offer(caller, [new_item("lost") for _ in range(10)], 30.0)) for _ in range(3)]
        await world.until(lambda: engine.shards[1].breaker_state == "open", within_s=2.0)
        for call in calls:
            for error in await call:
                assert isinstance(error, Unavailable)
                assert str(refusal) in error.message
        assert await caller.do(EventKind.ACK, held.items[:1]) == [None]
        assert await caller.do(EventKind.RELEASE, held.items[1:]) == [None]
        assert len((await caller.get(count=5)).items) == 2
        assert "lost" not in [topic for topic, _ in world.rows()]

    run_in_world(story)


def test_a_flush_that_keeps_failing_opens_the_breaker_however_many_succeeded_before() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1, breaker_window_ms=10_000))
        caller = Caller(world, engine)
        for _ in range(200):
            await caller.put()
        world.database.refuse = lambda writes: WriteRefused("a deadlock", is_retryable=True)
        start = world.loop.time()
        (error,) = await offer(caller, [new_item("lost")], 30.0)
        assert isinstance(error, Unavailable)
        assert "a deadlock" in error.message
        assert world.loop.time() - start <= 2 * STUCK_S + 0.5

    run_in_world(story)


def test_lost_connections_open_the_breaker() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1, breaker_latency_ms_max=10_000))
        caller = Caller(world, engine)

        def lose(point: str) -> None:
            raise StoreLost("the line is cut")

        await world.pass_s(1.0)
        world.faults = lose
        (error,) = await offer(caller, [new_item()])
        assert isinstance(error, Unavailable)
        assert engine.shards[1].breaker_state == "open"
        assert world.rows() == []

    run_in_world(story)


def test_refused_items_and_existing_keys_do_not_open_the_breaker() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        world.database.refuse = lambda writes: (
            "no such luck" if any(row.payload == b"bad" for row in writes.inserts) else None
        )
        for _ in range(40):
            (error,) = await offer(caller, [new_item(payload=b"bad")])
            assert isinstance(error, Unavailable)
            await offer(caller, [keyed_item("taken")])
            writer_of(engine.shards[1])._key_read_flushes_left = 0
        assert engine.shards[1].breaker_state == "closed"

    run_in_world(story)


def test_an_open_breaker_ends_the_bisection_of_a_refused_batch() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        attempts = 0

        def refuse(writes: Writes) -> WriteRefused | None:
            nonlocal attempts
            attempts += 1
            return full(writes)

        world.database.refuse = refuse
        results = await offer(caller, [new_item() for _ in range(60)], 30.0)
        assert all(isinstance(result, Unavailable) for result in results)
        assert attempts < 10

    run_in_world(story)


def test_a_read_of_the_writer_without_a_reply_opens_the_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        answers = asyncio.Event()

        async def due(self: MemoryStore, *arguments: Any) -> Any:
            await answers.wait()
            return []

        monkeypatch.setattr(MemoryStore, "due_rows", due)
        await caller.put("later", delay_ms=10)
        await world.pass_s(0.1)
        (error,) = await offer(caller, [new_item()], 30.0)
        assert isinstance(error, Unavailable)
        assert engine.shards[1].breaker_state == "open"
        answers.set()

    run_in_world(story)


# ------------------------------------------------------------------------ closing


def test_flushes_without_new_items_do_not_probe_or_close_the_breaker() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        await caller.put(count=2)
        held = (await caller.get(count=2)).items
        await opened(world, caller, engine)
        assert await caller.do(EventKind.ACK, held[:1]) == [None]
        assert engine.shards[1].breaker_state == "open"
        await world.until(lambda: engine.shards[1].breaker_state == "half-open")
        assert await caller.do(EventKind.ACK, held[1:]) == [None]
        assert engine.shards[1].breaker_state == "half-open"

    run_in_world(story)


def test_a_half_open_breaker_lets_one_flush_pass_and_closes_if_it_succeeds() -> None:
    async def story(world: World) -> None:
        engine, caller = await half_open(world)
        world.database.refuse = lambda writes: None
        world.stall()
        probe = start_task(offer(caller, [new_item("probe")]))
        await world.pass_s(0.01)
        (error,) = await offer(caller, [new_item("beside")])
        assert isinstance(error, Unavailable)
        world.resume()
        ok((await probe)[0])
        assert engine.shards[1].breaker_state == "closed"
        await caller.put()

    run_in_world(story)


def test_a_failed_probe_opens_the_breaker_again() -> None:
    async def story(world: World) -> None:
        engine, caller = await half_open(world)
        (error,) = await offer(caller, [new_item()])
        assert isinstance(error, Unavailable)
        assert engine.shards[1].breaker_state == "open"

    run_in_world(story)


def test_a_slow_probe_opens_the_breaker_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine, caller = await half_open(world)
        world.database.refuse = lambda writes: None
        resume = stuck(monkeypatch, 1)
        probe = start_task(offer(caller, [new_item("probe")], 30.0))
        await world.pass_s(0.01)
        assert engine.shards[1].breaker_state == "half-open"
        await world.pass_s(0.4)
        assert engine.shards[1].breaker_state == "open"
        resume()
        ok((await probe)[0])
        assert engine.shards[1].breaker_state == "open"

    run_in_world(story)


def test_a_probe_of_a_refused_item_leaves_the_breaker_half_open() -> None:
    async def story(world: World) -> None:
        engine, caller = await half_open(world)
        world.database.refuse = lambda writes: "no such luck" if writes.inserts else None
        (error,) = await offer(caller, [new_item()])
        assert isinstance(error, Unavailable)
        assert engine.shards[1].breaker_state == "half-open"
        world.database.refuse = lambda writes: None
        await caller.put()
        assert engine.shards[1].breaker_state == "closed"

    run_in_world(story)


def test_failures_before_the_breaker_closed_do_not_count() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1, breaker_window_ms=60_000))
        caller = Caller(world, engine)
        await opened(world, caller, engine)
        world.database.refuse = lambda writes: None
        await world.until(lambda: engine.shards[1].breaker_state == "half-open")
        await caller.put()
        world.database.refuse = full
        (error,) = await offer(caller, [new_item()])
        assert isinstance(error, Unavailable)
        assert engine.shards[1].breaker_state == "closed"

    run_in_world(story)


# ---------------------------------------------------------------------- reporting


def test_changes_of_the_breaker_are_reported_and_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "foqs.shard.shard_breaker")
    changes: list[tuple[int, str]] = []

    class Recorder(NullObserver):
        def breaker_changed(self, shard: int, state: str) -> None:
            changes.append((shard, state))

    async def story(world: World) -> None:
        world.facts = Recorder()
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        await opened(world, caller, engine)
        assert engine.shards[1].breaker_state == "open"
        world.database.refuse = lambda writes: None
        await world.until(lambda: engine.shards[1].breaker_state == "half-open")
        await caller.put()

    run_in_world(story)
    assert changes == [(1, "open"), (1, "half-open"), (1, "closed")]
    lines = [record.getMessage() for record in caplog.records if record.name == "foqs.shard.shard_breaker"]
    assert len(lines) == 3
    assert "transactions failed, the last failure: no room on the disk" in lines[0]


def test_calls_that_retry_after_the_given_pause_are_all_written_once_the_database_recovers() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(1))
        caller = Caller(world, engine)
        await opened(world, caller, engine)

        async def patient(number: int) -> str:
            while True:
                (result,) = await offer(caller, [new_item(f"t{number}")])
                if not isinstance(result, FoqsError):
                    return ok(result)
                assert not isinstance(result, UnknownOutcome | DeadlineExceeded)
                await world.pass_s((result.retry_after_ms or 0) / 1000)

        calls = [start_task(patient(number)) for number in range(20)]
        await world.pass_s(3.5 * RESET_S)
        assert not any(call.done() for call in calls)
        world.database.refuse = lambda writes: None
        names = await asyncio.gather(*calls)
        assert len(set(names)) == 20
        assert len(world.rows()) == 20

    run_in_world(story)
