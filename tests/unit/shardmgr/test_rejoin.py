"""A server that comes back becomes an acker only if it has nothing that the primary lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import pytest

from shardmgr.primary import LossPolicy, Primary, PrimaryState, ReplicationPosition
from shardmgr.primary_changes import PromotionRefused
from shardmgr.primary_document import change_primary, replace_primary
from shardmgr.registry.port import Registry, RegistryFailed
from shardmgr.rejoin import rejoin
from shardmgr.server_port import ServerFailed
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import PlainDatabaseServers
from tests.support.plain_regions import World
from tests.unit.shardmgr.test_primary_moves import SERVERS

ENTRY: Final = Primary(2, "r2", LossPolicy.SEMI_SYNC, {"r3": "1.1"}, servers=SERVERS)


class Site:
    """The primary `r2` has two transactions of the former primary `r1`, and one of its own."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.world = World(ENTRY)
        self.former, self.primary = self.world.servers["r1"], self.world.servers["r2"]
        for flush in (1, 2):
            self.former.append(flush=flush)
        self.primary.log = list(self.former.log)
        self.primary.append(term=2)
        self.primary.is_read_only = False
        self.servers = PlainDatabaseServers(self.world, "r2")
        self.said: list[str] = []

    async def rejoin(self, name: str = "r1") -> Primary:
        return await rejoin(self.registry, "main", self.servers, name, self.said.append)

    async def is_refused(self, reason: str, name: str = "r1") -> None:
        with pytest.raises((PromotionRefused, ServerFailed, RegistryFailed), match=reason):
            await self.rejoin(name)


def on_site(story: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await replace_primary(registry, "main", ENTRY, None)
        await story(Site(registry))
        await registry.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_server_that_has_no_more_than_the_primary_acknowledges_again() -> None:
    async def story(site: Site) -> None:
        assert (await site.rejoin()).ackers == {"r1": "", "r3": "1.1"}
        assert (await site.rejoin()).ackers == {"r1": "", "r3": "1.1"}
        assert (await site.rejoin("r3")).ackers["r3"] == "1.1"
        assert site.servers.sent == []

    on_site(story)


def test_server_that_has_diverged_is_refused_with_its_transactions_until_they_are_cut_off() -> None:
    async def story(site: Site) -> None:
        site.former.append(flush=3)
        site.former.append(flush=4)
        await site.is_refused(r"r1 has diverged, it has transactions that r2 lacks: r1: 3 to 4\.")
        del site.former.log[2:]
        await site.rejoin()

    on_site(story)


def test_server_is_refused_that_is_open_or_not_reached_or_no_replica() -> None:
    async def story(site: Site) -> None:
        await site.is_refused("r2 is the primary", "r2")
        await site.is_refused("r9 is no server of the database", "r9")
        site.former.is_read_only = False
        await site.is_refused("r1 accepts commits; end it with SIGKILL")
        site.servers.server_ids["r1"] = 99
        await site.is_refused("the address of r1 leads to the server with server_id 99, not to 11")
        site.former.kill9()
        await site.is_refused("r1: it is not reached")
        site.servers.names = ("r2", "r3")
        await site.is_refused("no address of r1")

    on_site(story)


def test_server_that_was_removed_rejoins_once_its_account_is_unlocked() -> None:
    async def story(site: Site) -> None:
        await change_primary(site.registry, "main", lambda entry: replace(entry, shut_out=("r1",)))
        site.servers.locked.add("r1")
        still = "the replication account of r1 is still locked at r2, r3, since it was removed; as root"
        await site.is_refused(f"{still} at r2 use ALTER USER ... ACCOUNT UNLOCK, which the others receive")
        # What is written into the log of the next primary waits for an ack before it serves.
        position = ReplicationPosition({"r1": 2})
        await change_primary(
            site.registry, "main", lambda entry: replace(entry, state=PrimaryState.PROMOTING, position=position)
        )
        await site.is_refused(f"{still} there use SET SESSION sql_log_bin = 0, then")
        site.servers.locked.clear()
        entry = await site.rejoin()
        assert (entry.ackers, entry.shut_out) == ({"r1": "", "r3": "1.1"}, ())

    on_site(story)


def test_server_that_was_removed_rejoins_only_if_each_server_lets_it_receive() -> None:
    """Accounts may be locked and unlocked at each server by itself, and an acker may be the next primary."""

    async def story(site: Site) -> None:
        await change_primary(site.registry, "main", lambda entry: replace(entry, shut_out=("r1",)))
        site.servers.locked_at = {("r3", "r1")}
        await site.is_refused("the replication account of r1 is still locked at r3, since it was removed")
        site.servers.locked_at = {("r2", "r1"), ("r3", "r1")}
        await site.is_refused("is still locked at r2, r3, since")
        site.servers.locked_at.clear()
        assert (await site.rejoin()).shut_out == ()
        assert site.said == []

    on_site(story)


def test_server_that_was_removed_rejoins_in_the_place_of_an_acker_that_is_lost_for_good() -> None:
    async def story(site: Site) -> None:
        await change_primary(site.registry, "main", lambda entry: replace(entry, shut_out=("r1",)))
        site.world.servers["r3"].kill9()
        assert (await site.rejoin()).ackers == {"r1": "", "r3": "1.1"}
        [text] = site.said
        assert text.startswith("r3 was not asked whether the replication account of r1 is unlocked there")

    on_site(story)


def test_server_rejoins_only_if_it_would_let_the_others_receive_as_the_next_primary() -> None:
    """The lock of a removed server was replicated to it, and lifted at the other servers outside of the log."""

    async def story(site: Site) -> None:
        site.servers.locked_at = {("r1", "r3")}
        await site.is_refused("the replication accounts of r3 are locked at r1, so nobody could acknowledge for it")
        site.servers.locked_at = {("r1", "r2"), ("r1", "r3")}
        await site.is_refused("the replication accounts of r2, r3 are locked at r1")
        # One that was removed, and has not rejoined, is locked there as everywhere.
        await change_primary(site.registry, "main", lambda entry: replace(entry, ackers={}, shut_out=("r3",)))
        site.servers.locked_at = {("r1", "r3")}
        assert (await site.rejoin()).ackers == {"r1": ""}

    on_site(story)


def test_server_acknowledges_for_the_next_primary_before_that_serves() -> None:
    async def story(site: Site) -> None:
        promoting = replace(ENTRY, state=PrimaryState.PROMOTING, position=ReplicationPosition({"r1": 2}))
        await change_primary(site.registry, "main", lambda _: promoting)
        site.former.append(flush=3)
        await site.is_refused("r1 has diverged")
        site.former.log.pop()
        assert (await site.rejoin()).ackers == {"r1": "", "r3": "1.1"}

    on_site(story)


@pytest.mark.parametrize("state", [PrimaryState.DRAINING, PrimaryState.REVOKING])
def test_server_is_refused_while_the_primary_is_replaced(state: PrimaryState) -> None:
    async def story(site: Site) -> None:
        await change_primary(site.registry, "main", lambda entry: replace(entry, state=state))
        await site.is_refused(f"the database is {state.value}")

    on_site(story)


def test_primary_that_changes_meanwhile_needs_another_comparison() -> None:
    async def story(site: Site) -> None:
        connect = site.servers.connect

        async def move_first(name: str) -> object:
            moved = replace(ENTRY, term=3, server="r3", ackers={})
            await change_primary(site.registry, "main", lambda _: moved)
            return await connect(name)

        site.servers.connect = move_first  # type: ignore[assignment, method-assign]
        await site.is_refused("r3 is the primary now; start this again")

    on_site(story)
