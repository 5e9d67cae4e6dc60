"""Calls about whole topics and namespaces at one of three hosts: a reply covers all shards, or the call fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.cluster.forwarding.scatter_gather import RETRY_WITHIN_S
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.items.item import State, format_id
from foqs.core.items.life import EventKind
from foqs_contract.errors import (
    FoqsError,
    InvalidArgument,
    NamespaceNotFound,
    NotOwner,
    Unavailable,
    UnknownOutcome,
)
from foqs_contract.idl import ttypes
from shardmgr import layout_changes
from tests.support.cluster_world import ClusterHost
from tests.support.rpc_tier import RpcTierWorld, only, run_rpc_tier

TOPIC = ttypes.TopicRequest("default", "t")
SOON_S = 0.5


async def pages(world: RpcTierWorld, hosts: Sequence[ClusterHost], method: str, request: Any, limit: int) -> list[Any]:
    """All items of a paged call, each page asked of another host."""
    items: list[Any] = []
    cursor, turn = None, 0
    while True:
        request.page = ttypes.Page(limit, cursor)
        reply = await world.ask(hosts[turn % len(hosts)], method, request)
        assert len(reply.items) <= limit
        items += reply.items
        cursor, turn = reply.next_cursor, turn + 1
        if cursor is None:
            return items


async def change(world: RpcTierWorld, hosts: Sequence[ClusterHost], request: Any, limit: int) -> int:
    """A bulk call to its end, each page asked of another host; how many were changed."""
    items: int = 0
    cursor, turn = None, 0
    while True:
        request.page = ttypes.Page(limit, cursor)
        reply = await world.ask(hosts[turn % len(hosts)], "bulk", request)
        items += reply.items
        cursor, turn = reply.next_cursor, turn + 1
        if cursor is None:
            return items


async def count(world: RpcTierWorld, host: ClusterHost, **more: Any) -> int:
    reply = await world.ask(host, "countItems", ttypes.CountItemsRequest("default", only("t", **more)))
    return int(reply.items)


def rows(world: RpcTierWorld, topic: str = "t") -> list[Any]:
    """The topic's rows that no purge covers."""
    return [
        row
        for table in world.database.tables.values()
        for row in table.rows.values()
        if row.topic == topic and not PurgeMarkers(table.purge_markers).covers(row)
    ]


# ------------------------------------------------------------------ the whole


def test_every_host_counts_the_items_of_all() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        await world.put(hosts)
        await world.put(hosts, delay_ms=60_000)
        for host in hosts:
            assert await count(world, host) == 16
            assert await count(world, host, states=[ttypes.ItemState.DEFERRED]) == 8
            walked = await world.ask(host, "countItems", ttypes.CountItemsRequest("default", only("t", priority_min=0)))
            assert (walked.items, walked.payload_bytes) == (16, 16 * len(b"payload"))

    run_rpc_tier(story)


def test_every_host_reports_usage_and_counts_a_topic_of_several_hosts_once() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        for topic in ("a", "b"):
            await world.put(hosts, topic)
        for host in hosts:
            usage = await world.ask(host, "getUsage", ttypes.NamespaceRequest("default"))
            assert (usage.items, usage.topics, usage.enqueues_last_minute) == (16, 2, 16)
            assert usage.bytes == 16 * len(b"payload")
            assert usage.topic_names is None

    run_rpc_tier(story)


def test_topics_are_not_counted_where_a_host_has_too_many_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        monkeypatch.setattr("foqs.rpc.admin_handlers.USAGE_TOPIC_NAMES_MAX", 1)
        hosts = await world.three()
        await world.put(hosts, "a")
        assert (await world.ask(hosts[0], "getUsage", ttypes.NamespaceRequest("default"))).topics == 1
        await world.put(hosts, "b")
        usage = await world.ask(hosts[0], "getUsage", ttypes.NamespaceRequest("default"))
        assert (usage.items, usage.topics) == (16, None)

    run_rpc_tier(story)


def test_each_shard_is_asked_about_once() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, three = hosts = await world.three()
        await world.put(hosts)
        await count(world, one)
        asked = sorted((name, shards) for name, _, shards in world.forwarded_calls)
        assert asked == [("three", sorted(three.is_serving())), ("two", sorted(two.is_serving()))]

    run_rpc_tier(story)


# --------------------------------------------------------------------- pages


def test_peek_shows_items_of_all_hosts_in_order_from_any_host() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        # Within a priority only numbers and shards differ.
        ids = set[str]()
        for priority in (2, 1):
            ids |= await world.put(hosts, priority=priority, deliver_after_ms=2_000_000_000_000)
        request = ttypes.PeekRequest("default", "t", ttypes.ItemState.DEFERRED)
        seen = await pages(world, hosts, "peek", request, 3)
        assert [view.priority for view in seen] == [1] * 8 + [2] * 8
        assert len(seen) == 16
        assert {view.id for view in seen} == ids

    run_rpc_tier(story)


def test_peek_with_payloads_is_limited_in_bytes_and_skips_nothing() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        ids = await world.put(hosts, payload=b"x" * 5_000)
        request = ttypes.PeekRequest("default", "t", page=ttypes.Page(100), with_payload=True)
        first = await world.ask(hosts[0], "peek", request)
        assert len(first.items) == 3
        seen = await pages(world, hosts, "peek", request, 100)
        assert sorted(view.id for view in seen) == sorted(ids)
        assert {view.payload for view in seen} == {b"x" * 5_000}

    run_rpc_tier(story, page_bytes_max=20_000)


def test_pages_continue_while_shards_move() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, three = hosts = await world.three()
        ids = await world.put(hosts, count=2)
        request = ttypes.PeekRequest("default", "t", page=ttypes.Page(5))
        first = await world.ask(one, "peek", request)
        await two.stop()
        await world.wait_until_settled(one, three)
        request.page = ttypes.Page(100, first.next_cursor)
        rest = await world.ask(three, "peek", request)
        seen = [view.id for view in (*first.items, *rest.items)]
        assert sorted(seen) == sorted(ids)

    run_rpc_tier(story)


async def kill_items(world: RpcTierWorld, hosts: Sequence[ClusterHost], topic: str) -> set[str]:
    ids = await world.put(hosts, topic, attempts_max=1)
    for host in hosts:
        delivered = await host.caller.get(topic, 100)
        await host.caller.do(EventKind.NACK, delivered.items, dead=True)
    return ids


def test_dead_items_of_all_hosts_are_listed_by_shard_and_topic() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        ids = await kill_items(world, hosts, "b") | await kill_items(world, hosts, "a")
        seen = await pages(world, hosts, "listDead", ttypes.ListDeadRequest("default"), 3)
        places = [(int(view.id.split("-")[0]), view.topic) for view in seen]
        assert places == sorted(places)
        assert sorted(view.id for view in seen) == sorted(ids)

    run_rpc_tier(story)


def test_invalid_cursor_is_refused() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        for method, request in (
            ("peek", ttypes.PeekRequest("default", "t", page=ttypes.Page(3, "x"))),
            ("listDead", ttypes.ListDeadRequest("default", page=ttypes.Page(3, "x"))),
            ("bulk", ttypes.BulkRequest("default", only(), ttypes.BulkAction.CANCEL, page=ttypes.Page(3, "x"))),
        ):
            with pytest.raises(InvalidArgument) as caught:
                await world.ask(hosts[0], method, request)
            assert caught.value.field == "page.cursor"

    run_rpc_tier(story)


# ------------------------------------------------------------------- changes


def test_items_of_all_hosts_are_changed_by_filter_each_once() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        await world.put(hosts, count=3)
        put_off = ttypes.BulkRequest(
            "default", only("t"), ttypes.BulkAction.UPDATE, ttypes.Change(priority=4, delay_ms=60_000)
        )
        items = len(rows(world))
        assert await change(world, hosts, put_off, 2) == items
        assert {(row.priority, row.state) for row in rows(world)} == {(4, State.DEFERRED)}
        moments = {row.deliver_after_ms for row in rows(world)}
        assert len(moments) == 1, "the delay counts from one beginning"
        cancel = ttypes.BulkRequest("default", only("t"), ttypes.BulkAction.CANCEL)
        assert await change(world, hosts, cancel, 2) == items
        assert rows(world) == []

    run_rpc_tier(story)


def test_bulk_change_continues_after_its_shard_moved() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, three = hosts = await world.three()
        await world.put(hosts, count=2)
        items = len(rows(world))
        request = ttypes.BulkRequest("default", only("t"), ttypes.BulkAction.CANCEL, page=ttypes.Page(1))
        reply = await world.ask(one, "bulk", request)
        await two.stop()
        await world.wait_until_settled(one, three)
        changed = reply.items
        while reply.next_cursor is not None:
            request.page = ttypes.Page(10, reply.next_cursor)
            reply = await world.ask(three, "bulk", request)
            changed += reply.items
        assert changed == items
        assert rows(world) == []

    run_rpc_tier(story)


def test_a_purge_at_one_host_purges_the_topic_at_all() -> None:
    async def story(world: RpcTierWorld) -> None:
        _, two, _ = hosts = await world.three()
        ids = await world.put(hosts)
        kept = await world.put(hosts, "other")
        purged = await world.ask(two, "purgeTopic", TOPIC)
        assert purged.items == len(ids)
        for host in hosts:
            assert (await host.caller.get("t", 100)).items == []
            assert await count(world, host) == 0
        left = {
            format_id(seen.shard, seen.row.id) for host in hosts for seen in (await host.caller.get("other", 100)).items
        }
        assert left == kept

    run_rpc_tier(story)


# ------------------------------------------------------------ never in part


def test_call_fails_and_purges_nothing_while_a_shard_has_no_owner() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = hosts = await world.three()
        ids = await world.put(hosts)
        await two.die()
        # Its session ends later than this; then its shards have no owner for a moment, and then other owners.
        while True:
            try:
                found = await count(world, one)
            except Unavailable:
                continue
            break
        assert found == len(ids)
        assert world.loop.time() > 4

    run_rpc_tier(story)


def test_a_layout_that_lost_its_shards_is_no_cluster_without_items() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, _, _ = hosts = await world.three()
        await world.put(hosts)
        for number in sorted(one.membership.owners()):
            await layout_changes.remove_shard(world.administrator, number, force=True)
        await world.until(lambda: not one.membership.tier_shards())
        calls = {
            "listGroups": ttypes.ListGroupsRequest("default", "t"),
            "peek": ttypes.PeekRequest("default", "t"),
            "listDead": ttypes.ListDeadRequest("default"),
            "countItems": ttypes.CountItemsRequest("default", only("t")),
            "getUsage": ttypes.NamespaceRequest("default"),
            "purgeTopic": TOPIC,
        }
        for method, request in calls.items():
            with pytest.raises(Unavailable, match="the layout has no shard of tier default any more"):
                await world.ask(one, method, request)

    run_rpc_tier(story)


def test_unreachable_host_is_named_in_the_error() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, _, _ = hosts = await world.three()
        ids = await world.put(hosts)
        world.network.partition("two.example")
        with pytest.raises(Unavailable, match="two"):
            await count(world, one)
        with pytest.raises(UnknownOutcome, match="two"):
            await world.ask(one, "purgeTopic", TOPIC, timeout_s=3)
        world.network.heal()
        assert 0 < await count(world, one) < len(ids), "the others have purged their part"
        await world.ask(one, "purgeTopic", TOPIC)
        assert rows(world) == []

    run_rpc_tier(story)


def test_a_purge_that_every_host_refuses_has_purged_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        ids = await world.put(hosts)
        for host in hosts:
            monkeypatch.setattr(host.engine.queue.bulk, "purge_topic", _refuse)
        with pytest.raises(Unavailable):
            await world.ask(hosts[0], "purgeTopic", TOPIC)
        assert len(rows(world)) == len(ids)

    run_rpc_tier(story)


async def _refuse(*args: Any) -> int:
    raise Unavailable("not now")


def test_host_that_keeps_refusing_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = await world.three()
        monkeypatch.setattr(two.engine.queue.reads, "count_matching", _refuse)
        with pytest.raises(Unavailable, match="two: not now"):
            await count(world, one)

    run_rpc_tier(story)


def test_host_that_refuses_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = hosts = await world.three()
        ids = await world.put(hosts)
        counting, refused = two.engine.queue.reads.count_matching, asyncio.Event()

        async def first_refused(*args: Any) -> Any:
            if not refused.is_set():
                refused.set()
                raise NotOwner("it has just moved")
            return await counting(*args)

        monkeypatch.setattr(two.engine.queue.reads, "count_matching", first_refused)
        assert await count(world, one) == len(ids)
        assert refused.is_set()

    run_rpc_tier(story)


def test_stale_routing_table_gives_no_partial_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, three = hosts = await world.three()
        ids = await world.put(hosts)
        stale = one.membership.owners()
        moved = max(two.is_serving())
        await layout_changes.move_shard(world.administrator, moved, "three")
        await world.until(lambda: moved in three.is_serving())
        with monkeypatch.context() as patch:
            patch.setattr(one.membership, "owners", lambda: stale)
            with pytest.raises(Unavailable, match="does not own shard"):
                await count(world, one)
        assert await count(world, one) == len(ids)

    run_rpc_tier(story)


def test_purge_waits_for_a_shard_that_its_host_does_not_know_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        one, _, _ = hosts = await world.three()
        ids = await world.put(hosts)
        known = dict(one.membership.owners())
        del known[7]
        with monkeypatch.context() as patch:
            patch.setattr(one.membership, "owners", lambda: known)
            with pytest.raises(FoqsError):
                await world.ask(one, "purgeTopic", TOPIC)
            assert len(rows(world)) == len(ids)
        assert (await world.ask(one, "purgeTopic", TOPIC)).items == len(ids)

    run_rpc_tier(story)


def test_a_purge_is_refused_while_the_list_of_shards_cannot_be_read() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, _, _ = hosts = await world.three()
        ids = await world.put(hosts)
        one.disconnect()
        with pytest.raises(Unavailable):
            await world.ask(one, "purgeTopic", TOPIC, timeout_s=1)
        assert len(rows(world)) == len(ids)
        one.reconnect()

    run_rpc_tier(story)


def test_malformed_call_fails_at_once() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        before_s = world.loop.time()
        with pytest.raises(NamespaceNotFound):
            await world.ask(hosts[0], "countItems", ttypes.CountItemsRequest("nobody's", only()))
        with pytest.raises(InvalidArgument) as caught:
            await world.ask(hosts[0], "purgeTopic", ttypes.TopicRequest("default"))
        assert caught.value.field == "topic"
        assert world.loop.time() - before_s < SOON_S < RETRY_WITHIN_S

    run_rpc_tier(story)


def test_a_host_that_knows_the_namespace_before_the_others_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = hosts = await world.three()
        await world.put(hosts)
        known = two.engine.queue.namespace_settings
        asked: list[str] = []

        def later(name: str) -> Any:
            if not asked:
                asked.append(name)
                raise NamespaceNotFound("not yet")
            return known(name)

        monkeypatch.setattr(two.engine.queue, "namespace_settings", later)
        assert await count(world, one) == 8
        assert asked

    run_rpc_tier(story)
