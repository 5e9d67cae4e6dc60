"""The problems that the overview shows: doctor's findings about the cluster, and those of the host itself.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foqs.queue.tier_figures import PeerState
from foqs.telemetry.findings import (
    Finding,
    duplicate_names_finding,
    duplicate_names_sentence,
    served_shards_finding,
)
from foqs_client import Host, Shard


def host_name(host: Host) -> str:
    """Return the name of a host, or its address if it has none."""
    return host.name or f"{host.host}:{host.port}"


def find_problems(
    hosts: Sequence[Host],
    shards: Sequence[Shard],
    breakers: Mapping[int, str],
    peers: Sequence[PeerState],
    not_ready_reasons: Mapping[str, str],
) -> list[Finding]:
    """Return the problems of the cluster as findings, the worst first.

    Args:
        breakers: the state of the breaker of each shard of this host.
        not_ready_reasons: why this host is not ready, by shard or part.
    """
    found = [served_shards_finding(shards)]
    names = duplicate_names_sentence(host_name(host) for host in hosts)
    if names:
        found.append(duplicate_names_finding(names))
    reasons = [f"{part}: {why}" for part, why in sorted(not_ready_reasons.items()) if not part.startswith("shard ")]
    if reasons:
        found.append(Finding("Host", "bad", f"this host is not ready: {'; '.join(reasons)}", "see the host's log"))
    found += _breaker_findings(breakers)
    found += [_peer_finding(peer) for peer in peers if peer.trouble or not peer.accepts_items]
    return sorted((each for each in found if each.state != "ok"), key=lambda each: each.state != "bad")


def _breaker_findings(breakers: Mapping[int, str]) -> list[Finding]:
    tripped = [f"shard {shard} ({state})" for shard, state in breakers.items() if state != "closed"]
    if not tripped:
        return []
    return [
        Finding(
            "Breakers",
            "warning",
            f"not closed on this host: {', '.join(tripped)}; an open one refuses new items",
            "see why the database is slow or fails: docs/runbook.md",
        )
    ]


def _peer_finding(peer: PeerState) -> Finding:
    if peer.trouble:
        return Finding(
            "Peers",
            "warning",
            f"{peer.name} was not reached: {peer.trouble}",
            "check that this machine reaches its server.advertise",
        )
    return Finding("Peers", "warning", f"no shard of {peer.name} accepts new items", "see the console of that host")
