"""A database with hosts gets its first entry only when nobody is harmed by it, and is served on otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from shardmgr.documents import MEMBERS, render_member
from shardmgr.first_entry import make_first_entry
from shardmgr.layout_changes import create_layout
from shardmgr.model import Member, ShardSpec
from shardmgr.primary import LossPolicy, PrimaryState, ReplicationPosition
from shardmgr.primary_changes import PromotionRefused, first_entry
from shardmgr.primary_document import read_primary
from shardmgr.promotion import ServerCommand
from shardmgr.registry.port import Registry, RegistryConflict
from shardmgr.server_port import ServerFailed
from shardmgr.versions import VERSIONS, HostVersions, render_versions
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import PlainDatabaseServers
from tests.support.plain_regions import REGIONS, World
from tests.unit.shardmgr.test_primary_moves import SERVERS

SCHEMA: Final = 8
BY_SERVER: Final = {name: f"region-{name}" for name in REGIONS}
HOST: Final = Member("one", "n-1", "10.0.0.1:7411")


class Site:
    """A cluster with one host, and the servers of its database."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.world = World(first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS, ReplicationPosition()))
        self.servers = PlainDatabaseServers(self.world, "r2")

    @property
    def commands(self) -> list[ServerCommand]:
        return [step.command for step in self.servers.sent]

    async def join(self, schema: int) -> None:
        await self.registry.announce(VERSIONS, HOST.nonce, render_versions(HostVersions("0.2.0", schema, 1, 2)))
        await self.registry.announce(MEMBERS, HOST.nonce, render_member(HOST))

    async def adopt(self, primary: str = "r1", database: str = "main") -> None:
        policy = LossPolicy.SEMI_SYNC
        await make_first_entry(self.registry, database, self.servers, BY_SERVER, primary, policy, SCHEMA)


def on_site(story: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await create_layout(registry, [ShardSpec(1, "main")])
        await story(Site(registry))
        await registry.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_first_entry_has_what_the_server_has_once_it_is_read_only() -> None:
    async def story(site: Site) -> None:
        await site.join(SCHEMA)
        await site.adopt()
        assert site.commands == [ServerCommand.MAKE_READ_ONLY]
        found = await read_primary(site.registry, "main")
        assert found is not None
        assert (found.entry.state, found.entry.term, found.entry.server) == (PrimaryState.PROMOTING, 1, "r1")
        assert dict(found.entry.servers) == SERVERS
        with pytest.raises(RegistryConflict):
            await site.adopt()
        assert site.commands[-1] is ServerCommand.OPEN

    on_site(story)


def test_first_entry_is_refused_while_a_host_of_an_older_version_is_announced() -> None:
    async def story(site: Site) -> None:
        await site.join(SCHEMA - 1)
        with pytest.raises(PromotionRefused, match="hosts of an older version are members of the cluster: one"):
            await site.adopt()
        assert site.commands == []

    on_site(story)


def test_first_entry_with_a_wrong_name_is_refused_before_anything_is_changed() -> None:
    async def story(site: Site) -> None:
        with pytest.raises(PromotionRefused, match="one of these servers as the primary"):
            await site.adopt("r9")
        with pytest.raises(PromotionRefused, match="no shard in the database 'other'"):
            await site.adopt(database="other")
        site.world.servers["r3"].kill9()
        with pytest.raises(ServerFailed, match="r3"):
            await site.adopt()
        assert site.commands == []
        assert await read_primary(site.registry, "main") is None

    on_site(story)
