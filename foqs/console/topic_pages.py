"""The pages of topics: the list of a namespace, and one topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from foqs.console.visit import Visit
from foqs_client import InvalidArgument, ItemFilter, Topic

STATES: Final = ("ready", "leased", "deferred", "dead")
"""All states of an item."""
PAGE_TOPICS: Final = 100
PAGE_ITEMS: Final = 20


async def topics(visit: Visit) -> web.StreamResponse:
    """Show a page of topics by name, with counts."""
    prefix, everything = visit.values.get("prefix", ""), visit.text("all") == "1"
    cursor = visit.values.get("cursor") or None
    found = await visit.client.topics(
        prefix=prefix, states=STATES if everything else None, limit=PAGE_TOPICS, cursor=cursor
    )
    return visit.page("topics.html", "Topics", found=found, prefix=prefix, everything=everything, cursor=cursor)


async def topic(visit: Visit) -> web.StreamResponse:
    """Show one topic, or change it."""
    name = visit.require("topic")
    if visit.request.method == "POST":
        return await _change(visit, name)
    state = visit.text("state") or "ready"
    if state not in STATES:
        raise InvalidArgument(f"{state!r} is not a state; use one of {', '.join(STATES)}", field="state")
    cursor = visit.values.get("cursor") or None
    items = await visit.client.peek(name, state, PAGE_ITEMS, cursor)
    return visit.page(
        "topic.html",
        f"Topic {name}",
        topic=name,
        counts=await counts_of(visit, name),
        states=STATES,
        state=state,
        items=items,
        cursor=cursor,
    )


async def counts_of(visit: Visit, name: str) -> Topic | None:
    """Return the counts of a topic; None if it has no items."""
    # By name, so the topic itself comes before those whose names begin with its own.
    page = await visit.client.topics(prefix=name, states=STATES, limit=1)
    return next((found for found in page.topics if found.topic == name), None)


async def _change(visit: Visit, name: str) -> web.StreamResponse:
    action = visit.text("action")
    if action == "pause":
        await visit.client.pause_topic(name)
        visit.see("/topic", topic=name, done="paused")
    if action == "resume":
        await visit.client.resume_topic(name)
        visit.see("/topic", topic=name, done="resumed")
    if action == "purge":
        if visit.text("confirmed") != "1":
            count = await visit.client.count(ItemFilter(name))
            return visit.page(
                "confirm.html",
                f"Purge {name}?",
                path="/topic",
                action="purge",
                fields={"topic": name},
                text=f"This deletes all items of the topic {name}, in every state: {count.items:,} at the moment. "
                "They cannot be brought back.",
                button="Delete all items",
                back={"topic": name},
            )
        count_purged = await visit.client.purge_topic(name)
        visit.see("/topic", topic=name, done="purged", count=count_purged)
    raise InvalidArgument(f"{action!r} is not an action of topics", field="action")


TOPIC_PAGES: Final[Mapping[str, Callable[[Visit], Awaitable[web.StreamResponse]]]] = {
    "/topics": topics,
    "/topic": topic,
}
