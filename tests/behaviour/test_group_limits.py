"""Policies of topics: how many items of one group are leased at once, on the fake and on real hosts."""

from __future__ import annotations

from foqs_client import Delivery, Item, Nack, StaleLease, TopicPolicy
from tests.behaviour.sites import SPAN_MS, Site, story


async def policies(site: Site) -> list[TopicPolicy]:
    """Return the policy of the story's topic, if it has one."""
    return [policy for policy in await site.client.topic_policies() if policy.topic == site.topic]


async def shown_limits(site: Site) -> list[int | None]:
    """Return the limit that the list of topics shows of the topic."""
    page = await site.client.topics(prefix=site.topic, limit=1)
    return [found.group_leases_max for found in page.topics if found.topic == site.topic]


@story
async def test_items_of_a_strict_group_are_delivered_one_by_one_and_in_order(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    ids = await site.put(*[Item(site.topic, b"%d" % place, group="ada") for place in range(3)])
    for place in range(3):
        [delivery] = await site.get(9)
        assert (delivery.id, delivery.payload) == (ids[place], b"%d" % place)
        await site.put(Item(site.topic, b"better", priority=-1, delay_ms=3_600_000, group="ada"))
        [outcome] = await site.client.nack([Nack(delivery.id, delivery.token, 0)])
        outcome.require()
        again = await site.one()  # a returned item is the first of its group
        assert (again.id, again.attempt) == (ids[place], 2)
        [outcome] = await site.client.ack([again])
        outcome.require()


@story
async def test_a_group_has_at_most_as_many_leases_as_the_policy_says_and_others_are_not_kept_waiting(
    site: Site,
) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=2))
    await site.spread()
    ada = await site.put(*[Item(site.topic, group="ada", priority=-1) for _ in range(4)])
    others = await site.put(Item(site.topic, group="bob"), Item(site.topic), Item(site.topic))
    found: list[Delivery] = []
    while len(found) < 5:
        found += await site.get(9)
    first = [each for each in found if each.group == "ada"]
    assert [each.id for each in first] == ada[:2]
    assert {each.id for each in found} - set(ada) == set(others)
    assert await site.client.dequeue({site.topic: 9}) == []
    [outcome] = await site.client.ack(first[:1])
    outcome.require()
    [third] = await site.get(9)
    assert third.id == ada[2]


@story
async def test_what_holds_a_ready_item_back_is_explained(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    first, second = await site.put(*[Item(site.topic, group="ada") for _ in range(2)])
    held = await site.one()
    assert held.id == first
    explanation = await site.client.explain(second)
    assert explanation.reasons[0] == (
        "It is ready, but its group 'ada' holds it back: the policy of its topic allows 1 delivered item, or 1 run, of a group at once, "
        f"and {first} comes first."
    )
    assert explanation.remedies[0].endswith(f"foqs explain {first}")
    [outcome] = await site.client.ack([held])
    outcome.require()
    assert "holds it back" not in (await site.client.explain(second)).reasons[0]


@story
async def test_a_limit_may_be_set_changed_and_removed_while_items_are_leased(site: Site) -> None:
    ids = await site.put(*[Item(site.topic, group="ada") for _ in range(6)])
    first = await site.get(2)
    assert len(first) == 2
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    assert await policies(site) == [TopicPolicy(site.topic, 1)]
    await site.spread()
    assert await shown_limits(site) == [1]
    assert await site.client.dequeue({site.topic: 9}, wait_ms=SPAN_MS // 2) == []
    await site.client.ack(first)
    [third] = await site.get(9)
    assert third.id == ids[2]
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=2))
    await site.spread()
    [fourth] = await site.get(9)
    assert fourth.id == ids[3]
    await site.client.set_topic_policy(TopicPolicy(site.topic))
    assert await policies(site) == []
    await site.spread()
    assert await shown_limits(site) == [None]
    found: list[Delivery] = []
    while len(found) < 2:
        found += await site.get(9)
    assert [each.id for each in found] == ids[4:]


@story
async def test_a_lease_of_a_limited_group_that_has_ended_is_not_extended(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    await site.put(Item(site.topic, group="ada"))
    held = await site.one(lease_ms=SPAN_MS)

    async def is_ready() -> bool:
        return (await site.client.item(held.id)).state == "ready"

    await site.until(is_ready)
    [outcome] = await site.client.extend([held], lease_ms=30_000)
    assert isinstance(outcome.error, StaleLease)


@story
async def test_a_run_of_a_strict_group_is_delivered_together_and_ends_where_an_item_fails(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    ids = await site.put(*[Item(site.topic, b"%d" % place, group="ada") for place in range(5)])
    run = await site.client.dequeue({site.topic: 9}, run_max=3, wait_ms=5_000)
    assert [delivery.id for delivery in run] == ids[:3]
    assert await site.client.dequeue({site.topic: 9}, run_max=3) == []
    [outcome] = await site.client.ack(run[:1])
    outcome.require()
    [outcome] = await site.client.nack([Nack(run[1].id, run[1].token, 0)])
    outcome.require()
    [outcome] = await site.client.ack(run[2:])
    assert isinstance(outcome.error, StaleLease)
    again = await site.client.dequeue({site.topic: 9}, run_max=9, wait_ms=5_000)
    while len(again) < 4:  # what came back in one flush with a waiting dequeue is a run of its own
        [outcome] = await site.client.ack(again[-1:])
        outcome.require()
        again += await site.client.dequeue({site.topic: 9}, run_max=9, wait_ms=5_000)
    assert [(delivery.id, delivery.attempt) for delivery in again] == [(ids[1], 2), *[(id, 1) for id in ids[2:]]]
