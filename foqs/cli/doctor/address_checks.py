"""Doctor's checks of the cluster at an address: its hosts and its shards.

Always true: nothing is changed; each host is asked only for its routing table, for
two seconds at most. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from foqs.cli.cluster_rows import duplicate_names_warning, host_row
from foqs.cli.host_session import OpenClient
from foqs.cli.listen_addresses import bracketed
from foqs.telemetry.findings import Finding, duplicate_names_finding, served_shards_finding, used_epochs_finding
from foqs_client import FoqsError, Routing, Unreachable
from foqs_client.addresses import SCHEME, SCHEME_TLS, is_tls_url, parse_addresses
from foqs_contract.plurals import counted

CALL_TIMEOUT_MS: Final = 2_000
CONCURRENT_CALLS_MAX: Final = 16
"""The maximum number of hosts that are asked at the same time."""
_SHOWN_MAX: Final = 5


async def check_cluster_at(address: str, connect: OpenClient) -> list[Finding]:
    """Check the cluster of the host at this address: that its shards are served, and that its hosts answer."""
    try:
        addresses = parse_addresses(address)
        routing = await _get_routing(address, connect)
    except FoqsError as error:
        return [_no_answer(address, error)]
    known = {f"{bracketed(host)}:{port}": f"{bracketed(host)}:{port}" for host, port in addresses}
    rows = [host_row(host) for host in routing.hosts]
    known |= {row["address"]: row["name"] for row in rows}
    found = Finding(
        "Cluster",
        "ok",
        f"{address} answers: {counted(len(routing.hosts), 'host')}, {counted(len(routing.shards), 'shard')}",
    )
    scheme = SCHEME_TLS if is_tls_url(address) else SCHEME
    used_epochs = used_epochs_finding(routing.shards)
    return [
        found,
        await _check_hosts(known, scheme, connect, duplicate_names_warning(rows)),
        served_shards_finding(routing.shards),
        *([] if used_epochs is None else [used_epochs]),
    ]


async def _get_routing(address: str, connect: OpenClient) -> Routing:
    """Return the routing table of a host. Raises FoqsError."""
    try:
        async with asyncio.timeout(2 * CALL_TIMEOUT_MS / 1_000):
            async with connect(address, "default", CALL_TIMEOUT_MS) as client:
                return await client.routing()
    except TimeoutError:
        raise Unreachable(f"{address} does not answer.") from None
    except (OSError, ValueError) as error:
        raise Unreachable(f"{address}: {error}") from None


def _no_answer(address: str, error: FoqsError) -> Finding:
    if isinstance(error, Unreachable):
        return Finding("Cluster", "bad", error.message, "start a host there, or correct --address (FOQS_ADDRESS)")
    remedy = "correct --address (FOQS_ADDRESS), or authenticate with --token-file or --cert-file"
    return Finding("Cluster", "bad", f"{address} answers {error.code}: {error.message}", remedy)


async def _check_hosts(
    names_by_address: Mapping[str, str], scheme: str, connect: OpenClient, duplicate_names: str
) -> Finding:
    """Check whether each host answers this machine.

    Args:
        names_by_address: the name of each host by its address.
        duplicate_names: a sentence about hosts with the same name; empty if there are none.
    """
    slots = asyncio.Semaphore(CONCURRENT_CALLS_MAX)

    async def problem_of(address: str) -> str | None:
        async with slots:
            try:
                await _get_routing(f"{scheme}{address}", connect)
            except FoqsError as error:
                return f"{names_by_address[address]} ({address}): {error.message}"
        return None

    silent = [problem for problem in await asyncio.gather(*map(problem_of, names_by_address)) if problem]
    if silent:
        more = f"; and {len(silent) - _SHOWN_MAX} more" if len(silent) > _SHOWN_MAX else ""
        remedy = "start it, and check that this machine reaches its server.advertise"
        return Finding("Cluster hosts", "bad", "; ".join(silent[:_SHOWN_MAX]) + more, remedy)
    if duplicate_names:
        return duplicate_names_finding(duplicate_names)
    return Finding("Cluster hosts", "ok", f"{len(names_by_address)} answer this machine")
