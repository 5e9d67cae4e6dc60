"""Items are moved to another topic, and restored with their history, on every kind of host."""

from __future__ import annotations

from foqs_client import InvalidArgument, Item, ItemFilter, KeyConflict, Nack, NotFound, RestoredItem
from tests.behaviour.sites import SPAN_MS, Site, story

HOUR_MS = 3_600_000


@story
async def test_moved_items_have_new_ids_in_the_other_topic_and_a_repeat_replies_them(site: Site) -> None:
    other = f"{site.topic}-other"
    ids = await site.put(*[Item(site.topic, b"%d" % place, priority=place, metadata=b"m") for place in range(3)])
    results = await site.client.move(ids, other)
    moved = [result.require() for result in results]
    assert [result.repeated for result in results] == [False] * 3
    again = await site.client.move(ids, other)
    assert [(result.require(), result.repeated) for result in again] == [(id, True) for id in moved]
    conflicts = await site.client.move(ids, f"{other}-2")
    assert {type(result.error) for result in conflicts} == {KeyConflict}
    assert await site.client.dequeue({site.topic: 9}) == []
    found = await site.client.dequeue({other: 9}, wait_ms=5_000)
    assert [(each.id, each.payload, each.metadata, each.attempt) for each in found] == [
        (id, b"%d" % place, b"m", 1) for place, id in enumerate(moved)
    ]
    assert [outcome.already_gone for outcome in await site.client.ack(found)] == [False] * 3
    assert [result.require() for result in await site.client.move(ids, other)] == moved


@story
async def test_dead_items_are_moved_by_filter_and_are_ready_with_new_attempts(site: Site) -> None:
    other = f"{site.topic}-other"
    payload = bytes(range(256)) * 40
    await site.put(*[Item(site.topic, payload, attempts_max=1) for _ in range(5)])
    await site.client.nack([Nack(each.id, each.token) for each in await site.get(5)])
    await site.put(Item(site.topic))
    moved, cursor = 0, None
    while True:
        page = await site.client.move_matching(ItemFilter(site.topic, ["dead"]), other, 2, cursor)
        moved, cursor = moved + page.changed, page.next_cursor
        if cursor is None:
            break
    assert moved == 5
    found = await site.client.dequeue({other: 9}, wait_ms=5_000)
    assert [(each.attempt, each.attempts_max, each.payload == payload) for each in found] == [(1, 1, True)] * 5
    assert (await site.client.count(ItemFilter(site.topic))).items == 1


@story
async def test_leased_gone_and_foreign_items_are_not_moved(site: Site) -> None:
    [leased] = await site.put(Item(site.topic))
    held = await site.one()
    [gone] = await site.put(Item(site.topic))
    await site.client.cancel([gone])
    results = await site.client.move([leased, gone], f"{site.topic}-other")
    assert [type(result.error) for result in results] == [InvalidArgument, NotFound]
    [same] = await site.client.move([leased], site.topic)
    assert isinstance(same.error, InvalidArgument)
    async with site.namespace("other") as other:
        [foreign] = await other.move([leased], f"{site.topic}-other")
        assert isinstance(foreign.error, NotFound)
    [outcome] = await site.client.ack([held])
    outcome.require()


@story
async def test_deferred_item_is_moved_with_its_moment_and_the_rest_of_its_ttl(site: Site) -> None:
    [id] = await site.put(Item(site.topic, delay_ms=SPAN_MS, ttl_ms=HOUR_MS))
    [result] = await site.client.move([id], f"{site.topic}-other")
    view = await site.client.item(result.require())
    assert view.state == "deferred"
    assert view.ttl_remaining_ms is not None and HOUR_MS - 60_000 < view.ttl_remaining_ms <= HOUR_MS
    await site.pass_ms(SPAN_MS)
    [found] = await site.client.dequeue({f"{site.topic}-other": 1}, wait_ms=5_000)
    assert found.id == result.id


@story
async def test_moved_items_may_get_another_ttl(site: Site) -> None:
    ids = await site.put(Item(site.topic), Item(site.topic, ttl_ms=HOUR_MS), Item(site.topic, delay_ms=HOUR_MS))
    results = await site.client.move(ids, f"{site.topic}-other", ttl_remaining_ms=3 * HOUR_MS)
    views = [await site.client.item(result.require()) for result in results]
    assert [view.state for view in views] == ["ready", "ready", "deferred"]
    for view in views:
        assert view.ttl_remaining_ms is not None and 2 * HOUR_MS < view.ttl_remaining_ms <= 3 * HOUR_MS


@story
async def test_restored_items_have_their_history_and_are_restored_once(site: Site) -> None:
    items = [
        RestoredItem(site.topic, b"a", 7, b"m", f"{site.topic}-a", attempt=2, attempts_max=3, trace_context=b"t"),
        RestoredItem(site.topic, b"b", restore_key=f"{site.topic}-b", attempt=4, state="dead"),
        RestoredItem(site.topic, b"c", idempotency_key=f"{site.topic}-c", ttl_ms=HOUR_MS, ttl_remaining_ms=60_000),
        RestoredItem(site.topic, b"d", restore_key=f"{site.topic}-d", state="leased", attempt=3, attempts_max=3),
        RestoredItem(site.topic, b"e", restore_key=f"{site.topic}-e", state="leased", attempt=2, attempts_max=3),
    ]
    results = await site.client.restore(items)
    ids = [result.require() for result in results]
    assert [result.repeated for result in results] == [False] * 5
    again = await site.client.restore(items)
    assert [(result.require(), result.repeated) for result in again] == [(id, True) for id in ids]
    views = [await site.client.item(id, with_payload=True) for id in ids]
    assert [view.state for view in views] == ["ready", "dead", "ready", "dead", "ready"]
    assert [view.attempt for view in views] == [2, 4, 0, 3, 2]
    assert [view.payload for view in views] == [b"a", b"b", b"c", b"d", b"e"]
    assert [view.idempotency_key for view in views] == [None, None, f"{site.topic}-c", None, None]
    assert (views[0].priority, views[0].metadata, views[0].trace_context) == (7, b"m", b"t")
    assert views[2].ttl_remaining_ms is not None and views[2].ttl_remaining_ms <= 60_000
    [producer] = await site.client.enqueue([Item(site.topic, b"c", idempotency_key=f"{site.topic}-c")])
    assert (producer.id, producer.repeated) == (ids[2], True)
    assert (await site.client.count(ItemFilter(site.topic))).items == 5


@story
async def test_bad_restored_item_fails_alone(site: Site) -> None:
    good = RestoredItem(site.topic, restore_key=f"{site.topic}-good")
    results = await site.client.restore([RestoredItem(site.topic), good, RestoredItem("", restore_key="1")])
    assert [type(result.error) for result in results] == [InvalidArgument, type(None), InvalidArgument]
