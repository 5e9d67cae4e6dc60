"""The page of the groups of a topic: which wait, and what holds each back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from foqs.console.live import LivePart
from foqs.console.page_request import PageRequest
from foqs_client import ListedGroups

GROUPS_SHOWN: Final = 100
PERIOD_S: Final = 5.0
ORDERS: Final[Mapping[str, str]] = {"size": "ready items", "age": "the time that they have waited"}
STATES: Final[Mapping[str, str]] = {
    "": "in any state",
    "eligible": "eligible",
    "leased": "held back by leases",
    "backing_off": "held back by a backoff",
    "unread": "not read yet",
    "idle": "without an item that waits",
}


async def groups(page_request: PageRequest) -> web.StreamResponse:
    """Show the first groups of a topic."""
    values = await group_values(page_request)
    return page_request.page(
        "groups.html",
        f"Groups of {values['topic']}",
        stream=GROUPS.address(page_request),
        orders=ORDERS,
        states=STATES,
        **values,
    )


async def group_values(page_request: PageRequest) -> Mapping[str, Any]:
    """Return what the live part of the page shows."""
    topic = page_request.require("topic")
    order = page_request.text("by") or "size"
    state = page_request.text("state")
    group = page_request.values.get("group") or None
    found: ListedGroups = await page_request.client.groups(
        topic, order, GROUPS_SHOWN, states=[state] if state else None, group=group
    )
    return {"topic": topic, "order": order, "state": state, "group": group, "found": found, "state_names": STATES}


GROUPS: Final = LivePart("groups_live.html", ("topic", "by", "state", "group"), group_values, PERIOD_S)
GROUP_PAGES: Final[Mapping[str, Callable[[PageRequest], Awaitable[web.StreamResponse]]]] = {"/groups": groups}
GROUP_PARTS: Final[Mapping[str, LivePart]] = {"/groups": GROUPS}
