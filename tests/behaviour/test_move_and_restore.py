"""Items are moved to another topic, and restored with their history, on every kind of host."""

from __future__ import annotations

import time

from foqs_client import Delivery, InvalidArgument, Item, ItemFilter, KeyConflict, Nack, NotFound, RestoredItem
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
    since_s = time.monotonic()
    [id] = await site.put(Item(site.topic, delay_ms=SPAN_MS, ttl_ms=HOUR_MS))
    [result] = await site.client.move([id], f"{site.topic}-other")
    view = await site.client.item(result.require())
    assert view.state == "deferred" or site.stood_still(since_s)
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


@story
async def test_an_item_keeps_its_group_whatever_happens_to_it(site: Site) -> None:
    other = f"{site.topic}-other"
    groups = [f"{site.topic} größe {number}" for number in range(4)]
    items = [Item(site.topic, b"p", group=group, attempts_max=2) for group in groups]
    ids = await site.put(*items, Item(site.topic, b"p"))
    assert {(await site.client.item(id)).group for id in ids} == {*groups, None}
    assert {view.group for view in (await site.client.peek(site.topic, limit=9)).items} == {*groups, None}
    found: list[Delivery] = []
    while len(found) < len(ids):
        found += await site.get(len(ids) - len(found))
    assert {delivery.group for delivery in found} == {*groups, None}
    held = next(delivery for delivery in found if delivery.group == groups[0])
    [outcome] = await site.client.nack([Nack(held.id, held.token, dead=True)])
    outcome.require()
    [dead] = (await site.client.peek(site.topic, "dead")).items
    assert (dead.id, dead.group, dead.state) == (held.id, groups[0], "dead")
    [outcome] = await site.client.redrive([held.id])
    outcome.require()
    again = await site.one()
    assert (again.id, again.group, again.attempt) == (held.id, groups[0], 1)
    [outcome] = await site.client.release([again])
    outcome.require()
    [moved] = await site.client.move([held.id], other)
    [last] = await site.client.dequeue({other: 1}, wait_ms=5_000)
    assert (last.id, last.group, last.payload) == (moved.require(), groups[0], b"p")
    shards = {id.split("-")[0] for id in (held.id, last.id)}
    assert len(shards) == 1


@story
async def test_a_key_is_unique_within_its_group_and_a_restored_item_has_both(site: Site) -> None:
    one, two = f"{site.topic} one", f"{site.topic} two"
    items = [Item(site.topic, idempotency_key="k" * 237, group=group) for group in (one, two)]
    [first, second, free] = await site.put(*items, Item(site.topic, idempotency_key=f"{site.topic}-k"))
    repeats = await site.client.enqueue(items)
    assert [(result.id, result.repeated) for result in repeats] == [(first, True), (second, True)]
    view = await site.client.item(first)
    assert (view.group, view.idempotency_key) == (one, "k" * 237)
    assert (await site.client.item(free)).group is None
    [conflict] = await site.client.enqueue([Item(site.topic, b"x", idempotency_key="k" * 237, group=one)])
    assert isinstance(conflict.error, KeyConflict)
    [long] = await site.client.enqueue([Item(site.topic, idempotency_key="k" * 238, group=one)])
    assert isinstance(long.error, InvalidArgument)
    assert long.error.field == "items[0].idempotency_key"
    assert "leave out group" in str(long.error)
    restored = [
        RestoredItem(site.topic, group=one, idempotency_key=f"{site.topic}-k"),
        RestoredItem(site.topic, group=one, restore_key=f"{site.topic}-r"),
        RestoredItem(site.topic, group=two, restore_key=f"{site.topic}-r"),
        RestoredItem(site.topic, group=two, idempotency_key="k" * 237),
    ]
    results = await site.client.restore(restored)
    *new, repeat = results
    assert [result.repeated for result in results] == [False, False, False, True]
    assert repeat.id == second
    assert [(result.id, result.repeated) for result in await site.client.restore(restored)] == [
        (result.id, True) for result in results
    ]
    views = [await site.client.item(result.require()) for result in new]
    assert [(view.group, view.idempotency_key) for view in views] == [
        (one, f"{site.topic}-k"),
        (one, None),
        (two, None),
    ]
    shards = [id.split("-")[0] for id in (first, new[0].id or "", new[1].id or "")]
    assert len(set(shards)) == 1


@story
async def test_items_of_a_group_are_counted_and_cancelled_by_filter_and_others_stay(site: Site) -> None:
    group = f"{site.topic} it's größe"
    mine = await site.put(*[Item(site.topic, group=group, delay_ms=HOUR_MS * (place % 2)) for place in range(5)])
    await site.put(Item(site.topic), Item(site.topic, group=f"{group}!"), Item(f"{site.topic}-other", group=group))
    assert (await site.client.count(ItemFilter(group=group))).items == 6
    assert (await site.client.count(ItemFilter(site.topic, group=group))).items == 5
    shard = int(mine[0].split("-")[0])
    listed = await site.client.list_items(shard, ItemFilter(group=group))
    assert {view.group for view in listed.items} == {group}
    assert len(listed.items) == 6
    cancelled, cursor = 0, None
    while True:
        page = await site.client.cancel_matching(ItemFilter(site.topic, ["ready"], group=group), 2, cursor)
        cancelled, cursor = cancelled + page.changed, page.next_cursor
        if cursor is None:
            break
    assert cancelled == 3
    assert (await site.client.count(ItemFilter(site.topic))).items == 4
