"""One database of a simulated fleet in three regions: its servers, its entry, and what each server has of each shard.

Always true: the parts of one server share its log. Does not judge; `regions` does, by what this compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.items.item import format_id
from foqs.store.in_memory.memory_table import ShardTables
from shardmgr.loss_report import LossReport
from shardmgr.primary import LossPolicy, Primary, PrimaryState
from tests.support.merged_tables import merged_tables
from tests.support.plain_regions import REGIONS, World
from tests.support.replicated_servers import DataTransaction, ReplicatedServer, Replication
from tests.support.replicated_shards import ShardAtServer

DATABASES: Final[Mapping[str, tuple[int, ...]]] = {"one": (1, 2), "two": (3, 4)}
"""The shards of each database. Its first primary is in the region of the same place."""


@dataclass(slots=True)
class RegionalDatabase:
    """One database.

    Attributes:
        entry: as it was written last.
        way: how its primary is being replaced, a name of `counts`.
        term_since_s: when its term has begun.
        slow_until_s: until when its servers answer promoters slowly.
        parts: what each server has of each shard.
    """

    name: str
    world: World
    server_ids: Mapping[str, int]
    replication: Replication
    entry: Primary
    way: str = ""
    term_since_s: float = 0.0
    slow_until_s: float = 0.0
    parts: dict[tuple[str, int], ShardAtServer] = field(default_factory=dict)

    def server(self, name: str) -> ReplicatedServer:
        server = self.world.servers[name]
        assert isinstance(server, ReplicatedServer)
        return server

    @property
    def primary(self) -> ReplicatedServer:
        return self.server(self.entry.server)

    @property
    def may_be_copied(self) -> bool:
        """Whether its primary has everything: it is open, or the target that has the position."""
        entry, primary = self.entry, self.primary
        if entry.state is PrimaryState.PROMOTING and entry.position is not None:
            return primary.alive and primary.applied_position().covers(entry.position)
        return entry.is_serving and primary.alive and not primary.is_read_only

    @property
    def is_replaceable(self) -> bool:
        """Whether it serves, its primary lives, and with the policy semi-sync its ackers are proven."""
        entry = self.entry
        is_proven = len(entry.ackers) > 1 and all(entry.ackers.values())
        return entry.is_serving and self.primary.alive and (is_proven or entry.policy is LossPolicy.ASYNC)

    def links(self, region: str) -> set[frozenset[str]]:
        """Return the links of a region to the others."""
        return {frozenset((region, other)) for other in REGIONS if other != region}

    def end_connections(self, region: str) -> None:
        """End all connections to a server."""
        for (server, _), part in self.parts.items():
            if server == region:
                part.end_connections()

    def next_flush(self) -> int:
        """Return the number of another transaction."""
        self.world.last_flush += 1
        return self.world.last_flush

    def lost_since(self, former: ReplicatedServer) -> list[DataTransaction]:
        """Return the transactions of a former primary that the primary lacks, with those that its start has cut off."""
        kept, had = set(map(id, self.primary.log)), former.log + former.cut_off
        return [each for each in had if isinstance(each, DataTransaction) and id(each) not in kept]

    def differing_items(self, former: ReplicatedServer) -> set[str]:
        """Return the items of which the primary does not have the same as a former one had."""
        had = former.tables_with_all()
        return {
            format_id(shard, number)
            for shard in DATABASES[self.name]
            for number in _differing_numbers(had[shard], self.primary.tables[shard])
        }

    def copy_differences(self) -> list[str]:
        """Return in what copies with the log of the primary differ from it."""
        return [
            f"the rows of shard {shard} in {server.name} are not those of its primary"
            for server in map(self.server, REGIONS)
            for shard in DATABASES[self.name]
            if server.log[-1] is self.primary.log[-1] and server.tables[shard].rows != self.primary.tables[shard].rows
        ]


def wrong_ranges(report: LossReport, lost: Sequence[DataTransaction]) -> Iterator[str]:
    """Yield the shards whose loss is not within the numbers that are reported."""
    for each in report.left:
        flushes = [one for one in lost if one.shard == each.shard and one.inserted is not None]
        items = sum(one.inserted or 0 for one in flushes)
        if each.lost is not None and not (
            each.lost.flushes_min <= len(flushes)
            and each.lost.items_min <= items
            and (each.lost.items_max is None or items <= each.lost.items_max)
        ):
            yield f"{len(flushes)} flushes with {items} items of shard {each.shard} are lost, and reported are {each.lost}"


def _differing_numbers(former: ShardTables, now: ShardTables) -> set[int]:
    """Return the numbers of the items of a shard of which two copies do not have the same."""
    before, after = merged_tables(former), merged_tables(now)
    numbers = {
        number for number in before.rows.keys() | after.rows.keys() if before.rows.get(number) != after.rows.get(number)
    }
    keys = before.idempotency_keys.items() ^ after.idempotency_keys.items()
    numbers |= {key.item_id for _, key in keys}
    markers = PurgeMarkers(before.purge_markers ^ after.purge_markers)
    return numbers | {number for number, row in (before.rows | after.rows).items() if markers.covers(row)}
