"""Lists of groups, on the fake and on real hosts: who waits, for how long, and what holds each group back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foqs_client import Delivery, InvalidArgument, Item, ListedGroup, ListedGroups, Nack, NamespaceNotFound, TopicPolicy
from tests.behaviour.sites import SPAN_MS, Site, story


async def listed(
    site: Site, is_awaited: Callable[[ListedGroups], bool] = lambda found: not found.partial, **arguments: object
) -> ListedGroups:
    """Return the list of the story's groups when it is as awaited: at first, rows may have to be read."""
    found: list[ListedGroups] = []

    async def is_there() -> bool:
        found.append(await site.client.groups(site.topic, **arguments))  # type: ignore[arg-type]
        return is_awaited(found[-1])

    await site.until(is_there)
    return found[-1]


def by_name(found: ListedGroups) -> dict[str, ListedGroup]:
    return {group.group: group for group in found.groups}


@story
async def test_the_largest_groups_or_those_that_have_waited_longest_come_first(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    await site.put(Item(site.topic, group="old", priority=7))
    await site.pass_ms(50)
    await site.put(*[Item(site.topic, group=name) for name in ("large", "mean", "large", "mean", "large")])
    await site.put(Item(site.topic), Item(site.topic))
    await site.pass_ms(50)
    found = await listed(site)
    assert [(group.group, group.ready, group.state) for group in found.groups] == [
        ("large", 3, "eligible"),
        ("mean", 2, "eligible"),
        ("old", 1, "eligible"),
    ]
    assert found.counts == {"eligible": 3}
    assert (found.ungrouped, found.full, found.paused) == (2, False, False)
    assert (found.group_leases_max, found.fair) == (1, None)
    oldest = await listed(site, order="age", limit=1)
    assert [group.group for group in oldest.groups] == ["old"]
    assert oldest.counts == {"eligible": 3}
    [old] = oldest.groups
    assert (old.priority, old.leased, old.blockers, old.groups_before, old.weight) == (7, 0, (), None, None)
    assert old.oldest_ready_age_ms is not None
    assert old.oldest_ready_age_ms >= 100


@story
async def test_the_items_that_hold_a_group_back_are_named(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    for name in ("leased", "returned"):
        await site.put(*[Item(site.topic, name.encode(), group=name) for _ in range(2)])
    held: dict[str | None, Delivery] = {}
    while len(held) < 2:
        held |= {delivery.group: delivery for delivery in await site.get(9)}
    busy = by_name(await listed(site))
    assert {name: (group.state, group.ready, group.leased) for name, group in busy.items()} == {
        "leased": ("leased", 1, 1),
        "returned": ("leased", 1, 1),
    }
    assert {name: group.blockers for name, group in busy.items()} == {
        name: (delivery.id,) for name, delivery in held.items()
    }
    returned = held["returned"]
    [outcome] = await site.client.nack([Nack(returned.id, returned.token, 3_600_000)])
    outcome.require()
    [group] = (await listed(site, states=["backing_off"])).groups
    assert (group.group, group.ready, group.leased, group.backing_off) == ("returned", 1, 0, 1)
    assert group.blockers == (returned.id,)
    assert group.resumes_in_ms is not None
    assert 0 < group.resumes_in_ms <= 3_600_000
    [outcome] = await site.client.ack([held["leased"]])
    outcome.require()
    found = await listed(site, group="leased")
    assert [(group.group, group.state, group.blockers) for group in found.groups] == [("leased", "eligible", ())]
    assert (found.counts, found.ungrouped) == ({"eligible": 1}, None)
    assert (await listed(site, group="nobody")).groups == []


@story
async def test_with_a_higher_limit_a_group_is_eligible_until_all_its_leases_are_taken(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=2))
    await site.spread()
    await site.put(*[Item(site.topic, group="ada") for _ in range(3)])
    first = await site.one()
    [ada] = (await listed(site)).groups
    assert (ada.state, ada.ready, ada.leased) == ("eligible", 2, 1)
    second = await site.one()
    [ada] = (await listed(site)).groups
    assert (ada.state, ada.ready, ada.leased, set(ada.blockers)) == ("leased", 1, 2, {first.id, second.id})
    await site.client.ack([first])
    third = await site.one()
    await site.client.ack([second])
    [ada] = (await listed(site)).groups
    assert (ada.state, ada.ready, ada.leased, ada.priority) == ("idle", 0, 1, None)
    await site.client.ack([third])
    assert (await listed(site)).counts == {}


@story
async def test_turns_and_weights_of_a_fair_topic_are_listed(site: Site) -> None:
    a, b, c = await site.groups_of_one_host(3)
    await site.client.set_topic_policy(TopicPolicy(site.topic, fair="items", weights={b: 4}))
    await site.spread()
    await site.put(*[Item(site.topic, group=name) for name in (a, a, a, b, c, c)])
    await site.put(Item(site.topic))
    found = await listed(site, lambda found: found.counts == {"eligible": 3})
    groups = by_name(found)
    assert [group.group for group in found.groups] == [a, c, b]
    assert {name: group.weight for name, group in groups.items()} == {a: 1, b: 4, c: 1}
    assert groups[b].groups_before == 0
    assert groups[a].groups_before != groups[c].groups_before
    assert all(group.leased is None for group in found.groups)
    assert (found.ungrouped, found.group_leases_max, found.fair) == (1, None, "items")


@story
async def test_a_topic_without_a_policy_has_no_groups_in_memory(site: Site) -> None:
    await site.put(Item(site.topic, group="ada"))
    await site.spread()
    found = await site.client.groups(site.topic)
    assert (found.groups, found.counts, found.group_leases_max, found.fair) == ([], {}, None, None)
    assert not found.partial
    await site.client.pause_topic(site.topic)
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    paused = await listed(site, lambda found: found.counts == {"eligible": 1})
    assert (paused.paused, paused.group_leases_max) == (True, 1)
    assert not (await site.client.groups(f"{site.topic}-elsewhere")).paused


@story
async def test_a_long_group_is_known_in_part_and_comes_first(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    await site.put(*[Item(site.topic, group="long") for _ in range(200)])
    await site.put(*[Item(site.topic, group="short") for _ in range(3)])
    found = await listed(site, lambda found: len(found.groups) == 2)
    long, short = found.groups
    assert (long.group, long.ready_more, short.group, short.ready, short.ready_more) == (
        "long",
        True,
        "short",
        3,
        False,
    )
    assert 0 < long.ready < 200


@story
async def test_bad_requests_for_groups_are_refused(site: Site) -> None:
    for field, arguments in (
        ("topic", {"topic": ""}),
        ("order", {"order": "name"}),
        ("states", {"states": ["blocked"]}),
        ("states", {"states": []}),
        ("group", {"group": ""}),
        ("limit", {"limit": 0}),
    ):
        with pytest.raises(InvalidArgument) as refused:
            await site.client.groups(**{"topic": site.topic, **arguments})  # type: ignore[arg-type]
        assert refused.value.field == field
    async with site.namespace("nobody's") as stranger:
        with pytest.raises(NamespaceNotFound):
            await stranger.groups(site.topic)


@story
async def test_a_namespace_lists_its_own_groups_only(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.put(Item(site.topic, group="ada"))
    await site.pass_ms(SPAN_MS // 10)
    async with site.namespace("other") as other:
        found = await other.groups(site.topic)
    assert (found.groups, found.counts, found.group_leases_max) == ([], {}, None)


@story
async def test_an_explanation_has_the_rank_of_an_item_in_its_group_and_what_locks_the_group(site: Site) -> None:
    await site.client.set_topic_policy(TopicPolicy(site.topic, group_leases_max=1))
    await site.spread()
    ids = await site.put(*[Item(site.topic, group="ada") for _ in range(4)])
    held = await site.one()
    assert held.id == ids[0]
    last = await site.client.explain(ids[3])
    assert (last.blockers, last.group_items_before, last.groups_before) == ((ids[0],), 2, None)
    assert last.reasons[1] == "Of its group, 2 known ready items come before it."
    assert any(f"foqs topic groups {site.topic} --group ada" in remedy for remedy in last.remedies)
    second = await site.client.explain(ids[1])
    assert (second.blockers, second.group_items_before) == ((ids[0],), 0)
    assert not any("Of its group" in reason for reason in second.reasons)
    assert (await site.client.explain(ids[0])).group_items_before is None, "it is leased"
    plain = await site.put(Item(f"{site.topic}-plain", group="ada"))
    unlimited = await site.client.explain(plain[0])
    assert (unlimited.blockers, unlimited.group_items_before, unlimited.groups_before) == ((), None, None)


@story
async def test_an_explanation_in_a_fair_topic_has_the_rank_of_the_group(site: Site) -> None:
    a, b = await site.groups_of_one_host(2)
    await site.client.set_topic_policy(TopicPolicy(site.topic, fair="items", weights={b: 9}))
    await site.spread()
    ids = await site.put(*[Item(site.topic, group=name) for name in (a, a, a, b)])
    await listed(site, lambda found: found.counts == {"eligible": 2})
    explained = [await site.client.explain(id_) for id_ in ids]
    assert [(each.groups_before, each.group_items_before) for each in explained] == [(1, 0), (1, 1), (1, 2), (0, 0)]
    assert {each.blockers for each in explained} == {()}
