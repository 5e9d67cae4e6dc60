"""What doctor looks at where an address is named: the cluster behind it, its hosts, its shards.

Always true: nothing is changed; each host is asked for the routing table alone,
for two seconds at most. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from foqs.cli.cluster_rows import host_row, namesakes, shard_row
from foqs.cli.finding import Finding
from foqs.cli.hosts import bracketed
from foqs.cli.session import Connect
from foqs_client import FoqsError, Routing, Unreachable
from foqs_client.address import SCHEME, SCHEME_TLS, parse_addresses, speaks_tls

ASK_TIMEOUT_MS: Final = 2_000
ASKED_MAX: Final = 16
"""Hosts that are asked at a time."""
_SHOWN: Final = 5


async def cluster_at(address: str, connect: Connect) -> list[Finding]:
    """All of it."""
    try:
        given = parse_addresses(address)
        routing = await _ask(address, connect)
    except FoqsError as error:
        return [_no_answer(address, error)]
    known = {f"{bracketed(host)}:{port}": f"{bracketed(host)}:{port}" for host, port in given}
    rows = [host_row(host) for host in routing.hosts]
    known |= {row["address"]: row["name"] for row in rows}
    found = Finding("Cluster", "ok", f"{address} answers: {len(routing.hosts)} hosts, {len(routing.shards)} shards")
    scheme = SCHEME_TLS if speaks_tls(address) else SCHEME
    return [found, await _hosts(known, scheme, connect, namesakes(rows)), _shards(routing)]


async def _ask(address: str, connect: Connect) -> Routing:
    """The routing table. Raises FoqsError."""
    try:
        async with asyncio.timeout(2 * ASK_TIMEOUT_MS / 1_000):
            async with connect(address, "default", ASK_TIMEOUT_MS) as client:
                return await client.routing()
    except TimeoutError:
        raise Unreachable(f"{address} does not answer.") from None
    except (OSError, ValueError) as error:
        raise Unreachable(f"{address}: {error}") from None


def _no_answer(address: str, error: FoqsError) -> Finding:
    if isinstance(error, Unreachable):
        return Finding("Cluster", "bad", error.message, "start a host there, or correct --address (FOQS_ADDRESS)")
    remedy = "correct --address (FOQS_ADDRESS), or name who asks with --token-file or --cert-file"
    return Finding("Cluster", "bad", f"{address} answers {error.code}: {error.message}", remedy)


async def _hosts(known: Mapping[str, str], scheme: str, connect: Connect, shared_names: str) -> Finding:
    """Whether each host answers this machine.

    Args:
        known: the name of each host by its address.
        shared_names: a sentence about hosts that have the same name; empty where none have.
    """
    slots = asyncio.Semaphore(ASKED_MAX)

    async def trouble(address: str) -> str | None:
        async with slots:
            try:
                await _ask(f"{scheme}{address}", connect)
            except FoqsError as error:
                return f"{known[address]} ({address}): {error.message}"
        return None

    silent = [why for why in await asyncio.gather(*map(trouble, known)) if why]
    if silent:
        more = f"; and {len(silent) - _SHOWN} more" if len(silent) > _SHOWN else ""
        remedy = "start it; see that this machine reaches the address that the host gives as its own (server.advertise)"
        return Finding("Cluster hosts", "bad", "; ".join(silent[:_SHOWN]) + more, remedy)
    if shared_names:
        found, _, remedy = shared_names.partition(". ")
        return Finding("Cluster hosts", "warning", found, remedy)
    return Finding("Cluster hosts", "ok", f"{len(known)} answer this machine")


def _shards(routing: Routing) -> Finding:
    """Whether each shard is served."""
    shards = [shard_row(shard) for shard in routing.shards]
    idle = [row for row in shards if row["state"] != "owned"]
    if not shards:
        return Finding(
            "Cluster shards", "bad", "there is no shard", "add one with foqs shard add NUMBER --database NAME"
        )
    if not idle:
        return Finding("Cluster shards", "ok", f"all {len(shards)} are served")
    told = ", ".join(
        f"shard {row['shard']} ({row['state']}{': ' if row['reason'] else ''}{row['reason'] or ''})"
        for row in idle[:_SHOWN]
    )
    more = f", and {len(idle) - _SHOWN} more" if len(idle) > _SHOWN else ""
    remedy = "look again in a few seconds; then run foqs doctor --config FILE on a host that should serve it"
    return Finding("Cluster shards", "bad", f"{len(idle)} of {len(shards)} are not served: {told}{more}", remedy)
