"""The states of the databases with a server in each region, as a host of the cluster sees them.

Always true: entries are read for each call, and what is proven is what the elected promoter has published last; lags are
those of this host's shards only. Knows nothing of pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from foqs.cluster.membership import Membership
from foqs.queue.tier_figures import DatabaseState
from foqs_contract.errors import Unavailable
from shardmgr.primary import LossPolicy, Primary
from shardmgr.primary_document import read_primaries
from shardmgr.primary_moves import elected_promoters
from shardmgr.promoter import ElectedPromoter
from shardmgr.registry.port import RegistryError


async def database_states(membership: Membership) -> Sequence[DatabaseState]:
    """Return the databases that have an entry, by name. Raises `Unavailable`: the registry does not answer."""
    if not membership.promoters.databases:
        return []  # as in most clusters: then ZooKeeper is not asked
    view, positions = membership.agent.view, membership.positions
    names = [] if view is None else sorted({spec.database for spec in view.layout.shards.values()})
    try:
        entries = (await read_primaries(membership.registry, names)).entries
        elected = await elected_promoters(membership.registry, entries)
    except RegistryError as error:
        raise Unavailable(f"the servers of databases are not known: {error}") from None
    lags_ms = {} if positions is None else positions.lags_ms()
    bounds_ms = {} if positions is None else positions.bounds_ms()
    return states_of(names, entries, elected, lags_ms, bounds_ms)


def states_of(
    names: Iterable[str],
    entries: Mapping[str, Primary],
    elected: Mapping[str, ElectedPromoter],
    lags_ms: Mapping[tuple[str, str], int],
    bounds_ms: Mapping[str, int],
) -> Sequence[DatabaseState]:
    """Return the states of these databases that have an entry.

    Args:
        elected: the promoters of databases, without those that have none.
        lags_ms: by database and replica.
        bounds_ms: by database.
    """
    return [
        _state(name, entries[name], elected.get(name), lags_ms, bounds_ms.get(name))
        for name in names
        if name in entries
    ]


def _state(
    name: str,
    entry: Primary,
    elected: ElectedPromoter | None,
    lags_ms: Mapping[tuple[str, str], int],
    bound_ms: int | None,
) -> DatabaseState:
    proven = None if elected is None else elected.proven
    return DatabaseState(
        name,
        entry.servers[entry.server].region,
        entry.server,
        entry.term,
        entry.state.value,
        entry.policy is LossPolicy.ASYNC,
        {server: None if proven is None else server in proven for server in sorted(entry.ackers)},
        {server: lag_ms for (database, server), lag_ms in sorted(lags_ms.items()) if database == name},
        bound_ms,
        None if elected is None else elected.lacks_if_lost,
        "" if elected is None else elected.blocked or "",
    )
