"""Tests the calls that only read: topics, peek, item, routing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from foqs_client import BulkPage, Change, InvalidArgument, Item, ItemCount, ItemFilter, ItemView, Nack
from tests.behaviour.sites import Site, story

STATES = ["ready", "deferred", "leased", "dead"]
HOUR_MS = 3_600_000


async def one_of_each(site: Site) -> dict[str, str]:
    """Enqueue an item in each state, and return their ids."""
    dead, leased, ready, deferred = await site.put(
        *(Item(site.topic, b"payload", n, b"m") for n in range(3)), Item(site.topic, delay_ms=HOUR_MS)
    )
    held = {delivery.id: delivery for delivery in await site.get(2)}
    [outcome] = await site.client.nack([Nack(dead, held[dead].token, dead=True)])
    outcome.require()
    return {"dead": dead, "leased": leased, "ready": ready, "deferred": deferred}


@story
async def test_topic_shows_its_counts(site: Site) -> None:
    await one_of_each(site)
    await site.spread()
    [topic] = (await site.client.topics(site.topic)).topics
    assert topic.topic == site.topic
    assert (topic.ready, topic.deferred, topic.leased, topic.dead) == (1, 1, 1, 1)
    assert (topic.best_priority, topic.paused) == (2, False)
    assert topic.oldest_ready_age_ms is not None
    assert topic.next_due_in_ms is None or topic.next_due_in_ms <= HOUR_MS


@story
async def test_topics_are_found_by_name_and_state_page_by_page(site: Site) -> None:
    names = [f"{site.topic}/{n}" for n in range(5)]
    await site.put(*(Item(name, delay_ms=HOUR_MS if name == names[0] else None) for name in names))
    await site.spread()
    prefix = f"{site.topic}/"
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await site.client.topics(prefix, limit=2, cursor=cursor)
        assert len(page.topics) <= 2
        found += [topic.topic for topic in page.topics]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == names[1:]
    deferred = await site.client.topics(prefix, ["deferred"])
    assert [topic.topic for topic in deferred.topics] == names[:1]
    assert (await site.client.topics(prefix, ["dead"])).topics == []


@story
async def test_topic_without_items_is_not_listed(site: Site) -> None:
    ids = await site.put(Item(site.topic))
    await site.spread()
    assert len((await site.client.topics(site.topic)).topics) == 1
    await site.client.cancel(ids)
    await site.spread()
    assert (await site.client.topics(site.topic, STATES)).topics == []


@story
async def test_peek_shows_the_items_of_a_state_best_first_page_by_page(site: Site) -> None:
    ids = await site.put(*(Item(site.topic, str(n).encode(), n) for n in range(5)))
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await site.client.peek(site.topic, limit=2, cursor=cursor, with_payload=True)
        found += [view.id for view in page.items]
        assert [view.payload for view in page.items] == [str(view.priority).encode() for view in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == ids
    assert [delivery.attempt for delivery in await site.get(5)] == [1] * 5


@story
async def test_peek_finds_every_state(site: Site) -> None:
    ids = await one_of_each(site)
    for state in STATES:
        [view] = (await site.client.peek(site.topic, state)).items
        assert (view.id, view.state, view.payload) == (ids[state], state, None)
    with pytest.raises(InvalidArgument) as caught:
        await site.client.peek(site.topic, "asleep")
    assert caught.value.field == "state"


@story
async def test_item_can_be_read_in_every_state(site: Site) -> None:
    ids = await one_of_each(site)
    for state, id_ in ids.items():
        view = await site.client.item(id_)
        assert (view.id, view.topic, view.state, view.payload) == (id_, site.topic, state, None)
        assert (view.lease_remaining_ms is not None) is (state == "leased")
        assert view.age_ms is not None
    leased = await site.client.item(ids["leased"], with_payload=True)
    assert (leased.payload, leased.payload_bytes, leased.metadata) == (b"payload", 7, b"m")
    assert (leased.attempt, leased.priority, leased.lease_ms, leased.at_most_once) == (1, 1, 30_000, False)
    deferred = await site.client.item(ids["deferred"])
    assert deferred.due_in_ms is not None
    assert HOUR_MS - 60_000 < deferred.due_in_ms <= HOUR_MS
    [limited] = await site.put(Item(site.topic, ttl_ms=HOUR_MS, attempts_max=3))
    view = await site.client.item(limited)
    assert view.attempts_max == 3
    assert view.ttl_remaining_ms is not None
    assert HOUR_MS - 60_000 < view.ttl_remaining_ms <= HOUR_MS


@story
async def test_an_item_shows_the_key_that_names_it(site: Site) -> None:
    mine, automatic = await site.put(Item(site.topic, idempotency_key=f"ké-{site.topic}"), Item(site.topic))
    assert (await site.client.item(mine)).idempotency_key == f"ké-{site.topic}"
    explanation = await site.client.explain(mine)
    assert explanation.item is not None
    assert explanation.item.idempotency_key == f"ké-{site.topic}"
    made = (await site.client.item(automatic)).idempotency_key
    assert made is not None
    assert made.startswith("~")
    await site.get(2)
    assert (await site.client.item(mine)).idempotency_key == f"ké-{site.topic}"


async def listed(site: Site, only: ItemFilter, limit: int = 500, *, with_key: bool = False) -> list[ItemView]:
    """List the matching items of all shards."""
    found: list[ItemView] = []
    for shard in (await site.client.routing()).shards:
        cursor: str | None = None
        while True:
            page = await site.client.list_items(
                shard.shard, only, limit, cursor, with_payload=with_key, with_key=with_key
            )
            assert len(page.items) <= limit
            assert page.now_ms is not None
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
    return found


@story
async def test_items_of_shards_are_listed_in_every_state(site: Site) -> None:
    ids = await one_of_each(site)
    only = ItemFilter(site.topic)
    for limit in (1, 3, 500):
        assert {view.state: view.id for view in await listed(site, only, limit)} == ids
    views = await listed(site, ItemFilter(topics=[site.topic, "none"], states=["dead", "leased"]), with_key=True)
    assert {view.state for view in views} == {"dead", "leased"}
    for view in views:
        assert view.payload == b"payload"
        assert lasting(view) == lasting(await site.client.item(view.id, with_payload=True))
        assert view.idempotency_key is not None
    assert {(view.payload, view.idempotency_key) for view in await listed(site, only)} == {(None, None)}
    with pytest.raises(InvalidArgument) as caught:
        await site.client.list_items(0, ItemFilter(site.topic, topics=[site.topic]))
    assert caught.value.field == "filter.topics"


def lasting(view: ItemView) -> ItemView:
    """Return the view without what changes with time."""
    return replace(view, age_ms=None, lease_remaining_ms=None, first_delivery_age_ms=None)


@story
async def test_several_topics_are_counted_and_changed_by_one_filter(site: Site) -> None:
    topics = [f"{site.topic}.{number}" for number in range(3)]
    await site.put(*(Item(topic) for topic in topics for _ in range(2)))
    only = ItemFilter(topics=topics[:2])
    assert (await site.client.count(only)).items == 4
    assert (await site.client.count(replace(only, age_min_ms=0))).items == 4
    assert await changed_in_pages(lambda cursor: site.client.cancel_matching(only, cursor=cursor)) == 4
    assert (await site.client.count(ItemFilter(topics=topics))).items == 2


async def changed_in_pages(change: Callable[[str | None], Awaitable[BulkPage]]) -> int:
    """Change items page by page, and return how many were changed."""
    page = await change(None)
    changed = page.changed
    while page.next_cursor is not None:
        page = await change(page.next_cursor)
        changed += page.changed
    return changed


@story
async def test_items_are_updated_and_redriven_by_a_filter(site: Site) -> None:
    await site.put(*(Item(site.topic, b"xy", 9) for _ in range(3)), Item(site.topic, b"xy", 11))
    only = ItemFilter(site.topic, ["ready"], 9, 10, age_min_ms=0)
    assert await site.client.count(only) == ItemCount(3, 6)
    change = Change(1, delay_ms=0, metadata=b"m")
    assert await changed_in_pages(lambda cursor: site.client.update_matching(only, change, 2, cursor)) == 3
    updated = await site.get(3)
    assert [(delivery.priority, delivery.metadata) for delivery in updated] == [(1, b"m")] * 3
    for outcome in await site.client.nack([Nack(each.id, each.token, dead=True) for each in updated]):
        outcome.require()
    all_of_topic = ItemFilter(site.topic)
    assert await changed_in_pages(lambda cursor: site.client.redrive_matching(all_of_topic, cursor=cursor)) == 3
    assert (await site.client.count(ItemFilter(site.topic, ["ready"]))).items == 4


@story
async def test_item_that_is_enqueued_after_the_first_page_is_not_listed(site: Site) -> None:
    ids = await site.put(*(Item(site.topic) for _ in range(6)))
    [shard, *_] = (await site.client.routing()).shards
    page = await site.client.list_items(shard.shard, ItemFilter(site.topic), 1)
    await site.put(*(Item(site.topic) for _ in range(6)))
    found, cursor = page.items, page.next_cursor
    while cursor is not None:
        page = await site.client.list_items(shard.shard, ItemFilter(site.topic), 1, cursor)
        found, cursor = found + page.items, page.next_cursor
    assert {view.id for view in found} == {id for id in ids if id.startswith(f"{shard.shard}-")}


@story
async def test_routing_names_the_hosts_and_their_shards(site: Site) -> None:
    routing = await site.client.routing()
    assert {shard.state for shard in routing.shards} == {"owned"}
    assert {shard.owner for shard in routing.shards} == {(host.host, host.port) for host in routing.hosts}
    again = await site.client.routing()
    assert again.version == routing.version
