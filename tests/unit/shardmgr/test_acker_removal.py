"""An acker is removed only after it cannot receive any more, and the others are proven again after that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final

import pytest

from shardmgr.acker_removal import remove_acker
from shardmgr.primary import LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import PromotionRefused, admit_acker
from shardmgr.primary_document import change_primary, read_primary, replace_primary
from shardmgr.registry.port import Registry
from shardmgr.server_port import ServerFailed
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import PlainDatabaseServers
from tests.support.plain_regions import World
from tests.unit.shardmgr.test_primary_moves import SERVERS

ENTRY: Final = Primary(2, "r2", LossPolicy.SEMI_SYNC, {"r1": "0.3", "r3": "1.1"}, servers=SERVERS)


class Site:
    def __init__(self, registry: Registry, entry: Primary) -> None:
        self.registry = registry
        self.world = World(entry)
        self.servers = PlainDatabaseServers(self.world, "r2")

    async def remove(self, name: str, left: Collection[str] | None = None) -> Primary:
        return await remove_acker(self.registry, "main", self.servers, name, left)

    async def entry(self) -> Primary:
        found = await read_primary(self.registry, "main")
        assert found is not None
        return found.entry


def on_site(story: Callable[[Site], Awaitable[None]], entry: Primary = ENTRY) -> None:
    async def main() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await replace_primary(registry, "main", entry, None)
        await story(Site(registry, entry))
        await registry.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_acker_is_removed_once_no_server_lets_it_receive_and_the_others_lose_their_standings() -> None:
    async def story(site: Site) -> None:
        with pytest.raises(
            ServerFailed, match=r"r3 can still receive from it.*r3 is still an acker: repeat this, or unlock"
        ):
            await site.remove("r3")
        assert await site.entry() == ENTRY
        site.servers.locked.add("r3")
        site.world.servers["r3"].kill9()
        removed = await site.remove("r3")
        assert (removed.ackers, removed.shut_out) == ({"r1": ""}, ("r3",))
        assert site.servers.ended_receptions == [("r1", "r3"), ("r2", "r3")]
        assert await site.remove("r3") == removed

    on_site(story)


def test_acker_stays_while_another_one_is_not_reached() -> None:
    async def story(site: Site) -> None:
        site.servers.locked.add("r3")
        site.world.servers["r1"].kill9()
        with pytest.raises(ServerFailed, match="r1: it is not reached"):
            await site.remove("r3")
        assert await site.entry() == ENTRY

    on_site(story)


@pytest.mark.parametrize(
    ("entry", "name", "reason"),
    [
        (ENTRY, "r2", "r2 is the primary; move it first"),
        (ENTRY, "moon", "moon is no server of the database; name one of r1, r2, r3"),
        (replace(ENTRY, ackers={"r3": ""}), "r3", "r3 is the last acker, and without one each commit would wait"),
        (replace(ENTRY, state=PrimaryState.DRAINING, target="r1"), "r3", "the database is draining; wait"),
    ],
)
def test_server_is_refused_that_may_not_be_removed(entry: Primary, name: str, reason: str) -> None:
    async def story(site: Site) -> None:
        with pytest.raises(PromotionRefused, match=reason):
            await site.remove(name)

    on_site(story, entry)


def test_acker_whose_account_is_not_known_is_refused() -> None:
    async def story(site: Site) -> None:
        site.servers.names = ("r1", "r2")
        with pytest.raises(PromotionRefused, match="the configuration does not name r3"):
            await site.remove("r3")

    on_site(story)


def test_acker_of_an_async_primary_needs_no_lock_and_may_be_the_last_one() -> None:
    async def story(site: Site) -> None:
        assert (await site.remove("r3")).ackers == {"r1": ""}
        site.world.servers["r1"].kill9()
        removed = await site.remove("r1")
        assert (removed.ackers, removed.shut_out, site.servers.ended_receptions) == ({}, (), [])
        assert admit_acker(removed, "r1").ackers == {"r1": ""}

    on_site(story, replace(ENTRY, policy=LossPolicy.ASYNC, ackers={"r1": "", "r3": ""}))


def test_replica_is_removed_only_if_those_are_left_of_which_the_administrator_was_asked() -> None:
    """Without --yes the question comes first, and is milder if another replica is left."""

    async def story(site: Site) -> None:
        await site.remove("r1")
        with pytest.raises(
            PromotionRefused, match="other ackers were removed meanwhile; left are r3; start this again"
        ):
            await site.remove("r3", ["r1"])
        assert (await site.remove("r3", [])).ackers == {}
        assert (await site.remove("r3", ["r1"])).ackers == {}

    on_site(story, replace(ENTRY, policy=LossPolicy.ASYNC, ackers={"r1": "", "r3": ""}))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (replace(ENTRY, term=3, server="r1", ackers={"r2": "", "r3": ""}), "r1 is the primary now"),
        (admit_acker(replace(ENTRY, ackers={"r1": "", "r3": ""}), "r1"), ""),
    ],
)
def test_entry_that_changes_meanwhile_is_judged_again(changed: Primary, reason: str) -> None:
    async def story(site: Site) -> None:
        site.servers.locked.add("r3")
        reads = 0

        class Changing:
            def __getattr__(self, name: str) -> object:
                return getattr(site.registry, name)

            async def read(self, name: str) -> object:
                nonlocal reads
                reads += 1
                if reads == 2:
                    await change_primary(site.registry, "main", lambda entry: changed)
                return await site.registry.read(name)

        async def removed() -> Primary:
            return await remove_acker(Changing(), "main", site.servers, "r3")  # type: ignore[arg-type]

        if reason:
            with pytest.raises(PromotionRefused, match=reason):
                await removed()
            assert await site.entry() == changed
        else:
            assert (await removed()).ackers == {"r1": ""}

    on_site(story)
