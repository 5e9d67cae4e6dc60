"""Tests of the agent with plans written by hand: its calls to the host, its announcements, and when it stops serving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foqs.testing.virtual_loop import VirtualClock
from shardmgr.agent import Agent, AgentPace
from shardmgr.documents import LAYOUT, MEMBERS, PLAN, parse_member, render_layout, render_member, render_plan
from shardmgr.model import Assignment, HeldShard, Layout, Member, Plan, ShardSpec
from shardmgr.port import CoordinatorFailed
from shardmgr.registry.port import RegistryOutcomeUnknown
from shardmgr.session_state import TRANSITIONS, SessionEvent, SessionState, next_session_state
from shardmgr.versions import VERSIONS, HostVersions, read_versions
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.virtual_time import run_virtual

TIMEOUT_MS = 6_000
PACE = AgentPace(session_margin_ms=500)
ME = Member("one", "nonce-one", "10.0.0.1:7411")
SPOKEN = HostVersions("0.2.0", 8, 1, 2)
LAYOUT_OF_THREE = Layout({number: ShardSpec(number, f"db{number}") for number in (1, 2, 3)})


class Recorder:
    """A holder that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.views = 0
        self.known: list[str] = []
        """The calls before the last change of the view."""

    def on_assigned(self, shard: int, database: str) -> None:
        self.calls.append(f"assigned {shard} {database}")

    def on_release_requested(self, shard: int) -> None:
        self.calls.append(f"release {shard}")

    def on_dropped(self, shard: int) -> None:
        self.calls.append(f"dropped {shard}")

    def on_suspended(self) -> None:
        self.calls.append("suspended")

    def on_resumed(self) -> None:
        self.calls.append("resumed")

    def view_changed(self) -> None:
        self.views += 1
        self.known = [*self.calls]

    def news(self) -> list[str]:
        """Return and clear the recorded calls."""
        calls, self.calls = self.calls, []
        return calls


class Site:
    """A registry, one agent, and a user that writes plans."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = VirtualClock(self.loop)
        self.ensemble = LocalEnsemble(None, self.clock.monotonic_ms)
        self.user = self.ensemble.registry(TIMEOUT_MS)
        self.registry: LocalRegistry
        self.agent: Agent
        self.holder = Recorder()
        self.running: asyncio.Task[None]

    async def begin(self, registry: LocalRegistry | None = None, boot_ms: Callable[[], int] | None = None) -> None:
        await self.user.open()
        self.registry = registry or self.ensemble.registry(TIMEOUT_MS)
        self.agent = Agent(self.registry, PACE, boot_ms or self.clock.monotonic_ms, Random(1), lambda: 2.5, SPOKEN)
        await self.registry.open()
        await self.layout(LAYOUT_OF_THREE)
        self.running = asyncio.ensure_future(self.agent.run(ME, self.holder, self.holder.view_changed))
        await self.pass_s(0.1)

    async def layout(self, layout: Layout) -> None:
        await self.put(LAYOUT, render_layout(layout))

    async def plan(self, assignments: Mapping[int, Assignment]) -> None:
        """Assignments that name no database are of the shard's own."""
        epochs = {number: each.epoch for number, each in assignments.items()}
        named = {n: replace(each, database=each.database or f"db{n}") for n, each in assignments.items()}
        await self.put(PLAN, render_plan(Plan(named, epochs)))

    async def put(self, name: str, data: bytes) -> None:
        entry = await self.user.read(name)
        await self.user.replace(name, data, None if entry is None else entry.version)
        await self.pass_s(0.1)

    async def pass_s(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def entry(self) -> Member | None:
        """Return the agent's entry."""
        data = (await self.user.members(MEMBERS)).get(ME.nonce)
        return None if data is None else parse_member(ME.nonce, data)

    async def holdings(self) -> Mapping[int, HeldShard]:
        entry = await self.entry()
        assert entry is not None
        return entry.held_shards


def mine(epoch: int, *, database: str = "", leaving: bool = False) -> Assignment:
    return Assignment(ME.name, ME.nonce, epoch, database, leaving)


def other(epoch: int) -> Assignment:
    return Assignment("two", "nonce-two", epoch, "")


def run_story(story: Callable[[Site], Coroutine[Any, Any, None]], *, begin: bool = True) -> None:
    async def play() -> None:
        site = Site()
        if begin:
            await site.begin()
        await story(site)

    run_virtual(play, until_s=600)


# ------------------------------------------------------------------------ table


def test_a_host_serves_only_in_a_session_whose_plan_it_has_read() -> None:
    assert {start for (start, turn), end in TRANSITIONS.items() if end is SessionState.SERVING} == {
        SessionState.JOINING,
        SessionState.SERVING,
        SessionState.SUSPENDED,
    }
    assert all(TRANSITIONS[state, SessionEvent.ENDED] is SessionState.CUT_OFF for state in SessionState)
    with pytest.raises(ValueError, match="cut off"):
        next_session_state(SessionState.CUT_OFF, SessionEvent.PLAN_FOLLOWED)


# ------------------------------------------------------------------------- plan


def test_a_host_that_joins_announces_itself_and_follows_the_plan_before_it_serves() -> None:
    async def story(site: Site) -> None:
        await site.user.open()
        await site.user.replace(LAYOUT, render_layout(LAYOUT_OF_THREE), None)
        assigned = {1: mine(4, database="db1"), 2: other(2), 3: mine(1, database="db3")}
        plan = Plan(assigned, {1: 4, 2: 2, 3: 1})
        await site.user.replace(PLAN, render_plan(plan), None)
        site.registry = site.ensemble.registry(TIMEOUT_MS)
        site.agent = Agent(site.registry, PACE, site.clock.monotonic_ms, Random(1), lambda: 0.0)
        await site.registry.open()
        site.running = asyncio.ensure_future(site.agent.run(ME, site.holder, site.holder.view_changed))
        await site.pass_s(0.1)
        assert site.holder.news() == ["assigned 1 db1", "assigned 3 db3", "resumed"]
        assert await site.entry() == Member(
            ME.name, ME.nonce, ME.address, held_shards={1: HeldShard(4, "acquiring"), 3: HeldShard(1, "acquiring")}
        )
        assert await site.agent.issue_epoch(1, 0) == 4

    run_story(story, begin=False)


def test_shards_are_assigned_released_and_dropped_as_the_plan_says() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1), 2: mine(1), 3: other(1)})
        assert site.holder.news() == ["resumed", "assigned 1 db1", "assigned 2 db2"]
        site.agent.report_state(1, 1, "owned")
        await site.plan({1: mine(1, leaving=True), 3: mine(2)})
        assert site.holder.news() == ["dropped 2", "release 1", "assigned 3 db3"]
        await site.plan({1: mine(1, leaving=True), 3: mine(2)})
        assert site.holder.news() == []
        site.agent.report_state(1, 1, "free")
        await site.pass_s(0.1)
        assert (await site.holdings())[1] == HeldShard(1, "free")
        await site.plan({1: other(2), 3: mine(2)})
        assert site.holder.news() == ["dropped 1"]
        assert set(await site.holdings()) == {3}

    run_story(story)


def test_shard_that_is_leaving_at_the_first_read_is_reported_free() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(3, leaving=True)})
        assert site.holder.news() == ["resumed"]
        assert await site.holdings() == {1: HeldShard(3, "free")}

    run_story(story)


def test_assigned_shard_is_acquired_once_it_is_in_the_layout() -> None:
    async def story(site: Site) -> None:
        await site.layout(Layout())
        await site.plan({1: mine(1)})
        assert site.holder.news() == ["resumed"]
        views = site.holder.views
        await site.layout(LAYOUT_OF_THREE)
        assert site.holder.news() == ["assigned 1 db1"]
        assert site.holder.views == views + 1

    run_story(story)


def test_view_change_is_reported_before_a_new_layout_or_plan_is_followed() -> None:
    async def story(site: Site) -> None:
        holder = site.holder
        views, _ = holder.views, holder.news()
        await site.plan({1: mine(1)})
        assert (holder.views, holder.known, holder.news()) == (views + 1, [], ["assigned 1 db1"])
        await site.layout(Layout({**LAYOUT_OF_THREE.shards, 1: ShardSpec(1, "elsewhere")}))
        assert holder.views == views + 2
        site.agent.report_state(1, 1, "owned")
        await site.pass_s(PACE.tick_ms / 1_000 * 3)
        assert holder.views == views + 2

    run_story(story)


def test_missing_layout_changes_nothing_until_it_is_restored() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        view, views, _ = site.agent.view, site.holder.views, site.holder.news()
        site.ensemble.delete(LAYOUT)
        await site.pass_s(1)
        assert (
            site.agent.problem == "layout: it is missing, although there is a plan of 1 shards; write the layout again"
        )
        assert (site.agent.view, site.holder.views, site.holder.news()) == (view, views, [])
        await site.layout(LAYOUT_OF_THREE)
        await site.pass_s(10)  # the next time that it tries
        assert site.agent.problem is None
        assert (site.holder.views, site.holder.news()) == (views, [])

    run_story(story)


def test_shard_with_a_new_database_is_acquired_only_from_that_database() -> None:
    """Its number was removed and added again. The plan for the former database does not apply to the new one."""

    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        await site.layout(replace(LAYOUT_OF_THREE, shards={n: ShardSpec(n, "new") for n in (1, 2)}))
        await site.plan({1: mine(1), 2: mine(1)})
        assert site.holder.news() == ["resumed", "assigned 1 db1"]
        assert (await site.holdings())[2] == HeldShard(1, "free")
        await site.plan({1: mine(1, leaving=True), 2: mine(2, database="new")})
        assert site.holder.news() == ["release 1", "assigned 2 new"]
        await site.plan({1: mine(2, database="new"), 2: mine(2, database="new")})
        assert site.holder.news() == ["dropped 1", "assigned 1 new"]

    run_story(story)


def test_waiting_supervisor_gets_no_epoch_of_another_database() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        asking = asyncio.ensure_future(site.agent.issue_epoch(1, 5))
        await site.pass_s(0.1)
        await site.layout(Layout({1: ShardSpec(1, "new")}))
        await site.plan({1: mine(6, database="new")})
        assert site.holder.news() == ["resumed", "assigned 1 db1", "dropped 1", "assigned 1 new"]
        assert not asking.done()
        asking.cancel()

    run_story(story)


def test_used_epoch_is_replaced_by_the_next_assignment() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        assert await site.agent.issue_epoch(1, 0) == 1
        assert await site.agent.issue_epoch(1, 0) == 1
        asking = asyncio.ensure_future(site.agent.issue_epoch(1, 5))
        await site.pass_s(0.1)
        entry = await site.entry()
        assert entry is not None
        assert entry.taken_epochs == {1: 5}
        await site.plan({1: mine(4)})
        assert not asking.done()
        await site.plan({1: mine(6)})
        assert await asking == 6
        await site.pass_s(0.1)
        assert site.holder.news() == ["resumed", "assigned 1 db1"]
        entry = await site.entry()
        assert entry is not None
        assert (entry.taken_epochs, entry.held_shards[1].epoch) == ({}, 6)

    run_story(story)


def test_cancelled_request_for_an_epoch_is_withdrawn() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        asking = asyncio.ensure_future(site.agent.issue_epoch(1, 5))
        await site.pass_s(0.1)
        asking.cancel()
        await site.pass_s(0.1)
        site.agent.report_state(1, 0, "free")
        await site.pass_s(0.1)
        entry = await site.entry()
        assert entry is not None
        assert (entry.taken_epochs, entry.held_shards) == ({}, {1: HeldShard(1, "free")})

    run_story(story)


def test_shard_that_was_reassigned_between_two_reads_gets_a_new_supervisor() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        site.agent.report_state(1, 1, "owned")
        site.holder.news()
        await site.plan({1: mine(3)})
        assert site.holder.news() == ["dropped 1", "assigned 1 db1"]
        assert await site.agent.issue_epoch(1, 0) == 3

    run_story(story)


def test_restarted_plan_issues_no_epoch_twice() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(7)})
        assert await site.agent.issue_epoch(1, 0) == 7
        await site.plan({1: mine(1)})
        assert site.holder.news()[-2:] == ["dropped 1", "assigned 1 db1"]
        asking = asyncio.ensure_future(site.agent.issue_epoch(1, 0))
        await site.pass_s(0.1)
        entry = await site.entry()
        assert entry is not None
        assert entry.taken_epochs == {1: 7}
        await site.plan({1: mine(8)})
        assert await asking == 8

    run_story(story)


def test_epoch_of_an_unassigned_shard_is_refused() -> None:
    async def story(site: Site) -> None:
        with pytest.raises(CoordinatorFailed, match="not assigned"):
            await site.agent.issue_epoch(1, 0)

    run_story(story)


def test_malformed_plan_changes_nothing_and_is_reported() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        site.holder.news()
        await site.put(PLAN, b"{")
        await site.pass_s(5)
        assert site.holder.news() == []
        assert site.agent.session_state is SessionState.SERVING
        assert site.agent.problem is not None
        await site.plan({1: mine(1), 2: mine(1)})
        await site.pass_s(2)
        assert site.holder.news() == ["assigned 2 db2"]
        assert site.agent.problem is None

    run_story(story)


def test_owner_comes_from_the_last_view() -> None:
    async def story(site: Site) -> None:
        two = Member("two", "nonce-two", "10.0.0.2:7411")
        await site.user.announce(MEMBERS, two.nonce, b"nonsense")
        await site.plan({1: mine(1), 2: other(1)})
        assert site.agent.owner_of(2) is None
        await site.user.announce(MEMBERS, two.nonce, render_member(two))
        await site.pass_s(0.1)
        assert site.agent.owner_of(2) == two
        assert site.agent.owner_of(3) is None
        me = site.agent.owner_of(1)
        assert me is not None
        assert me.name == "one"

    run_story(story)


# ---------------------------------------------------------------------- session


def test_host_without_replies_delivers_nothing_until_it_has_read_the_plan_again() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1), 2: mine(1)})
        site.holder.news()
        site.ensemble.disconnect(site.registry)
        await site.pass_s(0.001)
        assert site.holder.news() == ["suspended"]
        await site.plan({1: mine(1), 3: mine(1)})
        site.agent.report_state(1, 1, "owned")
        await site.pass_s(2)
        assert site.holder.news() == []
        site.ensemble.reconnect(site.registry)
        await site.pass_s(0.2)
        assert site.holder.news() == ["dropped 2", "assigned 3 db3", "resumed"]
        assert (await site.holdings())[1] == HeldShard(1, "owned")

    run_story(story)


def test_host_stops_serving_a_margin_before_its_session_can_end() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1), 2: mine(1)})
        site.ensemble.disconnect(site.registry)
        until_ms = site.registry.alive_until_ms - PACE.session_margin_ms
        await site.pass_s((until_ms - site.clock.monotonic_ms() - 10) / 1000)
        assert site.holder.news()[-1] == "suspended"
        await site.pass_s(0.012)
        assert site.holder.news() == ["suspended", "dropped 1", "dropped 2"]
        assert site.agent.session_state is SessionState.CUT_OFF
        assert await site.entry() is not None, "the service has not ended the session yet"
        with pytest.raises(CoordinatorFailed):
            await site.agent.issue_epoch(1, 0)

    run_story(story)


def test_agent_ends_when_its_clock_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})

        def broken(shard: int) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(site.holder, "on_dropped", broken)
        site.ensemble.disconnect(site.registry)
        until_ms = site.registry.alive_until_ms - PACE.session_margin_ms
        await site.pass_s((until_ms - site.clock.monotonic_ms()) / 1000 + 0.1)
        assert isinstance(site.running.exception(), RuntimeError)

    run_story(story)


def test_a_machine_that_slept_is_cut_off_by_its_boot_time_clock() -> None:
    class Sleeper(VirtualClock):
        slept_ms = 0

        def monotonic_ms(self) -> int:
            return super().monotonic_ms() + self.slept_ms

    async def story(site: Site) -> None:
        clock = Sleeper(site.loop)
        await site.begin(site.ensemble.registry(TIMEOUT_MS, clock.monotonic_ms), clock.monotonic_ms)
        await site.plan({1: mine(1)})
        site.holder.news()
        site.ensemble.disconnect(site.registry)
        await site.pass_s(0.1)
        clock.slept_ms = 60_000
        await site.pass_s(0.3)
        assert site.holder.news() == ["suspended", "suspended", "dropped 1"]

    run_story(story, begin=False)


@pytest.mark.parametrize("away_s", [0.0, 5.7, 60.0])
def test_in_a_new_session_every_shard_waits_for_a_new_epoch(away_s: float) -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(4)})
        assert await site.agent.issue_epoch(1, 0) == 4
        site.holder.news()
        if away_s:
            site.ensemble.disconnect(site.registry)
            await site.pass_s(away_s)
            site.ensemble.reconnect(site.registry)
        else:
            site.ensemble.expire(site.registry)
        await site.pass_s(0.2)
        news = [call for call in site.holder.news() if call != "suspended"]
        assert news == ["dropped 1", "assigned 1 db1", "resumed"]
        asking = asyncio.ensure_future(site.agent.issue_epoch(1, 0))
        await site.pass_s(0.1)
        entry = await site.entry()
        assert entry is not None
        assert entry.taken_epochs == {1: 4}
        await site.plan({1: mine(5)})
        assert await asking == 5
        assert site.registry.session_number == (1 if away_s == 5.7 else 2)

    run_story(story)


def test_a_session_that_ends_while_the_plan_is_read_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        read = site.registry.read
        expired = iter([True])

        async def ending(name: str) -> Any:
            found = await read(name)
            if name == PLAN and next(expired, False):
                entry = await site.user.read(PLAN)
                assert entry is not None
                site.ensemble.expire(site.registry)
                await site.user.replace(PLAN, render_plan(Plan({1: other(2)}, {1: 2})), entry.version)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            return found

        monkeypatch.setattr(site.registry, "read", ending)
        await site.plan({1: mine(1)})
        assert site.registry.session_number == 2
        assert site.agent._session == 2
        assert site.holder.news() == ["resumed", "suspended", "resumed"]

    run_story(story)


def test_entry_with_an_unknown_outcome_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        announce = site.registry.announce
        lost = iter([True, True])

        async def losing(folder: str, name: str, data: bytes) -> None:
            if next(lost, False):
                raise RegistryOutcomeUnknown("no answer")
            await announce(folder, name, data)

        monkeypatch.setattr(site.registry, "announce", losing)
        site.agent.report_state(1, 1, "owned")
        await site.pass_s(1)
        assert await site.holdings() == {1: HeldShard(1, "owned")}

    run_story(story)


def test_entry_that_may_have_been_written_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        announce = site.registry.announce
        lost = iter([True])

        async def losing(folder: str, name: str, data: bytes) -> None:
            await announce(folder, name, data)
            if next(lost, False):
                site.agent.report_state(1, 1, "acquiring")
                raise RegistryOutcomeUnknown("no answer")

        monkeypatch.setattr(site.registry, "announce", losing)
        site.agent.report_state(1, 1, "owned")
        await site.pass_s(1)
        assert await site.holdings() == {1: HeldShard(1, "acquiring")}

    run_story(story)


def test_versions_are_announced_once_in_each_session_and_before_the_member() -> None:
    announced: list[str] = []

    async def story(site: Site) -> None:
        announce = LocalRegistry.announce

        async def noted(self: LocalRegistry, folder: str, name: str, data: bytes) -> None:
            announced.append(folder)
            await announce(self, folder, name, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalRegistry, "announce", noted)
            await site.begin()
            await site.plan({1: mine(1)})
            assert announced[:2] == [VERSIONS, MEMBERS]
            assert (announced.count(VERSIONS), announced.count(MEMBERS) > 1) == (1, True)
            assert await read_versions(site.user) == {ME.nonce: SPOKEN}
            announced.clear()
            site.ensemble.expire(site.registry)
            await site.pass_s(0.5)
            assert announced[:2] == [VERSIONS, MEMBERS]
            assert await read_versions(site.user) == {ME.nonce: SPOKEN}

    run_story(story, begin=False)


def test_deleted_entry_is_written_again() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        site.agent.report_state(1, 1, "owned")
        await site.pass_s(1)
        site.ensemble.withdraw(site.registry, MEMBERS, ME.nonce)
        assert await site.entry() is None
        await site.pass_s(1)
        assert await site.holdings() == {1: HeldShard(1, "owned")}

    run_story(story)


def test_session_that_was_replaced_without_notice_drops_all_shards() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        site.holder.news()
        with site.registry.without_notices():
            site.ensemble.expire(site.registry)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert site.registry.session_number == 2
        await site.pass_s(1)
        assert site.holder.news() == ["suspended", "dropped 1", "assigned 1 db1", "resumed"]

    run_story(story)


def test_one_write_of_the_entry_is_in_flight_and_the_last_state_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        announce = site.registry.announce
        under_way, most, writes = 0, 0, 0

        async def slow(folder: str, name: str, data: bytes) -> None:
            nonlocal under_way, most, writes
            under_way, writes = under_way + 1, writes + 1
            most = max(most, under_way)
            await asyncio.sleep(0.3)
            await announce(folder, name, data)
            under_way -= 1

        monkeypatch.setattr(site.registry, "announce", slow)
        for state in ("recovering", "owned", "draining", "lost", "acquiring", "recovering", "owned"):
            site.agent.report_state(1, 1, state)
            await site.pass_s(0.05)
        await site.pass_s(2)
        assert await site.holdings() == {1: HeldShard(1, "owned")}
        assert (most, writes) == (1, 2)

    run_story(story)


def test_load_is_reported_at_each_tick_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        await site.pass_s(6)
        entry = await site.entry()
        assert entry is not None
        assert entry.load == 2.5
        reads = 0
        read = site.registry.read

        async def counted(name: str) -> Any:
            nonlocal reads
            reads += 1
            return await read(name)

        monkeypatch.setattr(site.registry, "read", counted)
        await site.pass_s(60)
        assert reads <= 2 * 60 / (PACE.tick_ms / 1000)

    run_story(story)


# ------------------------------------------------------------------------- end


def test_host_leaves_when_all_shards_are_handed_over() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1), 2: mine(1)})
        leaving = asyncio.ensure_future(site.agent.leave(site.loop.time() + 30))
        await site.pass_s(0.1)
        entry = await site.entry()
        assert entry is not None
        assert entry.leaving
        await site.plan({1: mine(1, leaving=True), 2: mine(1)})
        site.agent.report_state(1, 1, "free")
        await site.plan({1: other(2), 2: mine(1, leaving=True)})
        await site.pass_s(1)
        assert not leaving.done()
        await site.plan({1: other(2), 2: other(2)})
        assert leaving.done()

    run_story(story)


def test_host_leaves_at_its_deadline_when_no_host_takes_its_shards() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        at = site.loop.time()
        await site.agent.leave(at + 3)
        assert site.loop.time() == pytest.approx(at + 3, abs=0.01)

    run_story(story)


def test_leave_of_a_cut_off_host_returns_at_once() -> None:
    async def story(site: Site) -> None:
        await site.plan({1: mine(1)})
        site.ensemble.disconnect(site.registry)
        leaving = asyncio.ensure_future(site.agent.leave(site.loop.time() + 60))
        await site.pass_s(5)
        assert not leaving.done()
        await site.pass_s(1)
        assert leaving.done()

    run_story(story)


def test_host_without_shards_announces_its_leaving_before_it_ends() -> None:
    async def story(site: Site) -> None:
        await site.agent.leave(site.loop.time() + 30)
        entry = await site.entry()
        assert entry is not None
        assert entry.leaving

    run_story(story)
