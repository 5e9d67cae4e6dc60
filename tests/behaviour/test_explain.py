"""Tests the explanation of why an item is not delivered."""

from __future__ import annotations

import pytest

from foqs_client import InvalidArgument, Item, Nack
from tests.behaviour.sites import Site, story


@story
async def test_explain_names_the_reason_and_the_remedy(site: Site) -> None:
    best, next_, deferred = await site.put(
        Item(site.topic), Item(site.topic, b"payload", priority=1), Item(site.topic, delay_ms=3_600_000)
    )
    explanation = await site.client.explain(next_, with_payload=True)
    assert explanation.item is not None
    assert (explanation.item.id, explanation.item.state, explanation.item.payload) == (next_, "ready", b"payload")
    assert (explanation.better_items, explanation.better_items_more) == (1, False)
    assert "1 better item" in explanation.reasons[0]
    assert explanation.remedies
    explanation = await site.client.explain(deferred)
    assert explanation.reasons[0].startswith("It is deferred until ")
    assert explanation.better_items is None
    held = await site.one()
    assert held.id == best
    assert "attempt 1 (of no maximum), with a lease until" in (await site.client.explain(best)).reasons[0]
    [outcome] = await site.client.nack([Nack(best, held.token, dead=True)])
    outcome.require()
    explanation = await site.client.explain(best)
    assert explanation.reasons[0].startswith("It is dead, given up by its consumer in attempt 1")
    assert f"foqs dead redrive {best}" in explanation.remedies[0]


@story
async def test_a_paused_topic_and_an_item_that_is_gone_are_explained(site: Site) -> None:
    (name,) = await site.put(Item(site.topic))
    await site.client.pause_topic(site.topic)
    await site.spread()
    explanation = await site.client.explain(name)
    assert explanation.reasons[0].startswith("Its topic is paused")
    assert f"foqs topic resume {site.topic}" in explanation.remedies[0]
    await site.client.resume_topic(site.topic)
    await site.client.cancel([name])
    explanation = await site.client.explain(name)
    assert (explanation.item, explanation.absent) == (None, True)
    assert "cannot be distinguished" in explanation.reasons[0]
    with pytest.raises(InvalidArgument):
        await site.client.explain("nonsense")
