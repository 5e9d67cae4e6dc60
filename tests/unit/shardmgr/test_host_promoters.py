"""Hosts keep and replace the primary of their database by themselves: one of them, and another one if its session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import pytest

from foqs.testing.virtual_loop import VirtualClock
from shardmgr.acker_removal import remove_acker
from shardmgr.host_promoters import HostPromoters, PromoterPace
from shardmgr.primary import LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import first_entry, start_drain
from shardmgr.primary_document import FOLDER, change_primary, read_primary, replace_primary
from shardmgr.primary_moves import ELECTION_FOLDER, elected_promoters
from shardmgr.rejoin import rejoin
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.plain_database_servers import PlainDatabaseServers
from tests.support.plain_regions import REGIONS, World
from tests.support.virtual_time import run_virtual
from tests.unit.shardmgr.test_primary_moves import SERVERS

PACE: Final = PromoterPace(grace_ms=5_000, session_ms=6_000)
FIRST: Final = first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS)


class Site:
    """A database in three regions, whose servers replicate all the time, and a host in each region."""

    def __init__(self) -> None:
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.ensemble = LocalEnsemble(None, self.clock.monotonic_ms)
        self.world = World(FIRST)
        self.connects: list[str] = []
        self.tasks = [asyncio.create_task(self._replicate())]
        self.hosts: dict[str, tuple[LocalRegistry, asyncio.Task[None]]] = {}
        self.promoters: dict[str, HostPromoters] = {}
        self.servers: dict[str, PlainDatabaseServers] = {}

    async def start(self) -> None:
        self.registry = self.ensemble.registry(6_000)
        await self.registry.open()
        for region in REGIONS:
            await self.host(region)

    async def host(self, region: str) -> None:
        registry = self.ensemble.registry(6_000)
        await registry.open()
        servers = PlainDatabaseServers(self.world, region, lambda name: self.connects.append(region))
        self.servers[region] = servers
        promoters = HostPromoters(registry, f"n-{region}", {"main": servers}, PACE, self.clock.monotonic_ms)
        self.promoters[region] = promoters
        self.hosts[region] = registry, asyncio.create_task(promoters.run())

    async def kill_host(self, region: str) -> None:
        registry, task = self.hosts.pop(region)
        task.cancel()
        await registry.close()

    async def elected(self) -> str:
        [data] = (await self.registry.members(ELECTION_FOLDER)).values()
        return next(region for region in REGIONS if f"n-{region}".encode() in data)

    async def until(self, is_so: Callable[[Primary], bool]) -> Primary:
        while True:
            found = await read_primary(self.registry, "main")
            if found is not None and is_so(found.entry):
                return found.entry
            await asyncio.sleep(0.05)

    async def _replicate(self) -> None:
        while True:
            for name in REGIONS:
                self.world.receive(name)
                if self.world.servers[name].alive:
                    self.world.servers[name].apply_next()
            for ack in list(self.world.acks):
                self.world.deliver(ack)
            await asyncio.sleep(0.01)


def on_site(story: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        site = Site()
        await site.start()
        await story(site)

    run_virtual(play, until_s=3_600)


def is_proven(entry: Primary) -> bool:
    return entry.is_serving and all(entry.ackers.values())


def test_hosts_connect_to_no_server_before_there_is_an_entry_and_open_its_first_primary_then() -> None:
    async def story(site: Site) -> None:
        await asyncio.sleep(60)
        assert site.connects == []
        await replace_primary(site.registry, "main", FIRST, None)
        entry = await site.until(is_proven)
        assert (entry.term, entry.server) == (1, "r1")
        elected = await site.elected()
        assert set(site.connects) == {elected}
        await asyncio.sleep(2)
        assert [region for region in REGIONS if site.promoters[region].rounds] == [elected]
        done = site.promoters[elected].rounds["main"]
        assert (done.is_reached, sorted(done.proven)) == (True, ["r2", "r3"])

    on_site(story)


def test_primary_that_somebody_weakens_is_counted_and_waits_for_acks_again() -> None:
    async def story(site: Site) -> None:
        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        await asyncio.sleep(2)
        promoters = site.promoters[await site.elected()]
        assert promoters.weakened == {"main": 0}
        site.world.servers["r1"].waits_for_acks = False
        await asyncio.sleep(10)
        assert promoters.weakened["main"] in (1, 2)  # it is found, and perhaps seen again before it is mended
        assert site.world.servers["r1"].waits_for_acks

    on_site(story)


def test_elected_promoter_says_that_writes_wait_while_no_replica_acknowledges() -> None:
    async def story(site: Site) -> None:
        async def blocked() -> str:
            await asyncio.sleep(4)
            found = site.promoters[await site.elected()].rounds["main"].blocked
            assert (await elected_promoters(site.registry, ["main"]))["main"].blocked == found
            return found

        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        assert await blocked() == ""
        site.world.servers["r2"].kill9()
        assert await blocked() == ""
        site.world.servers["r3"].kill9()
        assert await blocked() == (
            "writes wait: commits of r1 need an ack of r2 or r3, and none comes; bring one of them back"
        )
        site.world.servers["r3"].start()
        assert await blocked() == ""
        found = await read_primary(site.registry, "main")
        assert found is not None
        assert (found.entry.term, found.entry.state) == (1, PrimaryState.SERVING)

    on_site(story)


def test_commits_without_an_ack_are_counted_once_whichever_server_is_the_primary_then() -> None:
    async def story(site: Site) -> None:
        async def counted(server: str, unacknowledged: int) -> int:
            site.world.servers[server].unacknowledged = unacknowledged
            await asyncio.sleep(3)
            return site.promoters[await site.elected()].unacknowledged["main"]

        async def move(target: str) -> None:
            term = (await change_primary(site.registry, "main", partial(start_drain, target=target))).term
            await site.until(partial(is_proven_after, term))

        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        assert await counted("r1", 0) == 0
        assert await counted("r1", 7) == 7
        await move("r2")
        assert await counted("r2", 2) == 9
        await move("r1")
        assert await counted("r1", 7) == 9
        assert await counted("r1", 8) == 10
        site.world.servers["r1"].kill9()
        site.world.servers["r1"].start()
        assert await counted("r1", 1) == 11

    on_site(story)


def test_lost_primary_is_replaced_by_the_hosts_and_a_lost_host_by_another_one() -> None:
    async def story(site: Site) -> None:
        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        site.world.servers["r1"].append(flush=1)
        await asyncio.sleep(1)
        site.world.servers["r1"].kill9()
        await site.kill_host(await site.elected())
        lost_ms = site.clock.monotonic_ms()
        entry = await site.until(lambda entry: entry.term == 2 and entry.is_serving)
        assert site.clock.monotonic_ms() - lost_ms >= PACE.grace_ms
        assert site.world.servers[entry.server].flushes == {1}

    on_site(story)


def test_primary_that_cannot_be_replaced_without_a_loss_is_awaited_and_the_reason_is_published() -> None:
    async def story(site: Site) -> None:
        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        for name in ("r1", "r3"):
            site.world.servers[name].kill9()
        await asyncio.sleep(60)
        found = await read_primary(site.registry, "main")
        assert found is not None
        assert (found.entry.term, found.entry.is_serving) == (1, True)
        [data] = (await site.registry.members(ELECTION_FOLDER)).values()
        assert b"r1 is not reached; r3 is not reached" in data

    on_site(story)


def test_primary_with_one_acker_that_was_left_is_replaced_only_when_the_removed_one_has_rejoined() -> None:
    async def lacks_if_lost(site: Site) -> tuple[str, ...]:
        """Return what the elected promoter says a moment later, which is also what it has published."""
        await asyncio.sleep(3)
        found = site.promoters[await site.elected()].rounds["main"].lacks_if_lost
        assert (await elected_promoters(site.registry, ["main"]))["main"].lacks_if_lost == found
        return tuple(found)

    async def story(site: Site) -> None:
        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        assert await lacks_if_lost(site) == ()
        away = site.world.servers["r3"]
        away.kill9()
        assert await lacks_if_lost(site) == ("r3 is not reached",)
        site.world.locked.add("r3")
        await remove_acker(site.registry, "main", site.servers["r2"], "r3")
        assert (await site.until(is_proven)).ackers.keys() == {"r2"}
        away.start()
        [lacking] = await lacks_if_lost(site)
        assert lacking.startswith("no other server that is reached could acknowledge for r2")
        # It could not be finished, and the primary goes on when it is back.
        site.world.servers["r1"].kill9()
        await asyncio.sleep(60)
        found = await read_primary(site.registry, "main")
        assert found is not None
        assert (found.entry.term, found.entry.state) == (1, PrimaryState.SERVING)
        site.world.servers["r1"].start()
        await site.until(is_proven)
        site.world.locked.clear()
        await rejoin(site.registry, "main", site.servers["r2"], "r3")
        assert (await site.until(is_proven)).ackers.keys() == {"r2", "r3"}
        assert await lacks_if_lost(site) == ()
        site.world.servers["r1"].kill9()
        assert (await site.until(lambda entry: entry.term == 2 and entry.is_serving)).server in ("r2", "r3")

    on_site(story)


@pytest.mark.parametrize("reached", [set(), {"r2"}, {"r2", "r3"}])
def test_elected_host_that_does_not_reach_what_it_needs_gives_its_place_to_another_one(
    reached: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(site: Site) -> None:
        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        cut_off = await site.elected()
        monkeypatch.setattr(site.servers[cut_off], "is_reached", lambda name: name in reached)
        # The move waits for the primary, which others reach.
        await change_primary(site.registry, "main", partial(start_drain, target="r2"))
        entry = await site.until(lambda entry: entry.is_serving and entry.term == 2)
        assert entry.server == "r2"
        assert await site.elected() != cut_off

    on_site(story)


def test_host_that_lost_its_servers_does_not_keep_a_lost_primary_from_being_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(site: Site) -> None:
        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        cut_off = await site.elected()
        monkeypatch.setattr(site.servers[cut_off], "is_reached", lambda name: False)
        site.world.servers["r1"].kill9()
        await site.until(lambda entry: entry.is_serving and entry.term == 2)
        assert await site.elected() != cut_off

    on_site(story)


def test_servers_that_nobody_reaches_are_watched_by_one_host_for_longer_than_an_alert_takes() -> None:
    async def story(site: Site) -> None:
        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        for name in REGIONS:
            site.world.servers[name].kill9()
        await asyncio.sleep(60)
        elected = await site.elected()
        for _ in range(75):
            await asyncio.sleep(1)
            assert await site.elected() == elected
            assert [region for region in REGIONS if site.promoters[region].rounds] == [elected]

    on_site(story)


def test_hosts_show_that_a_database_does_not_serve_while_a_command_is_elected() -> None:
    async def story(site: Site) -> None:
        await site.registry.announce(ELECTION_FOLDER, "main", b'{"nonce":"command"}')
        await replace_primary(site.registry, "main", FIRST, None)
        await asyncio.sleep(10)
        assert all((each.rounds, each.unserved) == ({}, {"main"}) for each in site.promoters.values())
        await site.registry.withdraw(ELECTION_FOLDER, "main")
        await site.until(is_proven)
        await asyncio.sleep(10)
        assert not any(each.unserved for each in site.promoters.values())

    on_site(story)


def test_malformed_entry_is_logged_and_the_promoter_goes_on_when_it_is_corrected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def story(site: Site) -> None:
        version = await site.registry.replace(f"{FOLDER}/main", b"{}", None)
        await asyncio.sleep(60)
        assert site.connects == []
        assert all(each.unserved == {"main"} for each in site.promoters.values())
        await replace_primary(site.registry, "main", FIRST, version)
        await site.until(is_proven)
        await asyncio.sleep(10)
        assert not any(each.unserved for each in site.promoters.values())

    on_site(story)
    assert any("primaries/main" in str(vars(record).get("step")) for record in caplog.records)


def drain_to_the_first_acker(entry: Primary) -> Primary:
    return start_drain(entry, min(entry.ackers))


def is_proven_after(term: int, entry: Primary) -> bool:
    return entry.term > term and is_proven(entry)


def test_elected_promoter_sees_a_move_at_once() -> None:
    async def story(site: Site) -> None:
        await replace_primary(site.registry, "main", FIRST, None)
        await site.until(is_proven)
        for _ in range(5):
            await asyncio.sleep(2.3)
            begun_ms = site.clock.monotonic_ms()
            term = (await change_primary(site.registry, "main", drain_to_the_first_acker)).term
            await site.until(partial(is_proven_after, term))
            assert site.clock.monotonic_ms() - begun_ms < PACE.tick_ms

    on_site(story)
