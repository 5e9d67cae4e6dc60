"""Purged topics on a whole engine: the effect of a purge marker, and the deletion of its rows."""

from __future__ import annotations

import asyncio

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.item import State, parse_id, unpack_order_key
from foqs.core.items.life import EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.queue.port import ALREADY_GONE, ItemExplanation
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs_contract.errors import DeadlineExceeded, NotFound, NotOwner, Unavailable, UnknownOutcome
from tests.support.builders import engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import MethodGate, closed, start_task
from tests.support.purges import (
    count,
    keep_rows,
    marker_count,
    purge,
    put_items_of_every_state,
    stored,
    wait_for_deletion,
)

FOREVER_MS = 10**9


@pytest.mark.parametrize("page", [1, 3, 50])
def test_rows_of_every_state_are_deleted_and_then_the_purge_marker(page: int) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2, purge_page_items=page))
        caller = Caller(world, engine)
        await put_items_of_every_state(caller)
        await caller.put("other", count=3)
        assert await purge(caller) == 8
        assert await count(caller) == 3
        assert await caller.stats() is None
        await wait_for_deletion(world, engine)
        assert stored(world) == []
        assert len(stored(world, "other")) == 3
        assert sum(shard.snapshot().purged_rows for shard in engine.shards.values()) == 8

    run_in_world(story)


def test_purged_items_are_gone_while_their_rows_still_exist() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        await put_items_of_every_state(caller)
        [kept] = await caller.put("other")
        keep_rows(world)
        assert await purge(caller) == 8
        assert len(stored(world)) == 8
        assert (await caller.get(count=9)).items == []
        for state in State:
            assert (await caller.queue.reads.peek("default", "t", state, None, 9, True, world.deadline_in(5)))[0] == []
        found, _ = await caller.queue.reads.list_matching("default", RowFilter(), None, 99, False, world.deadline_in(5))
        assert [f"{seen.shard}-{seen.row.id}" for seen in found] == [kept]
        for row, shard in (
            (row, number) for number, table in world.database.tables.items() for row in table.rows.values()
        ):
            if row.topic == "t":
                with pytest.raises(NotFound):
                    await caller.queue.reads.get_item("default", shard, row.id, world.deadline_in(5))
        await world.pass_s(2)  # deferred items come due, and sweeps run
        assert (await caller.get(count=9)).items == []
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_ack_of_a_purged_lease_is_already_gone_and_it_cannot_be_released() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=5)
        held = (await caller.get(count=5)).items
        keep_rows(world)
        await purge(caller)
        assert await caller.do(EventKind.ACK, held[:1]) == [ALREADY_GONE]
        assert await caller.do(EventKind.CANCEL, held[:1]) == [ALREADY_GONE]
        for kind, changes in (
            (EventKind.NACK, {"delay_ms": 0}),
            (EventKind.RELEASE, {}),
            (EventKind.EXTEND, {}),
            (EventKind.REDRIVE, {}),
            (EventKind.UPDATE, {"priority": 3}),
        ):
            [outcome] = await caller.do(kind, held[1:2], **changes)
            assert isinstance(outcome, NotFound), kind
        assert (await caller.get()).items == []
        await wait_for_deletion(world, engine)
        assert await caller.do(EventKind.ACK, held[2:]) == [ALREADY_GONE] * 3

    run_in_world(story)


def test_purged_deferred_and_leased_items_do_not_return_when_due() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=30, delay_ms=300)
        await caller.put(count=3, lease_ms=200)
        await caller.get(count=3)
        keep_rows(world)
        await purge(caller)
        waiting = start_task(caller.get(count=9, wait_ms=3_000))
        await world.pass_s(2)
        assert {row.state for row in stored(world)} == {State.DEFERRED, State.LEASED}
        await caller.put(priority=7)
        assert [seen.row.priority for seen in (await waiting).items] == [7]
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_items_enqueued_after_a_purge_are_delivered_in_order() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, ready_window_items_max=4))
        caller = Caller(world, engine)
        await caller.put(count=40)
        keep_rows(world)
        assert await purge(caller) == 40
        for priority in range(9, 0, -1):
            await caller.put(priority=priority)
        stats = await caller.stats()
        assert stats is not None
        assert stats.ready == 9
        taken: list[int] = []
        while delivered := (await caller.get(count=3, wait_ms=50)).items:
            taken += [seen.row.priority for seen in delivered]
        assert taken == list(range(1, 10))
        await wait_for_deletion(world, engine)
        assert len(stored(world)) == 9

    run_in_world(story)


def test_refill_skips_purged_rows_after_a_takeover() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=60)
        keep_rows(world)
        await purge(caller)
        await caller.put(count=2, priority=5)
        await engine.abort()
        engine = await world.engine(engine_settings(1, ready_window_items_max=4))
        caller = Caller(world, engine)
        shard, topic = engine.shards[1], ("default", "t")
        shard.loader.start_refill(topic)
        await world.until(lambda: not shard.index.needs_refill(topic))
        assert [unpack_order_key(key)[0] for key in shard.index.peek(topic, 9)] == [5, 5]
        assert [seen.row.priority for seen in (await caller.get(count=9, wait_ms=500)).items] == [5, 5]
        await world.until(lambda: not engine.shards[1].counts.is_lagging)
        stats = await caller.stats()
        assert stats is not None
        assert (stats.ready, stats.leased) == (0, 2)
        await wait_for_deletion(world, engine)
        assert len(stored(world)) == 2

    run_in_world(story)


def test_refill_in_progress_returns_no_purged_items(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, ready_window_items_max=4))
        caller = Caller(world, engine)
        await caller.put(count=20)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=True)
        keep_rows(world)
        with closed(reads):
            await caller.get(count=4)
            waiting = start_task(caller.get(count=5, wait_ms=300))
            await world.until(lambda: reads.held == 1)
            await purge(caller)
        assert (await waiting).items == []
        assert engine.shards[1].index.topics() == []
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_reserved_items_are_not_delivered_after_a_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=5)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        keep_rows(world)
        with closed(commits):
            first = start_task(caller.put("other"))
            await world.until(lambda: commits.held == 1)
            purging = start_task(purge(caller))
            await asyncio.sleep(0)
            # A flush changes an id once, so the marker is in the flush before.
            commits_of_lease = start_task(caller.get(count=2, wait_ms=200))
            await asyncio.sleep(0)
        await first
        await purging
        delivered = (await commits_of_lease).items
        assert await caller.do(EventKind.ACK, delivered) == [ALREADY_GONE] * len(delivered)
        assert (await caller.get(count=5)).items == []
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_reservations_released_after_the_purge_do_not_return_to_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=5)
        shard = engine.shards[1]
        taken = shard.index.reserve(("default", "t"), 3)
        keep_rows(world)
        await purge(caller)
        shard.release_reservation([(("default", "t"), taken)])
        assert shard.index.topics() == []
        assert shard.index.reserved_count == 0
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_reservations_released_after_their_rows_were_deleted_do_nothing() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=5)
        shard, topic = engine.shards[1], ("default", "t")
        taken = shard.index.reserve(topic, 3)
        await purge(caller)
        await wait_for_deletion(world, engine)
        shard.release_reservation([(topic, taken)])
        assert shard.index.topics() == []

    run_in_world(story)


def test_item_numbered_before_the_purge_and_written_after_it_is_purged_too() -> None:
    """Its insert was enqueued before the purge, refused with the flush of the marker, and retried after it."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=2)
        world.stall()
        putting = start_task(caller.enqueue([new_item(), keyed_item("k"), new_item("other")]))
        later = start_task(purge(caller))
        await asyncio.sleep(0)

        def refuse(writes: Writes) -> str | None:
            return "not with events" if writes.purge_markers_added and writes.inserts else None

        world.database.refuse = refuse
        world.resume()
        assert await later == 2
        first, second, other = map(ok, await putting)
        await wait_for_deletion(world, engine)
        remaining = [f"1-{row.id}" for row in stored(world)]
        assert first not in remaining
        assert second not in remaining
        assert [f"1-{row.id}" for row in stored(world, "other")] == [other]
        # The key outlives the item.
        [again] = await caller.enqueue([keyed_item("k")])
        assert getattr(again, "id", None) == second

    run_in_world(story)


def test_repeated_purge_raises_the_purge_marker() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=3)
        keep_rows(world)
        assert await purge(caller) == 3
        await caller.put(count=2)
        assert await purge(caller) == 2
        assert await purge(caller) == 0
        assert marker_count(world) == 1
        await caller.put()
        assert len((await caller.get(count=9)).items) == 1
        await wait_for_deletion(world, engine)
        assert len(stored(world)) == 1

    run_in_world(story)


def test_purge_marker_raised_during_deletion_ends_with_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=3)
        reads = MethodGate(monkeypatch, MemoryReads, "list_rows", on_the_way_back=True)
        with closed(reads):
            await purge(caller)
            await world.until(lambda: reads.held == 1)
            await caller.put(count=3)
            assert await purge(caller) == 3
        await wait_for_deletion(world, engine)
        assert stored(world) == []

    run_in_world(story)


def test_missing_empty_and_paused_topics_can_be_purged() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        assert await purge(caller, "nowhere") == 0
        await caller.put()
        await engine.admin.pause("default", "t", world.deadline_in(5), paused=True)
        assert await purge(caller) == 1
        await wait_for_deletion(world, engine)
        assert stored(world) == []

    run_in_world(story)


def test_purge_does_not_affect_other_topics_and_namespaces() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller, other = Caller(world, engine), Caller(world, engine, "other")
        await caller.put(count=2)
        await other.put(count=2)
        await caller.put("T", count=2)
        keep_rows(world)
        assert await purge(caller) == 2
        assert len((await other.get(count=5)).items) == 2
        assert len((await caller.get("T", count=5)).items) == 2
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_new_owner_reads_the_purge_markers_first_and_continues() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2, purge_page_items=2))
        caller = Caller(world, engine)
        for _ in range(4):
            await put_items_of_every_state(caller)
        before = len(stored(world))
        deleted = 0

        def refuse(writes: Writes) -> str | None:
            nonlocal deleted
            deleted += len(writes.deletes)
            return "that is all for now" if deleted > 4 else None

        world.database.refuse = refuse
        await purge(caller)
        await world.until(lambda: len(stored(world)) < before)
        await engine.abort()
        keep_rows(world)
        assert 0 < len(stored(world)) < before
        engine = await world.engine()
        caller = Caller(world, engine)
        assert (await caller.get(count=9, wait_ms=200)).items == []
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        assert await count(caller) == 0
        await wait_for_deletion(world, engine)
        assert stored(world) == []

    run_in_world(story)


@pytest.mark.parametrize("refused_deletions", range(1, 5))
def test_page_that_is_refused_while_the_next_one_is_read_is_deleted_before_the_marker_is_cleared(
    refused_deletions: int,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, purge_page_items=3, retry_ms_max=200))
        caller = Caller(world, engine)
        await caller.put(count=20)
        refusals = 0
        cleared_with: list[int] = []

        def refuse(writes: Writes) -> str | None:
            nonlocal refusals
            if writes.purge_markers_removed:
                cleared_with.append(len(stored(world)))
            if refusals < refused_deletions and len(writes.deletes) == 1:
                refusals += 1
                return "not now"
            return "too many at once" if refusals < refused_deletions and writes.deletes else None

        world.database.refuse = refuse
        assert await purge(caller) == 20
        await world.until(lambda: bool(cleared_with))
        assert refusals == refused_deletions
        assert cleared_with == [0]
        await wait_for_deletion(world, engine)
        assert engine.shards[1].snapshot().purged_rows == 20
        assert engine.shards[1].memory.usage.lower_bound("default") == (0, 0)

    run_in_world(story)


@pytest.mark.parametrize("raised", [False, True])
def test_counts_are_right_if_a_topic_is_purged_before_it_was_counted(
    monkeypatch: pytest.MonkeyPatch, raised: bool
) -> None:
    async def story(world: World) -> None:
        first = await world.engine(engine_settings(1))
        caller = Caller(world, first)
        await caller.put(count=4)
        keep_rows(world)
        if raised:
            await purge(caller)
            await caller.put(count=4)
        await first.abort()
        counting = MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=True)
        with closed(counting):
            engine = await world.engine(engine_settings(1))
            caller = Caller(world, engine)
            await caller.put(count=2)
            await purge(caller)
            await caller.put(count=3)
            assert (await caller.get(count=9)).items != []
        await world.until(lambda: not engine.shards[1].counts.is_lagging)
        assert await count(caller) == 3
        await wait_for_deletion(world, engine)
        assert len(stored(world)) == 3

    run_in_world(story)


def test_purged_topic_leaves_the_table_of_topics_and_can_return() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put()
        await purge(caller)
        await world.pass_s(2)
        await caller.put("other")  # a flush, which removes the topic
        assert world.database.tables[1].topics == {("default", "other")}
        await caller.put()
        assert world.database.tables[1].topics == {("default", "other"), ("default", "t")}
        assert len((await caller.get()).items) == 1
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_backlog_shrinks_as_rows_are_deleted() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=4)
        keep_rows(world)
        await purge(caller)
        usage = engine.shards[1].memory.usage
        assert usage.lower_bound("default")[0] == 4
        await wait_for_deletion(world, engine)
        assert usage.lower_bound("default") == (0, 0)

    run_in_world(story)


def test_purge_not_written_by_its_deadline_is_withdrawn_or_unknown() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=2)
        world.stall()
        with pytest.raises(UnknownOutcome):
            await purge(caller, timeout_s=0.5)
        with pytest.raises(DeadlineExceeded):
            await purge(caller, timeout_s=0.5)
        world.resume()
        await world.until(lambda: stored(world) == [])  # although no caller waited
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_partly_committed_purge_is_unknown_and_a_refused_one_is_not() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        while not all(shard.may_have_items(("default", "t")) for shard in engine.shards.values()):
            await caller.put()
            await world.pass_s(0.3)
        refused: list[Writes] = []

        def refuse(writes: Writes) -> str | None:
            if writes.purge_markers_added and not refused:
                refused.append(writes)
                return "no"
            return None

        world.database.refuse = refuse
        with pytest.raises(UnknownOutcome):
            await purge(caller)
        world.database.refuse = lambda writes: "no" if writes.purge_markers_added else None
        with pytest.raises(Unavailable):
            await purge(caller)
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_stopped_engine_leaves_the_deletion_to_the_next() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, purge_page_items=2))
        caller = Caller(world, engine)
        await caller.put(count=100)
        await purge(caller)
        engine.on_release_requested()
        await engine.run()
        assert len(stored(world)) > 50
        await wait_for_deletion(world, await world.engine())
        assert stored(world) == []

    run_in_world(story)


def test_purged_items_are_absent_and_not_counted_as_better_while_their_rows_exist() -> None:
    async def story(world: World) -> None:
        async def explain(name: str) -> ItemExplanation:
            shard, number = parse_id(name, "id")
            return await caller.queue.reads.explain(caller.namespace, shard, number, world.deadline_in(5))

        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        purged = await caller.put(count=20, priority=-1)
        keep_rows(world)
        await purge(caller)
        (name,) = await caller.put(priority=5)
        await engine.abort()
        caller = Caller(world, await world.engine(engine_settings(1, ready_window_items_max=4)))
        assert (await explain(name)).better_items == 0
        assert len(stored(world)) == 21
        assert (await explain(purged[0])).item is None

    run_in_world(story)


def test_purge_of_an_empty_topic_writes_no_marker() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2, purge_topics_max=1))
        caller = Caller(world, engine)
        for number in range(3):
            assert await purge(caller, f"made up {number}") == 0
        assert marker_count(world) == 0

    run_in_world(story)


def test_purge_by_a_replaced_owner_without_items_fails() -> None:
    async def story(world: World) -> None:
        old = await world.engine()
        new = await world.engine()
        await Caller(world, new).enqueue([new_item("t")])
        with pytest.raises((NotOwner, Unavailable)):
            await old.queue.bulk.purge_topic("default", "t", world.loop.time() + 5)
        assert len(world.rows()) == 1
        assert await new.queue.bulk.purge_topic("default", "t", world.loop.time() + 5) == 1

    run_in_world(story)
