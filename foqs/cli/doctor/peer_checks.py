"""Doctor's checks of the other hosts of a cluster: they answer, and accept this host's authentication.

Always true: nothing is changed; each host gets one call that needs an
administrator, with this host's credentials, for a second at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from foqs.cluster.connections import peer_pool_opener
from foqs.cluster.peers import Peer, Peers
from foqs.cluster.routing.host_views import address_of
from foqs.options.config import Config
from foqs.routing.port import HostView
from foqs.telemetry.findings import Finding
from foqs_contract.errors import FoqsError
from foqs_contract.idl import ttypes
from foqs_contract.plurals import counted
from foqs_contract.thrift_method import ThriftMethod
from shardmgr.model import Member

_TIMEOUT_S: Final = 1.0
_SHOWN_MAX: Final = 5
_LIST_HOSTS: Final = ThriftMethod("listHosts")


async def check_peers(config: Config, members: Sequence[Member]) -> Finding:
    """Check the other hosts of the host's tier."""
    server = config.server
    others = [
        HostView(member.name, address_of(member), member.tier, member.region, 0, member.nonce)
        for member in members
        if member.name != server.name and member.address != server.advertise
    ]
    found = Peers(lambda: others, "", server.tier, server.region, peer_pool_opener(config))
    try:
        asked = list(found.by_nonce.values())
        silent = [
            problem for problem in await asyncio.gather(*(_peer_problem(found, peer) for peer in asked)) if problem
        ]
    finally:
        await found.close()
    if not asked:
        return Finding("Peers", "ok", f"no other host of tier {server.tier} is running")
    if silent:
        more = f"; and {len(silent) - _SHOWN_MAX} more" if len(silent) > _SHOWN_MAX else ""
        remedy = (
            "check that this machine reaches server.advertise of each host, and that cluster.token_file (or "
            "server.tls_cert_file) belongs to a principal with admin = true in their configurations"
        )
        return Finding("Peers", "warning", "; ".join(silent[:_SHOWN_MAX]) + more, remedy)
    return Finding(
        "Peers",
        "ok",
        f"{counted(len(asked), 'other host answers and accepts', 'other hosts answer and accept')} this one",
    )


async def _peer_problem(found: Peers, peer: Peer) -> str | None:
    """Return why a host does not answer; None if it does."""
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    try:
        await found.call(peer, _LIST_HOSTS, ttypes.ListRequest(), deadline)
    except FoqsError as error:
        return error.message
    return None
