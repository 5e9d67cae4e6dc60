"""Gossip about topics, and lists of the tier's topics, under virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from foqs.core.items.item import State, TopicName
from foqs.core.items.life import EventKind
from foqs.queue.port import TopicStats
from foqs.queue.suspension import WITHOUT_SESSION
from foqs.store.in_memory.memory_store import MemoryReads
from foqs.telemetry.cluster_samples import tier_samples
from foqs.telemetry.metric_table import TIER_METRICS
from foqs_contract.errors import Unavailable
from shardmgr import layout_changes
from tests.support.builders import new_item
from tests.support.engines import ok
from tests.support.gossip_world import ALL, SETTINGS, GossipHost, GossipWorld, run_gossip_world
from tests.support.method_gate import MethodGate, closed

BOUND_S = 2.5
"""Two periods with their jitter, and some pages."""


def counts(stats: TopicStats) -> tuple[int, int, int, int]:
    return stats.ready, stats.deferred, stats.leased, stats.dead


def test_any_host_lists_the_topics_of_all_with_their_counts_added() -> None:
    async def story(world: GossipWorld) -> None:
        hosts = await world.three()
        for n, host in enumerate(hosts):
            await host.caller.put("all", 2, priority=n - 1)
            await host.caller.put(f"of {host.name}", 1 + n)
            await host.caller.put("later", 1, delay_ms=60_000_000)
        await hosts[1].caller.get("all")
        await world.pass_s(10)
        for host in hosts:
            found = await host.listed()
            assert {name: counts(stats) for name, stats in found.items()} == {
                "all": (5, 0, 1, 0),
                "later": (0, 3, 0, 0),
                "of one": (1, 0, 0, 0),
                "of two": (2, 0, 0, 0),
                "of three": (3, 0, 0, 0),
            }
            assert found["all"].best_priority == -1
            age_ms = found["all"].oldest_ready_age_ms
            assert age_ms is not None
            assert 10_000 <= age_ms < 11_000
            assert not any(stats.counts_lag for stats in found.values())
            assert set(await host.listed(states=None)) == set(found) - {"later"}
            assert set(await host.listed("of t")) == {"of two", "of three"}
            assert set(await host.listed(states=[State.LEASED])) == {"all"}
            own, _ = await host.engine.queue.reads.list_topics("default", "of ", None, None, 10)
            assert [stats.topic for stats in own] == [f"of {host.name}"]

    run_gossip_world(story)


def test_a_topic_that_is_empty_everywhere_is_listed_nowhere() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, three = await world.three()
        await two.caller.put("brief", 3)
        await world.pass_s(BOUND_S)
        assert set(await one.listed()) == {"brief"}
        await two.caller.do(EventKind.ACK, (await two.caller.get("brief", 3)).items)
        await world.pass_s(BOUND_S)
        for host in (one, two, three):
            assert await host.listed() == {}
            assert len(host.gossip.view) == 0

    run_gossip_world(story)


def test_topic_that_exists_only_between_two_refreshes_is_not_listed() -> None:
    async def story(world: GossipWorld) -> None:
        host, _, _ = await world.three()
        local = host.gossip.local_topics
        version: int | None = None
        believed: set[str] = set()

        def read_changes() -> None:
            nonlocal version
            changes = local.changes_since(version, None, 100)
            for update in local.updates(changes.topics):
                (believed.discard if update.ready is None else believed.add)(update.topic)
            version = changes.version

        await host.caller.put("t")
        local.refresh(100)
        read_changes()
        assert believed == {"t"}
        await host.caller.do(EventKind.ACK, (await host.caller.get("t")).items)
        local.refresh(100)
        await host.caller.put("t")
        read_changes()
        await host.caller.do(EventKind.ACK, (await host.caller.get("t")).items)
        local.refresh(100)
        read_changes()
        assert believed == set()
        await host.caller.put("t")
        local.refresh(100)
        read_changes()
        assert believed == {"t"}

    run_gossip_world(story)


def test_topics_move_with_their_shard() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, three = await world.three()
        for n in range(20):
            await two.caller.put(f"t{n:02}")
        await world.pass_s(BOUND_S)
        before = {name: counts(stats) for name, stats in (await one.listed()).items()}
        assert before == {f"t{n:02}": (1, 0, 0, 0) for n in range(20)}
        await two.stop()
        await world.wait_until_settled(one, three)
        await world.pass_s(BOUND_S)
        for host in (one, three):
            found = await host.listed()
            assert {name: counts(stats) for name, stats in found.items()} == before
            assert not any(stats.counts_lag for stats in found.values())

    run_gossip_world(story)


def test_a_shard_that_moves_between_hosts_that_stay_is_counted_once() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, three = hosts = await world.three()
        for n in range(12):
            await two.caller.put(f"t{n}")
        await world.pass_s(BOUND_S)
        await layout_changes.drain_host(world.administrator, "two")
        await world.wait_until_settled(one, three)
        assert two.alive
        await world.pass_s(BOUND_S)
        for host in hosts:
            assert {name: counts(stats) for name, stats in (await host.listed()).items()} == {
                f"t{n}": (1, 0, 0, 0) for n in range(12)
            }

    run_gossip_world(story)


def test_purged_topic_is_not_listed() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, _ = await world.three()
        await two.caller.put("a", 4)
        await two.caller.put("b", 1)
        await world.pass_s(BOUND_S)
        assert await two.engine.queue.bulk.purge_topic("default", "a", world.deadline_in(5)) == 4
        await world.pass_s(BOUND_S)
        assert set(await one.listed()) == {"b"}

    run_gossip_world(story)


@pytest.mark.parametrize("ends", ["stays", "stops"])
def test_list_that_may_lack_topics_is_marked(ends: str) -> None:
    """A host that joins gets all topics page by page. A host that takes over a shard reads its topics page by page."""

    async def story(world: GossipWorld) -> None:
        one = await world.host("one")
        await world.wait_until_settled(one)
        for n in range(60):
            items = [new_item(f"{n}/{m}", delay_ms=10**9) for m in range(50)]
            assert len([ok(result) for result in await one.caller.enqueue(items)]) == 50
        two = await world.host("two")
        await world.until(lambda: len(two.gossip.view) == 50)
        stopping = asyncio.create_task(one.stop()) if ends == "stops" else None
        if stopping is not None:
            await world.until(
                lambda: any(not shard.counts.is_lagging for shard in two.gossip.local_topics.serving_shards().values())
            )
        missing = 0
        while True:
            page, _ = await two.gossip.tier_topics.list_topics("default", "", ALL, None, 1_000)
            if not any(stats.counts_lag for stats in page):
                break
            assert all(stats.counts_lag for stats in page)
            missing += 1
            await world.pass_s(0.01)
        assert missing > 1
        assert len(await two.listed(limit=1_000)) == 3_000
        if stopping is not None:
            await stopping

    run_gossip_world(story, shards=1)


def test_counts_lag_until_the_shards_of_a_dead_host_are_served_again() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, three = await world.three()
        await one.caller.put("mine")
        await two.caller.put("lost?")
        await world.pass_s(BOUND_S)
        world.stall()
        await two.die()
        await world.until(lambda: all(len(host.gossip.exchange._first_seen_at_s) == 1 for host in (one, three)))
        for host in (one, three):
            found = await host.listed()
            assert set(found) == {"mine"}
            assert found["mine"].counts_lag
            assert host.gossip.tier_topics.is_partial()
        world.resume()
        await world.wait_until_settled(one, three)
        await world.pass_s(BOUND_S)
        for host in (one, three):
            found = await host.listed()
            assert {name: counts(stats) for name, stats in found.items()} == {
                "mine": (1, 0, 0, 0),
                "lost?": (1, 0, 0, 0),
            }
            assert not any(stats.counts_lag for stats in found.values())
            assert not host.gossip.tier_topics.is_partial()
        assert [len(host.peers.by_nonce) for host in (one, three)] == [1, 1]

    run_gossip_world(story, shards=3)


def test_last_report_of_an_unresponsive_host_stays() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, _ = await world.three()
        await two.caller.put("a", 2)
        await world.pass_s(BOUND_S)
        world.parted.add("two")
        await two.caller.put("a", 5)
        await world.pass_s(30)
        assert counts((await one.listed())["a"]) == (2, 0, 0, 0)
        [best] = one.gossip.view.best_peers(("default", "a"))
        assert 27 < world.loop.time() - best.as_of_s < 35
        assert one.gossip.exchange.failure_count > 3
        assert one.gossip.exchange.oldest_view_age_s == pytest.approx(world.loop.time() - best.as_of_s)
        world.parted.clear()
        await world.pass_s(3 + BOUND_S)
        assert counts((await one.listed())["a"]) == (7, 0, 0, 0)
        found = tier_samples(one.gossip, one.tier.order_sink)
        assert set(found) == {each.name for each in TIER_METRICS}
        [(_, age_s)] = found["foqs_gossip_age_seconds"]
        assert age_s < BOUND_S

    run_gossip_world(story)


def test_late_host_gets_a_full_listing() -> None:
    async def story(world: GossipWorld) -> None:
        one = await world.host("one")
        await world.wait_until_settled(one)
        stays = [f"stays {n}" for n in range(5)]
        for name in stays:
            await one.caller.put(name)
        for n in range(3):
            await one.caller.put(f"brief {n}")
            await world.pass_s(BOUND_S)
            await one.caller.do(EventKind.ACK, (await one.caller.get(f"brief {n}")).items)
            await world.pass_s(BOUND_S)
        two = await world.host("two")
        await world.wait_until_settled(one, two)
        await world.pass_s(BOUND_S)
        assert set(await two.listed()) == set(stays)
        assert not any(stats.counts_lag for stats in (await two.listed()).values())
        world.reported_topics = 0
        await world.pass_s(10)
        assert world.reported_topics == 0

    run_gossip_world(story, shards=1, settings=replace(SETTINGS, page_topics_max=2, topic_tombstones_max=1))


def test_changes_are_reported_once_within_two_intervals() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, _ = await world.three()
        news: list[TopicName] = []
        one.gossip.exchange._on_items_available = lambda _, topics: news.extend(topics)
        await two.caller.put("a", priority=5)
        await world.pass_s(BOUND_S)
        assert news == [("default", "a")]
        await world.pass_s(10)
        assert len(news) == 1
        await two.caller.put("a", priority=-5)
        await world.pass_s(BOUND_S)
        assert len(news) == 2
        [best] = one.gossip.view.best_peers(("default", "a"))
        assert (best.peer.view.name, best.best_priority, best.ready) == ("two", -5, 2)

    run_gossip_world(story)


def test_items_that_become_ready_again_are_reported() -> None:
    """A lease that ends, a nack, a release, and a delivery without a caller make an item READY again."""

    async def story(world: GossipWorld) -> None:
        one, two, _ = await world.three()

        async def known() -> tuple[int, int] | None:
            await world.pass_s(BOUND_S)
            peers = one.gossip.view.best_peers(("default", "a"))
            return (peers[0].ready, peers[0].best_priority) if peers else None

        await two.caller.put("a", 1, priority=7)
        assert await known() == (1, 7)
        delivered = await two.caller.get("a", lease_ms=5_000)
        assert await known() is None
        await world.pass_s(5)
        assert await known() == (1, 7)
        delivered = await two.caller.get("a")
        assert await known() is None
        await two.caller.do(EventKind.NACK, delivered.items, delay_ms=0)
        assert await known() == (1, 7)
        shard = next(shard for shard in two.engine.shards.values() if ("default", "a") in shard.index)
        taken = shard.index.reserve(("default", "a"), 1)
        two.gossip.local_topics.refresh(1_000)
        shard.counts.mark_changed([("default", "a")])
        assert await known() == (1, 2**31 - 1)
        shard.release_reservation([(("default", "a"), taken)])
        assert await known() == (1, 7)

    run_gossip_world(story)


def test_new_owner_reports_counts_and_the_best_priority_without_a_dequeue() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, three = await world.three()
        await two.caller.put("a", 3, priority=4)
        await world.pass_s(BOUND_S)
        await two.stop()
        await world.wait_until_settled(one, three)
        await world.pass_s(BOUND_S)
        owner, other = (one, three) if holds(one, "a") else (three, one)
        [best] = other.gossip.view.best_peers(("default", "a"))
        assert (best.ready, best.best_priority) == (3, 4)
        assert len((await owner.caller.get("a", 1, wait_ms=100)).items) == 1
        await world.pass_s(BOUND_S)
        [best] = other.gossip.view.best_peers(("default", "a"))
        assert (best.ready, best.best_priority) == (2, 4)

    run_gossip_world(story)


def holds(host: GossipHost, topic: str) -> bool:
    return any(shard.memory.has_topic(("default", topic)) for shard in host.engine.shards.values())


def test_uncounted_topics_are_reported_with_lagging_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: GossipWorld) -> None:
        one, two, three = await world.three()
        await two.caller.put("a", 3)
        await two.caller.put("later", 1, delay_ms=60_000_000)
        await world.pass_s(BOUND_S)
        await two.caller.put("empty")
        await two.caller.do(EventKind.ACK, (await two.caller.get("empty")).items)
        with closed(MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=False)):
            await two.die()
            await world.until(lambda: holds(one, "a") or holds(three, "a"))
            await world.pass_s(BOUND_S)
            owner, other = (one, three) if holds(one, "a") else (three, one)
            [best] = other.gossip.view.best_peers(("default", "a"))
            assert best.ready == 1
            for host in (owner, other):
                found = await host.listed()
                assert found["a"].counts_lag
                assert found["later"].counts_lag
                assert found["empty"].counts_lag
        await world.wait_until_settled(one, three)
        await world.pass_s(BOUND_S)
        for host in (owner, other):
            found = await host.listed()
            assert {name: counts(stats) for name, stats in found.items()} == {"a": (3, 0, 0, 0), "later": (0, 1, 0, 0)}
            assert not any(stats.counts_lag for stats in found.values())
            assert set(await host.listed(states=None)) == {"a"}

    run_gossip_world(story)


def test_idle_topics_cost_nothing_however_many_they_are() -> None:
    """A tick handles only the topics with events, not all topics."""

    async def story(world: GossipWorld) -> None:
        hosts = await world.three()
        for n in range(40):
            items = [new_item(f"idle {n}/{m}", delay_ms=10**9) for m in range(25)]
            assert len([ok(result) for result in await hosts[n % 3].caller.enqueue(items)]) == 25
        await world.until(lambda: all(len(host.gossip.view) > 600 for host in hosts), 60)
        await world.pass_s(5)
        assert len(await hosts[0].listed(limit=100)) == 1_000
        assert len(await hosts[0].listed(limit=1_000)) == 1_000
        world.reported_topics = 0
        looked = [host.gossip.local_topics.refreshed_count for host in hosts]
        await hosts[0].caller.put("busy")
        await world.pass_s(60)
        assert [host.gossip.local_topics.refreshed_count for host in hosts] == [looked[0] + 1, *looked[1:]]
        assert world.reported_topics == 2

    run_gossip_world(story, settings=replace(SETTINGS, page_topics_max=500))


@pytest.mark.once
def test_busy_topics_are_refreshed_and_reported_once_per_interval() -> None:
    """There are more topics than one reply holds. Later pages do not repeat topics that changed in the meantime."""

    async def story(world: GossipWorld) -> None:
        hosts = await world.three()
        local = hosts[0].gossip.local_topics
        items = [new_item(f"busy {n}") for n in range(120)]
        begun, looked, world.reported_topics = world.loop.time(), local.refreshed_count, 0
        while world.loop.time() < begun + 20:
            await hosts[0].caller.enqueue(items)
            await world.pass_s(0.005)
        # A period is a second, give or take a tenth: the host refreshes by itself and when one of the two others asks.
        assert 120 * 20 <= local.refreshed_count - looked <= 120 * 3 * (20 / 0.9 + 1)
        assert 2 * 120 * 16 <= world.reported_topics <= 2 * 120 * 2 * (20 / 0.9 + 1)

    run_gossip_world(story)


def test_a_host_without_peers_forgets_what_has_changed() -> None:
    async def story(world: GossipWorld) -> None:
        host = await world.host("one")
        await world.wait_until_settled(host)
        await world.pass_s(3)
        for n in range(50):
            await host.caller.put(f"t{n}")
        await world.pass_s(3)
        assert all(not shard.counts.changed for shard in host.engine.shards.values())
        assert len(await host.listed()) == 50
        await host.stop()
        host.gossip.local_topics.refresh(1_000)
        assert all(shard.counts.changed is None for shard in host.engine.shards.values())

    run_gossip_world(story)


def test_host_without_shards_lists_reported_topics_and_fails_without_reports() -> None:
    async def story(world: GossipWorld) -> None:
        one = await world.host("one")
        await world.wait_until_settled(one)
        await one.caller.put("a")
        two = await world.host("two")
        with pytest.raises(Unavailable, match="no shard of this tier"):
            await two.listed()
        await world.wait_until_settled(one, two)
        await world.pass_s(BOUND_S)
        assert set(await two.listed()) == {"a"}

    run_gossip_world(story, shards=1)


def test_host_without_shards_lists_no_topics_when_the_last_item_of_the_tier_is_gone() -> None:
    async def story(world: GossipWorld) -> None:
        one = await world.host("one")
        await world.wait_until_settled(one)
        await one.caller.put("a")
        two = await world.host("two")
        await world.wait_until_settled(one, two)
        await one.caller.do(EventKind.ACK, (await one.caller.get("a")).items)
        await world.pass_s(BOUND_S)
        assert await two.listed() == {}

    run_gossip_world(story, shards=1)


def test_a_list_of_topics_counts_the_shards_of_all_hosts_that_are_unavailable() -> None:
    async def story(world: GossipWorld) -> None:
        one, two, three = await world.three()
        for host in (one, two, three):
            await host.caller.put("t")
        await world.pass_s(BOUND_S)
        assert one.gossip.tier_topics.unavailable_shards() == 0
        two.engine.queue.suspend(WITHOUT_SESSION)
        await world.pass_s(BOUND_S)
        assert [host.gossip.tier_topics.unavailable_shards() for host in (one, two)] == [len(two.engine.shards)] * 2
        two.engine.queue.resume()
        await world.pass_s(BOUND_S)
        assert one.gossip.tier_topics.unavailable_shards() == 0
        await three.die()
        await world.until(lambda: one.gossip.tier_topics.unavailable_shards() > 0)
        assert await one.listed()

    run_gossip_world(story)
