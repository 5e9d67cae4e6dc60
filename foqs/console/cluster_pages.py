"""The page of hosts, shards and databases with regions, with a picture of which host owns which shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from foqs.console.chart_geometry import ownership_picture
from foqs.console.health import host_name
from foqs.console.live import LivePart
from foqs.console.page_request import PageRequest
from foqs.queue.tier_figures import DatabaseState
from foqs_client import FoqsError, Host, InvalidArgument, Shard

PERIOD_S: Final = 2.0


async def cluster(page_request: PageRequest) -> web.StreamResponse:
    """Show the hosts and their shards, or move or drain a shard or a host."""
    if page_request.request.method == "POST":
        return await _change(page_request)
    return page_request.page(
        "cluster.html", "Cluster", stream=CLUSTER.address(page_request), **await cluster_values(page_request)
    )


async def cluster_values(page_request: PageRequest) -> Mapping[str, Any]:
    """Return what the page shows."""
    hosts, shards = await page_request.client.list_hosts(), await page_request.client.list_shards()
    named = {host_name(host): host for host in hosts}
    owners = [(name, _note(host)) for name, host in named.items()]
    picture = ownership_picture(owners, {shard.shard: (_owner(shard), shard.state) for shard in shards})
    databases, problem = await _databases(page_request)
    return {"hosts": named, "shards": shards, "picture": picture, "databases": databases, "databases_problem": problem}


async def _databases(page_request: PageRequest) -> tuple[list[tuple[DatabaseState, str]], str]:
    """Return the databases with a server in each region, each with what a loss would cost now; and why they are not known."""
    try:
        found = await page_request.shared.figures.databases()
    except FoqsError as error:
        return [], str(error)
    return [(database, loss_text(database)) for database in found], ""


def loss_text(database: DatabaseState) -> str:
    """Return what it would cost if the primary of a database were lost now."""
    if database.state != "serving":
        return "its primary is being replaced"
    if not database.is_async:
        if database.lacks_if_lost is None:
            return "not known: no host has said which replicas are proven"
        if not database.lacks_if_lost:
            return "nothing that was acknowledged"
        return f"hosts would not replace it: {'; '.join(database.lacks_if_lost)}"
    if not database.replicas:
        return "everything: it has no replica"
    if not database.lags_ms:
        return "what replicas lack; hosts with its shards show how much"
    nearest_s = min(database.lags_ms.values()) / 1_000
    bound = "" if database.max_lag_ms is None else f", at most those of {database.max_lag_ms / 1_000:g} s"
    return f"enqueues of {nearest_s:.1f} s to the shards of this host{bound}"


def _owner(shard: Shard) -> str | None:
    """Return the name of a shard's owner, or its address if it has none; None without an owner."""
    if shard.owner is None:
        return None
    return shard.owner_name or f"{shard.owner[0]}:{shard.owner[1]}"


def _note(host: Host) -> str:
    """Return the note of a host in the picture: leaving, drained, or empty."""
    return "leaving" if host.leaving else "drained" if host.draining else ""


async def _change(page_request: PageRequest) -> web.StreamResponse:
    action = page_request.text("action")
    if action == "drain":
        host = page_request.require("host")
        if page_request.text("confirmed") != "1":
            text = f"The host {host} hands its shards over to others. It gets none until it is undrained, even after a restart."
            return _confirm(page_request, f"Drain {host}?", action, {"host": host}, text, "Drain the host")
        await page_request.client.drain_host(host)
        page_request.see("/cluster", done="draining")
    if action == "undrain":
        await page_request.client.undrain_host(page_request.require("host"))
        page_request.see("/cluster", done="undrained")
    return await _change_shard(page_request, action)


async def _change_shard(page_request: PageRequest, action: str) -> web.StreamResponse:
    if action == "move_shard":
        shard, to = _shard(page_request), page_request.values.get("to", "")
        if page_request.text("confirmed") != "1":
            where = f"{to} keeps it as long as it runs." if to else "The planner chooses its host."
            text = f"Shard {shard} is handed over, and delivers nothing for a moment. {where}"
            fields = {"shard": str(shard), "to": to}
            return _confirm(page_request, f"Move shard {shard}?", action, fields, text, "Move the shard")
        await page_request.client.move_shard(shard, to or None)
        page_request.see("/cluster", done="moving_shard")
    if action == "drain_shard":
        shard = _shard(page_request)
        if page_request.text("confirmed") != "1":
            text = f"Shard {shard} accepts no new items until it is undrained. Its own items are still delivered."
            return _confirm(
                page_request, f"Drain shard {shard}?", action, {"shard": str(shard)}, text, "Drain the shard"
            )
        await page_request.client.drain_shard(shard)
        page_request.see("/cluster", done="drained_shard")
    if action == "undrain_shard":
        await page_request.client.undrain_shard(_shard(page_request))
        page_request.see("/cluster", done="undrained_shard")
    raise InvalidArgument(
        f"{action!r} is not an action of hosts and shards; "
        "use drain, undrain, move_shard, drain_shard or undrain_shard",
        field="action",
    )


def _shard(page_request: PageRequest) -> int:
    shard = page_request.number("shard")
    if shard is None:
        raise InvalidArgument("this is missing; fill it in", field="shard")
    return shard


def _confirm(
    page_request: PageRequest, title: str, action: str, fields: Mapping[str, str], text: str, button: str
) -> web.StreamResponse:
    return page_request.page(
        "confirm.html", title, path="/cluster", action=action, fields=fields, text=text, button=button, back={}
    )


CLUSTER: Final = LivePart("cluster_live.html", (), cluster_values, PERIOD_S)
CLUSTER_PAGES: Final[Mapping[str, Callable[[PageRequest], Awaitable[web.StreamResponse]]]] = {"/cluster": cluster}
CLUSTER_PARTS: Final[Mapping[str, LivePart]] = {"/cluster": CLUSTER}
