"""Tests the calls that only read: topics, peek, item, routing."""

from __future__ import annotations

import pytest

from foqs_client import InvalidArgument, Item, Nack
from tests.behaviour.sites import Site, story

STATES = ["ready", "deferred", "leased", "dead"]
HOUR_MS = 3_600_000


async def one_of_each(site: Site) -> dict[str, str]:
    """Enqueue an item in each state, and return their ids."""
    dead, leased, ready, deferred = await site.put(
        *(Item(site.topic, b"payload", n, b"m") for n in range(3)), Item(site.topic, delay_ms=HOUR_MS)
    )
    held = {delivery.id: delivery for delivery in await site.take(2)}
    [outcome] = await site.client.nack([Nack(dead, held[dead].token, dead=True)])
    outcome.require()
    return {"dead": dead, "leased": leased, "ready": ready, "deferred": deferred}


@story
async def test_topic_shows_its_counts(site: Site) -> None:
    await one_of_each(site)
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
    assert len((await site.client.topics(site.topic)).topics) == 1
    await site.client.cancel(ids)
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
    assert [delivery.attempt for delivery in await site.take(5)] == [1] * 5


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
    await site.take(2)
    assert (await site.client.item(mine)).idempotency_key == f"ké-{site.topic}"


@story
async def test_routing_names_the_host_and_its_shards(site: Site) -> None:
    routing = await site.client.routing()
    [host] = routing.hosts
    assert routing.shards
    assert {shard.state for shard in routing.shards} == {"owned"}
    assert {shard.owner for shard in routing.shards} == {(host.host, host.port)}
    again = await site.client.routing()
    assert again.version == routing.version
