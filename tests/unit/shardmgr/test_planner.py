"""Tests of the planner as a service: elections, hanging handovers and a failing registry, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foqs.testing.virtual_loop import VirtualClock
from shardmgr.documents import LAYOUT, MEMBERS, PLAN, parse_plan, render_member, render_plan
from shardmgr.layout_changes import add_shard, create_layout, drain_host, remove_shard
from shardmgr.model import Assignment, HeldShard, Member, Plan, ShardSpec
from shardmgr.plan import has_no_owner
from shardmgr.planner import ELECTION_FOLDER, LEADER_ENTRY, Planner, PlannerPace
from shardmgr.primary import DatabaseServer, LossPolicy, Primary
from shardmgr.primary_changes import start_drain
from shardmgr.primary_document import FOLDER, change_primary, render_primary, replace_primary
from shardmgr.registry.port import ConnectionState, RegistryFailed, RegistryOutcomeUnknown
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.plan_following import follow_plan, make_member, owner_names
from tests.support.virtual_time import SimulatedLoop, run_virtual

TIMEOUT_MS = 6_000
DRAIN_MS = 3_000
PACE = PlannerPace(handover_timeout_ms=DRAIN_MS)
SHARDS = [ShardSpec(number, "db") for number in (1, 2, 3, 4)]


class Site:
    """A coordination service, its planners and hosts."""

    def __init__(self) -> None:
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.ensemble = LocalEnsemble(None, self.clock.monotonic_ms)
        self.tasks: list[asyncio.Task[None]] = []

    async def user(self) -> LocalRegistry:
        registry = self.ensemble.registry(TIMEOUT_MS)
        await registry.open()
        return registry

    async def planner(self, nonce: str, registry: LocalRegistry | None = None) -> tuple[Planner, LocalRegistry]:
        """Start a planner."""
        registry = registry or await self.user()
        planner = Planner(registry, nonce, PACE, self.clock.monotonic_ms, Random(1))
        self.tasks.append(asyncio.create_task(planner.run()))
        return planner, registry

    async def host(self, member: Member) -> LocalRegistry:
        """Announce a member that does nothing."""
        registry = await self.user()
        await registry.announce(MEMBERS, member.nonce, render_member(member))
        return registry

    async def obedient(self, member: Member) -> LocalRegistry:
        """Announce a member that follows each plan, in its first session."""
        registry, changed = await self.host(member), asyncio.Event()
        registry.subscribe(changed.set)

        async def follow() -> None:
            while registry.session_number == 1 and registry.connection_state is ConnectionState.CONNECTED:
                changed.clear()
                text = render_member(follow_plan([member], await plan_of(registry))[0])
                if (await registry.members(MEMBERS)).get(member.nonce) != text:
                    await registry.announce(MEMBERS, member.nonce, text)
                await changed.wait()

        self.tasks.append(asyncio.create_task(follow()))
        return registry


class Counting(LocalRegistry):
    """Counts the reads of the current planner."""

    looks = 0

    async def members(self, folder: str) -> dict[str, bytes]:
        self.looks += folder == ELECTION_FOLDER
        return dict(await super().members(folder))


def run_story(story: Callable[[Site, LocalRegistry], Coroutine[Any, Any, None]]) -> None:
    """Plays a story at a site with four shards."""

    async def play() -> None:
        site = Site()
        registry = await site.user()
        await create_layout(registry, SHARDS)
        await story(site, registry)

    run_virtual(play, until_s=3_600)


async def plan_of(registry: LocalRegistry) -> Plan:
    entry = await registry.read(PLAN)
    return Plan() if entry is None else parse_plan(entry.data)


async def version_of(registry: LocalRegistry) -> int | None:
    entry = await registry.read(PLAN)
    return None if entry is None else entry.version


async def until(registry: LocalRegistry, true: Callable[[Plan], bool]) -> Plan:
    """The first plan of which it is true."""
    changed = asyncio.Event()
    registry.subscribe(changed.set)
    while True:
        changed.clear()
        if true(plan := await plan_of(registry)):
            return plan
        await changed.wait()


async def passes(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


def now_ms() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return round(loop.time() * 1000)


def test_shards_are_assigned_as_hosts_join_and_die() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        await site.planner("p")
        await site.obedient(make_member("a"))
        await until(registry, lambda plan: set(owner_names(plan).values()) == {"a"} and len(plan.assignments) == 4)
        b = await site.obedient(make_member("b"))
        await until(registry, lambda plan: sorted(owner_names(plan).values()) == ["a", "a", "b", "b"])
        site.ensemble.expire(b)
        plan = await until(registry, lambda plan: list(owner_names(plan).values()) == ["a"] * 4)
        assert sorted(plan.epochs.values()) == [1, 1, 3, 3]

    run_story(story)


def test_layout_changes_are_followed() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        await site.planner("p")
        await site.obedient(make_member("a"))
        await site.obedient(make_member("b"))
        await until(registry, lambda plan: sorted(owner_names(plan).values()) == ["a", "a", "b", "b"])
        await drain_host(registry, "a")
        await until(registry, lambda plan: list(owner_names(plan).values()) == ["b"] * 4)
        await add_shard(registry, ShardSpec(5, "db"))
        await until(registry, lambda plan: owner_names(plan).get(5) == "b")
        await remove_shard(registry, 1, force=True)
        plan = await until(registry, lambda plan: 1 not in plan.assignments)
        assert plan.epochs[1] == 2

    run_story(story)


def test_shards_are_handed_over_for_a_drain_and_follow_their_primary_to_its_region() -> None:
    servers = {"s1": DatabaseServer("r1", 11), "s2": DatabaseServer("r2", 12)}
    entry = Primary(1, "s1", LossPolicy.SEMI_SYNC, {"s2": ""}, servers=servers)
    moved = replace(entry, term=2, server="s2", ackers={"s1": ""})

    async def story(site: Site, registry: LocalRegistry) -> None:
        await replace_primary(registry, "db", entry, None)
        await site.planner("p")
        await site.obedient(make_member("a", region="r1"))
        await site.obedient(make_member("b", region="r2"))
        await until(registry, lambda plan: owner_names(plan) == dict.fromkeys((1, 2, 3, 4), "a"))
        await change_primary(registry, "db", lambda entry: start_drain(entry, "s2"))
        await until(registry, lambda plan: has_no_owner(plan, "db"))
        await change_primary(registry, "db", lambda _: moved)
        plan = await until(registry, lambda plan: owner_names(plan) == dict.fromkeys((1, 2, 3, 4), "b"))
        assert {(assignment.term, assignment.epoch) for assignment in plan.assignments.values()} == {(2, 2)}

    run_story(story)


def test_malformed_entry_leaves_its_database_alone_and_others_are_planned(caplog: pytest.LogCaptureFixture) -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        await registry.replace(f"{FOLDER}/db", b"{}", None)
        await add_shard(registry, ShardSpec(5, "other"))
        planner, _ = await site.planner("p")
        await site.obedient(make_member("a"))
        await until(registry, lambda plan: owner_names(plan) == {5: "a"})
        assert planner.problem is None
        found = await registry.read(f"{FOLDER}/db")
        assert found is not None
        servers = {"s1": DatabaseServer("r1", 11)}
        entry = Primary(1, "s1", LossPolicy.ASYNC, servers=servers)
        await registry.replace(f"{FOLDER}/db", render_primary(entry), found.version)
        await until(registry, lambda plan: owner_names(plan) == dict.fromkeys((1, 2, 3, 4, 5), "a"))

    run_story(story)
    [record] = [each for each in caplog.records if "cannot be read" in each.message]
    assert vars(record)["database"] == "db"


def test_unchanged_plan_is_not_written() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        await site.planner("p")
        await site.obedient(make_member("a"))
        await passes(1_000)
        version = await version_of(registry)
        await registry.announce("elsewhere", "x", b"")
        await passes(10 * PACE.tick_ms)
        assert await version_of(registry) == version is not None

    run_story(story)


def test_without_a_layout_nothing_is_planned() -> None:
    async def play() -> None:
        site = Site()
        planner, registry = await site.planner("p")
        await site.host(make_member("a"))
        await registry.replace(PLAN, render_plan(Plan({1: Assignment("b", "gone", 1, "db")}, {1: 1})), None)
        await passes(3 * PACE.tick_ms)
        assert planner.is_elected
        assert await version_of(registry) == 0

    run_virtual(play, until_s=3_600)


# ------------------------------------------------------------------------ elections


def test_next_planner_takes_over_when_the_session_of_the_planner_ends() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        first, gone = await site.planner("p1")
        await passes(100)
        second, _ = await site.planner("p2")
        await passes(100)
        assert (first.is_elected, second.is_elected, second.problem) == (True, False, None)
        site.ensemble.disconnect(gone)
        await site.host(make_member("a"))
        await passes(TIMEOUT_MS - 200)
        assert await plan_of(registry) == Plan()
        plan = await until(registry, lambda plan: len(plan.assignments) == 4)
        assert second.is_elected
        assert plan.epochs == dict.fromkeys((1, 2, 3, 4), 1)
        site.ensemble.reconnect(gone)
        await passes(1_000)
        assert (first.is_elected, second.is_elected) == (False, True)

    run_story(story)


def test_planner_announces_itself_again_in_its_next_session() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        planner, its = await site.planner("p")
        await passes(100)
        site.ensemble.expire(its)
        await passes(100)
        assert its.session_number == 2
        assert planner.is_elected
        assert await registry.members(ELECTION_FOLDER) == {LEADER_ENTRY: b"p"}

    run_story(story)


def test_entry_of_an_earlier_session_is_replaced() -> None:
    class Lingering(LocalRegistry):
        """For a while it still sees the entry of its former session."""

        lingers = False

        async def members(self, folder: str) -> dict[str, bytes]:
            return {LEADER_ENTRY: b"p"} if self.lingers else dict(await super().members(folder))

        async def announce(self, folder: str, name: str, data: bytes) -> None:
            self.lingers = False
            await super().announce(folder, name, data)

    async def story(site: Site, registry: LocalRegistry) -> None:
        its = Lingering(site.ensemble, TIMEOUT_MS, site.clock.monotonic_ms)
        await its.open()
        await site.planner("p", its)
        await passes(100)
        its.lingers = True
        site.ensemble.expire(its)
        await passes(1_000)
        assert await registry.members(ELECTION_FOLDER) == {LEADER_ENTRY: b"p"}

    run_story(story)


def test_two_planners_that_both_believe_to_be_elected_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(LocalRegistry):
        """A registry that sees no other planner, reports that it is elected, and shows the plan late."""

        async def members(self, folder: str) -> dict[str, bytes]:
            await asyncio.sleep(0.001)
            return {} if folder == ELECTION_FOLDER else dict(await super().members(folder))

        async def announce(self, folder: str, name: str, data: bytes) -> None:
            await asyncio.sleep(0.001)

    async def story(site: Site, registry: LocalRegistry) -> None:
        planners = []
        for nonce in ("p1", "p2"):
            its = Deaf(site.ensemble, TIMEOUT_MS, site.clock.monotonic_ms)
            await its.open()
            planners.append((await site.planner(nonce, its))[0])
        for name in "abc":
            await site.obedient(make_member(name))
        plan = await until(
            registry,
            lambda plan: (
                sorted(owner_names(plan).values()) == ["a", "a", "b", "c"]
                and not any(each.leaving for each in plan.assignments.values())
            ),
        )
        await passes(5 * PACE.tick_ms)
        assert all(planner.is_elected and planner.problem is None for planner in planners)
        assert await plan_of(registry) == plan

    run_story(story)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# --------------------------------------------------------------------------- drains


def test_handover_that_hangs_is_waited_for_until_it_is_overdue() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        await site.planner("p")
        a = make_member("a")
        its = await site.host(a)
        before = await until(registry, lambda plan: len(plan.assignments) == 4)
        hangs = replace(a, held_shards={n: HeldShard(1, "draining") for n in before.assignments})
        await its.announce(MEMBERS, a.nonce, render_member(hangs))
        await site.obedient(make_member("b"))
        await drain_host(registry, "a")
        await until(registry, lambda plan: all(plan.assignments[n].leaving for n in (1, 2, 3, 4)))
        begun_ms = now_ms()
        plan = await until(registry, lambda plan: "a" not in owner_names(plan).values())
        assert list(owner_names(plan).values()) == ["b"] * 4
        assert DRAIN_MS <= now_ms() - begun_ms <= DRAIN_MS + 2 * PACE.pause_ms
        assert plan.epochs == dict.fromkeys((1, 2, 3, 4), 2)

    run_story(story)


def test_each_handover_has_its_own_timeout() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        await site.planner("p")
        await site.host(make_member("a"))
        await until(registry, lambda plan: len(plan.assignments) == 4)
        await remove_shard(registry, 1, force=True)
        await passes(DRAIN_MS // 2)
        await remove_shard(registry, 2, force=True)
        await until(registry, lambda plan: 1 not in plan.assignments)
        left = await plan_of(registry)
        assert left.assignments[2].leaving
        await passes(DRAIN_MS // 4)
        assert await plan_of(registry) == left
        await until(registry, lambda plan: 2 not in plan.assignments)

    run_story(story)


def test_next_planner_gives_a_handover_its_full_timeout_again() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        _, its = await site.planner("p1")
        await site.host(make_member("a"))
        await until(registry, lambda plan: len(plan.assignments) == 4)
        await site.planner("p2")
        await remove_shard(registry, 1, force=True)
        await passes(DRAIN_MS - 500)
        await its.close()
        await passes(DRAIN_MS - 500)
        assert (await plan_of(registry)).assignments[1].leaving
        await until(registry, lambda plan: 1 not in plan.assignments)

    run_story(story)


def test_planner_that_is_not_elected_any_more_waits_for_no_handover() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        its = Counting(site.ensemble, TIMEOUT_MS, site.clock.monotonic_ms)
        await its.open()
        first, _ = await site.planner("p1", its)
        await site.host(make_member("a"))
        await until(registry, lambda plan: len(plan.assignments) == 4)
        await remove_shard(registry, 1, force=True)
        await until(registry, lambda plan: plan.assignments[1].leaving)
        await passes(100)
        await site.planner("p2")
        site.ensemble.disconnect(its)
        await until(registry, lambda plan: 1 not in plan.assignments)
        site.ensemble.reconnect(its)
        await passes(1_000)
        assert not first.is_elected
        its.looks = 0
        await passes(5 * PACE.tick_ms)
        assert its.looks <= 6

    run_story(story)


# -------------------------------------------------------------------------- failures


@pytest.mark.parametrize("document", [LAYOUT, PLAN])
def test_malformed_document_stops_planning_and_is_not_overwritten(
    document: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        planner, _ = await site.planner("p")
        await site.host(make_member("a"))
        await until(registry, lambda plan: len(plan.assignments) == 4)
        assert planner.problem is None
        good = await registry.read(document)
        assert good is not None
        broken = await registry.replace(document, b"{}", good.version)
        await passes(3 * PACE.tick_ms)
        assert planner.problem is not None
        assert f"{document}: format" in planner.problem
        found = await registry.read(document)
        assert found is not None
        assert (found.data, found.version) == (b"{}", broken)
        await registry.replace(document, good.data, broken)
        await passes(100)
        assert planner.problem is None

    run_story(story)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1


def test_missing_layout_is_reported_and_the_plan_stays() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        planner, _ = await site.planner("p")
        await site.host(make_member("a"))
        plan = await until(registry, lambda plan: len(plan.assignments) == 4)
        site.ensemble.delete(LAYOUT)
        await site.host(make_member("b"))
        await passes(3 * PACE.tick_ms)
        assert planner.problem is not None
        assert "a plan of 4 shards; write the layout again" in planner.problem
        assert await plan_of(registry) == plan

    run_story(story)


def test_malformed_member_is_logged_once_and_gets_no_shards(caplog: pytest.LogCaptureFixture) -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        await site.planner("p")
        await registry.announce(MEMBERS, "bad", b"{}")
        await registry.announce(MEMBERS, "another", render_member(make_member("b")))
        await site.obedient(make_member("a"))
        plan = await until(registry, lambda plan: len(plan.assignments) == 4)
        assert set(owner_names(plan).values()) == {"a"}
        await passes(3 * PACE.tick_ms)

    run_story(story)
    said = sorted(record.__dict__["entry"] for record in caplog.records if record.levelno == logging.WARNING)
    assert said == ["another", "bad"]


def test_failed_registry_is_called_again_with_growing_pauses() -> None:
    class Failing(LocalRegistry):
        asked: list[int]
        fails = False

        async def members(self, folder: str) -> dict[str, bytes]:
            if self.fails:
                self.asked.append(now_ms())
                raise RegistryFailed("no answer")
            return dict(await super().members(folder))

    async def story(site: Site, registry: LocalRegistry) -> None:
        its = Failing(site.ensemble, TIMEOUT_MS, site.clock.monotonic_ms)
        its.asked = []
        await its.open()
        planner, _ = await site.planner("p", its)
        await passes(100)
        its.fails = True
        await site.obedient(make_member("a"))
        await passes(30_000)
        assert planner.problem == "the registry failed; trying again: no answer"
        gaps = [later - sooner for sooner, later in zip(its.asked, its.asked[1:], strict=False)]
        assert gaps[0] <= 2 * PACE.pause_ms
        assert PACE.retry_ms_max // 2 <= max(gaps) <= PACE.retry_ms_max + 1
        its.fails = False
        await until(registry, lambda plan: len(plan.assignments) == 4)
        assert planner.problem is None

    run_story(story)


@pytest.mark.parametrize("written", [True, False])
def test_plan_with_an_unknown_outcome_is_read_again(written: bool) -> None:
    class Unsure(LocalRegistry):
        answers = False

        async def replace(self, name: str, data: bytes, version: int | None) -> int:
            if self.answers or written:
                found = await super().replace(name, data, version)
            if not self.answers:
                self.answers = True
                raise RegistryOutcomeUnknown("no answer")
            return found

    async def story(site: Site, registry: LocalRegistry) -> None:
        its = Unsure(site.ensemble, TIMEOUT_MS, site.clock.monotonic_ms)
        await its.open()
        await site.planner("p", its)
        await site.obedient(make_member("a"))
        await passes(1_000)
        plan = await plan_of(registry)
        assert list(owner_names(plan).values()) == ["a"] * 4
        assert plan.epochs == dict.fromkeys((1, 2, 3, 4), 1)
        assert await version_of(registry) == 0

    run_story(story)


def test_simultaneous_changes_are_planned_together() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        await site.planner("p")
        await passes(100)
        for name in "abcd":
            await site.host(make_member(name))
        await passes(1_000)
        assert sorted(owner_names(await plan_of(registry)).values()) == ["a", "b", "c", "d"]
        assert await version_of(registry) == 0

    run_story(story)


def test_many_changes_cause_few_reads() -> None:
    async def story(site: Site, registry: LocalRegistry) -> None:
        its = Counting(site.ensemble, TIMEOUT_MS, site.clock.monotonic_ms)
        await its.open()
        await site.planner("p", its)
        await passes(100)
        its.looks = 0
        for _ in range(10 * PACE.pause_ms):
            await registry.announce("elsewhere", "x", b"")
            await passes(1)
        assert 1 <= its.looks <= 12

    run_story(story)
