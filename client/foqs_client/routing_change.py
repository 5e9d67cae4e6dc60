"""Applies a change of the routing, as a host sends it.

Always true: a change applies only to the version that it begins with. Knows nothing of
connections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foqs_client import conversion
from foqs_client.types import Host, Routing


def apply_routing_change(before: Routing | None, reply: Any) -> Routing | None:
    """Return the routing after a reply to getRouting; None if the reply is a change of another version."""
    if reply.hosts is None:
        return before  # an older host that sends no changes, and has nothing new
    if reply.since is None:
        return conversion.routing(reply)
    if before is None or reply.since != before.version:
        return None
    hosts = {host.nonce: host for host in before.hosts}
    shards = {shard.shard: shard for shard in before.shards}
    for nonce in reply.removed_hosts or ():
        hosts.pop(nonce, None)
    for number in reply.removed_shards or ():
        shards.pop(number, None)
    hosts.update((host.nonce, host) for host in map(conversion.host, reply.hosts))
    shards.update((shard.shard, shard) for shard in map(conversion.shard, reply.shards or ()))
    return Routing(
        version=reply.version,
        hosts=_with_loads(sorted(hosts.values(), key=_by_name), reply.loads),
        shards=[shards[number] for number in sorted(shards)],
        tier=reply.tier,
    )


def _with_loads(hosts: list[Host], loads: list[float] | None) -> list[Host]:
    """Return the hosts with new loads, which are in the order of the hosts' nonces."""
    if loads is None or len(loads) != len(hosts):
        return hosts
    by_nonce = dict(zip(sorted(host.nonce or "" for host in hosts), loads, strict=True))
    return [replace(host, load=by_nonce[host.nonce or ""]) for host in hosts]


def _by_name(host: Host) -> tuple[str, str]:
    return host.name or "", host.nonce or ""
