"""The pages of items: one item and why it is not delivered, dead items, and a form that enqueues one."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn

from aiohttp import web

from foqs.console.page_request import PageRequest
from foqs.console.topic_pages import counts_of
from foqs.core.items.item import PRIORITY_MIN
from foqs.runtime.durations import parse_duration
from foqs_client import Change, Explanation, InvalidArgument, Item, Topic

DEAD_ITEMS: Final = 100


async def item(page_request: PageRequest) -> web.StreamResponse:
    """Show one item and why it is not delivered, or change it."""
    item_id = page_request.require("id").strip()
    if page_request.request.method == "POST":
        return await _change(page_request, item_id)
    found = await page_request.client.explain(
        item_id, with_payload=page_request.permissions.may_consume(page_request.namespace)
    )
    counts = None if found.item is None else await counts_of(page_request, found.item.topic)
    return page_request.page(
        "item.html",
        f"Item {item_id}",
        id=item_id,
        found=found,
        item=found.item,
        is_paused=found.item is not None
        and page_request.shared.figures.is_paused((page_request.namespace, found.item.topic)),
        first_priority=_first_priority(found, counts),
    )


def _first_priority(found: Explanation, counts: Topic | None) -> int | None:
    """Return the priority with which the item would be the first of its topic; None if it is, or is not in the priority line."""
    item, best = found.item, None if counts is None else counts.best_priority
    if item is None or item.state not in ("ready", "deferred") or best is None or item.priority < best:
        return None
    if item.priority == best and item.state == "ready" and not found.better_items:
        return None
    return max(PRIORITY_MIN, best - 1)


async def _change(page_request: PageRequest, item_id: str) -> web.StreamResponse:
    action, client = page_request.text("action"), page_request.client
    if action == "cancel":
        if page_request.text("confirmed") != "1":
            return page_request.page(
                "confirm.html",
                f"Delete {item_id}?",
                path="/item",
                action="cancel",
                fields={"id": item_id},
                text="This deletes the item. It cannot be brought back.",
                button="Delete the item",
                back={"id": item_id},
            )
        (outcome,) = await client.cancel([item_id])
        outcome.require()
        page_request.see("/item", id=item_id, done="already_gone" if outcome.already_gone else "cancelled")
    if action == "redrive":
        (outcome,) = await client.redrive([item_id])
        outcome.require()
        page_request.see("/item", id=item_id, done="redriven")
    if action == "update":
        delay = page_request.text("delay")
        change = Change(priority=page_request.number("priority"), delay_ms=_duration(delay, "delay") if delay else None)
        (outcome,) = await client.update([item_id], change)
        outcome.require()
        page_request.see("/item", id=item_id, done="updated")
    if action == "extend":
        lease = page_request.text("lease")
        lease_ms = _duration(lease, "lease") if lease else None
        (outcome,) = await client.extend_held_leases([item_id], lease_ms=lease_ms)
        outcome.require()
        page_request.see("/item", id=item_id, done="extended")
    raise InvalidArgument(
        f"{action!r} is not an action of items; use cancel, redrive, update or extend", field="action"
    )


async def dead(page_request: PageRequest) -> web.StreamResponse:
    """Show a page of dead items, or redrive some of them. A bulk job redrives all."""
    topic = page_request.values.get("topic") or None
    if page_request.request.method == "POST":
        await _redrive(page_request, topic)
    cursor = page_request.values.get("cursor") or None
    found = await page_request.client.dead(topic, DEAD_ITEMS, cursor)
    reasons: dict[str, int] = {}
    for each in found.items:
        reason = each.dead_reason or "unknown"
        reasons[reason] = reasons.get(reason, 0) + 1
    by_count = sorted(reasons.items(), key=lambda pair: -pair[1])
    return page_request.page("dead.html", "Dead items", found=found, topic=topic, cursor=cursor, reasons=by_count)


async def _redrive(page_request: PageRequest, topic: str | None) -> NoReturn:
    action = page_request.text("action")
    if action != "redrive":
        raise InvalidArgument(f"{action!r} is not an action of dead items; use redrive", field="action")
    ids = [str(value) for value in page_request.values.getall("id", [])]
    if not ids:
        raise InvalidArgument("no item is chosen; choose at least one", field="id")
    outcomes = await page_request.client.redrive(ids)
    done = sum(outcome.error is None for outcome in outcomes)
    page_request.see("/dead", topic=topic, done="redriven_many", count=done)


async def enqueue(page_request: PageRequest) -> web.StreamResponse:
    """Show a form for one item, or enqueue it."""
    if page_request.request.method == "POST":
        delay = page_request.text("delay")
        new = Item(
            page_request.require("topic"),
            page_request.values.get("payload", "").encode(),
            priority=page_request.number("priority") or 0,
            delay_ms=_duration(delay, "delay") if delay else None,
            # The form has the key, so sending it twice enqueues once.
            idempotency_key=page_request.require("key"),
        )
        (result,) = await page_request.client.enqueue([new])
        page_request.see("/item", id=result.require(), done="enqueued")
    return page_request.page(
        "enqueue.html",
        "Enqueue an item",
        topic=page_request.values.get("topic", ""),
        key=f"console-{secrets.token_hex(12)}",
    )


def _duration(text: str, field: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidArgument(str(error), field=field) from None


ITEM_PAGES: Final[Mapping[str, Callable[[PageRequest], Awaitable[web.StreamResponse]]]] = {
    "/item": item,
    "/dead": dead,
    "/enqueue": enqueue,
}
