"""The pages of topics: the list of a namespace, and one topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from aiohttp import web

from foqs.console.chart_geometry import Chart, Charts
from foqs.console.due_calendar import UNITS
from foqs.console.figure_formats import time_to_empty
from foqs.console.history import Point
from foqs.console.live import LivePart
from foqs.console.page_request import PageRequest
from foqs.console.rankings import ORDERS, Choice, TopicRanking
from foqs.console.topic_reads import inactive_topics, topic_calendar, topic_priority_line
from foqs.core.items.item import State
from foqs.queue.port import TopicStats
from foqs_client import InvalidArgument, ItemFilter, Topic

STATES: Final = ("ready", "leased", "deferred", "dead")
"""All states of an item."""
LIST_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "active": ("ready", "leased"),
    "any": STATES,
    **{state: (state,) for state in STATES},
}
"""The choices of the list: only topics with an item in one of these states."""
LIST_ORDERS: Final = ("name", *ORDERS)
LIMITS: Final = (
    "enqueues_per_minute",
    "backlog_items_max",
    "backlog_bytes_max",
    "payload_bytes_max",
    "lease_ms_default",
    "lease_ms_max",
    "attempts_max_default",
    "dead_retention_ms",
)
"""The settings of the namespace that limit a topic."""
PAGE_TOPICS: Final = 100
PAGE_ITEMS: Final = 20
RANKING_WAIT_S: Final = 0.4
LIST_PERIOD_S: Final = 5.0
CHARTS: Final = (
    Chart("Waiting time", (("oldest_ready_age_s", "age of the oldest ready item"),), "seconds"),
    Chart("Work", (("ready_per_s", "became ready"), ("acked_per_s", "acked")), "items per second"),
    Chart("Backlog", (("ready", "ready"), ("leased", "leased"), ("deferred", "deferred")), "items"),
)


# ------------------------------------------------------------------- the list


async def topics(page_request: PageRequest) -> web.StreamResponse:
    """Show a page of topics by name, or the first of them by ready items, age or dead items."""
    rankings = page_request.shared.rankings
    values = await _list_values(page_request, lambda choice, order: rankings.get(choice, order, RANKING_WAIT_S))
    return page_request.page("topics.html", "Topics", stream=TOPICS.address(page_request), **values)


async def list_values(page_request: PageRequest) -> Mapping[str, Any]:
    """Return what the live part of the list shows."""
    return await _list_values(page_request, page_request.shared.rankings.follow)


async def _list_values(
    page_request: PageRequest, get_ranking: Callable[[Choice, str], Awaitable[TopicRanking]]
) -> Mapping[str, Any]:
    prefix = page_request.values.get("prefix", "")
    order = _choice(page_request, "order", LIST_ORDERS, "name")
    # A topic with only dead items is not active.
    state = _choice(page_request, "state", tuple(LIST_STATES), "any" if order == "dead" else "active")
    cursor = page_request.values.get("cursor") or None
    states = LIST_STATES[state]
    listed: Sequence[Topic | TopicStats]
    ranking: TopicRanking | None = None
    if order == "name":
        found = await page_request.client.topics(prefix=prefix, states=states, limit=PAGE_TOPICS, cursor=cursor)
        listed, next_cursor = found.topics, found.next_cursor
    else:
        await check_listing(page_request)
        choice = Choice(page_request.namespace, prefix, tuple(State[name.upper()] for name in states))
        ranking = await get_ranking(choice, order)
        start = max(0, page_request.number("cursor") or 0)
        listed = ranking.topics[start : start + PAGE_TOPICS]
        next_cursor = str(start + PAGE_TOPICS) if start + PAGE_TOPICS < len(ranking.topics) else None
    return {
        "prefix": prefix,
        "order": order,
        "state": state,
        "cursor": cursor,
        "topics": listed,
        "next_cursor": next_cursor,
        "ranking": ranking,
        # The host has checked by now that the principal may list topics.
        "inactive": await inactive_topics(page_request, prefix) if state == "active" else None,
    }


async def check_listing(page_request: PageRequest) -> None:
    """Check what the host checks when it lists topics: the ranking is not a call.

    Raises:
        PermissionDenied, NamespaceNotFound.
    """
    refusal = page_request.permissions.refusal("getActiveTopics", page_request.namespace)
    if refusal is not None:
        raise refusal
    await page_request.client.get_namespace()


def _choice(page_request: PageRequest, name: str, choices: tuple[str, ...], usual: str) -> str:
    """Return a field that is one of these. Raises InvalidArgument."""
    chosen = page_request.text(name) or usual
    if chosen not in choices:
        raise InvalidArgument(f"{chosen!r} cannot be chosen; use one of {', '.join(choices)}", field=name)
    return chosen


# ------------------------------------------------------------------- one topic


async def topic(page_request: PageRequest) -> web.StreamResponse:
    """Show one topic, or change it."""
    name = page_request.require("topic")
    if page_request.request.method == "POST":
        return await _change(page_request, name)
    unit = _choice(page_request, "unit", UNITS, "hour")
    values = await topic_values(page_request)
    counts: Topic | None = values["counts"]
    state = _choice(page_request, "state", STATES, _first_state(counts))
    cursor = page_request.values.get("cursor") or None
    place = (page_request.namespace, name)
    priority_line, calendar, items, settings = await asyncio.gather(
        topic_priority_line(page_request, name, counts),
        topic_calendar(page_request, name, counts, unit),
        page_request.client.peek(name, state, PAGE_ITEMS, cursor),
        page_request.client.get_namespace(),
    )
    return page_request.page(
        "topic.html",
        f"Topic {name}",
        stream=TOPIC.address(page_request),
        charts=Charts(CHARTS, page_request.shared.history.topic(place).points),
        state=state,
        units=UNITS,
        unit=unit,
        priority_line=priority_line,
        calendar=calendar,
        items=items,
        cursor=cursor,
        order=page_request.shared.figures.order(place),
        limits={field: getattr(settings, field) for field in LIMITS},
        **values,
    )


async def topic_values(page_request: PageRequest) -> Mapping[str, Any]:
    """Return what the live part of a topic's page shows."""
    name = page_request.require("topic")
    counts = await counts_of(page_request, name)
    shared = page_request.shared
    rates = shared.record_topic((page_request.namespace, name), counts)
    return {
        "topic": name,
        "counts": counts,
        "states": STATES,
        "is_paused": shared.figures.is_paused((page_request.namespace, name)),
        "rates": rates,
        "time_to_empty": time_to_empty(0 if counts is None else counts.ready, rates, shared.now_s()),
    }


def _first_state(counts: Topic | None) -> str:
    """Return the first state in which the topic has items; `ready` if it has none."""
    return next((state for state in STATES if counts is not None and getattr(counts, state)), "ready")


async def counts_of(page_request: PageRequest, name: str) -> Topic | None:
    """Return the counts of a topic; None if it has no items."""
    # By name, so the topic itself comes before those whose names begin with its own.
    page = await page_request.client.topics(prefix=name, states=STATES, limit=1)
    return next((found for found in page.topics if found.topic == name), None)


def _newest_point(page_request: PageRequest) -> Point | None:
    return page_request.shared.history.topic((page_request.namespace, page_request.require("topic"))).last


async def _change(page_request: PageRequest, name: str) -> web.StreamResponse:
    action = page_request.text("action")
    if action == "pause":
        await page_request.client.pause_topic(name)
        _see_done(page_request, name, "paused")
    if action == "resume":
        await page_request.client.resume_topic(name)
        _see_done(page_request, name, "resumed")
    if action == "purge":
        if page_request.text("confirmed") != "1":
            count = await page_request.client.count(ItemFilter(name))
            path, back = _origin(page_request, name)
            return page_request.page(
                "confirm.html",
                f"Purge {name}?",
                path="/topic",
                action="purge",
                fields={"topic": name, **(back if path == "/topics" else {}), "from": page_request.text("from")},
                text=f"This deletes all items of the topic {name}, in every state: {count.items:,} at the moment. "
                "They cannot be brought back.",
                button="Delete all items",
                back_path=path,
                back=back,
            )
        count_purged = await page_request.client.purge_topic(name)
        _see_done(page_request, name, "purged", count=count_purged)
    raise InvalidArgument(f"{action!r} is not an action of topics; use pause, resume or purge", field="action")


def _see_done(page_request: PageRequest, name: str, done: str, **fields: Any) -> NoReturn:
    page_request.shared.rankings.forget(page_request.namespace)
    path, back = _origin(page_request, name)
    page_request.see(path, **back, done=done, **fields)


def _origin(page_request: PageRequest, name: str) -> tuple[str, dict[str, str]]:
    """Return the page from which a form came, and its fields: the list, or the topic itself."""
    if page_request.text("from") == "topics":
        return "/topics", {field: page_request.values.get(field, "") for field in ("prefix", "order", "state")}
    return "/topic", {"topic": name}


TOPICS: Final = LivePart("topics_live.html", ("prefix", "order", "state", "cursor"), list_values, LIST_PERIOD_S)
TOPIC: Final = LivePart("topic_live.html", ("topic",), topic_values, point=_newest_point)
TOPIC_PAGES: Final[Mapping[str, Callable[[PageRequest], Awaitable[web.StreamResponse]]]] = {
    "/topics": topics,
    "/topic": topic,
}
TOPIC_PARTS: Final[Mapping[str, LivePart]] = {"/topics": TOPICS, "/topic": TOPIC}
