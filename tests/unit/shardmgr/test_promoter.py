"""A promoter connects before it reads the entry, may stop after any step, and does nothing at a wrong server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import pytest

from shardmgr.documents import MEMBERS, PLAN, render_member, render_plan
from shardmgr.layout_changes import create_layout
from shardmgr.model import Assignment, HeldShard, Member, Plan, ShardSpec
from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import abort, accept_loss, first_entry, start_drain, start_revoking
from shardmgr.primary_document import change_primary, read_primary, replace_primary
from shardmgr.promoter import Promoter, PromoterRound, ShardsFree
from shardmgr.promotion import AwaitChange, ReplaceEntry, SendCommand, ServerCommand
from shardmgr.registry.port import Registry
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import SERVER_IDS, PlainConnection, PlainDatabaseServers
from tests.support.plain_regions import REGIONS, PlainServer, World

ROUNDS_MAX: Final = 200
SERVERS: Final = {name: DatabaseServer(name, number) for name, number in SERVER_IDS.items()}
FIRST: Final = first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS)


class Site:
    """A database of three servers in a registry; its replicas run after each round."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.world = World(FIRST)
        self.events: list[str] = []
        self.shards_free = True
        self.rounds: list[PromoterRound] = []
        self.now_ms = 0

    def promoter(self, region: str = "r2", servers: PlainDatabaseServers | None = None) -> Promoter:
        site = self

        async def are_shards_free(entry: Primary) -> bool:
            return site.shards_free

        class Watched:
            def __getattr__(self, name: str) -> object:
                return getattr(site.registry, name)

            async def read(self, name: str) -> object:
                site.events.append("read")
                return await site.registry.read(name)

        reached = servers or PlainDatabaseServers(self.world, region, self.events.append)
        return Promoter(Watched(), "main", reached, are_shards_free, boot_ms=lambda: self.now_ms)  # type: ignore[arg-type]

    async def run(self, promoter: Promoter) -> PromoterRound:
        done = await promoter.run_round()
        assert done is not None
        self.rounds.append(done)
        for name in REGIONS:
            self.world.receive(name)
            self.world.servers[name].apply_next()
        for ack in list(self.world.acks):
            self.world.deliver(ack)
        return done

    async def until_rest(self, promoter: Callable[[], Promoter]) -> Primary:
        for _ in range(ROUNDS_MAX):
            done = await self.run(promoter())
            if done.step == AwaitChange() and all(done.entry.ackers.values()):
                return done.entry
        raise AssertionError(self.rounds[-3:])

    async def change(self, change: Callable[[Primary], Primary]) -> None:
        await change_primary(self.registry, "main", change)


def on_site(story: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        site = Site(registry)
        await replace_primary(registry, "main", FIRST, None)
        await story(site)
        await registry.close()

    asyncio.run(main())


def test_first_primary_is_opened_and_moved_by_a_promoter_that_is_another_one_at_each_step() -> None:
    async def story(site: Site) -> None:
        first = await site.until_rest(site.promoter)
        assert (first.term, first.server) == (1, "r1")
        site.world.servers["r1"].append(flush=1)
        await site.change(lambda entry: start_drain(entry, "r3"))
        moved = await site.until_rest(site.promoter)
        assert (moved.term, moved.server, sorted(moved.ackers)) == (2, "r3", ["r1", "r2"])
        new = site.world.servers["r3"]
        assert (new.is_read_only, new.flushes) == (False, {1})
        assert site.world.servers["r1"].is_read_only

    on_site(story)


def test_drain_waits_until_the_shards_are_free_and_can_be_aborted_until_then() -> None:
    async def story(site: Site) -> None:
        promoter = site.promoter()
        await site.until_rest(lambda: promoter)
        site.shards_free = False
        await site.change(lambda entry: start_drain(entry, "r2"))
        done = await site.run(promoter)
        assert done.step == AwaitChange(("shards of the database are still owned",))
        assert done.is_waiting
        assert not site.world.servers["r1"].is_read_only
        await site.change(abort)
        assert (await site.until_rest(lambda: promoter)).state is PrimaryState.SERVING

    on_site(story)


def test_acker_that_cannot_follow_delays_neither_a_move_nor_another_acker() -> None:
    """As while its SQL thread changes a table, or if its promoter lacks a right."""

    async def story(site: Site) -> None:
        servers = PlainDatabaseServers(site.world, "r2")
        promoter = site.promoter("r2", servers)
        await site.until_rest(lambda: promoter)
        servers.failing.add(("r2", ServerCommand.FOLLOW))
        await site.change(lambda entry: start_drain(entry, "r3"))
        while not (done := await site.run(promoter)).entry.is_serving or done.entry.term < 2:
            assert len(site.rounds) < ROUNDS_MAX, done
        assert site.world.servers["r1"].source == "r3"
        # The other one is restarted, and follows although the first one still cannot.
        site.world.servers["r1"].kill9()
        site.world.servers["r1"].start()
        for _ in range(20):
            await site.run(promoter)
        assert site.world.servers["r1"].is_receiving
        servers.failing.clear()
        entry = await site.until_rest(lambda: promoter)
        assert (entry.server, sorted(entry.ackers)) == ("r3", ["r1", "r2"])

    on_site(story)


def test_drain_waits_for_no_acker_that_cannot_follow() -> None:
    async def story(site: Site) -> None:
        servers = PlainDatabaseServers(site.world, "r3")
        promoter = site.promoter("r3", servers)
        await site.until_rest(lambda: promoter)
        servers.failing.add(("r2", ServerCommand.FOLLOW))
        site.world.servers["r2"].kill9()
        site.world.servers["r2"].start()
        await site.run(promoter)
        await site.change(lambda entry: start_drain(entry, "r3"))
        while not (done := await site.run(promoter)).entry.is_serving:
            assert len(site.rounds) < ROUNDS_MAX, done
        assert (done.entry.term, done.entry.server) == (2, "r3")

    on_site(story)


def test_accepted_loss_waits_for_no_acker_that_cannot_be_stopped() -> None:
    async def story(site: Site) -> None:
        servers = PlainDatabaseServers(site.world, "r3")
        promoter = site.promoter("r3", servers)
        await site.until_rest(lambda: promoter)
        servers.failing.add(("r2", ServerCommand.REVOKE))
        site.world.servers["r1"].kill9()
        await site.change(start_revoking)
        for _ in range(5):
            done = await site.run(promoter)
        assert done.entry.state is PrimaryState.REVOKING
        assert "r2" in done.problems
        await site.change(lambda entry: replace(accept_loss(entry), target="r3"))
        while not (done := await site.run(promoter)).entry.is_serving:
            assert len(site.rounds) < ROUNDS_MAX, done
        assert done.entry.server == "r3"

    on_site(story)


def test_primary_that_is_back_goes_on_although_an_acker_cannot_be_stopped() -> None:
    async def story(site: Site) -> None:
        servers = PlainDatabaseServers(site.world, "r3")
        promoter = site.promoter("r3", servers)
        await site.until_rest(lambda: promoter)
        servers.failing.add(("r2", ServerCommand.REVOKE))
        await site.change(start_revoking)
        while not (done := await site.run(promoter)).entry.is_serving:
            assert len(site.rounds) < ROUNDS_MAX, done
        assert (done.entry.term, done.entry.server) == (1, "r1")

    on_site(story)


def test_acker_that_could_not_follow_is_asked_first_again_after_a_time() -> None:
    """Another one that is refused again and again must not keep it from following for ever."""

    async def story(site: Site) -> None:
        servers = PlainDatabaseServers(site.world, "r1")
        promoter = site.promoter("r1", servers)
        await site.until_rest(lambda: promoter)
        servers.failing.add(("r3", ServerCommand.FOLLOW))
        r2, r3 = site.world.servers["r2"], site.world.servers["r3"]
        r3.kill9()
        r3.start()
        r2.append(flush=9)  # it has diverged, so its reception ends whenever it is started
        await site.run(promoter)
        servers.failing.clear()
        for _ in range(20):
            await site.run(promoter)
        assert not r3.is_receiving
        site.now_ms += 30_000
        for _ in range(3):
            await site.run(promoter)
        assert r3.is_receiving

    on_site(story)


def test_slow_step_is_no_wait_of_commits() -> None:
    """Two looks at the primary in one moment are not a second of waiting, however long the step after the second one takes."""

    async def story(site: Site) -> None:
        class SlowConnection(PlainConnection):
            async def carry_out(self, step: SendCommand) -> None:
                site.now_ms += 5_000
                await super().carry_out(step)

        class SlowServers(PlainDatabaseServers):
            def _connection(self, server: PlainServer) -> PlainConnection:
                return SlowConnection(self, server)

        promoter = site.promoter("r1", SlowServers(site.world, "r1"))
        await site.until_rest(lambda: promoter)
        for name in ("r2", "r3"):
            site.world.servers[name].kill9()
        assert (await site.run(promoter)).blocked == ""
        site.world.servers["r3"].start()
        done = await site.run(promoter)
        assert isinstance(done.step, SendCommand)
        assert done.step.command is ServerCommand.FOLLOW
        assert done.blocked == ""

    on_site(story)


def test_promoter_that_was_closed_meanwhile_judges_the_primary_again() -> None:
    async def story(site: Site) -> None:
        promoter = site.promoter("r1")
        await site.until_rest(lambda: promoter)
        for name in ("r2", "r3"):
            site.world.servers[name].kill9()

        async def is_blocked() -> bool:
            site.now_ms += 1_000
            return bool((await site.run(promoter)).blocked)

        assert [await is_blocked() for _ in range(2)] == [False, True]
        await promoter.close()
        assert [await is_blocked() for _ in range(2)] == [False, True]

    on_site(story)


def test_promoter_reads_the_entry_after_it_has_connected() -> None:
    async def story(site: Site) -> None:
        promoter = site.promoter()
        await site.run(promoter)
        assert sorted(site.events[:-1]) == sorted(REGIONS)
        assert site.events[-1] == "read"

    on_site(story)


def test_promoter_whose_connections_another_one_has_ended_sends_nothing_in_that_round() -> None:
    async def story(site: Site) -> None:
        servers = PlainDatabaseServers(site.world, "r1")
        frozen = site.promoter("r1", servers)
        await site.run(frozen)
        sent = len(servers.sent)
        held = asyncio.Event()
        go = asyncio.Event()

        async def freeze(entry: Primary) -> bool:
            held.set()
            await go.wait()
            return True

        frozen._are_shards_free = freeze
        late = asyncio.ensure_future(site.run(frozen))
        await held.wait()
        await site.run(site.promoter("r2"))
        go.set()
        done = await late
        assert done.problems
        assert len(servers.sent) == sent

    on_site(story)


def test_entry_that_was_changed_meanwhile_is_read_again() -> None:
    async def story(site: Site) -> None:
        promoter = site.promoter()
        await site.until_rest(lambda: promoter)
        await site.change(lambda entry: start_drain(entry, "r2"))
        while not isinstance((await site.run(promoter)).step, ReplaceEntry):
            pass
        found = await read_primary(site.registry, "main")
        assert found is not None
        assert found.entry.state is PrimaryState.FENCED

        async def aborted_meanwhile(entry: Primary) -> bool:
            await site.change(abort)
            return True

        promoter._are_shards_free = aborted_meanwhile
        site.world.servers["r2"].apply_next()
        done = await site.run(promoter)
        assert isinstance(done.step, ReplaceEntry)
        assert "registry" in done.problems
        found = await read_primary(site.registry, "main")
        assert found is not None
        assert (found.entry.state, found.entry.term) == (PrimaryState.SERVING, 1)

    on_site(story)


def test_server_with_another_number_counts_as_not_reached() -> None:
    async def story(site: Site) -> None:
        servers = PlainDatabaseServers(site.world, "r2")
        servers.server_ids["r1"] = 99
        promoter = site.promoter("r2", servers)
        done = await site.run(promoter)
        assert done.step == AwaitChange(("r1 is not reached",))
        assert "not to 11; correct the address" in done.problems["r1"]
        assert all(step.server != "r1" for step in servers.sent)

    on_site(story)


def test_server_without_an_address_is_named() -> None:
    async def story(site: Site) -> None:
        servers = PlainDatabaseServers(site.world, "r2")
        servers.names = ("r2", "r3")
        done = await site.run(site.promoter("r2", servers))
        assert done.step == AwaitChange(("r1 is not reached",))
        assert done.problems == {"r1": "r1: the configuration of this host has no address of this server; add it"}

    on_site(story)


def test_server_that_was_not_reached_is_not_waited_for_again_and_is_used_when_it_is_back() -> None:
    async def story(site: Site) -> None:
        site.world.servers["r3"].kill9()
        servers = PlainDatabaseServers(site.world, "r2")
        promoter = site.promoter("r2", servers)
        first = await site.run(promoter)
        assert "r3" in first.problems
        assert not first.is_waiting, "the others are promoted meanwhile"
        asked = asyncio.Event()
        connect = servers.connect

        async def silent(name: str) -> object:
            asked.set()
            await asyncio.Event().wait()
            return await connect(name)

        servers.connect = silent  # type: ignore[assignment, method-assign]
        done = await site.run(promoter)
        assert asked.is_set()
        assert "r3" in done.problems
        await promoter.close()
        servers.connect = connect  # type: ignore[method-assign]
        site.world.servers["r3"].start()
        again = site.promoter("r2", servers)
        assert (await site.until_rest(lambda: again)).ackers.keys() == {"r2", "r3"}
        assert any(step.command is ServerCommand.FOLLOW and step.server == "r3" for step in servers.sent)
        await again.close()

    on_site(story)


def test_database_without_an_entry_needs_no_promoter() -> None:
    async def story(site: Site) -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        promoter = Promoter(
            registry, "main", PlainDatabaseServers(site.world, "r1"), lambda entry: asyncio.sleep(0, True)
        )
        assert await promoter.run_round() is None
        await promoter.close()
        await registry.close()

    on_site(story)


def test_shards_are_free_when_the_plan_has_no_owner_of_them() -> None:
    async def story(site: Site) -> None:
        are_free = ShardsFree(site.registry, "main", 6_000, lambda: 0)
        assert await are_free(FIRST)
        for database, free in (("other", True), ("main", False)):
            plan = Plan({1: Assignment("a", "n1", 1, database, leaving=True)}, {1: 1})
            found = await site.registry.read(PLAN)
            await site.registry.replace(PLAN, render_plan(plan), None if found is None else found.version)
            assert await are_free(FIRST) is free

    on_site(story)


def test_shards_are_free_after_an_accepted_loss_when_no_session_can_hold_one() -> None:
    async def story(site: Site) -> None:
        now_ms = [0]
        are_free = ShardsFree(site.registry, "main", 6_000, lambda: now_ms[0])
        accepted = replace(FIRST, loss_accepted=True)

        async def at(moment_ms: int) -> bool:
            now_ms[0] = moment_ms
            return await are_free(accepted)

        await create_layout(site.registry, [ShardSpec(1, "main"), ShardSpec(2, "other")])
        holder = Member("one", "n1", "h:1", held_shards={1: HeldShard(3, "owned"), 2: HeldShard(1, "owned")})
        await site.registry.announce(MEMBERS, "n1", render_member(holder))
        assert not await at(0)
        assert not await at(60_000)
        freed = replace(holder, held_shards={1: HeldShard(3, "free"), 2: HeldShard(1, "owned")})
        await site.registry.announce(MEMBERS, "n1", render_member(freed))
        assert not await at(61_000)
        assert not await at(66_999)
        assert await at(67_000)
        await site.registry.announce(MEMBERS, "n2", b"{")
        assert not await at(70_000), "nobody knows what this host holds"
        await site.registry.withdraw(MEMBERS, "n2")
        assert not await at(71_000)
        assert await at(77_000)
        accepted = replace(accepted, term=2)
        assert not await at(78_000), "the loss of another term"
        assert await at(84_000)

    on_site(story)


SERVING: Final = Primary(1, "r1", LossPolicy.SEMI_SYNC, {"r2": "", "r3": ""})
REVOKING: Final = start_revoking(SERVING)


@pytest.mark.parametrize(
    ("entry", "enough", "too_few"),
    [
        (SERVING, ("r1",), ("r2", "r3")),
        (start_drain(SERVING, "r2"), ("r1",), ("r2", "r3")),
        (REVOKING, ("r2", "r3"), ("r1", "r2")),
        (accept_loss(REVOKING), ("r3",), ()),
        (accept_loss(REVOKING, "r2"), ("r2",), ("r1", "r3")),
        (replace(SERVING, state=PrimaryState.FENCED, target="r2"), ("r2",), ("r1", "r3")),
        (replace(SERVING, state=PrimaryState.PROMOTING, has_served=False), ("r1", "r2"), ("r1",)),
        (replace(SERVING, state=PrimaryState.PROMOTING, policy=LossPolicy.ASYNC), ("r1",), ("r2", "r3")),
    ],
)
def test_each_state_needs_certain_servers(entry: Primary, enough: tuple[str, ...], too_few: tuple[str, ...]) -> None:
    assert PromoterRound(entry, AwaitChange(), reached=enough).can_go_on
    assert not PromoterRound(entry, AwaitChange(), reached=too_few).can_go_on
