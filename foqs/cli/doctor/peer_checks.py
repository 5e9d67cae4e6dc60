"""What doctor asks the other hosts of a cluster: whether they answer, and know this one.

Always true: nothing is changed; each host is asked what administrators alone may
ask, as this host would ask it, and for a second at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from foqs.cli.doctor.finding import Finding
from foqs.cluster.peer_pool import peer_pool_opener
from foqs.cluster.peers import Peer, Peers
from foqs.cluster.routing.port import HostView
from foqs.cluster.routing.registry_cluster import address_of
from foqs.core.errors import FoqsError
from foqs.options.config import Config
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import ThriftMethod
from shardmgr.model import Member

_TIMEOUT_S: Final = 1.0
_SHOWN_MAX: Final = 5
_LIST_HOSTS: Final = ThriftMethod("listHosts")


async def check_peers(config: Config, members: Sequence[Member]) -> Finding:
    """Of the host's tier."""
    server = config.server
    others = [
        HostView(member.name, address_of(member), member.tier, member.region, 0, member.nonce)
        for member in members
        if member.name != server.name and member.address != server.advertise
    ]
    found = Peers(lambda: others, "", server.tier, server.region, peer_pool_opener(config))
    try:
        asked = list(found.by_nonce.values())
        silent = [why for why in await asyncio.gather(*(_peer_problem(found, peer) for peer in asked)) if why]
    finally:
        await found.close()
    if not asked:
        return Finding("Peers", "ok", f"there is no other host of tier {server.tier} now")
    if silent:
        more = f"; and {len(silent) - _SHOWN_MAX} more" if len(silent) > _SHOWN_MAX else ""
        remedy = (
            "see that this machine reaches server.advertise of each host, and that what this host shows to others "
            "(cluster.token_file, or server.tls_cert_file) is of a principal with admin = true in their configurations"
        )
        return Finding("Peers", "warning", "; ".join(silent[:_SHOWN_MAX]) + more, remedy)
    return Finding("Peers", "ok", f"{len(asked)} other hosts answer, and know this one")


async def _peer_problem(found: Peers, peer: Peer) -> str | None:
    """Why it does not answer; None where it does."""
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    try:
        await found.call(peer, _LIST_HOSTS, ttypes.ListRequest(), deadline)
    except FoqsError as error:
        return error.message
    return None
