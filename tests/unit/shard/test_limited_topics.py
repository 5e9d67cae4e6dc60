"""Topics whose groups have a limit, on a whole engine: permits, order, takeover, changed limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from random import Random
from typing import Any, cast

import pytest

from foqs.catalog import changes
from foqs.catalog.document import PolicyRecord
from foqs.core.flush.fence import Fence
from foqs.core.groups.group import ABOVE_ALL, KEYS_PER_UNIT
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.groups.host_turns import HostTurns
from foqs.core.groups.rule_changes import ChangedRules, RuleChanges
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.items.item import NUMBER_MAX, GroupedItem, NewItem, Row, State, TopicName, format_id
from foqs.core.items.life import EventKind
from foqs.queue.engine import Engine
from foqs.queue.port import RowView
from foqs.shard.background_reads import GroupPageRead
from foqs.shard.group_reads import GroupReads
from foqs.shard.shard import OwnedShard
from foqs.shard.shard_takeover import ShardTakeover
from foqs.store.port import Reads
from foqs_contract.errors import StaleLease
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.example_counts import examples

ONE = engine_settings(1)
EIGHT_GROUPS = replace(ONE, shard=ONE.shard.model_copy(update={"ready_index_items_max": 8 * KEYS_PER_UNIT}))
"""Eight groups of all topics with a limit in memory."""
LITTLE_MEMORY = replace(
    ONE,
    shard=ONE.shard.model_copy(update={"ready_index_items_max": 10}),
    shard_constants=replace(ONE.shard_constants, ready_window_items_max=3),
)
"""Memory for two groups of a topic with a limit, and pages of three rows."""
GROUPS = ("anna", "bert", "carl", "dora", "emil")


def grouped(group: str | None, topic: str = "t", priority: int = 0, delay_ms: int | None = None) -> NewItem:
    item = new_item(topic, priority=priority, delay_ms=delay_ms, item_group=None if group is None else group.encode())
    return item if group is None else GroupedItem(**asdict(item))


def id_of(item: RowView) -> str:
    return format_id(item.shard, item.row.id)


async def limit(engine: Engine, limits: Mapping[str, int]) -> None:
    """Give topics limits, as a policy does."""
    set_rules(engine, {topic: GroupRules(each) for topic, each in limits.items()})


def set_rules(engine: Engine, rules: Mapping[str, GroupRules]) -> None:
    """Give topics rules for groups, as a policy does."""
    engine.namespaces.group_rules = {("default", topic): own for topic, own in rules.items()}
    for shard in engine.shards.values():
        shard.follow_group_rules()


def leased(world: World) -> Counter[tuple[str, bytes]]:
    """Count the leases of each group by the rows."""
    rows = [row for table in world.database.tables.values() for row in table.rows.values()]
    return Counter(
        (row.topic, row.item_group) for row in rows if row.state is State.LEASED and row.item_group is not None
    )


def test_a_strict_group_is_delivered_in_order_and_one_by_one() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        await limit(engine, {"t": 1})
        caller = Caller(world, engine)
        ids = [ok((await caller.enqueue([grouped("anna")]))[0]) for _ in range(4)]
        other = ok((await caller.enqueue([grouped("bert")]))[0])
        first = await caller.get(count=10)
        assert {id_of(item) for item in first.items} == {ids[0], other}
        assert not (await caller.get(count=10)).items
        await caller.do(EventKind.ACK, [item for item in first.items if id_of(item) == ids[0]])
        for id in ids[1:]:
            item = await caller.one(wait_ms=1_000)
            assert id_of(item) == id
            await caller.do(EventKind.NACK, [item], delay_ms=50)
            await caller.enqueue([grouped("anna", priority=-5)])  # a new one passes no delivered one
            assert not (await caller.get(count=10)).items
            again = await caller.one(wait_ms=1_000)
            assert id_of(again) == id
            await caller.do(EventKind.ACK, [again])
            better = await caller.one(wait_ms=1_000)
            assert better.row.priority == -5
            await caller.do(EventKind.ACK, [better])
        assert not world.broken

    run_in_world(story)


def test_a_waiting_dequeue_gets_the_next_item_when_a_permit_returns() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        await limit(engine, {"t": 2})
        caller = Caller(world, engine)
        await caller.enqueue([grouped("anna") for _ in range(5)])
        first = await caller.get(count=5, lease_ms=200)
        assert len(first.items) == 2
        later = await caller.get(count=5, wait_ms=5_000)  # the leases end
        assert 1 <= len(later.items) <= 2
        assert max(leased(world).values()) <= 2
        assert not world.broken

    run_in_world(story)


def test_a_lease_that_has_ended_is_not_extended() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        await limit(engine, {"t": 1})
        caller = Caller(world, engine)
        await caller.enqueue([grouped("anna"), grouped(None)])
        items = (await caller.get(count=2, lease_ms=100)).items
        assert len(items) == 2
        await world.pass_s(0.5)
        outcomes = await caller.do(EventKind.EXTEND, items)
        refused = {
            item.row.item_group: isinstance(outcome, StaleLease) for item, outcome in zip(items, outcomes, strict=True)
        }
        assert refused == {b"anna": True, None: False}

    run_in_world(story)


@pytest.mark.parametrize("settings", [ONE, LITTLE_MEMORY], ids=["all in memory", "little memory"])
@pytest.mark.parametrize("seed", range(examples(6)))
def test_no_group_has_more_leases_than_its_limit_and_all_items_are_delivered(seed: int, settings: object) -> None:
    rng = Random(seed)

    async def story(world: World) -> None:
        engine = await world.counted_engine(settings)  # type: ignore[arg-type]
        limits = {"t": rng.choice((1, 2)), "u": rng.choice((1, 3))}
        await limit(engine, limits)
        caller = Caller(world, engine)
        for _ in range(150):
            kind = rng.random()
            if kind < 0.4:
                items = [
                    grouped(
                        rng.choice((*GROUPS, None)),
                        rng.choice("tu"),
                        rng.choice((0, 0, 1)),
                        rng.choice((None, None, 300)),
                    )
                    for _ in range(rng.randint(1, 4))
                ]
                await caller.enqueue(items)
            elif kind < 0.95:
                got = (await caller.dequeue([("t", rng.randint(1, 5)), ("u", 3)], rng.choice((0, 20)), 400)).items
                for item in got:
                    fate = rng.random()
                    if fate < 0.5:
                        await caller.do(EventKind.ACK, [item])
                    elif fate < 0.7:
                        await caller.do(EventKind.NACK, [item], delay_ms=rng.choice((None, 0, 200)))
                    elif fate < 0.8:
                        await caller.do(EventKind.RELEASE, [item])
                    elif fate < 0.85:
                        await caller.cancel(id_of(item))
            elif kind < 0.97:
                await engine.abort()
                engine = await world.counted_engine(settings)  # type: ignore[arg-type]
                await limit(engine, limits)
                caller = Caller(world, engine)
            else:
                await world.pass_s(0.3)
            for (topic, group), count in leased(world).items():
                assert count <= limits[topic], (topic, group)
        await world.pass_s(2.0)
        for _ in range(400):
            got = (await caller.dequeue([("t", 5), ("u", 5)], 1_500)).items
            if not got:
                break
            await caller.do(EventKind.ACK, got)
        assert world.rows() == []
        assert not world.broken

    run_in_world(story)


def test_topics_with_limits_share_the_memory_for_groups() -> None:
    """One topic may use it all while it is alone; another one takes its share back, and both deliver all their items."""

    async def story(world: World) -> None:
        engine = await world.counted_engine(EIGHT_GROUPS)
        await limit(engine, {"t": 1, "u": 1})
        memory = engine.shards[1].memory
        caller = Caller(world, engine)

        def sizes() -> dict[str, int]:
            return {topic: len(limited.groups) for (_, topic), limited in memory.limited_topics.items()}

        await caller.enqueue([grouped(f"group {number}") for number in range(20)])
        got = (await caller.dequeue([("t", 1)], 2_000)).items
        assert sizes()["t"] >= 6
        assert sizes()["u"] == 0
        await caller.enqueue([grouped(f"group {number}", "u") for number in range(20)])
        got += (await caller.dequeue([("u", 1)], 2_000)).items
        await caller.do(EventKind.ACK, got)
        assert sizes()["t"] <= 4
        assert sum(sizes().values()) <= 8
        delivered = len(got)
        while delivered < 40:
            got = (await caller.dequeue([("t", 3), ("u", 3)], 5_000)).items
            assert got
            await caller.do(EventKind.ACK, got)
            assert sum(sizes().values()) <= 8
            delivered += len(got)
        assert world.rows() == []
        assert not world.broken

    run_in_world(story)


def test_policy_that_changes_during_a_takeover_counts_from_the_first_delivery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shard is not served yet when the host reads the policy, so nobody tells it; it has looked before."""

    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        await Caller(world, engine).enqueue([grouped("anna") for _ in range(3)])
        await engine.abort()
        document = await world.catalog.load()

        async def recover(self: ShardTakeover, owned: object) -> OwnedShard:
            shard = await original(self, owned)  # type: ignore[arg-type]
            assert not shard.memory.limited_topics
            await world.catalog.replace(changes.set_policy(document, "default", "t", PolicyRecord(1)))
            return shard

        original = ShardTakeover.recover
        monkeypatch.setattr(ShardTakeover, "recover", recover)
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        assert len((await caller.get(count=3, wait_ms=2_000)).items) == 1
        assert not (await caller.get(count=3)).items
        assert not world.broken

    run_in_world(story)


class SlowReads:
    """Reads whose pages of rows take 50 ms."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads

    async def list_rows(self, *args: Any, **options: Any) -> list[Row]:
        await asyncio.sleep(0.05)
        return await self.reads.list_rows(*args, **options)


@pytest.fixture
def slow_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a topic with a limit takes 50 ms."""
    original = GroupPageRead.run

    async def run(self: GroupPageRead, reads: Reads, committed: Fence) -> None:
        await original(self, cast("Reads", SlowReads(reads)), committed)

    monkeypatch.setattr(GroupPageRead, "run", run)


@pytest.mark.usefixtures("slow_pages")
def test_old_items_are_delivered_beside_a_producer_of_better_ones_while_reads_take_long() -> None:
    """The memory has room for 8 groups, and each 30 ms a better item of a new group comes."""

    async def story(world: World) -> None:
        engine = await world.counted_engine(EIGHT_GROUPS)
        await limit(engine, {"t": 1})
        caller = Caller(world, engine)
        await caller.enqueue([grouped(f"old {number}", priority=5) for number in range(40)])
        old = 0
        is_over = False

        async def produce() -> None:
            number = 0
            while not is_over:
                number += 1
                await caller.enqueue([grouped(f"new {number}")])
                await asyncio.sleep(0.03)

        producer = asyncio.ensure_future(produce())
        begun = world.loop.time()
        while old < 40 and world.loop.time() < begun + 5:
            items = (await caller.get(count=50, wait_ms=1_000)).items
            old += len([item for item in items if item.row.priority == 5])
            await caller.do(EventKind.ACK, items)
        is_over = True
        await producer
        assert old == 40

    run_in_world(story)


def test_topic_with_more_groups_under_delivery_than_fit_goes_on_when_some_have_ended_and_reads_nothing_until_then() -> (
    None
):
    async def story(world: World) -> None:
        engine = await world.counted_engine(EIGHT_GROUPS)
        await limit(engine, {"t": 1})
        shard = engine.shards[1]
        caller = Caller(world, engine)
        await caller.enqueue([grouped(f"group {number}") for number in range(30)])
        got = []
        while items := (await caller.get(count=30, wait_ms=300)).items:
            got += items
        assert len(got) == 8
        snapshot = shard.snapshot()
        assert (snapshot.full_topics, snapshot.group_units, snapshot.group_units_max) == (1, 8, 8)
        [waiting_row, *_] = [row for row in world.database.tables[1].rows.values() if row.state is State.READY]
        assert shard.memory.group_hold(waiting_row) == (1, [])
        pages = snapshot.group_pages
        waiting = asyncio.ensure_future(caller.get(count=30, wait_ms=60_000, timeout_s=90))
        await world.pass_s(5)
        assert shard.snapshot().group_pages == pages
        await caller.do(EventKind.ACK, got)
        delivered = len(got) + len(items := (await waiting).items)
        while items:
            await caller.do(EventKind.ACK, items)
            delivered += len(items := (await caller.get(count=30, wait_ms=300)).items)
        assert delivered == 30

    run_in_world(story)


@pytest.mark.parametrize("waits_here", [True, False])
def test_full_topic_uses_memory_that_another_topic_gives_back(waits_here: bool) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(EIGHT_GROUPS)
        await limit(engine, {"t": 1, "u": 1})
        limited = engine.shards[1].memory.limited_topics["default", "t"]
        caller = Caller(world, engine)
        await caller.enqueue([grouped(f"group {number}", "u") for number in range(6)])
        of_u: list[RowView] = []
        while items := (await caller.get("u", 6, wait_ms=500, lease_ms=600_000)).items:
            of_u += items
        assert len(of_u) == 6
        await caller.enqueue([grouped(f"group {number}") for number in range(8)])
        while (await caller.get(count=8, wait_ms=500, lease_ms=600_000)).items:
            assert len(limited.groups) <= 4
        assert limited.room.is_full
        waiting = asyncio.ensure_future(caller.get(wait_ms=60_000, timeout_s=90)) if waits_here else None
        await world.pass_s(1)
        counts = engine.shards[1].counts
        counts.changed = {}
        await caller.do(EventKind.ACK, of_u)
        if waiting is None:
            assert ("default", "t") in counts.changed, "other hosts do not know of it"
        assert (await (waiting or caller.get(wait_ms=1_000))).items
        assert len(limited.groups) > 4

    run_in_world(story)


@pytest.mark.parametrize("limits", [(1, 1), (None, 1), (2, 1)])
def test_strict_topic_is_delivered_that_is_full_of_ended_leases_before_its_first_read(
    limits: tuple[int | None, int],
) -> None:
    """Its owner or its limit has changed, and nobody has dequeued since."""

    async def story(world: World) -> None:
        former, new = limits
        engine = await world.counted_engine(EIGHT_GROUPS)
        await limit(engine, {} if former is None else {"t": former})
        caller = Caller(world, engine)
        await caller.enqueue([grouped(f"group {number}") for number in range(8)])
        leased = 0
        while leased < 8:
            leased += len((await caller.get(count=8, wait_ms=500, lease_ms=20_000)).items)
        if former == new:
            await engine.abort()
            engine = await world.counted_engine(EIGHT_GROUPS)
            caller = Caller(world, engine)
        await limit(engine, {"t": new})
        await world.pass_s(30)
        limited = engine.shards[1].memory.limited_topics["default", "t"]
        assert (limited.groups.is_read, limited.room.is_full) == (False, True)
        delivered = 0
        while items := (await caller.get(count=8, wait_ms=500)).items:
            delivered += len(items)
        assert delivered == 8

    run_in_world(story)


@pytest.mark.parametrize("limits", [{"t": 2}, {}])
def test_other_hosts_are_informed_of_a_topic_whose_limit_is_raised_or_removed(limits: dict[str, int]) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        await limit(engine, {"t": 1})
        caller = Caller(world, engine)
        await caller.enqueue([grouped("anna") for _ in range(2)])
        assert len((await caller.get(count=2, wait_ms=500, lease_ms=600_000)).items) == 1
        counts = engine.shards[1].counts
        counts.changed = {}
        await limit(engine, limits)
        assert ("default", "t") in counts.changed

    run_in_world(story)


def test_topic_without_items_has_no_window_when_its_limit_is_removed() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        await limit(engine, {"t": 1, "u": 1})
        caller = Caller(world, engine)
        await caller.enqueue([grouped("anna"), grouped("anna", "u")])
        await caller.do(EventKind.ACK, (await caller.get(wait_ms=500)).items)
        await limit(engine, {})
        assert engine.shards[1].index.topics() == [("default", "u")]

    run_in_world(story)


@pytest.mark.usefixtures("slow_pages")
def test_pages_that_find_nothing_to_deliver_take_half_of_the_time() -> None:
    """A dequeue waits, and the rows of a locked group are passed over: 7 by each page."""

    async def story(world: World) -> None:
        engine = await world.counted_engine(EIGHT_GROUPS)
        caller = Caller(world, engine)
        await caller.enqueue([grouped("anna") for _ in range(600)])
        assert (await caller.get(wait_ms=1_000, lease_ms=600_000)).items
        await limit(engine, {"t": 1})
        waiting = asyncio.ensure_future(caller.get(wait_ms=60_000, timeout_s=90))
        await world.pass_s(4)
        pages = engine.shards[1].snapshot().group_pages
        assert 30 < pages <= 45
        await caller.enqueue([grouped("bert", priority=-1)])
        assert (await waiting).items

    run_in_world(story)


def test_heads_of_a_topic_with_a_limit_evict_no_keys_of_another_topic() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(EIGHT_GROUPS)
        shard = engine.shards[1]
        caller = Caller(world, engine)
        await caller.put("u", 40)
        await limit(engine, {"t": 100})
        await caller.enqueue([grouped("anna")])
        await caller.do(EventKind.ACK, (await caller.get(wait_ms=1_000)).items)
        await world.until(lambda: shard.memory.limited_topics["default", "t"].groups.boundary == ABOVE_ALL)
        await caller.enqueue([grouped(group) for group in GROUPS for _ in range(7)])
        assert len(shard.index.peek(("default", "t"), 100)) == 35
        assert len(shard.index.peek(("default", "u"), 100)) == 40
        assert shard.index.evicted_count == 0

    run_in_world(story)


def test_topic_that_gets_a_limit_waits_for_reservations_that_may_be_its_own_and_no_others() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        shard = engine.shards[1]
        caller = Caller(world, engine)
        await caller.put("u", 2)
        await caller.enqueue([grouped("anna", "t"), grouped("anna", "v")])
        other, unknown = shard.index.reserve(("default", "u"), 2)
        await limit(engine, {"t": 1})
        assert (await caller.get("t", wait_ms=1_000)).items
        shard.memory.cache.remove([unknown & NUMBER_MAX])
        await limit(engine, {"t": 1, "v": 1})
        assert not (await caller.get("v", wait_ms=1_000)).items
        shard.release_reservation([(("default", "u"), [unknown])])
        assert (await caller.get("v", wait_ms=1_000)).items
        shard.release_reservation([(("default", "u"), [other])])

    run_in_world(story)


def test_ages_of_topics_with_a_limit_are_read_one_topic_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of many topics after a takeover does not begin the reads of all their delivered items at once."""
    together: list[int] = []
    start = GroupReads.start

    def counted_start(self: GroupReads, topic: TopicName) -> None:
        start(self, topic)
        together.append(len(self.topics))

    async def story(world: World) -> None:
        topics = [f"t{number}" for number in range(5)]
        limits = dict.fromkeys(topics, 1)
        engine = await world.counted_engine(ONE)
        await limit(engine, limits)
        await Caller(world, engine).enqueue([grouped("anna", topic) for topic in topics])
        await engine.abort()
        engine = await world.counted_engine(ONE)
        await limit(engine, limits)
        shard = engine.shards[1]
        monkeypatch.setattr(GroupReads, "start", counted_start)
        names = [("default", topic) for topic in topics]
        for _ in range(3):
            for name in names:
                shard.oldest_ready_age_ms(name)
            await world.pass_s(30)
        assert all(shard.oldest_ready_age_ms(name) is not None for name in names)
        assert max(together) == 1

    run_in_world(story)


def test_age_of_a_topic_with_a_limit_is_known_without_a_consumer_and_counts_items_that_are_held_back() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        await limit(engine, {"t": 1})
        caller = Caller(world, engine)
        await caller.enqueue([grouped("anna")])
        first = (await caller.get(wait_ms=1_000, lease_ms=600_000)).items
        await caller.enqueue([grouped("anna")])
        await world.pass_s(60)
        stats = await caller.stats()
        assert stats is not None
        assert (stats.oldest_ready_age_ms or 0) >= 60_000
        await engine.abort()
        engine = await world.counted_engine(ONE)
        await limit(engine, {"t": 1})
        caller = Caller(world, engine)
        await caller.stats()  # has the groups read
        await world.pass_s(5)
        stats = await caller.stats()
        assert stats is not None
        assert (stats.oldest_ready_age_ms or 0) >= 60_000
        await caller.do(EventKind.ACK, first)
        assert (await caller.get(wait_ms=1_000)).items

    run_in_world(story)


def test_changed_policy_costs_the_topic_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1, 2))
        rules = {f"t{number}": GroupRules(2, Fairness.ITEMS) for number in range(50)} | {"limited": GroupRules(3)}
        set_rules(engine, rules)
        before = [dict(shard.memory.limited_topics) for shard in engine.shards.values()]
        asked: list[str] = []
        compared: list[object] = []
        turns_of, between = HostTurns.of, RuleChanges.between

        def of(self: HostTurns, topic: TopicName, weights: Mapping[str, int], *, by_time: bool) -> TopicTurns:
            asked.append(topic[1])
            return turns_of(self, topic, weights, by_time=by_time)

        def compare(self: RuleChanges, *each: Mapping[TopicName, GroupRules]) -> ChangedRules:
            found = between(self, *each)
            compared.append(found)
            return found

        monkeypatch.setattr(HostTurns, "of", of)
        monkeypatch.setattr(RuleChanges, "between", compare)
        set_rules(engine, rules | {"t7": GroupRules(5, Fairness.ITEMS, {"anna": 2}), "new": GroupRules(1)})
        assert asked == ["t7", "t7"], "each of two shards has asked for the turns of one topic"
        assert len(set(map(id, compared))) == 1, "all rules are compared once for the host"
        for shard, former in zip(engine.shards.values(), before, strict=True):
            limited = shard.memory.limited_topics
            assert len(limited) == 52
            assert all(limited[topic] is own for topic, own in former.items()), "the groups stay"
            groups = limited["default", "t7"].groups
            assert groups.turns is not None
            assert (groups.limit, groups.turns.weights) == (5, {"anna": 2})
            assert ("default", "new") in shard.memory.limited_names
        set_rules(engine, {"limited": GroupRules(3), "t0": GroupRules(fair=Fairness.ITEMS)})
        for shard in engine.shards.values():
            assert set(shard.memory.limited_topics) == {("default", "limited"), ("default", "t0")}
            assert shard.memory.limited_names == {("default", "limited")}

    run_in_world(story)
