"""Tests of the agent with plans written by hand: its calls to the host, its announcements, and when it stops serving."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from shardmgr.agent import Agent
from shardmgr.documents import LAYOUT, MEMBERS, PLAN, render_layout, render_member, render_plan
from shardmgr.model import HeldShard, Layout, Member, Plan, ShardSpec
from shardmgr.port import CoordinatorFailed
from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState
from shardmgr.primary_document import FOLDER, render_primary
from shardmgr.session_state import TRANSITIONS, SessionEvent, SessionState, next_session_state
from tests.support.agent_site import LAYOUT_OF_THREE, ME, PACE, TIMEOUT_MS, AgentSite, mine, other, run_story

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
    async def story(site: AgentSite) -> None:
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

    run_story(story, start=False)


def test_shards_are_assigned_released_and_dropped_as_the_plan_says() -> None:
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(3, leaving=True)})
        assert site.holder.news() == ["resumed"]
        assert await site.holdings() == {1: HeldShard(3, "free")}

    run_story(story)


def test_shard_of_a_database_with_an_entry_is_acquired_at_its_primary_in_the_same_term_only() -> None:
    servers = {"s1": DatabaseServer("r1", 11), "s2": DatabaseServer("r2", 12)}
    entry = Primary(4, "s1", LossPolicy.SEMI_SYNC, {"s2": ""}, servers=servers)
    moved = replace(entry, term=5, server="s2", ackers={"s1": ""})
    name = f"{FOLDER}/db1"

    async def story(site: AgentSite) -> None:
        await site.plan({1: replace(mine(1), term=4)})
        assert site.holder.news() == ["resumed"]
        await site.put(name, render_primary(replace(entry, state=PrimaryState.DRAINING)))
        assert site.holder.news() == []
        await site.put(name, render_primary(entry))
        assert site.holder.news() == ["assigned 1 db1 at s1"]
        await site.put(name, render_primary(moved))
        assert site.holder.news() == []
        await site.plan({1: replace(mine(2), term=5)})
        assert site.holder.news() == ["dropped 1", "assigned 1 db1 at s2"]
        await site.plan({1: mine(3)})
        assert site.holder.news() == ["dropped 1", "assigned 1 db1"]

    run_story(story)


def test_owner_that_waits_for_an_epoch_is_dropped_if_the_term_is_another_one() -> None:
    async def story(site: AgentSite) -> None:
        entry = Primary(1, "s1", LossPolicy.ASYNC, servers={"s1": DatabaseServer("r1", 11)})
        await site.plan({1: mine(1)})
        waiting = asyncio.ensure_future(site.agent.issue_epoch(1, 1))
        await site.put(f"{FOLDER}/db1", render_primary(entry))
        site.holder.news()
        await site.plan({1: replace(mine(2), term=1)})
        assert site.holder.news() == ["dropped 1", "assigned 1 db1 at s1"]
        assert not waiting.done()
        waiting.cancel()

    run_story(story)


def test_assigned_shard_is_acquired_once_it_is_in_the_layout() -> None:
    async def story(site: AgentSite) -> None:
        await site.layout(Layout())
        await site.plan({1: mine(1)})
        assert site.holder.news() == ["resumed"]
        views = site.holder.views
        await site.layout(LAYOUT_OF_THREE)
        assert site.holder.news() == ["assigned 1 db1"]
        assert site.holder.views == views + 1

    run_story(story)


def test_view_change_is_reported_before_a_new_layout_or_plan_is_followed() -> None:
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(1)})
        view, views, _ = site.agent.view, site.holder.views, site.holder.news()
        site.ensemble.delete(LAYOUT)
        await site.pass_s(1)
        assert (
            site.agent.problem == "layout: it is missing, although there is a plan of 1 shard; write the layout again"
        )
        assert (site.agent.view, site.holder.views, site.holder.news()) == (view, views, [])
        await site.layout(LAYOUT_OF_THREE)
        await site.pass_s(10)  # the next time that it tries
        assert site.agent.problem is None
        assert (site.holder.views, site.holder.news()) == (views, [])

    run_story(story)


def test_shard_with_a_new_database_is_acquired_only_from_that_database() -> None:
    """Its number was removed and added again. The plan for the former database does not apply to the new one."""

    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(1)})
        site.agent.report_state(1, 1, "owned")
        site.holder.news()
        await site.plan({1: mine(3)})
        assert site.holder.news() == ["dropped 1", "assigned 1 db1"]
        assert await site.agent.issue_epoch(1, 0) == 3

    run_story(story)


def test_restarted_plan_issues_no_epoch_twice() -> None:
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
        with pytest.raises(CoordinatorFailed, match="not assigned"):
            await site.agent.issue_epoch(1, 0)

    run_story(story)


def test_malformed_plan_changes_nothing_and_is_reported() -> None:
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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


# ------------------------------------------------------------------------- end


def test_host_leaves_when_all_shards_are_handed_over() -> None:
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(1)})
        at = site.loop.time()
        await site.agent.leave(at + 3)
        assert site.loop.time() == pytest.approx(at + 3, abs=0.01)

    run_story(story)


def test_leave_of_a_cut_off_host_returns_at_once() -> None:
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(1)})
        site.ensemble.disconnect(site.registry)
        leaving = asyncio.ensure_future(site.agent.leave(site.loop.time() + 60))
        await site.pass_s(5)
        assert not leaving.done()
        await site.pass_s(1)
        assert leaving.done()

    run_story(story)


def test_host_without_shards_announces_its_leaving_before_it_ends() -> None:
    async def story(site: AgentSite) -> None:
        await site.agent.leave(site.loop.time() + 30)
        entry = await site.entry()
        assert entry is not None
        assert entry.leaving

    run_story(story)
