"""Publishes the positions of this host's shards in databases with an entry, and reads what their replicas have.

Always true: a shard accepts no item before its first publication is written, and no more than the last one that was written
allows; what was published of a shard stays in the document when another host owns it. A replica that is silent delays neither
other replicas nor publications, and a registry that is silent delays no samples. An entry or a document that cannot be read
stops no shard. Knows neither SQL nor the rules of a shard's positions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from foqs.runtime.clock import Clock
from foqs.shard.shard import OwnedShard
from foqs.store.mysql.replica_rows import ReplicaUnread
from shardmgr.model import ClusterView, MalformedDocument
from shardmgr.positions import (
    SHARDS_MAX,
    ShardPosition,
    newest,
    read_positions,
    remove_superfluous,
    render_positions,
    set_aside,
    write_positions,
)
from shardmgr.primary import LossPolicy, Primary
from shardmgr.primary_document import read_primaries
from shardmgr.registry.port import Registry, RegistryError

if TYPE_CHECKING:
    from foqs.core.limits.shard_positions import ShardPositions

log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
"""How often the positions are sampled, and how soon a shard that needs a publication gets one."""
_PUBLISH_MS: Final = 1_000
"""How often positions are published if no shard needs it sooner."""
_READ_S: Final = 0.5
"""The pause between two reads of a replica."""
_CLEAN_S: Final = 3_600.0
"""The pause between two searches for documents of hosts that are gone."""
_LOG_PAUSE_MS: Final = 60_000


class ReplicaReader(Protocol):
    """Reads the owner rows at one server of a database; see `ReplicaRows`."""

    async def read(self, server_id: int, shards: Sequence[int]) -> Mapping[int, tuple[int, int]]: ...

    def close(self) -> None: ...


class PositionPublisher:
    """The positions of one host.

    Args:
        host: its name, which names the document.
        shards: the shards that it serves, by number.
        view: returns the last view of the cluster.
        readers: by database with servers, and by server.
        max_lag_ms: by database, the bound of the policy async.
    """

    def __init__(
        self,
        registry: Registry,
        host: str,
        shards: Mapping[int, OwnedShard],
        view: Callable[[], ClusterView | None],
        readers: Mapping[str, Mapping[str, ReplicaReader]],
        max_lag_ms: Mapping[str, int],
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._host = host
        self._shards = shards
        self._view = view
        self._readers = readers
        self._max_lag_ms = max_lag_ms
        self._clock = clock
        self._entries: Mapping[str, Primary] = {}
        """By database, as they could be read last."""
        self._skipped: frozenset[int] = frozenset()
        """The shards that the last publication had no place or no entry for."""
        self._kept: dict[int, ShardPosition] = {}
        """What is published, by shard."""
        self._version: int | None = None
        self._stored: bytes | None = None
        """The document as it is known to be in the registry; None: it must be read first."""
        self._published_ms = 0
        self._logged_ms: dict[str, int] = {}
        self._unreadable: Mapping[str, str] = {}
        """By database, why its entry could not be read last."""

    async def run(self) -> None:
        """Publish until cancelled."""
        if not self._readers:
            await asyncio.Event().wait()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run_samples())
                group.create_task(self._run_publications())
                group.create_task(self._run_cleaning())
                for database, readers in self._readers.items():
                    for server, reader in readers.items():
                        group.create_task(self._run_reads(database, server, reader))
        finally:
            for readers in self._readers.values():
                for reader in readers.values():
                    reader.close()

    def lags_ms(self) -> dict[tuple[str, str], int]:
        """Return by database and replica how far it is behind the inserts of this host's shards at most."""
        now_ms = self._clock.monotonic_ms()
        found: dict[tuple[str, str], int] = {}
        for number, positions in self._owned().items():
            database = self._database_of(number)
            for server in self._replicas(database):
                lag_ms = positions.lag_ms(server, now_ms)
                found[database, server] = max(found.get((database, server), 0), lag_ms)
        return found

    def bounds_ms(self) -> dict[str, int]:
        """Return the bound of each database of the policy async of which this host owns shards."""
        databases = {self._database_of(number) for number in self._owned()}
        found = {database: self._bound(database) for database in databases}
        return {database: bound for database, bound in found.items() if bound is not None}

    # ------------------------------------------------------------- publications

    async def _run_samples(self) -> None:
        """Sample all positions: a shard counts as far from its replicas for as long as it is not sampled."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_ms = self._clock.monotonic_ms()
            for number in self._owned():
                self._shards[number].sample_positions(now_ms)

    async def _run_publications(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            owned = self._owned()
            is_due = self._clock.monotonic_ms() - self._published_ms >= _PUBLISH_MS
            if owned and (is_due or self._is_needed(owned)):
                try:
                    await self._publish()
                except RegistryError as error:
                    self._stored = None
                    self._say(self._host, f"positions are not published, so few new items are accepted: {error}")
                    await asyncio.sleep(_PUBLISH_MS / 1_000)  # a registry that refuses is not asked ten times a second
                except Exception:
                    # A shard without a publication accepts nothing more; the host and its other databases go on.
                    self._stored = None
                    log.exception("positions are not published; trying again")
                    await asyncio.sleep(_PUBLISH_MS / 1_000)

    def _is_needed(self, owned: Mapping[int, ShardPositions]) -> bool:
        """Return whether a shard needs a publication before the next one is due. One that was skipped would get none."""
        return any(each.needs_publication for number, each in owned.items() if number not in self._skipped)

    async def _publish(self) -> None:
        """Publish the positions of the shards whose entry is known. Raises `RegistryError`."""
        if self._stored is None:
            await self._read_own()
        numbers = self._owned()
        await self._read_entries({self._database_of(number) for number in numbers} - {""})
        skipped: set[int] = set()
        now_ms = self._clock.monotonic_ms()
        published: list[ShardPositions] = []
        self._drop_kept(numbers)
        for number in numbers:
            shard, database = self._shards.get(number), self._database_of(number)
            if shard is None or shard.positions is None or shard.term is None:
                continue
            if database not in self._entries:
                skipped.add(number)
                continue
            if number not in self._kept and len(self._kept) >= SHARDS_MAX:
                skipped.add(number)
                self._say(
                    "shards", f"shard {number} accepts no new items: a host publishes at most {SHARDS_MAX} positions"
                )
                continue
            replicas = self._replicas(database)
            shard.positions.set_bound(self._bound(database))
            shard.positions.keep_servers(replicas)
            points, most = shard.publication(now_ms, replicas)
            self._kept[number] = ShardPosition(number, database, shard.epoch, shard.term, points, most)
            published.append(shard.positions)
        self._skipped = frozenset(skipped)
        text = render_positions(self._kept.values())
        if text != self._stored:
            try:
                self._version = await write_positions(self._registry, self._host, text, self._version)
            except BaseException:
                self._stored = None
                raise
            self._stored = text
        self._published_ms = now_ms
        for positions in published:
            positions.on_published()

    def _drop_kept(self, numbers: Collection[int]) -> None:
        """Make room for these shards: drop what was published of others, as much as is necessary."""
        surplus = len(self._kept.keys() | numbers) - SHARDS_MAX
        for number in [number for number in self._kept if number not in numbers][: max(0, surplus)]:
            del self._kept[number]

    async def _read_own(self) -> None:
        """Read the document, which an earlier run of this host may have written, and keep what it says of other shards."""
        try:
            found, self._version = await read_positions(self._registry, self._host)
        except MalformedDocument as error:
            found = ()
            await self._set_own_aside(str(error))
        # Of its own shards this host knows most. Of others the document counts: two hosts of one name may write it by mistake.
        owned = self._owned()
        own = [each for number, each in self._kept.items() if number in owned]
        self._kept = newest([*own, *found, *self._kept.values()])
        self._stored = render_positions(found)

    async def _set_own_aside(self, problem: str) -> None:
        """Copy the document, which cannot be read. It has earlier epochs only: its shards accept nothing before the next write."""
        name, self._version = await set_aside(self._registry, self._host)
        log.error(
            "what this host had published cannot be read, and is published again: %s. A copy is kept as %s: until you remove it, the "
            "report of an accepted loss names no maximum",
            problem,
            name,
        )

    async def _read_entries(self, databases: Collection[str]) -> None:
        """Read the entries of these databases. One that cannot be read stays as it was: its term and ackers cannot change then."""
        found = await read_primaries(self._registry, databases)
        kept = {name: self._entries[name] for name in found.malformed if name in self._entries}
        for name, problem in found.malformed.items():
            if self._unreadable.get(name) != problem:
                effect = "what it was before counts" if name in kept else "its shards accept no new items"
                log.error("the entry of a database cannot be read, so %s until you correct it: %s", effect, problem)
        self._unreadable = found.malformed
        self._entries = kept | dict(found.entries)

    async def _run_cleaning(self) -> None:
        """Remove the documents of hosts that are gone, once nothing in them is needed. All hosts try it."""
        while True:
            await asyncio.sleep(_CLEAN_S)
            view = self._view()
            if view is None or not self._owned():
                continue
            try:
                members = {member.name for member in view.members}
                removed = await remove_superfluous(self._registry, members, view.layout.shards)
            except RegistryError as error:
                self._say("cleaning", f"documents of hosts that are gone stay for now: {error}")
                continue
            except Exception:
                log.exception("documents of hosts that are gone stay for now")
                continue
            if removed:
                log.info("the positions of hosts that are gone were removed: %s", ", ".join(removed))

    # ------------------------------------------------------------------ replicas

    async def _run_reads(self, database: str, server: str, reader: ReplicaReader) -> None:
        while True:
            await asyncio.sleep(_READ_S)
            entry = self._entries.get(database)
            owned = {number: each for number, each in self._owned().items() if self._database_of(number) == database}
            if not owned or entry is None or server not in self._replicas(database):
                reader.close()
                continue
            try:
                rows = await reader.read(entry.servers[server].server_id, sorted(owned))
            except ReplicaUnread as error:
                self._say(f"{database} {server}", f"what a replica has is not known: {error}")
                continue
            except Exception:
                log.exception("what a replica has is not known; trying again", extra={"database": database})
                continue
            for number, positions in owned.items():
                shard = self._shards.get(number)
                if shard is not None and shard.positions is positions:
                    epoch, flush = rows.get(number, (0, 0))
                    positions.confirm(server, flush if epoch == shard.epoch else None)

    def _owned(self) -> dict[int, ShardPositions]:
        return {number: shard.positions for number, shard in self._shards.items() if shard.positions is not None}

    def _database_of(self, number: int) -> str:
        view = self._view()
        spec = None if view is None else view.layout.shards.get(number)
        return "" if spec is None else spec.database

    def _replicas(self, database: str) -> list[str]:
        entry = self._entries.get(database)
        return [] if entry is None else sorted(entry.ackers)

    def _bound(self, database: str) -> int | None:
        """Return `max_lag_ms` with the policy async; None if no replica is left, as after the loss of one of two servers."""
        entry = self._entries.get(database)
        if entry is None or entry.policy is not LossPolicy.ASYNC or not entry.ackers:
            return None
        return self._max_lag_ms.get(database)

    def _say(self, what: str, text: str) -> None:
        """Log a trouble, at most once a minute of each kind."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._logged_ms.get(what, -_LOG_PAUSE_MS) >= _LOG_PAUSE_MS:
            self._logged_ms[what] = now_ms
            log.warning("%s", text)
