"""Tests delivered items: ack, nack, extend, release, cancel, and the end of the lease."""

from __future__ import annotations

import time

import pytest

from foqs_client import (
    Change,
    Delivery,
    InvalidArgument,
    Item,
    LimitExceeded,
    Nack,
    NotFound,
    Outcome,
    StaleLease,
)
from tests.behaviour.sites import BACKOFF_MS_MAX, DEAD_RETENTION_MS, SPAN_MS, Site, story

ALL = 100
NEVER = f"0-{(1 << 62) + 1}"
"""An id of a future epoch."""
HOUR_MS = 3_600_000


def lease(delivery: Delivery) -> tuple[str, int]:
    return (delivery.id, delivery.token)


def assert_done(*outcomes: Outcome) -> None:
    for outcome in outcomes:
        outcome.require()
        assert not outcome.already_gone


async def assert_gone(site: Site, *ids: str) -> None:
    for id_ in ids:
        with pytest.raises(NotFound):
            await site.client.item(id_)


@story
async def test_an_acked_item_is_gone_and_acking_again_is_fine(site: Site) -> None:
    await site.put(Item(site.topic), Item(site.topic))
    deliveries = await site.get(ALL)
    assert_done(*await site.client.ack(deliveries))
    for again in await site.client.ack([lease(delivery) for delivery in deliveries]):
        assert again.error is None
        assert again.already_gone
    await assert_gone(site, *(delivery.id for delivery in deliveries))
    assert await site.client.dequeue({site.topic: ALL}) == []


@story
async def test_item_is_delivered_again_after_its_lease_and_the_old_token_is_stale(site: Site) -> None:
    await site.put(Item(site.topic))
    since_s = time.monotonic()
    first = await site.one(lease_ms=SPAN_MS)
    found: list[Delivery] = [*await site.client.dequeue({site.topic: 1})]
    assert not found or site.stood_still(since_s)
    if not found:
        await site.pass_ms(SPAN_MS)
        found = await site.get()
    [second] = found
    assert (second.id, second.attempt) == (first.id, 2)
    assert second.token > first.token
    for outcomes in (
        await site.client.ack([first]),
        await site.client.nack([first]),
        await site.client.extend([first]),
        await site.client.release([first]),
    ):
        assert [type(outcome.error) for outcome in outcomes] == [StaleLease]
    assert_done(*await site.client.ack([second]))


@story
async def test_ended_lease_can_be_acked_until_the_item_is_leased_again(site: Site) -> None:
    [id_] = await site.put(Item(site.topic))
    delivery = await site.one(lease_ms=100)
    await until_ready(site, id_)
    for settle in (site.client.nack, site.client.release):
        assert [type(outcome.error) for outcome in await settle([delivery])] == [StaleLease]
    assert_done(*await site.client.ack([delivery]))
    await assert_gone(site, id_)


@story
async def test_ended_lease_can_be_extended_until_the_item_is_leased_again(site: Site) -> None:
    [id_] = await site.put(Item(site.topic))
    delivery = await site.one(lease_ms=100)
    for lease_ms in (100, 60_000):
        await until_ready(site, id_)
        assert_done(*await site.client.extend([delivery], lease_ms=lease_ms))
    item = await site.client.item(id_)
    assert (item.state, item.attempt) == ("leased", 1)
    assert await site.client.dequeue({site.topic: ALL}) == []
    for _ in range(2):  # the second one finds the item READY
        assert_done(*await site.client.extend([delivery], lease_ms=0))
        assert await site.states([id_]) == ["ready"]
    assert_done(*await site.client.extend([delivery]))  # ended by its consumer, and not delivered since
    assert_done(*await site.client.extend([delivery], lease_ms=0))
    again = await site.one()
    assert (again.id, again.attempt) == (id_, 2)
    assert [type(outcome.error) for outcome in await site.client.extend([delivery])] == [StaleLease]
    assert_done(*await site.client.release([again]))
    assert [type(outcome.error) for outcome in await site.client.extend([again])] == [StaleLease]
    assert_done(*await site.client.ack([again]))
    await assert_gone(site, id_)


@story
async def test_extension_that_arrives_after_a_nack_changes_nothing(site: Site) -> None:
    [id_] = await site.put(Item(site.topic))
    for attempt, delay_ms in ((1, 0), (2, 50)):
        delivery = await site.one()
        assert delivery.attempt == attempt
        assert_done(*await site.client.nack([Nack(delivery.id, delivery.token, delay_ms=delay_ms)]))
        await until_ready(site, id_)
        for lease_ms in (None, 0, 60_000):
            [late] = await site.client.extend([delivery], lease_ms=lease_ms)
            assert type(late.error) is StaleLease
    again = await site.one()
    assert (again.id, again.attempt) == (id_, 3)
    assert_done(*await site.client.nack([Nack(again.id, again.token, delay_ms=0)]))
    assert_done(*await site.client.ack([again]))  # the work was done after all, and the item not delivered since
    await assert_gone(site, id_)


async def until_ready(site: Site, id_: str) -> None:
    """Let time pass until the lease of an item has ended."""

    async def is_back() -> bool:
        return await site.states([id_]) == ["ready"]

    await site.until(is_back)


@story
async def test_nacked_item_is_delivered_again_after_a_backoff(site: Site) -> None:
    [id_] = await site.put(Item(site.topic, b"x"))
    assert_done(*await site.client.nack([await site.one()]))
    assert await site.states([id_]) == ["deferred"]
    await site.pass_ms(BACKOFF_MS_MAX)
    again = await site.one()
    assert (again.id, again.attempt, again.payload) == (id_, 2, b"x")


@story
async def test_nack_can_set_the_time_and_the_metadata_of_the_next_delivery(site: Site) -> None:
    now, soon, far, past = await site.put(*(Item(site.topic, priority=n, metadata=b"old") for n in range(4)))
    held = {delivery.id: delivery for delivery in await site.get(ALL)}
    assert_done(
        *await site.client.nack(
            [
                Nack(*lease(held[now]), delay_ms=0, metadata=b"new"),
                Nack(*lease(held[soon]), delay_ms=3 * SPAN_MS, metadata=b""),
                Nack(*lease(held[far]), delay_ms=HOUR_MS),
                Nack(*lease(held[past]), deliver_after_ms=1),
            ]
        )
    )
    at_once = {delivery.id: delivery.metadata for delivery in await site.get(2)}
    assert at_once == {now: b"new", past: b"old"}
    await site.pass_ms(SPAN_MS)
    later = await site.one()
    assert (later.id, later.metadata, later.attempt) == (soon, b"", 2)
    view = await site.client.item(far)
    assert (view.state, view.metadata) == ("deferred", b"old")
    assert view.due_in_ms is not None
    assert HOUR_MS - 60_000 < view.due_in_ms <= HOUR_MS


@story
async def test_trace_and_first_delivery_outlast_nack_release_update_and_redrive(site: Site) -> None:
    [id_] = await site.put(Item(site.topic, metadata=b"m", trace_context=b"00-\xff-01"))
    view = await site.client.item(id_)
    assert (view.trace_context, view.first_delivery_age_ms) == (b"00-\xff-01", None)
    first = await site.one()
    assert (first.trace_context, first.attempt) == (b"00-\xff-01", 1)

    def wait_ms(delivery: Delivery) -> int:
        assert delivery.first_delivery_age_ms is not None
        return delivery.age_ms - delivery.first_delivery_age_ms

    assert_done(*await site.client.release([first]))
    await site.pass_ms(SPAN_MS)
    second = await site.one()
    assert_done(*await site.client.nack([Nack(*lease(second), delay_ms=0, metadata=b"n")]))
    assert_done(*await site.client.update([id_], Change(priority=3)))
    third = await site.one()
    assert_done(*await site.client.nack([Nack(*lease(third), dead=True)]))
    assert_done(*await site.client.redrive([id_]))
    fourth = await site.one()
    deliveries = [first, second, third, fourth]
    assert [delivery.attempt for delivery in deliveries] == [1, 1, 2, 1]
    assert {delivery.trace_context for delivery in deliveries} == {b"00-\xff-01"}
    assert len(set(map(wait_ms, deliveries))) == 1
    view = await site.client.item(id_)
    assert view.trace_context == b"00-\xff-01"
    assert view.first_delivery_age_ms is not None
    assert view.first_delivery_age_ms >= SPAN_MS


@story
async def test_an_item_that_is_given_up_is_dead_and_not_delivered_again(site: Site) -> None:
    [id_] = await site.put(Item(site.topic, b"poison"))
    delivery = await site.one()
    assert_done(*await site.client.nack([Nack(*lease(delivery), dead=True, metadata=b"why")]))
    view = await site.client.item(id_, with_payload=True)
    assert (view.state, view.payload, view.metadata, view.attempt) == ("dead", b"poison", b"why", 1)
    assert await site.client.dequeue({site.topic: 1}) == []
    assert [view.id for view in (await site.client.peek(site.topic, "dead")).items] == [id_]
    [listed] = (await site.client.dead(site.topic, with_payload=True)).items
    assert (listed.id, listed.payload, listed.dead_reason) == (id_, b"poison", "given up by its consumer in attempt 1")


@story
async def test_an_item_whose_attempts_are_used_up_is_dead(site: Site) -> None:
    nacked, left = await site.put(Item(site.topic, attempts_max=2), Item(site.topic, priority=1, attempts_max=1))
    for attempt in (1, 2):
        delivery = await site.one()
        assert (delivery.id, delivery.attempt, delivery.attempts_max) == (nacked, attempt, 2)
        assert_done(*await site.client.nack([Nack(*lease(delivery), delay_ms=0)]))
    await site.one(lease_ms=100)
    await site.pass_ms(100)

    async def both_are_dead() -> bool:
        return await site.states([nacked, left]) == ["dead", "dead"]

    await site.until(both_are_dead)
    assert await site.client.dequeue({site.topic: ALL}) == []


@story
async def test_namespace_sets_the_attempts_and_the_retention_of_dead_items(site: Site) -> None:
    async with site.namespace("brief") as brief:
        [result] = await brief.enqueue([Item(site.topic)])
        [delivery] = await brief.dequeue({site.topic: 1}, wait_ms=5_000)
        assert delivery.attempts_max == 2
        assert_done(*await brief.nack([Nack(*lease(delivery), dead=True)]))
        assert (await brief.item(result.require())).state == "dead"
        await site.pass_ms(DEAD_RETENTION_MS)

        async def is_gone() -> bool:
            return not (await brief.peek(site.topic, "dead")).items

        await site.until(is_gone)


@story
async def test_an_item_at_most_once_is_never_delivered_again(site: Site) -> None:
    while True:
        nacked, left = await site.put(*(Item(site.topic, at_most_once=True) for _ in range(2)))
        assert (await site.client.item(left)).at_most_once
        since_s = time.monotonic()
        held = {delivery.id: delivery for delivery in await site.get(ALL, lease_ms=SPAN_MS)}
        outcomes = await site.client.nack([held[nacked]])
        if outcomes[0].error is None or not site.stood_still(since_s):
            break
    assert_done(*outcomes)
    await assert_gone(site, nacked)
    await site.pass_ms(SPAN_MS)

    async def is_gone() -> bool:
        return not (await site.client.peek(site.topic, "leased")).items

    await site.until(is_gone)
    await assert_gone(site, left)


@story
async def test_an_extended_lease_lasts_longer(site: Site) -> None:
    [id_] = await site.put(Item(site.topic, lease_ms=HOUR_MS // 2))
    delivery = await site.one(lease_ms=20_000)
    assert_done(*await site.client.extend([delivery], lease_ms=HOUR_MS))
    view = await site.client.item(id_)
    assert view.lease_remaining_ms is not None
    assert HOUR_MS - 60_000 < view.lease_remaining_ms <= HOUR_MS
    assert_done(*await site.client.extend([delivery]))
    view = await site.client.item(id_)
    assert view.lease_remaining_ms is not None
    assert view.lease_remaining_ms <= HOUR_MS // 2
    assert_done(*await site.client.ack([delivery]))


@story
async def test_shortened_lease_ends_sooner(site: Site) -> None:
    await site.put(Item(site.topic))
    delivery = await site.one()
    assert_done(*await site.client.extend([delivery], lease_ms=100))
    await site.pass_ms(100)
    assert (await site.one()).attempt == 2


async def extended_lease(site: Site) -> Delivery:
    """Lease an item for SPAN_MS, and let an administrator extend its lease by an hour before it ends."""
    while True:
        since_s = time.monotonic()
        delivery = await site.one(lease_ms=SPAN_MS)
        outcomes = await site.client.extend_held_leases([delivery.id], lease_ms=HOUR_MS)
        if outcomes[0].error is None or not site.stood_still(since_s):
            assert_done(*outcomes)
            return delivery


@story
async def test_administrator_extends_a_lease_and_its_consumer_keeps_it(site: Site) -> None:
    [id_] = await site.put(Item(site.topic, lease_ms=HOUR_MS // 2))
    delivery = await extended_lease(site)
    view = await site.client.item(id_)
    assert view.lease_remaining_ms is not None
    assert HOUR_MS - 60_000 < view.lease_remaining_ms <= HOUR_MS
    await site.pass_ms(SPAN_MS)
    assert await site.client.dequeue({site.topic: 1}) == []
    assert_done(*await site.client.extend_held_leases([id_]))
    view = await site.client.item(id_)
    assert (view.state, view.attempt) == ("leased", delivery.attempt)
    assert view.lease_remaining_ms is not None
    assert view.lease_remaining_ms > HOUR_MS // 2
    assert_done(*await site.client.ack([delivery]))
    [gone] = await site.client.extend_held_leases([id_])
    assert isinstance(gone.error, NotFound)


@story
async def test_extension_without_a_token_is_of_the_lease_that_the_item_has(site: Site) -> None:
    await site.put(Item(site.topic))
    first = await site.one(lease_ms=100)
    await site.pass_ms(100)
    second = await extended_lease(site)
    assert second.id == first.id
    await site.pass_ms(SPAN_MS)
    assert [type(outcome.error) for outcome in await site.client.ack([first])] == [StaleLease]
    assert_done(*await site.client.extend_held_leases([first.id], lease_ms=100))
    await site.pass_ms(200)
    assert await site.client.dequeue({site.topic: 1}) == []
    assert_done(*await site.client.ack([second]))


@story
async def test_item_without_a_lease_is_not_extended(site: Site) -> None:
    dead, ready, deferred = ids = await site.put(
        Item(site.topic), Item(site.topic, priority=1), Item(site.topic, delay_ms=HOUR_MS)
    )
    assert_done(*await site.client.nack([Nack(*lease(await site.one()), dead=True)]))
    for outcome in await site.client.extend_held_leases(ids, lease_ms=100):
        assert isinstance(outcome.error, StaleLease)
        assert "the item is not leased" in outcome.error.message
    assert await site.states([dead, ready, deferred]) == ["dead", "ready", "deferred"]


@story
async def test_lease_of_an_extension_without_a_token_has_the_limits_of_an_extension(site: Site) -> None:
    [id_] = await site.put(Item(site.topic))
    delivery = await site.one()
    longest = (await site.client.get_namespace()).lease_ms_max
    assert longest is not None
    for wrong, kind in ((0, InvalidArgument), (-1, InvalidArgument), (longest + 1, LimitExceeded)):
        with pytest.raises(kind) as refused:
            await site.client.extend_held_leases([id_], lease_ms=wrong)
        assert refused.value.field == "lease_ms"
        [outcome] = await site.client.extend([delivery], lease_ms=wrong or -2)
        assert type(outcome.error) is kind
    first, again = await site.client.extend_held_leases([id_, id_], lease_ms=longest)
    assert_done(first)
    assert isinstance(again.error, InvalidArgument)
    assert again.error.field == "ids[1]"
    view = await site.client.item(id_)
    assert view.lease_remaining_ms is not None
    assert longest - 60_000 < view.lease_remaining_ms <= longest


@story
async def test_released_item_is_delivered_again_at_once_and_the_attempt_does_not_count(site: Site) -> None:
    await site.put(Item(site.topic, attempts_max=1))
    first = await site.one()
    assert_done(*await site.client.release([first]))
    second = await site.one()
    assert (second.id, second.attempt) == (first.id, 1)
    assert [type(outcome.error) for outcome in await site.client.ack([first])] == [StaleLease]
    assert_done(*await site.client.ack([second]))


@story
async def test_an_item_is_cancelled_in_any_state(site: Site) -> None:
    dead, leased, ready, deferred = ids = await site.put(
        *(Item(site.topic, priority=n) for n in range(3)), Item(site.topic, delay_ms=HOUR_MS)
    )
    held = {delivery.id: delivery for delivery in await site.get(2)}
    assert_done(*await site.client.nack([Nack(*lease(held[dead]), dead=True)]))
    assert await site.states(ids) == ["dead", "leased", "ready", "deferred"]
    assert_done(*await site.client.cancel(ids))
    await assert_gone(site, *ids)
    assert all(outcome.already_gone for outcome in await site.client.cancel([ready, deferred]))
    [acked] = await site.client.ack([held[leased]])
    assert acked.already_gone
    assert await site.client.dequeue({site.topic: ALL}) == []


@story
async def test_every_entry_has_its_own_outcome(site: Site) -> None:
    await site.put(Item(site.topic), Item(site.topic))
    one, other = await site.get(ALL)
    strange, never, old, fine = await site.client.ack([("no id", 1), (NEVER, 1), (one.id, one.token - 1), lease(other)])
    assert isinstance(strange.error, InvalidArgument)
    assert strange.error.field == "leases[0].id"
    assert never.already_gone
    [unknown] = await site.client.nack([(NEVER, 1)])
    assert isinstance(unknown.error, NotFound)
    assert isinstance(old.error, StaleLease)
    assert_done(fine)
    first, again = await site.client.ack([one, one])
    assert_done(first)
    assert isinstance(again.error, InvalidArgument)
    assert again.error.field == "leases[1].id"


@story
async def test_empty_list_needs_no_call(site: Site) -> None:
    client = site.client
    assert await client.enqueue([]) == []
    for call in (client.ack, client.nack, client.extend, client.release, client.cancel, client.redrive):
        assert await call([]) == []
    assert await client.extend_held_leases([]) == []
