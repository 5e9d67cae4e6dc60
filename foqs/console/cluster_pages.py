"""The page of hosts and shards, with a picture of who owns what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from foqs.console.drawings import ownership_picture
from foqs.console.health import host_name
from foqs.console.live import LivePart
from foqs.console.visit import Visit
from foqs_client import Host, InvalidArgument, Shard

PERIOD_S: Final = 2.0


async def cluster(visit: Visit) -> web.StreamResponse:
    """Show who owns what, or drain a host."""
    if visit.request.method == "POST":
        return await _change(visit)
    return visit.page("cluster.html", "Cluster", stream=CLUSTER.address(visit), **await cluster_values(visit))


async def cluster_values(visit: Visit) -> Mapping[str, Any]:
    """Return what the page shows."""
    hosts, shards = await visit.client.list_hosts(), await visit.client.list_shards()
    named = {host_name(host): host for host in hosts}
    owners = [(name, _note(host)) for name, host in named.items()]
    picture = ownership_picture(owners, {shard.shard: (_owner(shard), shard.state) for shard in shards})
    return {"hosts": named, "shards": shards, "picture": picture}


def _owner(shard: Shard) -> str | None:
    """Return the name of a shard's owner, or its address if it has none; None without an owner."""
    if shard.owner is None:
        return None
    return shard.owner_name or f"{shard.owner[0]}:{shard.owner[1]}"


def _note(host: Host) -> str:
    """Return what the picture says of a host."""
    return "leaving" if host.leaving else "drained" if host.draining else ""


async def _change(visit: Visit) -> web.StreamResponse:
    action, host = visit.text("action"), visit.require("host")
    if action == "drain":
        if visit.text("confirmed") != "1":
            return visit.page(
                "confirm.html",
                f"Drain {host}?",
                path="/cluster",
                action="drain",
                fields={"host": host},
                text=f"The host {host} hands its shards over to others. It gets none until it is undrained, "
                "even after a restart.",
                button="Drain the host",
                back={},
            )
        await visit.client.drain_host(host)
        visit.see("/cluster", done="draining")
    if action == "undrain":
        await visit.client.undrain_host(host)
        visit.see("/cluster", done="undrained")
    raise InvalidArgument(f"{action!r} is not an action of hosts", field="action")


CLUSTER: Final = LivePart("cluster_live.html", (), cluster_values, PERIOD_S)
CLUSTER_PAGES: Final[Mapping[str, Callable[[Visit], Awaitable[web.StreamResponse]]]] = {"/cluster": cluster}
CLUSTER_PARTS: Final[Mapping[str, LivePart]] = {"/cluster": CLUSTER}
