"""Fair topics: their groups take turns, on the fake and on real hosts. Judged is what consumers got, in the order in which they got it.

The groups of a story are of one host: that is what the turns of groups are counted over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from foqs_client import Delivery, InvalidArgument, Item, TopicPolicy
from tests.behaviour.sites import SPAN_MS, Site, story
from tests.support.plain_turns import TurnAccount


async def records(site: Site, count: int) -> list[Delivery]:
    """Get and ack items one by one."""
    found: list[Delivery] = []
    while len(found) < count:
        delivery = await site.one()
        found.append(delivery)
        [outcome] = await site.client.ack([delivery])
        outcome.require()
    return found


async def begin(site: Site, *items: Item) -> None:
    """Enqueue items and get them, so that their shards have read the topic: its groups take no turns before."""
    await site.put(*items)
    await site.spread()
    await records(site, len(items))


def worst_wait(found: list[Delivery], waiting: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Return how much more often than it may a group was delivered from while another one waited; at most 1 is right."""
    account, left = TurnAccount(weights), Counter(waiting)
    for delivery in found:
        assert delivery.group is not None
        account.deliver(delivery.group, 0, {name: 0 for name in left if left[name]})
        left[delivery.group] -= 1
    return float(account.most)


async def shown(site: Site) -> list[tuple[int | None, str | None]]:
    """Return limit and fairness that the list of topics shows of the topic."""
    page = await site.client.topics(prefix=site.topic, limit=1)
    return [(found.group_leases_max, found.fair) for found in page.topics if found.topic == site.topic]


@story
async def test_groups_take_turns_by_weight(site: Site) -> None:
    a, b, c, d = await site.groups_of_one_host(4)
    for weights in ({}, {a: 3}):
        await site.client.set_topic_policy(TopicPolicy(site.topic, fair="items", weights=weights))
        await site.spread()
        await begin(site, *[Item(site.topic, group=name) for name in (a, b, c, d)])
        waiting = {a: 24, b: 6, c: 3, d: 8}
        await site.put(*[Item(site.topic, group=name) for name, count in waiting.items() for _ in range(count)])
        await site.spread()
        found = await records(site, sum(waiting.values()))
        assert Counter(delivery.group for delivery in found) == waiting
        assert worst_wait(found, waiting, weights) <= 1
        for name in waiting:
            numbers = [int(delivery.id.partition("-")[2]) for delivery in found if delivery.group == name]
            assert numbers == sorted(numbers)


@story
async def test_a_new_item_of_a_group_does_not_wait_for_the_backlog_of_another(site: Site) -> None:
    a, b = await site.groups_of_one_host(2)
    await site.client.set_topic_policy(TopicPolicy(site.topic, fair="items"))
    await site.spread()
    await begin(site, *[Item(site.topic, group=name) for name in (a, b)])
    await site.put(*[Item(site.topic, group=a) for _ in range(100)])
    assert {delivery.group for delivery in await records(site, 5)} == {a}
    await site.put(Item(site.topic, group=b))
    assert b in {delivery.group for delivery in await records(site, 3)}


@story
async def test_an_item_without_a_group_takes_its_turn_as_a_group_does(site: Site) -> None:
    [a] = await site.groups_of_one_host(1)
    *keys, first_key = await site.keys_of_one_host(4)
    await site.client.set_topic_policy(TopicPolicy(site.topic, fair="items"))
    await site.spread()
    await begin(site, Item(site.topic, group=a), Item(site.topic, idempotency_key=first_key))
    await site.put(*[Item(site.topic, group=a) for _ in range(30)])
    await site.put(*[Item(site.topic, idempotency_key=key) for key in keys])
    await site.spread()
    found = await records(site, 8)
    assert [delivery.group for delivery in found].count(None) == 3


@story
async def test_priorities_come_before_turns(site: Site) -> None:
    a, b = await site.groups_of_one_host(2)
    await site.client.set_topic_policy(TopicPolicy(site.topic, fair="items"))
    await site.spread()
    await begin(site, *[Item(site.topic, group=name) for name in (a, b)])
    await site.put(*[Item(site.topic, group=a, priority=priority) for priority in (5, 1, 1)])
    await site.put(*[Item(site.topic, group=b, priority=3) for _ in range(2)])
    await site.spread()
    found = await records(site, 5)
    assert [delivery.group for delivery in found] == [a, a, b, b, a]


@story
async def test_by_time_a_group_with_long_leases_gets_fewer_items(site: Site) -> None:
    slow, quick = await site.groups_of_one_host(2)
    await site.client.set_topic_policy(TopicPolicy(site.topic, fair="time"))
    await site.spread()
    await site.put(*[Item(site.topic, group=name) for _ in range(40) for name in (slow, quick)])
    await site.spread()
    counts: Counter[str | None] = Counter()
    for _ in range(40):
        delivery = await site.one()
        counts[delivery.group] += 1
        await site.pass_ms(SPAN_MS // 2 if delivery.group == slow else SPAN_MS // 50)
        [outcome] = await site.client.ack([delivery])
        outcome.require()
    assert 0 < counts[slow] < counts[quick]


@story
async def test_a_fair_topic_may_have_a_limit_too(site: Site) -> None:
    a, b = await site.groups_of_one_host(2)
    await site.client.set_topic_policy(TopicPolicy(site.topic, 1, "items"))
    await site.spread()
    await site.put(*[Item(site.topic, group=name) for name in (a, a, b, b)])
    await site.spread()
    held: list[Delivery] = []
    while len(held) < 2:
        held += await site.get(9)
    assert {delivery.group for delivery in held} == {a, b}
    assert await site.client.dequeue({site.topic: 9}) == []
    await site.client.ack(held[:1])
    [following] = await site.get(9)
    assert following.group == held[0].group


@story
async def test_a_policy_with_turns_is_set_changed_shown_and_removed(site: Site) -> None:
    policy = TopicPolicy(site.topic, fair="time", weights={"Ada": 3, "é": 100})

    async def stored() -> list[TopicPolicy]:
        return [each for each in await site.client.topic_policies() if each.topic == site.topic]

    await site.client.set_topic_policy(policy)
    assert await stored() == [policy]
    ids = await site.put(*[Item(site.topic, group="Ada") for _ in range(3)])
    await site.spread()
    assert await shown(site) == [(None, "time")]
    for policy in (TopicPolicy(site.topic, 2, "items"), TopicPolicy(site.topic, 2), TopicPolicy(site.topic)):
        await site.client.set_topic_policy(policy)
        assert await stored() == [policy] * (policy != TopicPolicy(site.topic))
        await site.spread()
        assert await shown(site) == [(policy.group_leases_max, policy.fair)]
    assert {delivery.id for delivery in await records(site, 3)} == set(ids)
    with pytest.raises(InvalidArgument) as refused:
        await site.client.set_topic_policy(TopicPolicy(site.topic, weights={"Ada": 3}))
    assert refused.value.field == "policy.weights"


@story
async def test_the_turn_that_an_item_waits_for_is_explained(site: Site) -> None:
    a, b = await site.groups_of_one_host(2)
    await site.client.set_topic_policy(TopicPolicy(site.topic, fair="items"))
    await site.spread()
    await begin(site, *[Item(site.topic, group=name) for name in (a, b)])
    ids = await site.put(*[Item(site.topic, group=name) for name in (a, a, a, a, b, b)])
    await site.spread()
    await records(site, 1)
    explanation = await site.client.explain(ids[3])
    assert f"the turn of its group {a!r}" in explanation.reasons[0]
    assert "items of the group come before it" in explanation.reasons[0]
    assert explanation.better_items is None
