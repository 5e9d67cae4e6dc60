"""Bulk jobs of three hosts with real shards: owners die, are cut off and are stopped, and each item is moved once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foqs.core.items.item import Row
from foqs.core.items.row_filter import RowFilter
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs import bulk_job_host
from foqs.queue.bulk_jobs.bulk_job import (
    BulkJobCounts,
    BulkJobOwner,
    BulkJobRecord,
    BulkJobSpec,
    BulkJobState,
)
from foqs.queue.bulk_jobs.bulk_job_store import BulkJobStore
from foqs.queue.bulk_jobs.host_bulk_jobs import HostBulkJobs
from foqs.queue.reads import counting
from foqs.queue.reads.counting import CountingFilterWalk
from foqs.queue.reads.filter_walk import FilterWalkCursor, parse_filter_walk_cursor, start_of_shard
from foqs.rpc.bulk_job_pages import BulkCallPages
from foqs.rpc.in_host_calls import InHostCalls
from foqs_contract import bulk_actions
from foqs_contract.call_table import FIRST_VERSION
from tests.support.cluster_world import ClusterHost
from tests.support.example_counts import examples
from tests.support.rpc_tier import RpcTierWorld
from tests.support.virtual_time import Process, SimulatedLoop, run_virtual

COUNT_PER_SHARD = 10
RATE = 10
MOVE = BulkJobSpec(
    "default",
    RowFilter("t"),
    BulkChange(bulk_actions.MOVE, move_to="u"),
    start_key="k",
    rate_per_s=RATE,
    expected=80,
)


class NoObserver:
    def bulk_items(self, action: str, changed: int, failed: int) -> None:
        """Count nothing."""


class BulkJobTierWorld(RpcTierWorld):
    """Hosts that work on bulk jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, HostBulkJobs] = {}
        self.processes: dict[str, Process] = {}
        """Of each host, the part that works on jobs."""
        self.store = BulkJobStore(self.administrator)

    async def host(self, name: str) -> ClusterHost:
        host = await super().host(name)
        jobs = HostBulkJobs(host.registry, host.engine.namespaces, self.clock.wall_ms, Random(5), NoObserver())
        pages = BulkCallPages(InHostCalls(self.services[name], 0.2))
        assert isinstance(self.loop, SimulatedLoop)
        process = self.processes[name] = self.loop.process(f"jobs of {name}")
        process.run(jobs.start, pages, BulkJobOwner(name, host.nonce), host.membership.running_hosts)
        self.jobs[name] = jobs
        return host

    async def start(self, spec: BulkJobSpec = MOVE) -> BulkJobRecord:
        """Start the move, or another job, at a host."""
        return await self.jobs["one"].calls.start(spec, self.deadline_in(5))

    async def job(self) -> BulkJobRecord:
        [job] = (await self.store.load()).by_id.values()
        return job

    async def seen(self, wanted: Callable[[BulkJobRecord], bool], within_s: float = 120.0) -> BulkJobRecord:
        """Wait until the job is as wanted."""
        end_s = self.loop.time() + within_s
        while not wanted(job := await self.job()):
            assert self.loop.time() < end_s, job
            await asyncio.sleep(0.05)
        return job

    async def kill(self, host: ClusterHost) -> None:
        """End a host without a notice, with its work on jobs."""
        del self.jobs[host.name]
        self.processes[host.name].kill()
        await host.die()

    def count(self, topic: str) -> int:
        return sum(row.topic == topic for table in self.database.tables.values() for row in table.rows.values())

    async def close(self) -> None:
        for jobs in self.jobs.values():
            await jobs.stop(5.0)
        await self.end()


def run_story(
    story: Callable[[BulkJobTierWorld, list[ClusterHost]], Coroutine[Any, Any, None]], *, moved: bool = True
) -> None:
    """Run a story of three hosts with 80 items. At the end, each must be moved once, unless the story ends otherwise."""

    async def main() -> None:
        world = BulkJobTierWorld()
        await world.set_up()
        hosts = await world.three()
        await world.put(hosts, "t", COUNT_PER_SHARD)
        await story(world, hosts)
        if moved:
            assert (world.count("t"), world.count("u")) == (0, 80)
        await world.close()
        assert world.overlaps == []

    run_virtual(main, until_s=3_600.0)


def host_of(hosts: list[ClusterHost], job: BulkJobRecord) -> ClusterHost:
    assert job.owner is not None
    return next(host for host in hosts if host.nonce == job.owner.nonce)


def test_job_of_a_tier_moves_the_items_of_all_hosts() -> None:
    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        await world.start()
        job = await world.seen(lambda job: not job.state.is_live)
        assert (job.state, job.counts.changed, job.counts.at_least, job.run) == (BulkJobState.DONE, 80, False, 1)

    run_story(story)


@pytest.mark.parametrize("seed", range(examples(8)))
def test_owner_that_dies_at_any_moment_is_followed_by_another(seed: int) -> None:
    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        rng = Random(seed)
        await world.start()
        job = await world.seen(lambda job: job.owner is not None)
        await world.pass_s(rng.uniform(0.0, 6.0))
        await world.kill(host_of(hosts, await world.job()))
        job = await world.seen(lambda job: not job.state.is_live)
        assert (job.state, job.run) == (BulkJobState.DONE, 2)
        assert job.counts.at_least
        assert job.counts.changed <= 80

    run_story(story)


@pytest.mark.parametrize("seed", range(examples(4)))
def test_count_of_a_tier_is_exact_although_its_owner_dies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "COUNT_PAGE_S_MAX", 0.0)
    monkeypatch.setattr(counting, "COUNT_ROWS_PER_READ", 1)

    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        rng = Random(seed)
        await world.start(replace(MOVE, change=BulkChange(bulk_actions.COUNT)))
        await world.seen(lambda job: job.cursor is not None)
        await world.pass_s(rng.uniform(0.0, 0.1))
        await world.kill(host_of(hosts, await world.job()))
        job = await world.seen(lambda job: not job.state.is_live)
        assert (job.state, job.run, job.counts) == (BulkJobState.DONE, 2, BulkJobCounts(seen=80))
        assert (world.count("t"), world.count("u")) == (80, 0)

    run_story(story, moved=False)


@pytest.mark.parametrize("seed", range(examples(4)))
def test_count_by_id_goes_on_within_a_shard_after_its_owner_has_died(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "COUNT_PAGE_S_MAX", 0.0)
    monkeypatch.setattr(counting, "COUNT_ROWS_PER_READ", 2)
    monkeypatch.setattr(bulk_job_host, "WRITE_INTERVAL_S", 0.0)
    read_by_id = CountingFilterWalk._read_by_id
    reads_by_id: list[FilterWalkCursor] = []

    async def noted(walk: CountingFilterWalk, cursor: FilterWalkCursor) -> Sequence[Row]:
        reads_by_id.append(cursor)
        return await read_by_id(walk, cursor)

    monkeypatch.setattr(CountingFilterWalk, "_read_by_id", noted)

    def is_within_a_shard(job: BulkJobRecord, seen_min: int) -> bool:
        if job.cursor is None or job.counts.seen < seen_min:
            return False
        cursor = parse_filter_walk_cursor(job.cursor)
        return not cursor.topic and cursor.after_key > start_of_shard(cursor.started_ms, cursor.shard).after_key

    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        for number in range(12):
            await world.put(hosts, f"t{number}", 1)
        seen_min = Random(seed).randrange(100)
        await world.start(replace(MOVE, item_filter=RowFilter(), change=BulkChange(bulk_actions.COUNT)))
        job = await world.seen(lambda job: is_within_a_shard(job, seen_min))
        await world.kill(host_of(hosts, job))
        job = await world.job()
        assert job.cursor is not None
        recorded = parse_filter_walk_cursor(job.cursor)
        reads_before = len(reads_by_id)
        job = await world.seen(lambda job: not job.state.is_live)
        assert (job.state, job.run, job.counts) == (BulkJobState.DONE, 2, BulkJobCounts(seen=80 + 12 * 8))
        assert reads_by_id[reads_before] == recorded
        assert {cursor.shard for cursor in reads_by_id[reads_before:]} == set(range(recorded.shard, 8))

    run_story(story, moved=False)


@pytest.mark.parametrize("cut_s", [1.0, 5.0, 20.0])
def test_owner_that_is_cut_off_and_works_on_moves_nothing_twice(cut_s: float) -> None:
    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        await world.start()
        job = await world.seen(lambda job: job.counts.changed > 0)
        owner = host_of(hosts, job)
        owner.disconnect()
        await world.pass_s(cut_s)
        owner.reconnect()
        job = await world.seen(lambda job: not job.state.is_live)
        assert job.state is BulkJobState.DONE
        assert job.counts.changed <= 80
        assert job.counts.at_least or job.counts.changed == 80

    run_story(story)


def test_host_that_stops_gives_its_job_to_another_one_exactly() -> None:
    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        await world.start()
        job = await world.seen(lambda job: job.counts.changed > 0)
        owner = host_of(hosts, job)
        await world.jobs.pop(owner.name).stop(5.0)
        await owner.stop()
        job = await world.seen(lambda job: not job.state.is_live)
        assert (job.state, job.counts.changed, job.counts.at_least) == (BulkJobState.DONE, 80, False)

    run_story(story)


@pytest.fixture
def older_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all hosts take the others for hosts of the first version of the contract."""
    monkeypatch.setattr("foqs.rpc.auth_session.CONTRACT_VERSION", FIRST_VERSION)


@pytest.mark.usefixtures("older_peers")
def test_job_changes_the_items_of_older_hosts_too() -> None:
    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        await world.start(replace(MOVE, change=BulkChange(bulk_actions.CANCEL)))
        job = await world.seen(lambda job: not job.state.is_live)
        assert (job.state, job.counts.changed) == (BulkJobState.DONE, 80)
        assert (world.count("t"), world.count("u")) == (0, 0)

    run_story(story, moved=False)


@pytest.mark.usefixtures("older_peers")
def test_count_beside_older_hosts_fails_and_changes_nothing() -> None:
    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        await world.start(
            replace(MOVE, change=BulkChange(bulk_actions.COUNT), counts_for=BulkChange(bulk_actions.CANCEL))
        )
        job = await world.seen(lambda job: not job.state.is_live)
        assert job.state is BulkJobState.FAILED
        assert "upgrade the hosts first" in (job.problem or "")
        assert world.count("t") == 80

    run_story(story, moved=False)


@pytest.mark.usefixtures("older_peers")
def test_move_beside_older_hosts_fails_and_names_the_remedy() -> None:
    async def story(world: BulkJobTierWorld, hosts: list[ClusterHost]) -> None:
        await world.start()
        job = await world.seen(lambda job: not job.state.is_live)
        assert job.state is BulkJobState.FAILED
        assert "serves version 1 of the contract" in (job.problem or "")
        assert "upgrade the hosts first" in (job.problem or "")
        assert (world.count("t"), world.count("u")) == (80 - job.counts.changed, job.counts.changed)

    run_story(story, moved=False)
