"""A database with hosts gets its first entry only by the server that hosts use, and nobody is harmed by a mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import pytest

from shardmgr import first_entry as first_entry_module
from shardmgr.documents import MEMBERS, render_member
from shardmgr.first_entry import SeenByHosts, forget_entry, make_first_entry
from shardmgr.layout_changes import create_layout
from shardmgr.model import HeldShard, Member, ShardSpec
from shardmgr.primary import LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import PromotionRefused, first_entry
from shardmgr.primary_document import read_primary
from shardmgr.promoter import Promoter
from shardmgr.registry.port import Registry, RegistryConflict, RegistryFailed
from shardmgr.server_port import ServerFailed
from shardmgr.versions import VERSIONS, HostVersions, render_versions
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import PlainDatabaseServers
from tests.support.plain_regions import REGIONS, World
from tests.unit.shardmgr.test_primary_moves import SERVERS

SCHEMA: Final = 8
BY_SERVER: Final = {name: f"region-{name}" for name in REGIONS}
HOST: Final = Member("one", "n-1", "10.0.0.1:7411", held_shards={1: HeldShard(7, "owned")})


class Site:
    """A cluster with one host that owns shard 1 in epoch 7 at `r1`, and the servers of its database."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.world = World(first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS))
        self.world.servers["r1"].is_read_only = False
        self.world.servers["r1"].append(flush=1)
        self.world.servers["r2"].start_receiving("r1")
        self.replicate()
        self.servers = PlainDatabaseServers(self.world, "r2")
        self.url = "r1"
        """The server that the configuration of hosts names."""
        self.epochs = {1: 7}
        """The epochs in owner rows, at every server."""
        self.passes = ""
        """The server at which the account of hosts may write although it is read-only."""

    def replicate(self) -> None:
        for name in REGIONS:
            self.world.receive(name)
            self.world.servers[name].apply_next()
        for ack in list(self.world.acks):
            self.world.deliver(ack)

    async def compare_server(self, name: str, shards: Collection[int]) -> SeenByHosts:
        assert list(shards) in ([], [1])
        return SeenByHosts(name == self.url, self.epochs)

    async def passes_read_only(self, name: str, *, is_read_only: bool) -> bool:
        assert is_read_only == (name != "r1")
        return name == self.passes

    async def join(self, schema: int = SCHEMA) -> None:
        await self.registry.announce(VERSIONS, HOST.nonce, render_versions(HostVersions("0.2.0", schema, 1, 2)))
        await self.registry.announce(MEMBERS, HOST.nonce, render_member(HOST))

    async def adopt(
        self, primary: str = "r1", database: str = "main", policy: LossPolicy = LossPolicy.SEMI_SYNC
    ) -> None:
        await make_first_entry(self.registry, database, self.servers, self, BY_SERVER, primary, policy, SCHEMA)

    async def is_refused(self, reason: str, primary: str = "r1", database: str = "main") -> None:
        """Check that an adoption is refused, and has changed nothing."""
        with pytest.raises((PromotionRefused, ServerFailed), match=reason):
            await self.adopt(primary, database)
        assert self.servers.sent == []
        assert await read_primary(self.registry, database) is None


def on_site(story: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await create_layout(registry, [ShardSpec(1, "main"), ShardSpec(2, "else")])
        await story(Site(registry))
        await registry.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_first_entry_is_written_before_any_server_is_changed() -> None:
    async def story(site: Site) -> None:
        await site.join()
        await site.adopt()
        assert site.servers.sent == []
        found = await read_primary(site.registry, "main")
        assert found is not None
        assert (found.entry.state, found.entry.term, found.entry.server) == (PrimaryState.DRAINING, 1, "r1")
        assert dict(found.entry.servers) == SERVERS

    on_site(story)


def test_second_adoption_at_the_same_time_changes_nothing() -> None:
    async def story(site: Site) -> None:
        await site.join()
        results = await asyncio.gather(site.adopt(), site.adopt(), return_exceptions=True)
        [refused] = [each for each in results if each is not None]
        assert isinstance(refused, RegistryConflict | ServerFailed)
        with pytest.raises(RegistryConflict):
            await site.adopt()
        assert site.servers.sent == []

    on_site(story)


def test_database_that_had_an_entry_before_gets_a_later_term() -> None:
    async def story(site: Site) -> None:
        site.world.servers["r1"].append(term=4)
        site.replicate()
        await site.adopt()
        found = await read_primary(site.registry, "main")
        assert found is not None
        assert found.entry.term == 5

    on_site(story)


def test_first_entry_is_refused_while_a_host_of_an_older_version_is_announced() -> None:
    async def story(site: Site) -> None:
        await site.join(SCHEMA - 1)
        await site.is_refused("hosts of an older version are members of the cluster: one")

    on_site(story)


def test_first_entry_with_a_wrong_name_is_refused() -> None:
    async def story(site: Site) -> None:
        await site.is_refused("one of these servers as the primary", "r9")
        await site.is_refused("no shard in the database 'other'", database="other")
        site.world.servers["r3"].kill9()
        await site.is_refused("r3")

    on_site(story)


def test_server_that_hosts_do_not_use_is_refused() -> None:
    async def story(site: Site) -> None:
        await site.join()
        await site.is_refused("r1 accepts commits, which only the primary may", "r3")
        await site.is_refused("r2 is a replica, it receives from r1", "r2")
        site.url = "r3"
        await site.is_refused("r1 is not the server of databases.main.url")

    on_site(story)


def test_copy_of_the_server_that_owners_use_is_refused() -> None:
    async def story(site: Site) -> None:
        await site.join()
        for epochs in ({1: 6}, {}):
            site.epochs = epochs
            await site.is_refused("one owns shard 1 in epoch 7, and r1 does not have that")
        site.epochs = {1: 8}
        await site.adopt()

    on_site(story)


@pytest.mark.parametrize("name", REGIONS)
def test_hosts_that_read_only_does_not_stop_are_refused(name: str) -> None:
    async def story(site: Site) -> None:
        site.passes = name
        await site.is_refused(f"account of hosts may write {name} although it is read-only")

    on_site(story)


def test_servers_that_are_no_replicas_of_the_primary_are_refused() -> None:
    async def story(site: Site) -> None:
        one, two, three = site.world.servers.values()
        two.append(flush=2)
        await site.is_refused("r2 has transactions that r1 lacks")
        two.log.pop()
        three.start_receiving("r2")
        await site.is_refused("r3 receives from r2, not from r1")
        three.reset()
        one.is_read_only = True
        await site.is_refused("r1 is read-only, so hosts do not write there")
        one.is_read_only = False
        site.servers.server_ids["r3"] = site.servers.server_ids["r2"]
        await site.is_refused("r3 and r2 both have server_id 12|r2 and r3 both have server_id 12")

    on_site(story)


def test_primary_that_commits_meanwhile_is_not_behind_its_replicas() -> None:
    async def story(site: Site) -> None:
        replica, report = site.world.servers["r2"], site.servers.promoter.report

        def busy(server: object) -> object:
            site.world.servers["r1"].append(flush=9)
            site.world.receive("r2")
            replica.apply_next()
            return report(server)  # type: ignore[arg-type]

        site.servers.promoter.report = busy  # type: ignore[assignment, method-assign]
        await site.adopt()

    on_site(story)


def test_database_is_not_adopted_before_another_server_could_acknowledge(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        replica = site.world.servers["r2"]
        monkeypatch.setattr(first_entry_module, "_RECEIVE_PAUSE_S", 0)
        site.world.servers["r1"].append(flush=2)
        await site.is_refused(
            "none could acknowledge: r2 has not received all that r1 has; r3 does not receive from r1"
        )
        site.replicate()
        replica.is_applying = False
        await site.is_refused("r2 its SQL thread stands")
        replica.is_applying = True
        site.world.cut.add(frozenset(("r2", "r1")))
        site.servers._region = "r3"
        await site.is_refused("r2 is not connected to r1")
        site.world.cut.clear()
        replica.reset()
        await site.is_refused("r2 does not receive from r1")
        await site.adopt(policy=LossPolicy.ASYNC)  # waits for nobody

    on_site(story)


async def run_promoter_until_there_is_no_entry(site: Site, rounds_max: int) -> None:
    async def are_shards_free(entry: Primary) -> bool:
        return True

    promoter = Promoter(site.registry, "main", site.servers, are_shards_free)
    for _ in range(rounds_max):
        if await promoter.run_round() is None:
            break
        site.replicate()
    await promoter.close()


@pytest.mark.parametrize("rounds", [0, 3, 100])
def test_entry_that_is_removed_lets_hosts_commit_alone_and_a_later_one_has_a_later_term(rounds: int) -> None:
    async def story(site: Site) -> None:
        await site.adopt()
        first = await read_primary(site.registry, "main")
        await run_promoter_until_there_is_no_entry(site, rounds)
        site.url = "r2"
        with pytest.raises(PromotionRefused, match="leads to another server than r1"):
            await forget_entry(site.registry, "main", site)
        site.url = "r1"
        await forget_entry(site.registry, "main", site)
        assert (await forget_entry(site.registry, "main", site)).state is PrimaryState.RELEASING
        await run_promoter_until_there_is_no_entry(site, 100)
        assert await read_primary(site.registry, "main") is None
        primary = site.world.servers["r1"]
        assert (primary.is_read_only, primary.waits_for_acks) == (False, False)
        with pytest.raises(RegistryFailed, match="has no entry"):
            await forget_entry(site.registry, "main", site)
        # A promoter that has read the first entry cannot replace the next one.
        await site.adopt()
        second = await read_primary(site.registry, "main")
        assert first is not None
        assert second is not None
        assert second.entry.term > first.entry.term
        assert second.version > first.version

    on_site(story)
