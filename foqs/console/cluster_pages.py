"""The page of hosts and shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from foqs.console.visit import Visit
from foqs_client import InvalidArgument


async def cluster(visit: Visit) -> web.StreamResponse:
    """Show who owns what, or drain a host."""
    if visit.request.method == "POST":
        return await _change(visit)
    hosts, shards = await visit.client.list_hosts(), await visit.client.list_shards()
    names = [host.name or f"{host.host}:{host.port}" for host in hosts]
    owned = {name: [shard for shard in shards if shard.owner_name == name] for name in names}
    return visit.page("cluster.html", "Cluster", hosts=dict(zip(names, hosts, strict=True)), shards=shards, owned=owned)


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


CLUSTER_PAGES: Final[Mapping[str, Callable[[Visit], Awaitable[web.StreamResponse]]]] = {"/cluster": cluster}
