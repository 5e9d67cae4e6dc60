"""Completions: an item is acked with the items that follow from it, on every kind of host."""

from __future__ import annotations

from foqs_client import (
    Completion,
    FoqsError,
    InvalidArgument,
    Item,
    ItemFilter,
    KeyConflict,
    LimitExceeded,
    NotFound,
    StaleLease,
)
from tests.behaviour.sites import PAYLOAD_BYTES_MAX, SPAN_MS, Site, story

ALL = 100


@story
async def test_item_is_acked_with_the_items_that_follow_and_a_repeat_returns_their_ids(site: Site) -> None:
    other = f"{site.topic}-other"
    await site.put(*[Item(site.topic, b"%d" % place) for place in range(3)])
    deliveries = await site.get(3)
    completions = [
        Completion(delivery, [Item(other, delivery.payload, priority=-1), Item(other, metadata=b"m", delay_ms=0)])
        for delivery in deliveries
    ]
    results = await site.client.complete(completions)
    ids = [result.require() for result in results]
    assert [result.repeated for result in results] == [False] * 3
    assert [{new.split("-")[0] for new in own} for own in ids] == [{each.id.split("-")[0]} for each in deliveries]
    again = await site.client.complete(
        [
            Completion((each.delivery.id, each.delivery.token), each.items)
            for each in completions
            if not isinstance(each.delivery, tuple)
        ]
    )
    assert [(result.require(), result.repeated) for result in again] == [(own, True) for own in ids]
    assert await site.client.dequeue({site.topic: ALL}) == []
    found = await site.client.dequeue({other: ALL}, wait_ms=5_000)
    assert sorted(each.id for each in found) == sorted(new for own in ids for new in own)
    assert sorted(each.payload for each in found if each.payload) == [b"0", b"1", b"2"]
    assert [outcome.already_gone for outcome in await site.client.ack(found)] == [False] * 6


@story
async def test_superseded_token_and_an_item_that_is_gone_write_nothing(site: Site) -> None:
    other = f"{site.topic}-other"
    await site.put(Item(site.topic))
    late = await site.one(lease_ms=SPAN_MS)
    await site.pass_ms(SPAN_MS)
    now = await site.one()
    [stale] = await site.client.complete([Completion(late, [Item(other)])])
    assert isinstance(stale.error, StaleLease)
    await site.client.ack([now])
    [gone] = await site.client.complete([Completion(now, [Item(other)])])
    assert isinstance(gone.error, StaleLease)
    async with site.namespace("other") as stranger:
        await site.put(Item(site.topic))
        held = await site.one()
        [foreign] = await stranger.complete([Completion(held, [Item(other)])])
        assert isinstance(foreign.error, NotFound)
    assert (await site.client.count(ItemFilter(other))).items == 0


@story
async def test_bad_item_fails_its_completion_alone_and_its_field_is_named(site: Site) -> None:
    t, other = site.topic, f"{site.topic}-other"
    key = f"~001{t}"
    await site.put(*[Item(t)] * 8)
    held = await site.get(8)
    slot_shard = (await site.put(Item(other, b"used", idempotency_key=key)))[0].split("-")[0]
    here = [each for each in held[1:] if each.id.startswith(f"{slot_shard}-")]
    bad: list[tuple[list[Item], type[FoqsError], str]] = [
        ([], InvalidArgument, "completions[1].item_count"),
        ([Item(other), Item("")], InvalidArgument, "completions[1].items[1].topic"),
        ([Item(other, b"x" * (PAYLOAD_BYTES_MAX + 1))], LimitExceeded, "completions[1].items[0].payload"),
        ([Item(other)] * 101, LimitExceeded, "completions[1].item_count"),
        (
            [Item(other, idempotency_key="a"), Item(other, idempotency_key="a")],
            InvalidArgument,
            "completions[1].items[1].idempotency_key",
        ),
        (
            [Item(other, ttl_ms=1, deliver_after_ms=253_402_300_799_999)],
            InvalidArgument,
            "completions[1].items[0].ttl_ms",
        ),
    ]
    for items, kind, field in bad:
        [fine, failed] = await site.client.complete(
            [Completion(held[0], [Item(f"{t}-fine")]), Completion(held[1], items)]
        )
        assert fine.error is None
        assert isinstance(failed.error, kind), failed
        assert failed.error.field == field
    for delivery in here[:1]:
        [conflict] = await site.client.complete([Completion(delivery, [Item(other, b"new", idempotency_key=key)])])
        assert isinstance(conflict.error, KeyConflict)
        assert conflict.error.field == "completions[0].items[0].idempotency_key"
    for delivery in held[1:]:
        if delivery not in here:
            [elsewhere] = await site.client.complete([Completion(delivery, [Item(other, idempotency_key=key)])])
            assert isinstance(elsewhere.error, InvalidArgument)
            assert (
                "completions[0].id and completions[0].items[0].idempotency_key belong to different shards"
                in elsewhere.error.message
            )
            break
    assert (await site.client.count(ItemFilter(other))).items == 1
    assert (await site.client.count(ItemFilter(f"{t}-fine"))).items == 1


@story
async def test_item_of_a_remembered_key_is_not_added_again(site: Site) -> None:
    other = f"{site.topic}-other"
    await site.put(*[Item(site.topic)] * 6)
    held = await site.get(6)
    key = f"~002{site.topic}"
    [old] = await site.put(Item(other, b"same", idempotency_key=key))
    here = [each for each in held if each.id.split("-")[0] == old.split("-")[0]]
    for delivery in here:
        then = [Item(other), Item(other, b"same", idempotency_key=key)]
        [result] = await site.client.complete([Completion(delivery, then)])
        assert result.require()[1] == old
        [again] = await site.client.complete([Completion(delivery, then)])
        assert (again.require(), again.repeated) == (result.require(), True)
    assert (await site.client.count(ItemFilter(other))).items == 1 + len(here)
