"""The states of the databases with a server in each region, as a host of the cluster sees them.

Always true: entries are read for each call; lags are those of this host's shards only. Knows nothing of pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from foqs.cluster.membership import Membership
from foqs.queue.tier_figures import DatabaseState
from foqs_contract.errors import Unavailable
from shardmgr.primary import LossPolicy, Primary
from shardmgr.primary_document import read_primaries
from shardmgr.registry.port import RegistryError


async def database_states(membership: Membership) -> Sequence[DatabaseState]:
    """Return the databases that have an entry, by name. Raises `Unavailable`: the registry does not answer."""
    view, positions = membership.agent.view, membership.positions
    names = [] if view is None else sorted({spec.database for spec in view.layout.shards.values()})
    try:
        entries = (await read_primaries(membership.registry, names)).entries
    except RegistryError as error:
        raise Unavailable(f"the servers of databases are not known: {error}") from None
    lags_ms = {} if positions is None else positions.lags_ms()
    bounds_ms = {} if positions is None else positions.bounds_ms()
    return states_of(names, entries, lags_ms, bounds_ms)


def states_of(
    names: Iterable[str],
    entries: Mapping[str, Primary],
    lags_ms: Mapping[tuple[str, str], int],
    bounds_ms: Mapping[str, int],
) -> Sequence[DatabaseState]:
    """Return the states of these databases that have an entry.

    Args:
        lags_ms: by database and replica.
        bounds_ms: by database.
    """
    return [
        DatabaseState(
            name,
            entry.servers[entry.server].region,
            entry.server,
            entry.term,
            entry.state.value,
            entry.policy is LossPolicy.ASYNC,
            {server: standing != "" for server, standing in sorted(entry.ackers.items())},
            {server: lag_ms for (database, server), lag_ms in sorted(lags_ms.items()) if database == name},
            bounds_ms.get(name),
        )
        for name in names
        if (entry := entries.get(name)) is not None
    ]
