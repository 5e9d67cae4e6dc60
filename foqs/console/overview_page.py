"""The overview: rates, backlog, what is wrong, and the usage of the namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from foqs.console.chart_geometry import Chart, Charts
from foqs.console.figure_formats import time_to_empty
from foqs.console.health import find_problems
from foqs.console.history import Point
from foqs.console.live import LivePart
from foqs.console.page_request import PageRequest
from foqs.core.memory.topic_rates import Rates
from foqs_client import FoqsError, Usage

OVERVIEW_NAMESPACES_MAX: Final = 50
"""The overview counts at most this number of namespaces."""
CHARTS: Final = (
    Chart("Work", (("ready_per_s", "became ready"), ("acked_per_s", "acked")), "items per second"),
    Chart("Backlog", (("ready", "ready"), ("leased", "leased"), ("deferred", "deferred")), "items"),
)


class BusyTopic(NamedTuple):
    """A row of the busiest topics.

    Attributes:
        last: its figures when they were counted last; None if it has just become busy.
    """

    namespace: str
    topic: str
    rates: Rates
    last: Point | None


async def overview(page_request: PageRequest) -> web.StreamResponse:
    """Show the state of the cluster to administrators, and the usage of the namespaces."""
    shown = [name for name in page_request.namespaces if page_request.permissions.may_administer(name)][
        :OVERVIEW_NAMESPACES_MAX
    ]
    permissions = page_request.permissions
    values, usages = await asyncio.gather(
        overview_values(page_request),
        asyncio.gather(*(_usage(page_request.client.usage(name)) for name in shown)),
    )
    is_admin = permissions.is_admin
    return page_request.page(
        "overview.html",
        "Overview",
        usages=dict(zip(shown, usages, strict=True)),
        others=len(page_request.namespaces) - len(shown),
        charts=Charts(CHARTS, page_request.shared.history.tier.points) if is_admin else None,
        **({"stream": OVERVIEW.address(page_request)} if is_admin else {}),
        **values,
    )


async def overview_values(page_request: PageRequest) -> Mapping[str, Any]:
    """Return what the live part of the overview shows. Only administrators see hosts, shards and all items."""
    if not page_request.permissions.is_admin:
        return {"totals": None}
    shared = page_request.shared
    hosts, shards, totals = await asyncio.gather(
        page_request.client.list_hosts(), page_request.client.list_shards(), shared.totals()
    )
    figures = shared.figures
    return {
        "totals": totals,
        "busiest": [
            BusyTopic(*topic, rates, shared.history.topic(topic).last) for topic, rates in figures.busiest_topics()
        ],
        "time_to_empty": time_to_empty(totals.ready, totals.rates, shared.now_s()),
        "hosts": hosts,
        "shards": shards,
        "unserved": [shard for shard in shards if shard.state != "owned"],
        "tripped": sum(state != "closed" for state in figures.breakers().values()),
        "problems": find_problems(hosts, shards, figures.breakers(), figures.peers(), figures.not_ready_reasons()),
    }


async def _usage(asked: Awaitable[Usage]) -> Usage | None:
    try:
        return await asked
    except FoqsError:
        return None


def _newest_point(page_request: PageRequest) -> Point | None:
    return page_request.shared.history.tier.last if page_request.permissions.is_admin else None


OVERVIEW: Final = LivePart("overview_live.html", (), overview_values, point=_newest_point)
OVERVIEW_PAGES: Final[Mapping[str, Callable[[PageRequest], Awaitable[web.StreamResponse]]]] = {"/": overview}
OVERVIEW_PARTS: Final[Mapping[str, LivePart]] = {"/": OVERVIEW}
