"""The agent and its session: replies that stay away, a clock that is off, entries that are lost, a new session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.testing.virtual_loop import VirtualClock
from shardmgr.documents import MEMBERS, PLAN, render_plan
from shardmgr.model import HeldShard, Plan
from shardmgr.port import CoordinatorFailed
from shardmgr.registry.port import RegistryOutcomeUnknown
from shardmgr.session_state import SessionState
from shardmgr.versions import VERSIONS, read_versions
from tests.support.agent_site import ME, PACE, SPOKEN, TIMEOUT_MS, AgentSite, mine, other, run_story
from tests.support.local_ensemble import LocalRegistry


def test_host_without_replies_delivers_nothing_until_it_has_read_the_plan_again() -> None:
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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

    async def story(site: AgentSite) -> None:
        clock = Sleeper(site.loop)
        await site.start(site.ensemble.registry(TIMEOUT_MS, clock.monotonic_ms), clock.monotonic_ms)
        await site.plan({1: mine(1)})
        site.holder.news()
        site.ensemble.disconnect(site.registry)
        await site.pass_s(0.1)
        clock.slept_ms = 60_000
        await site.pass_s(0.3)
        assert site.holder.news() == ["suspended", "suspended", "dropped 1"]

    run_story(story, start=False)


@pytest.mark.parametrize("away_s", [0.0, 5.7, 60.0])
def test_in_a_new_session_every_shard_that_was_served_waits_for_a_new_epoch(away_s: float) -> None:
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(4)})
        assert await site.agent.issue_epoch(1, 0) == 4
        site.agent.report_state(1, 4, "owned")
        site.agent.report_state(1, 4, "lost")
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


def test_shard_that_no_supervisor_could_serve_keeps_its_epoch_over_sessions() -> None:
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(4)})
        for _ in range(3):
            assert await site.agent.issue_epoch(1, 0) == 4
            site.agent.report_state(1, 0, "recovering")
            site.ensemble.expire(site.registry)
            await site.pass_s(0.2)
        assert await site.agent.issue_epoch(1, 0) == 4
        site.agent.report_state(1, 4, "owned")
        site.ensemble.expire(site.registry)
        await site.pass_s(0.2)
        asking = asyncio.ensure_future(site.agent.issue_epoch(1, 0))
        await site.pass_s(0.1)
        assert not asking.done()
        await site.plan({1: mine(5)})
        assert await asking == 5

    run_story(story)


def test_epoch_that_has_served_is_not_issued_after_a_supervisor_that_waited_for_the_next_one() -> None:
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(4)})
        site.agent.report_state(1, 4, "owned")
        for _ in range(2):
            site.ensemble.expire(site.registry)
            await site.pass_s(0.2)
            asking = asyncio.ensure_future(site.agent.issue_epoch(1, 0))
            await site.pass_s(0.1)
            assert not asking.done()
            asking.cancel()

    run_story(story)


def test_shard_is_not_acquired_below_an_epoch_of_the_owner_row() -> None:
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(4)})
        assert await site.agent.issue_epoch(1, 0) == 4
        site.ensemble.expire(site.registry)
        await site.pass_s(0.2)
        asking = asyncio.ensure_future(site.agent.issue_epoch(1, 6))
        await site.pass_s(0.1)
        entry = await site.entry()
        assert entry is not None
        assert entry.taken_epochs == {1: 6}
        await site.plan({1: mine(7)})
        assert await asking == 7

    run_story(story)


def test_a_session_that_ends_while_the_plan_is_read_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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

    async def story(site: AgentSite) -> None:
        announce = LocalRegistry.announce

        async def noted(self: LocalRegistry, folder: str, name: str, data: bytes) -> None:
            announced.append(folder)
            await announce(self, folder, name, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalRegistry, "announce", noted)
            await site.start()
            await site.plan({1: mine(1)})
            assert announced[:2] == [VERSIONS, MEMBERS]
            assert (announced.count(VERSIONS), announced.count(MEMBERS) > 1) == (1, True)
            assert await read_versions(site.user) == {ME.nonce: SPOKEN}
            announced.clear()
            site.ensemble.expire(site.registry)
            await site.pass_s(0.5)
            assert announced[:2] == [VERSIONS, MEMBERS]
            assert await read_versions(site.user) == {ME.nonce: SPOKEN}

    run_story(story, start=False)


def test_deleted_entry_is_written_again() -> None:
    async def story(site: AgentSite) -> None:
        await site.plan({1: mine(1)})
        site.agent.report_state(1, 1, "owned")
        await site.pass_s(1)
        site.ensemble.withdraw(site.registry, MEMBERS, ME.nonce)
        assert await site.entry() is None
        await site.pass_s(1)
        assert await site.holdings() == {1: HeldShard(1, "owned")}

    run_story(story)


def test_session_that_was_replaced_without_notice_drops_all_shards() -> None:
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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
    async def story(site: AgentSite) -> None:
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
