"""Calls on items that match a filter: matching items are found, counted and changed page by page, and no others."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.items.item import State
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.queue.port import PageResult, RowView
from foqs.queue.reads import counting, filter_walk
from foqs.queue.reads.counting import CountingFilterWalk
from foqs.queue.reads.filter_walk import parse_filter_walk_cursor
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs_contract.errors import DeadlineExceeded, InvalidArgument, Overloaded, Unavailable, UnknownOutcome
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodCount, MethodGate, closed, start_task, wait_until_idle

DAY_MS = 86_400_000
ANY = RowFilter()
CANCEL = Event(EventKind.CANCEL, 0, "default")
REDRIVE = Event(EventKind.REDRIVE, 0, "default")


def update(**changes: Any) -> Event:
    return Event(EventKind.UPDATE, 0, "default", **changes)


async def page(
    caller: Caller, change: Event, only: RowFilter = ANY, cursor: str | None = None, limit: int = 100, s: float = 5
) -> PageResult:
    return await caller.queue.bulk.change_matching("default", change, only, cursor, limit, caller.world.deadline_in(s))


async def every_page(caller: Caller, change: Event, only: RowFilter = ANY, limit: int = 100) -> tuple[int, int, int]:
    """Change all pages. Returns (changed, refused, pages)."""
    changed = refused = pages = 0
    cursor: str | None = None
    while True:
        done = await page(caller, change, only, cursor, limit)
        changed, refused, pages = changed + done.changed, refused + done.refused, pages + 1
        assert (done.refusal is None) == (done.refused == 0)
        cursor = done.next_cursor
        if cursor is None:
            return changed, refused, pages


async def listed(caller: Caller, only: RowFilter = ANY, limit: int = 100) -> list[RowView]:
    found: list[RowView] = []
    cursor: str | None = None
    while True:
        seen, cursor = await caller.queue.reads.list_matching(
            "default", only, cursor, limit, False, caller.world.deadline_in(5)
        )
        assert len(seen) <= limit
        found += seen
        if cursor is None:
            return found


async def count(caller: Caller, only: RowFilter = ANY) -> int:
    return (await caller.queue.reads.count_matching("default", only, caller.world.deadline_in(5))).items


async def counted_page(caller: Caller, only: RowFilter, cursor: str | None, limit: int = 100) -> PageResult:
    return await caller.queue.reads.count_page("default", only, cursor, limit, caller.world.deadline_in(5))


async def various(world: World, caller: Caller) -> None:
    """Put items of each state and of several priorities and ages into two topics."""
    for topic in ("t", "u"):
        await caller.put(topic, count=4, priority=9)
        leased = (await caller.get(topic, 2)).items
        await caller.do(EventKind.NACK, leased[:1], dead=True)
        await world.pass_s(1)
        for priority in (-3, 0, 5):
            await caller.put(topic, count=2, priority=priority)
            await caller.put(topic, delay_ms=DAY_MS, priority=priority)


def stored(world: World) -> list[Any]:
    rows = [row for table in world.database.tables.values() for row in table.rows.values()]
    return sorted((row for row in rows if row.namespace == "default"), key=lambda row: row.id)


FILTERS = [
    ANY,
    RowFilter("t"),
    RowFilter("nowhere"),
    RowFilter(states=(State.DEAD,)),
    RowFilter("u", (State.READY, State.LEASED)),
    RowFilter(priority_min=0),
    RowFilter(priority_max=0),
    RowFilter("t", priority_min=1, priority_max=5),
    RowFilter(age_min_ms=1_000),
    RowFilter(age_max_ms=999),
    RowFilter("t", (State.LEASED,), priority_min=9, age_min_ms=1, age_max_ms=DAY_MS),
]


@pytest.mark.parametrize("only", FILTERS)
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_filter_finds_and_counts_each_matching_item_once(only: RowFilter, limit: int) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        await various(world, caller)
        now = replace(only, at_ms=max(shard.now_ms() for shard in engine.shards.values()))
        expected = [row.id for row in stored(world) if now.matches(row)]
        found = await listed(caller, only, limit)
        assert sorted(seen.row.id for seen in found) == expected
        assert {seen.row.payload for seen in found} <= {None}
        assert await count(caller, only) == len(expected)

    run_in_world(story)


def _answer(is_by_id: bool) -> Generator[None, None, bool]:
    yield
    return is_by_id


@pytest.mark.parametrize("is_by_id", [True, False])
@pytest.mark.parametrize("only", FILTERS)
def test_pages_of_a_count_find_each_matching_item_once(
    only: RowFilter, is_by_id: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "COUNT_PAGE_S_MAX", 0.0)
    monkeypatch.setattr(counting, "COUNT_ROWS_PER_READ", 2)
    by_id = MethodCount(monkeypatch, MemoryReads, "rows_by_id")
    if only.topic is None:
        monkeypatch.setattr(CountingFilterWalk, "_is_faster_by_id", lambda self, shard: _answer(is_by_id))

    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        await various(world, caller)
        now = replace(only, at_ms=max(shard.now_ms() for shard in engine.shards.values()))
        before = stored(world)
        counted, cursors = 0, [(await counted_page(caller, only, None, limit=0)).next_cursor]
        while cursors[-1] is not None:
            await world.pass_s(0.01)
            await caller.put("t", priority=5)  # after the start of the count
            found = await counted_page(caller, only, cursors[-1])
            assert (found.changed, found.refused) == (0, 0)
            counted += found.matched
            cursors.append(found.next_cursor)
            assert len(cursors) < 100
        assert counted == sum(map(now.matches, before))
        assert [row for row in stored(world) if row.enqueued_at_ms <= now.at_ms] == before
        assert (by_id.calls > 0) == (is_by_id and only.topic is None)

    run_in_world(story)


def test_few_items_in_many_topics_are_counted_by_id_and_many_in_few_by_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    by_id = MethodCount(monkeypatch, MemoryReads, "rows_by_id")
    by_topic = MethodCount(monkeypatch, MemoryReads, "list_rows")

    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1))
        caller = Caller(world, engine)
        for number in range(20):
            await caller.put(f"t{number}", priority=3)
        assert await count(caller, RowFilter(priority_min=3)) == 20
        assert (by_id.calls, by_topic.calls) == (1, 0)
        assert await count(caller, RowFilter("t7", priority_min=3)) == 1
        assert await count(caller, RowFilter(states=(State.DEAD,), priority_min=3)) == 0
        assert (by_id.calls, by_topic.calls) == (1, 1)

    run_in_world(story)


@pytest.mark.parametrize("only", FILTERS)
def test_only_matching_items_are_cancelled(only: RowFilter) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        await various(world, caller)
        now = replace(only, at_ms=max(shard.now_ms() for shard in engine.shards.values()))
        before = [row.id for row in stored(world)]
        kept = [row.id for row in stored(world) if not now.matches(row)]
        changed, refused, _ = await every_page(caller, CANCEL, only, limit=2)
        assert (changed, refused) == (len(before) - len(kept), 0)
        assert [row.id for row in stored(world)] == kept
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_items_of_another_namespace_are_neither_found_nor_changed() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        await Caller(world, engine, "other").put(count=3)
        caller = Caller(world, engine)
        await caller.put()
        assert len(await listed(caller)) == await count(caller) == 1
        assert await every_page(caller, CANCEL) == (1, 0, 1)
        assert len(world.rows()) == 3

    run_in_world(story)


def test_page_ends_at_its_limit_and_returns_the_next_cursor() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, 2)))
        for number in range(60):
            await caller.put(f"t{number:02}", priority=number % 2)
        only = RowFilter(priority_min=1)
        first, cursor = await caller.queue.reads.list_matching(
            "default", RowFilter(priority_min=7), None, 9, False, 1e9
        )
        assert (first, cursor is None) == ([], False)
        assert len(await listed(caller, only, limit=7)) == 30
        changed, _, pages = await every_page(caller, CANCEL, only, limit=7)
        assert changed == 30
        assert pages >= 60 // filter_walk.READS_MAX

    run_in_world(story)


def test_items_enqueued_between_pages_are_not_changed() -> None:
    """The walk ends even if items keep coming."""

    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put(count=6)
        cursor: str | None = None
        changed = 0
        for _ in range(9):
            done = await page(caller, CANCEL, cursor=cursor, limit=2)
            changed, cursor = changed + done.changed, done.next_cursor
            if cursor is None:
                break
            await world.pass_s(0.01)
            await caller.put(count=3)
        assert (changed, cursor) == (6, None)
        assert await count(caller) == 9

    run_in_world(story)


@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize(
    "changes", [{"priority": 5}, {"delay_ms": 60_000}, {"metadata": b"m"}, {"priority": -1, "delay_ms": 0}]
)
def test_update_changes_each_item_once_wherever_it_moves_it(changes: dict[str, Any], limit: int) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        for priority in range(8):
            await caller.put(priority=priority)
            await caller.put(priority=priority, delay_ms=30_000)
        started_ms = max(shard.now_ms() for shard in engine.shards.values())
        changed, refused, _ = await every_page(caller, update(**changes), limit=limit)
        await wait_until_idle(world, engine)
        already = sum(1 for key in changes if key == "priority" and changes[key] == 5) * 2
        assert (changed, refused) == (16 - already, 0)
        rows = stored(world)
        assert {row.priority for row in rows} == ({changes["priority"]} if "priority" in changes else set(range(8)))
        if "metadata" in changes:
            assert {row.metadata for row in rows} == {b"m"}
        if changes.get("delay_ms"):
            assert {row.deliver_after_ms for row in rows} == {started_ms + 60_000}
        elif "delay_ms" in changes:
            assert {row.state for row in rows} == {State.READY}
        assert (await every_page(caller, update(**changes), limit=limit))[:2] == (
            16 if changes.get("delay_ms") else 0,
            0,
        )

    run_in_world(story)


def test_items_that_refuse_the_change_are_counted_and_reported() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=3)
        await caller.get(count=1)
        await caller.put(ttl_ms=5_000)
        done = await page(caller, update(delay_ms=60_000))
        assert (done.changed, done.refused, done.next_cursor) == (2, 2, None)
        assert isinstance(done.refusal, InvalidArgument)
        assert done.refusal.field == "change.delay_ms"
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_redriven_items_are_delivered() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        for topic in ("t", "u"):
            await caller.put(topic, count=5, attempts_max=1)
            await caller.do(EventKind.NACK, (await caller.get(topic, 5)).items)
        only = RowFilter(states=(State.DEAD,))
        assert await count(caller, only) == 10
        changed, _, _ = await every_page(caller, REDRIVE, replace(only, topic="t"), limit=2)
        assert changed == 5
        assert [seen.row.attempt for seen in (await caller.get("t", 9)).items] == [1] * 5
        assert await count(caller, only) == 5
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_item_that_no_longer_matches_in_its_flush_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the page was read, some of its items are delivered and one is moved."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        names = await caller.put(count=4)
        reads = MethodGate(monkeypatch, MemoryReads, "list_rows", on_the_way_back=True)
        with closed(reads):
            cancelling = start_task(page(caller, CANCEL, RowFilter(states=(State.READY,), priority_max=0)))
            await world.until(lambda: reads.held == 1)
            taken = (await caller.get(count=2)).items
            shard, number = 1, int(names[3].partition("-")[2])
            await caller.apply([(shard, Event(EventKind.UPDATE, number, "default", priority=3))])
        done = await cancelling
        assert (done.changed, done.refused, done.next_cursor) == (1, 0, None)
        assert await caller.do(EventKind.ACK, taken) == [None, None]
        assert [(row.id, row.priority) for row in stored(world)] == [(number, 3)]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_page_with_an_unknown_outcome_can_be_repeated_safely(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=4)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=True)
        with closed(commits), pytest.raises(UnknownOutcome):
            await page(caller, update(delay_ms=60_000), s=0.5)
        await world.pass_s(1)
        assert {row.state for row in stored(world)} == {State.DEFERRED}
        assert (await every_page(caller, CANCEL))[0] == 4
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_page_with_a_partly_unknown_outcome_is_unknown() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, flush_items_max=5))
        caller = Caller(world, engine)
        await caller.put(count=30)

        def stall_the_second(point: str) -> None:
            if point == "begin" and len(stored(world)) < 30:
                world.stall()

        world.faults = stall_the_second
        with pytest.raises(UnknownOutcome):
            await page(caller, CANCEL, s=1)
        assert 0 < len(stored(world)) < 30
        world.faults = lambda point: None
        world.resume()
        await every_page(caller, CANCEL)
        await wait_until_idle(world, engine)
        assert stored(world) == []

    run_in_world(story)


def test_next_page_starts_at_an_item_that_could_not_be_written() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        bad = [int(name.partition("-")[2]) for name in await caller.put(count=5)][2]
        world.database.refuse = lambda writes: "a bad row" if bad in writes.deletes else None
        done = await page(caller, CANCEL)
        assert (done.changed, done.refused) == (4, 0)
        assert done.next_cursor is not None
        with pytest.raises(Unavailable, match="a bad row"):
            await page(caller, CANCEL, cursor=done.next_cursor)
        world.database.refuse = lambda writes: None
        assert await page(caller, CANCEL, cursor=done.next_cursor) == PageResult(1, 0, None, None, 1)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_full_or_unavailable_shard_is_reported_before_anything_is_written() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, queue_items_max=2))
        caller = Caller(world, engine)
        for _ in range(4):
            await caller.put()
        with pytest.raises(Overloaded):
            await page(caller, CANCEL)
        assert (await every_page(caller, CANCEL, limit=1))[0] == 4
        shard = engine.shards.pop(1)
        for asked in (page(caller, CANCEL), count(caller), listed(caller)):
            with pytest.raises(Unavailable):
                await asked
        engine.shards[1] = shard

    run_in_world(story)


def test_slow_read_ends_the_call_at_its_deadline_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=2)
        reads = MethodGate(monkeypatch, MemoryReads, "list_rows", on_the_way_back=True)
        with closed(reads):
            with pytest.raises(DeadlineExceeded):
                await page(caller, CANCEL, s=0.5)
            with pytest.raises(DeadlineExceeded):
                await caller.queue.reads.list_matching("default", ANY, None, 5, False, world.deadline_in(0.5))
            with pytest.raises(DeadlineExceeded):
                await caller.queue.reads.count_matching("default", RowFilter(priority_min=0), world.deadline_in(0.5))
        await wait_until_idle(world, engine)
        assert len(stored(world)) == 2

    run_in_world(story)


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "1:1:2:0:0:0", "1:70000:2:0:0:0:t", "1:1:9:0:0:0:t", "1:1:2:0:0:0x:t", "-1:1:2:0:0:0:t",
     "1:1:2:99999999999:0:0:t", "1:1:2:0:-1:0:t", "01:1:2:0:0:0:t", "1:1:2:0:0:" + "9" * 30 + ":t"],
)  # fmt: skip
def test_malformed_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_filter_walk_cursor(cursor)
    assert caught.value.field == "page.cursor"


def test_cursor_round_trips_as_text() -> None:
    text = "17:3:2:-5:99:8796093022209:a:b\n "
    place = parse_filter_walk_cursor(text)
    assert (place.started_ms, place.shard, place.state, place.topic) == (17, 3, State.READY, "a:b\n ")
    assert str(place) == text


def test_empty_page_starts_a_walk_and_changes_nothing() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        await caller.put(count=3)
        started = await page(caller, CANCEL, limit=0)
        assert (started.changed, started.matched) == (0, 0)
        assert started.next_cursor is not None
        await world.pass_s(1)
        await caller.put(count=2)  # after the start of the walk
        changed = 0
        cursor: str | None = started.next_cursor
        while cursor is not None:
            done = await page(caller, CANCEL, cursor=cursor)
            assert done.matched == done.changed
            changed, cursor = changed + done.changed, done.next_cursor
        assert changed == 3
        assert len(stored(world)) == 2
        assert (await page(caller, CANCEL, RowFilter("nowhere"), limit=0)).next_cursor is None
        await wait_until_idle(world, engine)

    run_in_world(story)


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_item_that_dies_again_during_the_walk_is_redriven_once(limit: int) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        await caller.put(count=5, attempts_max=1)
        await caller.do(EventKind.NACK, (await caller.get("t", 5)).items)
        await world.pass_s(1)
        cursor = (await page(caller, REDRIVE, limit=0)).next_cursor
        assert cursor is not None
        changed = pages = 0
        while cursor is not None:
            await world.pass_s(1)
            done = await page(caller, REDRIVE, cursor=cursor, limit=limit)
            changed, pages, cursor = changed + done.changed, pages + 1, done.next_cursor
            if done.changed:  # the consumer fails at once
                await caller.do(EventKind.NACK, (await caller.get("t", 5)).items)
            assert pages < 50
        assert changed == 5
        assert await count(caller, RowFilter(states=(State.DEAD,))) == 5
        assert (await every_page(caller, REDRIVE))[0] == 5
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_pages_say_how_many_items_they_met() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=3)
        await caller.get(count=1)
        done = await page(caller, update(delay_ms=1_000))
        assert (done.matched, done.changed, done.refused) == (3, 2, 1)
        await wait_until_idle(world, engine)

    run_in_world(story)
