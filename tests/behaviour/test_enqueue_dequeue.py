"""Tests enqueue and dequeue: the items, their order and their times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from foqs_client import (
    FoqsError,
    InvalidArgument,
    Item,
    ItemFilter,
    KeyConflict,
    KeyEnded,
    LimitExceeded,
    NamespaceNotFound,
    NotFound,
)
from tests.behaviour.sites import PAYLOAD_BYTES_MAX, SPAN_MS, Site, story

ALL = 100
NEVER = f"0-{(1 << 62) + 1}"
"""An id of a future epoch."""


@story
async def test_item_is_delivered_as_it_was_enqueued(site: Site) -> None:
    item = Item(site.topic, bytes(range(256)), -7, b"\x00\xff", lease_ms=9_000, attempts_max=4)
    [id_] = await site.put(item)
    delivery = await site.one()
    assert (delivery.id, delivery.topic, delivery.payload, delivery.priority, delivery.metadata) == (
        id_, site.topic, item.payload, -7, b"\x00\xff",
    )  # fmt: skip
    assert (delivery.attempt, delivery.attempts_max) == (1, 4)
    assert 0 < delivery.lease_remaining_ms <= 9_000
    assert delivery.age_ms >= 0
    assert delivery.incarnation == await site.client.incarnation()
    async with site.namespace("other") as other:
        assert delivery.incarnation != await other.incarnation()


@story
async def test_best_priority_is_first_and_within_it_the_oldest_item(site: Site) -> None:
    least, most = -(1 << 31), (1 << 31) - 1
    *keys, last = await site.keys_of_one_host(6)
    numbers = (5, most, 0, least, -5)
    items = [Item(site.topic, str(n).encode(), n, idempotency_key=key) for n, key in zip(numbers, keys, strict=True)]
    await site.put(*items)
    await site.put(Item(site.topic, b"0 again", idempotency_key=last))
    deliveries = await site.get(ALL)
    assert [d.payload for d in deliveries] == [str(least).encode(), b"-5", b"0", b"0 again", b"5", str(most).encode()]


@story
async def test_items_come_in_the_order_in_which_they_were_sent_one_after_the_other(site: Site) -> None:
    for at, key in enumerate(await site.keys_of_one_host(60)):
        await site.put(Item(site.topic, str(at).encode(), idempotency_key=key))
    found: list[str] = []
    while len(found) < 60:
        found += [delivery.payload.decode() for delivery in await site.get(7)]
    assert found == [str(at) for at in range(60)]


@story
async def test_topics_are_compared_byte_by_byte(site: Site) -> None:
    names = [f"{site.topic}-{end}" for end in ("a", "A", "a ", "\N{GRINNING FACE}", "ä")]
    await site.put(*(Item(name, name.encode()) for name in names))
    for name in names:
        [delivery] = await site.client.dequeue({name: ALL}, wait_ms=5_000)
        assert (delivery.topic, delivery.payload) == (name, name.encode())


@story
async def test_dequeue_returns_at_most_the_requested_items_of_each_topic(site: Site) -> None:
    one, other = f"{site.topic}-1", f"{site.topic}-2"
    await site.put(*(Item(topic) for topic in (one, one, one, other)))
    deliveries = await site.client.dequeue({one: 2, other: 2}, wait_ms=5_000)
    assert sorted(delivery.topic for delivery in deliveries) == [one, one, other]
    assert [delivery.topic for delivery in await site.client.dequeue({one: 2, other: 2})] == [one]


@story
async def test_dequeue_returns_at_most_items_max_and_serves_the_first_topics_first(site: Site) -> None:
    one, other, third = (f"{site.topic}-{n}" for n in (1, 2, 3))
    await site.put(*(Item(topic) for topic in (one, other, other, other, third)))
    wants = {other: 2, one: 2, third: 2}
    first = await site.client.dequeue(wants, wait_ms=5_000, items_max=3)
    assert sorted(delivery.topic for delivery in first) == [one, other, other]
    [second] = await site.client.dequeue(wants, wait_ms=5_000, items_max=1)
    assert second.topic == other
    with pytest.raises(InvalidArgument, match="items_max"):
        await site.client.dequeue(wants, items_max=0)


@story
async def test_an_item_is_leased_to_one_consumer_at_a_time(site: Site) -> None:
    await site.put(*(Item(site.topic) for _ in range(20)))
    await site.spread()
    taken = await asyncio.gather(*(site.client.dequeue({site.topic: 10}) for _ in range(4)))
    ids = [delivery.id for deliveries in taken for delivery in deliveries]
    assert len(ids) == len(set(ids)) == 20


@story
async def test_a_delayed_item_is_not_delivered_before_its_time(site: Site) -> None:
    since_s = time.monotonic()
    await site.put(Item(site.topic, b"far", delay_ms=3_600_000), Item(site.topic, b"near", 9, delay_ms=SPAN_MS))
    await site.put(Item(site.topic, b"past", deliver_after_ms=1))
    found = [d.payload for d in await site.get(ALL)]
    assert found == [b"past"] or site.stood_still(since_s)
    if found == [b"past"]:
        await site.pass_ms(SPAN_MS)
        found += [d.payload for d in await site.get(ALL)]
    assert found == [b"past", b"near"]
    assert await site.client.dequeue({site.topic: ALL}) == []


@story
async def test_a_dequeue_waits_for_an_item(site: Site) -> None:
    waiting = asyncio.ensure_future(site.client.dequeue({site.topic: 1, f"{site.topic}-other": 1}, wait_ms=10_000))
    await site.pass_ms(20)
    assert not waiting.done()
    await site.put(Item(site.topic, b"here"))
    assert [delivery.payload for delivery in await waiting] == [b"here"]


@story
async def test_a_dequeue_waits_for_an_item_to_come_due(site: Site) -> None:
    await site.put(Item(site.topic, b"due", delay_ms=200))
    waiting = asyncio.ensure_future(site.client.dequeue({site.topic: 1}, wait_ms=10_000))
    await site.pass_ms(200)
    assert [delivery.payload for delivery in await waiting] == [b"due"]


@story
async def test_dequeue_waits_no_longer_than_its_wait(site: Site) -> None:
    assert await site.client.dequeue({site.topic: 1}) == []
    waiting = asyncio.ensure_future(site.client.dequeue({site.topic: 1}, wait_ms=100))
    await site.pass_ms(100)
    assert await waiting == []


@story
async def test_item_is_deleted_when_its_ttl_ends(site: Site) -> None:
    brief, lasting = await site.put(Item(site.topic, ttl_ms=150), Item(site.topic, b"lasts", ttl_ms=60_000))
    await site.pass_ms(150)
    assert [delivery.id for delivery in await site.get(ALL)] == [lasting]

    async def is_gone() -> bool:
        try:
            await site.client.item(brief)
        except NotFound:
            return True
        return False

    await site.until(is_gone)


@story
async def test_key_names_one_item_even_after_that_is_gone(site: Site) -> None:
    item = Item(site.topic, b"once", idempotency_key=f"{site.topic} ключ")
    [first] = await site.client.enqueue([item])
    [second] = await site.client.enqueue([item])
    assert (first.repeated, second.repeated) == (False, True)
    assert first.require() == second.require()
    delivery = await site.one()
    assert await site.client.dequeue({site.topic: ALL}) == []
    await site.client.ack([delivery])
    [third] = await site.client.enqueue([item])
    assert (third.require(), third.repeated) == (first.require(), True)


@story
async def test_after_the_end_of_its_key_an_item_is_a_repeat_or_is_not_written(site: Site) -> None:
    item = Item(site.topic, b"one", idempotency_key=site.topic)
    far_ms = 253_402_300_799_999
    for until_ms, error, field in ((1, KeyEnded, None), (far_ms, InvalidArgument, "items[0].key_until_ms")):
        [refused] = await site.client.enqueue([replace(item, key_until_ms=until_ms)])
        assert isinstance(refused.error, error)
        assert refused.error.field == field
    [first] = await site.put(item)
    [again] = await site.client.enqueue([replace(item, key_until_ms=1)])
    assert (again.require(), again.repeated) == (first, True)


@story
async def test_key_with_another_item_is_a_conflict_and_affects_no_other(site: Site) -> None:
    key = site.topic
    await site.put(Item(site.topic, b"one", idempotency_key=key))
    conflict, fine = await site.client.enqueue([Item(site.topic, b"other", idempotency_key=key), Item(site.topic)])
    assert isinstance(conflict.error, KeyConflict)
    fine.require()
    async with site.namespace("other") as other:
        [elsewhere] = await other.enqueue([Item(site.topic, b"other", idempotency_key=key)])
        assert not elsewhere.repeated


@story
async def test_items_of_an_atomic_call_are_all_written_and_its_repeat_returns_their_ids(site: Site) -> None:
    key_one, key_two, key_three = [f"~001{site.topic}/{name}" for name in ("one", "two", "three")]
    items = [Item(site.topic, b"one", idempotency_key=key_one), Item(site.topic, b"two", idempotency_key=key_two)]
    results = await site.client.enqueue(items, atomic=True)
    ids = [result.require() for result in results]
    assert len({id.split("-")[0] for id in ids}) == 1
    repeats = await site.client.enqueue(items, atomic=True)
    assert [(result.id, result.repeated) for result in repeats] == [(id, True) for id in ids]
    with pytest.raises(KeyConflict) as caught:
        await site.client.enqueue(
            [Item(site.topic, b"three", idempotency_key=key_three), items[1], items[0]], atomic=True
        )
    assert caught.value.field == "items[1].idempotency_key"
    plain = await site.client.enqueue([Item(site.topic), Item(site.topic)], atomic=True)
    assert len({result.require().split("-")[0] for result in plain}) == 1
    ids += [result.require() for result in plain]
    assert await site.states(ids) == ["ready"] * 4
    assert (await site.client.count(ItemFilter(site.topic))).items == 4


@story
async def test_a_bad_item_fails_an_atomic_call_and_its_field_is_named(site: Site) -> None:
    t = site.topic
    good, far_ms = Item(t, b"good"), 253_402_300_799_999
    bad: list[tuple[list[Item], type[FoqsError], str]] = [
        ([good, Item("")], InvalidArgument, "items[1].topic"),
        ([good, Item(t, b"x" * (PAYLOAD_BYTES_MAX + 1))], LimitExceeded, "items[1].payload"),
        ([good, Item(t, ttl_ms=1, deliver_after_ms=far_ms)], InvalidArgument, "items[1].ttl_ms"),
        ([good] * 101, LimitExceeded, "items"),
        (
            [Item(t, idempotency_key=f"~001{t}"), Item(t, idempotency_key=f"~001{t}")],
            InvalidArgument,
            "items[1].idempotency_key",
        ),
        (
            [Item(t, idempotency_key=f"~001{t}"), Item(t, idempotency_key=f"~001{t}/2", key_until_ms=1)],
            KeyEnded,
            "items[1]",
        ),
    ]
    for items, kind, field in bad:
        with pytest.raises(kind) as caught:
            await site.client.enqueue(items, atomic=True)
        assert caught.value.field == field
    assert await site.client.dequeue({t: ALL}) == []


@story
async def test_bad_item_fails_alone_and_its_field_is_named(site: Site) -> None:
    t = site.topic
    bad: list[tuple[Item, type[FoqsError], str]] = [
        (Item(""), InvalidArgument, "topic"),
        (Item("a\0b"), InvalidArgument, "topic"),
        (Item("x" * 1_000), InvalidArgument, "topic"),
        (Item(t, b"x" * (PAYLOAD_BYTES_MAX + 1)), LimitExceeded, "payload"),
        (Item(t, metadata=b"x" * 100_000), LimitExceeded, "metadata"),
        (Item(t, delay_ms=1, deliver_after_ms=1), InvalidArgument, "delay_ms"),
        (Item(t, delay_ms=-1), InvalidArgument, "delay_ms"),
        (Item(t, deliver_after_ms=1 << 60), InvalidArgument, "deliver_after_ms"),
        (Item(t, ttl_ms=0), InvalidArgument, "ttl_ms"),
        (Item(t, delay_ms=10, ttl_ms=5), InvalidArgument, "ttl_ms"),
        (Item(t, lease_ms=0), InvalidArgument, "lease_ms"),
        (Item(t, lease_ms=1 << 50), LimitExceeded, "lease_ms"),
        (Item(t, attempts_max=-1), InvalidArgument, "attempts_max"),
        (Item(t, idempotency_key=""), InvalidArgument, "idempotency_key"),
    ]
    good = Item(t, b"x" * PAYLOAD_BYTES_MAX)
    *results, last = await site.client.enqueue([*(item for item, _, _ in bad), good])
    for place, (result, (_, kind, field)) in enumerate(zip(results, bad, strict=True)):
        assert isinstance(result.error, kind), field
        assert result.error.field == f"items[{place}].{field}"
    assert [delivery.id for delivery in await site.get(ALL)] == [last.require()]


@story
async def test_bad_call_fails_as_a_whole_and_its_field_is_named(site: Site) -> None:
    client, t = site.client, site.topic
    calls: list[tuple[Coroutine[Any, Any, object], type[FoqsError], str | None]] = [
        (client.enqueue([Item(t)] * 100_001), LimitExceeded, None),
        (client.dequeue({}), InvalidArgument, "topics"),
        (client.dequeue({t: 0}), InvalidArgument, "topics[0].count"),
        (client.dequeue({t: -1}), InvalidArgument, "topics[0].count"),
        (client.dequeue({t: 1_000_000_000}), LimitExceeded, "topics[0].count"),
        (client.dequeue({"": 1}), InvalidArgument, "topics[0].topic"),
        (client.dequeue({t: 1}, lease_ms=0), InvalidArgument, "lease_ms"),
        (client.dequeue({t: 1}, wait_ms=-1), InvalidArgument, "wait_ms"),
        (client.peek(t, limit=0), InvalidArgument, "page.limit"),
        (client.item("no id"), InvalidArgument, "id"),
        (client.item(NEVER), NotFound, None),
    ]
    for call, kind, field in calls:
        with pytest.raises(kind) as caught:
            await call
        assert caught.value.field == field


@story
async def test_namespace_does_not_see_items_of_another(site: Site) -> None:
    [id_] = await site.put(Item(site.topic))
    async with site.namespace("other") as other:
        assert await other.dequeue({site.topic: 1}) == []
        assert (await other.topics(site.topic)).topics == []
        [outcome] = await other.cancel([id_])
        assert isinstance(outcome.error, NotFound)
        with pytest.raises(NotFound):
            await other.item(id_)
    async with site.namespace("nowhere") as nowhere:
        with pytest.raises(NamespaceNotFound):
            await nowhere.enqueue([Item(site.topic)])
    assert (await site.one()).id == id_
