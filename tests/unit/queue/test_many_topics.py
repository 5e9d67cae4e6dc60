"""Calls that look at all topics of a namespace yield to other tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foqs.cluster.gossip.change_log import ChangeLog
from foqs.cluster.gossip.local_topics import LocalTopics
from foqs.core.items.item import State, TopicName
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.core.memory import sorted_names
from foqs.core.memory.sorted_names import NAMES_PER_STEP_MAX
from foqs.core.memory.topic_counts import TopicCounts
from foqs.queue.engine import Engine
from foqs.queue.reads import listings
from foqs.queue.reads.counting import COUNT_TOPICS_PER_STEP
from foqs.shard.observer import NullObserver
from foqs.store.in_memory.memory_store import MemoryReads
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.loop_turns import calls_per_turn
from tests.support.method_gate import MethodCount

TOPICS = 6_000
NAMES = sorted(f"t{number}" for number in range(TOPICS))


async def engine_with_many_topics(world: World) -> Engine:
    """Start an engine with two shards, one of which has a dead item in each of many topics."""
    engine = await world.counted_engine(engine_settings(1, 2))
    engine.shards[1].counts.complete_initial([(("default", name), State.DEAD, 1) for name in NAMES])
    return engine


def test_page_of_topics_skips_many_others_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await engine_with_many_topics(world)
        engine.shards[2].counts.complete_initial([(("default", "u"), State.READY, 1)])
        operation = engine.queue.reads.list_topics("default", "", None, None, 10)
        (page, cursor), lookups, most_per_turn = await calls_per_turn(
            monkeypatch, TopicCounts, "counts_by_state", operation
        )
        assert ([stats.topic for stats in page], cursor) == (["u"], None)
        assert lookups > TOPICS
        assert most_per_turn <= 2 * (NAMES_PER_STEP_MAX + 1)

    run_in_world(story)


def test_pages_of_many_topics_list_each_once_in_order() -> None:
    async def story(world: World) -> None:
        engine = await engine_with_many_topics(world)
        engine.shards[2].counts.complete_initial([(("default", name), State.DEAD, 1) for name in NAMES[::2]])
        found: list[str] = []
        cursor: str | None = None
        while True:
            page, cursor = await engine.queue.reads.list_topics("default", "t", [State.DEAD], cursor, 500)
            found += [stats.topic for stats in page]
            if cursor is None:
                break
        assert found == NAMES

    run_in_world(story)


def test_pages_that_follow_one_another_sort_the_names_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a whole list, or a change of all items, would take the square of the number of topics."""

    async def story(world: World) -> None:
        engine = await engine_with_many_topics(world)
        sorted_lists = 0
        merge_names = sorted_names.merge_names

        def counted(*arguments: Any, **options: Any) -> Iterator[str | None]:
            nonlocal sorted_lists
            sorted_lists += 1
            return merge_names(*arguments, **options)

        for module in (sorted_names, listings):
            monkeypatch.setattr(module, "merge_names", counted)
        cursor: str | None = None
        for _ in range(20):
            _, cursor = await engine.queue.reads.list_topics("default", "", [State.DEAD], cursor, 100)
        cancel = Event(EventKind.CANCEL, 0, "default")
        cursor = None
        for _ in range(5):
            page = await engine.queue.bulk.change_matching(
                "default", cancel, RowFilter(states=(State.DEAD,)), cursor, 100, world.deadline_in(5)
            )
            cursor = page.next_cursor
        assert sorted_lists == 1

    run_in_world(story)


def test_items_of_many_topics_are_counted_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await engine_with_many_topics(world)
        operation = engine.queue.reads.count_matching("default", RowFilter(states=(State.DEAD,)), world.deadline_in(5))
        count, lookups, most_per_turn = await calls_per_turn(monkeypatch, TopicCounts, "count", operation)
        assert count.items == TOPICS
        assert lookups >= TOPICS
        assert most_per_turn <= COUNT_TOPICS_PER_STEP + 1

    run_in_world(story)


MANY_READY = [(("default", name), State.READY, 1) for name in NAMES]
ONE_DEAD = (("default", "t0"), State.DEAD, 1)
OTHERS = [(("other", "u"), State.READY, 9_000_000), (("other", "u"), State.DEAD, 1_000_000)]
NO_TOPIC: list[tuple[TopicName, State, int]] = []


@pytest.mark.parametrize(
    ("counts", "state", "is_by_id"),
    [
        # A topic read each, or 6 reads by id.
        (MANY_READY, State.READY, True),
        # Another namespace makes the shard long: 10,000 reads by id.
        ([*MANY_READY, ONE_DEAD, *OTHERS], State.DEAD, False),
        ([*MANY_READY, ONE_DEAD, *OTHERS], State.READY, False),
        # Long topics need as many reads in either order.
        ([(("default", "u"), State.DEAD, 4_500)], State.DEAD, False),
        ([*MANY_READY, (("default", "u"), State.READY, 50_000_000)], State.READY, True),
        (NO_TOPIC, State.DEAD, False),
    ],
)
def test_shard_is_counted_by_id_if_the_topics_that_match_need_more_reads(
    counts: list[tuple[TopicName, State, int]], state: State, is_by_id: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_id = MethodCount(monkeypatch, MemoryReads, "rows_by_id")

    async def story(world: World) -> None:
        world.facts = NullObserver()  # the counts will not be those of the table
        engine = await world.counted_engine(engine_settings(1))
        await Caller(world, engine).put(count=1)
        engine.shards[1].counts.complete_initial(counts)
        only = RowFilter(states=(state,), priority_max=5)
        await engine.queue.reads.count_matching("default", only, world.deadline_in(60))
        assert bool(by_id.calls) == is_by_id

    run_in_world(story)


def test_reads_of_many_topics_are_added_up_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await engine_with_many_topics(world)
        engine.shards[1].counts.complete_initial([(("other", "u"), State.READY, 1_000 * TOPICS)])
        operation = engine.queue.reads.count_page("default", RowFilter(priority_max=5), None, 0, world.deadline_in(5))
        _, lookups, most_per_turn = await calls_per_turn(monkeypatch, TopicCounts, "count", operation)
        assert lookups >= len(State) * TOPICS
        assert most_per_turn <= len(State) * COUNT_TOPICS_PER_STEP + len(State)

    run_in_world(story)


def test_change_by_filter_skips_many_topics_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await engine_with_many_topics(world)
        only = RowFilter(states=(State.READY,), priority_max=5)
        operation = engine.queue.reads.count_matching("default", only, world.deadline_in(5))
        count, lookups, most_per_turn = await calls_per_turn(monkeypatch, TopicCounts, "count", operation)
        assert count.items == 0
        assert lookups >= TOPICS
        assert most_per_turn <= COUNT_TOPICS_PER_STEP + NAMES_PER_STEP_MAX + 1

    run_in_world(story)


def test_topics_of_a_new_shard_are_sorted_and_read_in_several_turns() -> None:
    async def story(world: World) -> None:
        engine = await engine_with_many_topics(world)
        engine.shards[1].memory.topic_table._names["default"] = dict.fromkeys(NAMES)
        local = LocalTopics(engine.shards, ChangeLog(1, 1_000))
        pages = 0
        more = True
        while more:
            more = local.refresh(250, include_new=not pages)
            pages += 1
            assert not local._changed_topics, "no more is noted than is looked at"
            assert not more or not local.is_complete
        assert local.is_complete
        assert local.refreshed_count == TOPICS
        assert TOPICS // 250 <= pages <= TOPICS // 250 + 3
        known = local.topic_names("default")
        assert known is not None
        assert known.page_from("", 2 * TOPICS, is_exclusive=False) == NAMES

    run_in_world(story)
