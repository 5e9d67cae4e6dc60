"""Tests the purge of topics."""

from __future__ import annotations

import pytest

from foqs_client import Item, ItemFilter, NotFound
from tests.behaviour.sites import Site, story

HOUR_MS = 3_600_000


async def left(site: Site) -> int:
    return (await site.client.count(ItemFilter(topic=site.topic))).items


@story
async def test_a_purge_ends_all_items_of_a_topic_in_every_state_and_no_others(site: Site) -> None:
    other = f"{site.topic}-other"
    await site.put(Item(site.topic, attempts_max=1))
    [dead] = await site.get()
    await site.client.nack([dead])
    await site.put(Item(site.topic))
    leased = await site.one()
    await site.put(Item(site.topic), Item(site.topic), Item(site.topic, delay_ms=HOUR_MS), Item(other))
    assert await left(site) == 5
    assert await site.client.purge_topic(site.topic) == 5
    assert await left(site) == 0
    await site.spread()
    assert (await site.client.topics(site.topic, ["ready", "deferred", "leased", "dead"])).topics[0].topic == other
    for state in ("ready", "deferred", "leased", "dead"):
        assert (await site.client.peek(site.topic, state)).items == []
    for id_ in (leased.id, dead.id):
        with pytest.raises(NotFound):
            await site.client.item(id_)
    assert await site.client.dequeue({site.topic: 9}) == []
    assert len(await site.client.dequeue({other: 9}, wait_ms=5_000)) == 1


@story
async def test_lease_of_a_purged_item_is_acked_as_gone_and_cannot_be_returned(site: Site) -> None:
    await site.put(*(Item(site.topic) for _ in range(3)))
    held = await site.get(3)
    assert await site.client.purge_topic(site.topic) == 3
    [acked] = await site.client.ack(held[:1])
    assert (acked.error, acked.already_gone) == (None, True)
    [nacked] = await site.client.nack(held[1:2])
    [extended] = await site.client.extend(held[2:])
    assert isinstance(nacked.error, NotFound)
    assert isinstance(extended.error, NotFound)
    assert await site.client.dequeue({site.topic: 9}) == []


@story
async def test_purge_deletes_deferred_items_but_not_later_ones(site: Site) -> None:
    await site.put(*(Item(site.topic, b"old", delay_ms=100) for _ in range(20)))
    assert await site.client.purge_topic(site.topic) == 20
    await site.put(Item(site.topic, b"new", 5))
    await site.pass_ms(300)
    assert [delivery.payload for delivery in await site.get(9)] == [b"new"]
    assert await site.client.purge_topic(site.topic) == 1
    assert await site.client.purge_topic(site.topic) == 0


@story
async def test_missing_or_paused_topic_can_be_purged(site: Site) -> None:
    assert await site.client.purge_topic(site.topic) == 0
    await site.put(Item(site.topic))
    await site.client.pause_topic(site.topic)
    assert await site.client.purge_topic(site.topic) == 1
    await site.client.resume_topic(site.topic)
    assert await site.client.dequeue({site.topic: 9}) == []


@story
async def test_key_outlives_its_purged_item(site: Site) -> None:
    item = Item(site.topic, idempotency_key=site.topic)
    [first] = await site.put(item)
    await site.client.purge_topic(site.topic)
    [again] = await site.client.enqueue([item])
    assert (again.id, again.repeated) == (first, True)
    assert await left(site) == 0


@story
async def test_purge_affects_only_its_own_namespace(site: Site) -> None:
    await site.put(Item(site.topic))
    async with site.namespace("other") as other:
        assert await other.purge_topic(site.topic) == 0
    assert await left(site) == 1
