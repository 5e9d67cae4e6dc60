"""The writer under faults: refused writes, lost reads, and the end of a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from foqs.core.flush.fence import Fence
from foqs.core.flush.writes import Writes
from foqs.core.items.item import State
from foqs.core.items.life import EventKind
from foqs.shard.observer import NullObserver
from foqs.shard.supervisor import ShardTakenOver
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs.store.port import StoreLost, WriteRefused
from foqs_contract.errors import DeadlineExceeded, InvalidArgument, NotOwner, Unavailable, UnknownOutcome
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.inner_parts import writer_of
from tests.support.method_gate import start_task

Method = Callable[..., Awaitable[Any]]

_READY_AND_LEASED = (State.READY, State.LEASED)


def instead(
    monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Method], Method], where: type = MemoryStore
) -> None:
    """Replace a method of the memory store, or of its reads, by `make(method)`."""
    monkeypatch.setattr(where, name, make(getattr(where, name)))


def refuse_payload(payload: bytes) -> Callable[[Writes], str | None]:
    """Refuse rows with this payload, and accept everything else."""

    def refuse(writes: Writes) -> str | None:
        return "no such luck" if any(row.payload == payload for row in writes.inserts) else None

    return refuse


def test_a_refused_insert_is_found_while_events_keep_coming() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put("busy", 200)
        reply = await caller.get("busy", 200)
        world.database.refuse = refuse_payload(b"bad")
        extending = [asyncio.ensure_future(_extend_for_ever(caller, [seen])) for seen in reply.items]
        items = [new_item(payload=b"bad" if n == 5 else b"fine") for n in range(12)]
        results = await caller.enqueue(items, 5)
        assert [n for n, result in enumerate(results) if not isinstance(result, str)] == [5]
        assert isinstance(results[5], Unavailable)
        await caller.put(timeout_s=1.0)
        for task in extending:
            task.cancel()

    run_in_world(story)


async def _extend_for_ever(caller: Caller, items: Sequence[Any]) -> None:
    while True:
        await caller.do(EventKind.EXTEND, items)


def test_inserts_that_wait_to_be_tried_again_are_withdrawn_at_their_deadline() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        world.database.refuse = lambda writes: "the disk is full" if writes.inserts else None
        items = [new_item() for _ in range(60)]
        results = await caller.enqueue(items, 0.1)
        kinds = [type(result) for result in results]
        assert set(kinds) <= {Unavailable, DeadlineExceeded, UnknownOutcome}
        assert kinds.count(UnknownOutcome) <= 30
        assert DeadlineExceeded in kinds
        world.database.refuse = lambda writes: None
        await world.pass_s(1)
        assert len(world.rows()) <= kinds.count(UnknownOutcome)
        await caller.put()

    run_in_world(story)


@pytest.mark.parametrize("is_bad_value", [True, False])
def test_a_value_that_the_database_does_not_hold_is_an_error_of_its_caller(is_bad_value: bool) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        world.database.refuse = lambda writes: (
            WriteRefused("it is too long", is_bad_value=is_bad_value)
            if any(row.payload == b"bad" for row in writes.inserts)
            else None
        )
        results = await caller.enqueue([new_item(), new_item(payload=b"bad"), new_item()], 1)
        error = InvalidArgument if is_bad_value else Unavailable
        assert [isinstance(result, error) for result in results] == [False, True, False]

    run_in_world(story)


def test_a_shard_lost_during_a_bisection_answers_every_caller() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=8)
        reply = await caller.get(count=8)
        refusals = 0

        def refuse(writes: Writes) -> str | None:
            nonlocal refusals
            refusals += 1
            owner = world.database.tables[1].owner
            if refusals == 2:
                world.database.tables[1].owner = type(owner)(owner.epoch + 5, "somebody", 0, 0, 0)
            return "no such luck"

        world.database.refuse = refuse
        before = world.loop.time()
        outcomes = await caller.do(EventKind.ACK, reply.items, timeout_s=20.0)
        assert world.loop.time() - before < 5
        assert [type(outcome) for outcome in outcomes] == [NotOwner] * 8
        with pytest.raises(ShardTakenOver):
            await engine.run()

    run_in_world(story)


def test_a_read_of_a_shard_with_another_owner_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put()
        number = int(name.partition("-")[2])

        def lose(rows: Method) -> Method:
            async def lost(self: MemoryReads, past: Fence, ids: Sequence[int]) -> Any:
                owner = world.database.tables[1].owner
                world.database.tables[1].owner = type(owner)(owner.epoch + 5, "somebody", 0, 0, 0)
                return await rows(self, past, ids)

            return lost

        instead(monkeypatch, "rows", lose, MemoryReads)
        before = world.loop.time()
        with pytest.raises(Unavailable):
            await caller.queue.reads.get_item("default", 1, number, world.deadline_in(30))
        assert world.loop.time() - before < 5
        with pytest.raises(ShardTakenOver):
            await engine.run()

    run_in_world(story)


def test_a_read_that_always_breaks_the_connection_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put()

        def lose(listed: Method) -> Method:
            async def lost(self: MemoryReads, *arguments: Any, **options: Any) -> Any:
                raise StoreLost("this statement takes the server down")

            return lost

        instead(monkeypatch, "list_rows", lose, MemoryReads)
        with pytest.raises(Unavailable):
            await caller.queue.reads.peek("default", "t", State.READY, None, 10, True, world.deadline_in(10))
        assert await caller.do(EventKind.ACK, [await caller.one()]) == [None]

    run_in_world(story)


@pytest.mark.parametrize(
    "cursor",
    ["0:0:99999999999999999999:1", "99999999999:0:1:1", "0:-1:1:1", "0:0:1", "0:0:1:2:3", "0:0:1:65536", "x:y:z:0"],
)
def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        with pytest.raises(InvalidArgument):
            await caller.queue.reads.peek("default", "t", State.READY, cursor, 10, True, world.deadline_in(1))

    run_in_world(story)


def test_a_refused_lease_does_not_block_the_items_behind_it() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, retry_ms_max=300)))
        await caller.put(payload=b"bad", priority=-1)
        await caller.put(payload=b"good")
        (bad,) = [row.id for row in world.database.tables[1].rows.values() if row.payload == b"bad"]
        attempts = 0

        def refuse(writes: Writes) -> str | None:
            nonlocal attempts
            found = any(bad in lease.ids for lease in writes.leases)
            attempts += found
            return "no such luck" if found else None

        world.database.refuse = refuse
        assert (await caller.one(wait_ms=1_000)).row.payload == b"good"
        assert (await caller.get(wait_ms=2_000)).items == []
        assert attempts < 20
        world.database.refuse = lambda writes: None
        assert (await caller.one(wait_ms=1_000)).row.payload == b"bad"

    run_in_world(story)


def test_refused_due_rows_delay_no_others_and_are_tried_again_after_a_pause() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, timer_page_items=4, retry_ms_max=300, sweep_interval_ms=10**9)
        caller = Caller(world, await world.engine(settings))
        await caller.put("bad", 10, delay_ms=100)
        await caller.put("good", 1, delay_ms=200)
        attempts = 0

        def refuse(writes: Writes) -> str | None:
            nonlocal attempts
            found = any(row.topic == "bad" for row in writes.updates)
            attempts += found
            return "no such luck" if found else None

        world.database.refuse = refuse
        assert (await caller.one("good", wait_ms=2_000)).row.topic == "good"
        attempts = 0
        await world.pass_s(3)
        assert attempts < 30 * 30
        world.database.refuse = lambda writes: None
        await world.pass_s(0.5)
        assert len((await caller.get("bad", 20)).items) == 10

    run_in_world(story)


def test_a_flush_whose_connection_is_lost_twice_is_written_once() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        points = iter(["read", "committed"])
        expected = next(points)

        def fail(at: str) -> None:
            nonlocal expected
            if at == expected:
                expected = next(points, "")
                raise StoreLost("the line is cut")

        world.faults = fail
        await caller.put(count=3)
        assert expected == ""
        assert len(world.rows()) == 3

    run_in_world(story)


def test_a_fenced_flush_gets_not_owner_even_if_the_owner_row_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        old = await world.engine(engine_settings(1))
        caller = Caller(world, old)
        new = await world.engine(engine_settings(1))
        failures = 1

        def lose(owner: Method) -> Method:
            async def lost(self: MemoryStore) -> Any:
                nonlocal failures
                if failures:
                    failures -= 1
                    raise StoreLost("the database is away")
                return await owner(self)

            return lost

        instead(monkeypatch, "read_owner", lose)
        (error,) = await caller.enqueue([new_item()], 5)
        assert isinstance(error, NotOwner)
        with pytest.raises(ShardTakenOver):
            await old.run()
        await old.abort()
        await Caller(world, new).put()
        assert new.is_ready

    run_in_world(story)


def test_a_fenced_shard_accepts_no_items_while_it_reads_the_owner_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        old = await world.engine(engine_settings(1))
        caller = Caller(world, old)
        await world.engine(engine_settings(1))
        asked = asyncio.Event()

        def hang(owner: Method) -> Method:
            async def hung(self: MemoryStore) -> Any:
                asked.set()
                await asyncio.sleep(30)
                return await owner(self)

            return hung

        instead(monkeypatch, "read_owner", hang)
        unlucky = asyncio.ensure_future(caller.enqueue([new_item()], 60))
        await asked.wait()
        with pytest.raises(Unavailable, match="shard 1: the owner row shows epoch 2"):
            await caller.enqueue([new_item()], 5)
        (error,) = await unlucky
        assert isinstance(error, NotOwner)
        with pytest.raises(ShardTakenOver):
            await old.run()
        await old.abort()

    run_in_world(story)


def test_an_abandoned_enqueue_is_withdrawn_at_its_deadline() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        world.stall()
        first = asyncio.ensure_future(caller.enqueue([new_item("first")], 60.0))
        await world.pass_s(0.1)
        engine.queue.enqueue("default", [new_item("gone")], world.deadline_in(1.0), lambda results: None).abandon()
        engine.queue.enqueue("default", [new_item("later")], world.deadline_in(60.0), lambda results: None).abandon()
        await world.pass_s(5)
        world.resume()
        await first
        await caller.put("last")
        assert [topic for topic, _ in world.rows()] == ["first", "last", "later"]

    run_in_world(story)


@pytest.mark.takes_source
def test_a_committed_flush_whose_results_cannot_be_recorded_has_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        monkeypatch.setattr(engine.shards[1].memory, "settle", _broken)
        (result,) = await caller.enqueue([new_item()])
        assert isinstance(result, UnknownOutcome)
        assert len(world.rows()) == 1

    run_in_world(story)


def test_an_enqueue_gets_its_reply_before_the_memory_is_updated_if_nothing_else_waits() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1))
        order: list[tuple[str, int, int]] = []

        def note(event: str, results: object = None) -> None:
            ready, leased = (engine.shards[1].counts.count(("default", "t"), state) for state in _READY_AND_LEASED)
            order.append((event, ready, leased))

        engine.queue._write_replies = partial(note, "sent")
        engine.queue.enqueue("default", [new_item()], world.deadline_in(1.0), partial(note, "notified"))
        await world.pass_s(0.1)
        note("later")
        assert order == [("notified", 0, 0), ("sent", 0, 0), ("later", 1, 0)]
        order.clear()
        # The reply to a dequeue says how many items are left, so it follows the memory.
        engine.queue.dequeue("default", [("t", 1)], 0, None, world.deadline_in(1.0), partial(note, "notified"))
        await world.pass_s(0.1)
        assert order == [("notified", 0, 1)]

    run_in_world(story)


def test_an_enqueue_keeps_its_reply_if_the_memory_cannot_be_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        monkeypatch.setattr(engine.queue, "on_items_ready", _broken)
        (result,) = await Caller(world, engine).enqueue([new_item()])
        assert isinstance(result, str)
        assert len(world.rows()) == 1

    run_in_world(story)


def _broken(*arguments: object) -> None:
    raise RuntimeError("a bug")


def _record_flushes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry when a flush begins and when it is committed."""
    history: list[str] = []

    def note(flush: Method) -> Method:
        async def noted(self: MemoryStore, *arguments: Any) -> None:
            history.append("begins")
            await asyncio.sleep(0.01)
            await flush(self, *arguments)
            history.append("committed")

        return noted

    instead(monkeypatch, "flush", note)
    return history


def _append(history: list[str], entry: str, results: object) -> None:
    history.append(entry)


def test_callers_get_their_results_while_the_next_flush_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put("warm")
        history = _record_flushes(monkeypatch)
        for topic in ("first", "second"):
            caller.queue.enqueue("default", [new_item(topic)], world.deadline_in(9), partial(_append, history, topic))
            await world.pass_s(0.005)
        await world.until(lambda: "second" in history)
        assert history == ["begins", "committed", "begins", "first", "committed", "second"]

    run_in_world(story)


def test_other_callers_get_their_results_if_a_callback_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put("warm")
        first = engine.shards[1].epoch
        notified: list[str] = []

        def fail(results: Any) -> None:
            raise RuntimeError("a bug in a callback")

        for done in (fail, lambda results: notified.append("other")):
            caller.queue.enqueue("default", [new_item()], world.deadline_in(9), done)
        await world.until(lambda: "other" in notified)
        # The shard is taken over again, and the committed items are there.
        await world.until(
            lambda: 1 in engine.shards and engine.shards[1].epoch > first and engine.shards[1].is_answering
        )
        assert len((await caller.get(count=9)).items) == 2

    run_in_world(story)


def test_a_caller_gets_its_recorded_result_whatever_fails_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        monkeypatch.setattr(engine.shards[1], "on_dues_written", _broken)
        (result,) = await Caller(world, engine).enqueue([new_item()])
        assert isinstance(result, str)
        assert len(world.rows()) == 1

    run_in_world(story)


def _once_committed(monkeypatch: pytest.MonkeyPatch, caller: Caller, act: Callable[[], None]) -> None:
    """Run `act` once between the next commit and its callbacks. Another enqueue keeps the writer busy meanwhile."""
    acts = [act]

    def watch(flush: Method) -> Method:
        async def committed(self: MemoryStore, *arguments: Any) -> None:
            if not acts:
                await asyncio.sleep(0.01)
                await flush(self, *arguments)
                return
            caller.queue.enqueue("default", [new_item("next")], caller.world.deadline_in(9), lambda results: None)
            await flush(self, *arguments)
            asyncio.get_running_loop().call_soon(acts.pop())

        return committed

    instead(monkeypatch, "flush", watch)


def test_a_drop_before_the_callbacks_of_a_commit_replies_to_enqueues_but_delivers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put("ready")
        _once_committed(monkeypatch, caller, partial(engine.on_dropped, 1))
        getting = start_task(caller.get("ready", wait_ms=100))
        (result,) = await caller.enqueue([new_item("new")])
        assert isinstance(result, str)
        assert not (await getting).items
        assert world.rows() == [("new", State.READY), ("ready", State.LEASED)]

    run_in_world(story)


def test_a_dequeue_abandoned_before_the_callback_of_its_commit_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put("t")
        replies: list[Any] = []
        call = caller.queue.dequeue("default", [("t", 1)], 0, None, world.deadline_in(5), replies.append)
        _once_committed(monkeypatch, caller, call.abandon)
        seen = await caller.one("t", wait_ms=1_000)
        assert not replies
        assert seen.row.attempt == 1

    run_in_world(story)


def test_a_shard_that_is_given_up_is_not_fenced_and_its_calls_may_be_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        fenced: list[int] = []
        monkeypatch.setattr(NullObserver, "shard_fenced", lambda facts, shard: fenced.append(shard))
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put()
        first = engine.shards[1].epoch
        call = start_task(caller.enqueue([new_item()]))
        await asyncio.sleep(0)
        writer_of(engine.shards[1]).give_up("a test requests it")
        (result,) = await call
        assert isinstance(result, Unavailable)
        await world.until(
            lambda: 1 in engine.shards and engine.shards[1].epoch > first and engine.shards[1].is_answering
        )
        assert not fenced
        assert len(world.rows()) == 1

    run_in_world(story)
