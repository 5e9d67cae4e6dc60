"""Hosts work on jobs: each item is changed once, whatever dies, is lost, or is commanded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final

import pytest

from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs import bulk_job_worker
from foqs.queue.bulk_jobs.bulk_job import (
    BulkJobCommand,
    BulkJobCounts,
    BulkJobRecord,
    BulkJobRecords,
    BulkJobState,
)
from foqs.queue.bulk_jobs.bulk_job_host import JOBS_PER_HOST_MAX, MISSING_S, OVERDUE_S, READ_INTERVAL_S
from foqs.queue.bulk_jobs.bulk_job_transitions import LIVE_PER_NAMESPACE_MAX, BulkJobProgress, report
from foqs.queue.bulk_jobs.bulk_job_worker import GONE_S, PAGE_ITEMS_MAX, WRITE_INTERVAL_S
from foqs_contract import bulk_actions
from foqs_contract.errors import (
    InvalidArgument,
    NamespaceNotFound,
    Overloaded,
    PermissionDenied,
    Unavailable,
    UnknownOutcome,
)
from shardmgr.registry.port import VersionedDocument
from tests.support.bulk_job_world import NETWORK_S, REDRIVE, BulkJobWorld, NotedItems
from tests.support.virtual_time import SimulatedLoop, run_virtual

PAGES: Final = 30
COUNT: Final = PAGES * PAGE_ITEMS_MAX


def run_story(story: Callable[[BulkJobWorld], Awaitable[None]], count: int = COUNT) -> None:
    """Run a story in a world with `count` items."""

    async def main() -> None:
        await story(BulkJobWorld(NotedItems(count)))

    run_virtual(main, until_s=10_000)


def time_s() -> float:
    return asyncio.get_running_loop().time()


def test_job_changes_each_item_once_and_counts_them() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.items.refused = (3, 700)
        world.add("a")
        await world.start(expected=COUNT)
        job = await world.ended()
        assert (job.state, job.counts.seen, job.counts.changed, job.counts.failed) == (
            BulkJobState.DONE,
            COUNT,
            COUNT - 2,
            2,
        )
        assert not job.counts.at_least
        assert job.refusal == "it is leased"
        assert world.items.is_each_changed_once
        assert [limit for _, _, limit in world.items.pages] == [0, *[PAGE_ITEMS_MAX] * PAGES]

    run_story(story)


def test_job_without_items_is_done() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        assert (await world.ended()).state is BulkJobState.DONE
        assert len(world.items.pages) == 1

    run_story(story, count=0)


def test_progress_is_recorded_about_once_a_second() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        assert 0 < world.job().counts.changed < COUNT
        assert WRITE_INTERVAL_S <= time_s() <= WRITE_INTERVAL_S + 0.5
        writes = world.documents.writes
        await world.ended()
        assert world.documents.writes - writes <= PAGES * world.items.page_s / WRITE_INTERVAL_S + 2

    run_story(story)


@pytest.mark.parametrize("rate", [1, 100, 2_000])
def test_rate_is_kept(rate: int) -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start(rate_per_s=rate)
        begun_s = time_s()
        await world.ended()
        assert (time_s() - begun_s) * rate >= len(world.items.walks) * 0.9
        changes = [(at_s, limit) for at_s, cursor, limit in world.items.pages if cursor is not None]
        for at_s, _ in changes:
            assert sum(limit for other_s, limit in changes if at_s <= other_s < at_s + 1) <= max(rate, 1) * 2

    run_story(story, count=rate * 10)


def test_interrupted_job_stops_and_a_resumed_one_goes_on_where_it_was() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        await world.control(BulkJobCommand.INTERRUPT)
        await world.until(lambda: world.job().owner is None)
        stopped = world.job()
        assert stopped.state is BulkJobState.INTERRUPTED
        assert stopped.counts.changed == sum(map(bool, world.items.walks))
        pages = len(world.items.pages)
        await asyncio.sleep(60)
        assert len(world.items.pages) == pages
        await world.control(BulkJobCommand.RESUME)
        done = await world.ended()
        assert (done.counts.changed, done.counts.at_least) == (COUNT, False)
        assert world.items.is_each_changed_once
        assert world.items.pages[pages][1] == stopped.cursor

    run_story(story)


def test_job_that_is_interrupted_and_resumed_at_once_keeps_its_owner_and_its_counts() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        await world.control(BulkJobCommand.INTERRUPT)
        await world.control(BulkJobCommand.RESUME)
        done = await world.ended()
        assert (done.counts.changed, done.counts.at_least) == (COUNT, False)
        assert world.items.is_each_changed_once

    run_story(story)


def test_cancelled_job_changes_at_most_the_page_in_progress_and_counts_it() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        await world.control(BulkJobCommand.CANCEL)
        at_s = time_s()
        job = await world.ended()
        assert job.state is BulkJobState.CANCELLED
        assert time_s() - at_s < 1.0
        assert job.counts.changed == sum(map(bool, world.items.walks)) < COUNT

    run_story(story)


def test_command_ends_the_pause_of_a_job_that_waits() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        world.items.errors = [Unavailable("a shard is not served", retry_after_ms=600_000)]
        await world.start()
        await world.until(lambda: world.job().problem is not None)
        assert world.job().problem == "a shard is not served"
        await world.control(BulkJobCommand.INTERRUPT)
        at_s = time_s()
        await world.until(lambda: world.job().owner is None)
        assert time_s() - at_s < 1.0
        assert world.job().problem is None

    run_story(story)


@pytest.mark.parametrize("error", [Unavailable("x"), Overloaded("x"), UnknownOutcome("x"), NamespaceNotFound("x")])
def test_error_that_passes_is_waited_for(error: Exception) -> None:
    async def story(world: BulkJobWorld) -> None:
        assert isinstance(error, Unavailable | Overloaded | UnknownOutcome | NamespaceNotFound)
        world.items.errors = [error] * 5
        world.add("a")
        await world.start()
        job = await world.ended()
        assert (job.state, job.problem, job.counts.changed) == (BulkJobState.DONE, None, COUNT)
        assert job.counts.at_least == isinstance(error, UnknownOutcome)

    run_story(story)


def test_error_that_stays_ends_the_job_as_failed() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        world.items.errors = [InvalidArgument("the topic is wrong")]
        job = await world.ended()
        assert (job.state, job.problem) == (BulkJobState.FAILED, "the topic is wrong")
        assert job.counts.changed == sum(map(bool, world.items.walks))

    run_story(story)


def test_refused_permission_ends_the_job() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.items.errors = [PermissionDenied("no grant")]
        world.add("a")
        await world.start()
        assert (await world.ended()).state is BulkJobState.FAILED

    run_story(story)


def test_missing_namespace_ends_the_job_after_a_while() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.items.errors = [NamespaceNotFound("there is no namespace 'default'")] * 1_000
        world.add("a")
        await world.start()
        job = await world.ended()
        assert job.state is BulkJobState.FAILED
        assert GONE_S <= time_s() < GONE_S + 5

    run_story(story)


def test_another_namespace_of_the_same_name_is_not_touched() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        world.incarnation = 77
        job = await world.ended()
        assert job.state is BulkJobState.FAILED
        assert "was deleted" in (job.problem or "")

    run_story(story)


def test_lost_result_of_a_page_is_repeated_and_the_counts_say_so() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        world.items.lost_pages = 3
        job = await world.ended()
        assert job.state is BulkJobState.DONE
        assert world.items.is_each_changed_once
        assert job.counts.at_least
        assert job.counts.changed == COUNT - PAGE_ITEMS_MAX

    run_story(story)


def test_lost_answers_of_the_record_change_nothing() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        world.documents.lost_replies = 1
        with pytest.raises(Exception, match="the answer is lost"):
            await world.start()
        world.documents.lost_replies = 5
        job = await world.ended()
        assert (job.counts.changed, job.counts.at_least, job.run) == (COUNT, False, 1)
        assert world.items.is_each_changed_once

    run_story(story)


def test_work_waits_while_the_record_cannot_be_written() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        world.documents.is_down = True
        await asyncio.sleep(5)
        pages = len(world.items.pages)
        await asyncio.sleep(60)
        assert len(world.items.pages) == pages
        world.documents.is_down = False
        job = await world.ended()
        assert (job.counts.changed, job.counts.at_least) == (COUNT, False)

    run_story(story)


def test_job_of_a_dead_host_is_taken_over_after_its_time() -> None:
    async def story(world: BulkJobWorld) -> None:
        first, second = world.add("a"), world.add("b")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        owner = world.job().owner
        assert owner is not None
        world.kill(first if owner == first.owner else second)
        at_s = time_s()
        await world.until(lambda: world.job().owner not in (owner, None))
        assert MISSING_S <= time_s() - at_s < MISSING_S + 3
        job = await world.ended()
        assert (job.state, job.run, job.counts.at_least) == (BulkJobState.DONE, 2, True)
        assert world.items.is_each_changed_once
        assert COUNT * 0.5 < job.counts.changed <= COUNT

    run_story(story)


def test_host_that_does_not_know_the_others_takes_nothing_from_them() -> None:
    async def story(world: BulkJobWorld) -> None:
        first = world.add("a")
        await world.start()
        await world.until(lambda: world.job().owner is not None)
        second = world.add("b")
        world.view_of[second.owner.nonce] = None
        world.kill(first)
        await asyncio.sleep(60)
        assert world.job().owner == first.owner
        del world.view_of[second.owner.nonce]
        await world.ended()

    run_story(story)


def test_two_hosts_on_one_job_change_each_item_once_and_one_of_them_stops() -> None:
    """The first host is believed dead and works on."""

    async def story(world: BulkJobWorld) -> None:
        world.items.page_s = 0.5
        first = world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        second = world.add("b")
        world.members.remove(first.owner.nonce)
        world.view_of[first.owner.nonce] = [first.owner.nonce, second.owner.nonce]
        await world.until(lambda: world.job().owner == second.owner)
        job = await world.ended()
        assert world.items.is_each_changed_once
        assert job.counts.at_least
        assert job.counts.changed <= COUNT

    run_story(story)


def test_frozen_owner_that_continues_after_a_takeover_stops() -> None:
    async def story(world: BulkJobWorld) -> None:
        first = world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        second = world.add("b")
        first.process.freeze()
        world.members.remove(first.owner.nonce)
        await world.until(lambda: world.job().owner == second.owner)
        first.process.thaw()
        job = await world.ended()
        assert job.run == 2
        assert world.items.is_each_changed_once
        assert job.counts.changed <= COUNT

    run_story(story)


def test_stopping_host_gives_its_job_up_at_once_and_exactly() -> None:
    async def story(world: BulkJobWorld) -> None:
        first = world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        world.add("b")
        first.task.cancel()
        await first.process.spawn(first.host.stop(5.0))
        assert world.job().owner != first.owner
        job = await world.ended()
        assert (job.counts.changed, job.counts.at_least, job.run) == (COUNT, False, 2)

    run_story(story)


def test_host_that_stops_while_it_takes_a_job_gives_it_up() -> None:
    async def story(world: BulkJobWorld) -> None:
        first = world.add("a")
        await asyncio.sleep(1)
        await world.start()
        await world.until(lambda: world.job().owner is not None, every_s=NETWORK_S / 4)
        first.task.cancel()  # before the answer of the record
        await first.process.spawn(first.host.stop(5.0))
        assert (world.job().owner, world.items.pages) == (None, [])

    run_story(story)


def test_stopping_host_whose_page_hangs_gives_its_job_up_in_time() -> None:
    async def story(world: BulkJobWorld) -> None:
        first = world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        world.items.page_s = 1_000.0
        await asyncio.sleep(2)
        first.task.cancel()
        at_s = time_s()
        await first.process.spawn(first.host.stop(5.0))
        assert time_s() - at_s < 6
        assert (world.job().owner, world.job().counts.at_least) == (None, True)

    run_story(story)


def test_owner_of_a_cancelled_job_that_died_is_cleared() -> None:
    async def story(world: BulkJobWorld) -> None:
        first = world.add("a")
        await world.start()
        await world.until(lambda: world.job().counts.changed > 0)
        await world.control(BulkJobCommand.CANCEL)
        world.kill(first)
        world.add("b")
        job = await world.ended()
        assert (job.state, job.counts.at_least) == (BulkJobState.CANCELLED, True)

    run_story(story)


def test_host_works_on_a_few_jobs_at_a_time_and_others_take_the_rest() -> None:
    async def story(world: BulkJobWorld) -> None:
        first = world.add("a")
        for number in range(1, 7):
            await world.start(number)
        await asyncio.sleep(0.5)
        owned = [world.job(number).owner for number in range(1, 7)]
        assert owned.count(first.owner) == JOBS_PER_HOST_MAX
        assert owned.count(None) == 2
        second = world.add("b")
        await world.until(lambda: world.job(6).owner == second.owner)
        for number in range(1, 7):
            assert (await world.ended(number)).state is BulkJobState.DONE

    run_story(story)


def test_slow_jobs_of_one_namespace_do_not_delay_those_of_others() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        for number in range(LIVE_PER_NAMESPACE_MAX):
            await world.start(number, namespace="noisy", rate_per_s=1)
        await asyncio.sleep(1)
        for number in (91, 92, 93):
            await world.start(number, namespace=f"quiet-{number}")
        begun_s = time_s()
        for number in (91, 92, 93):
            assert (await world.ended(number)).state is BulkJobState.DONE
        assert time_s() - begun_s < 4 * OVERDUE_S
        assert world.job(0).state is BulkJobState.RUNNING

    run_story(story, 2_000)


def test_jobs_of_one_namespace_that_wait_get_the_next_places_in_turn_with_others() -> None:
    async def story(world: BulkJobWorld) -> None:
        for number in range(6):
            await world.start(number, namespace="first", rate_per_s=1)
        await world.start(91, namespace="second")
        await world.start(92, namespace="third")
        world.add("a")
        await world.until(lambda: world.job(92).owner is not None)
        assert world.job(91).owner is not None
        assert sum(world.job(number).owner is not None for number in range(6)) == JOBS_PER_HOST_MAX - 2

    run_story(story, 2_000)


def test_host_with_room_takes_a_job_before_one_without() -> None:
    async def story(world: BulkJobWorld) -> None:
        first = world.add("a")
        for number in range(JOBS_PER_HOST_MAX):
            await world.start(number, namespace="noisy", rate_per_s=1)
        await world.until(lambda: world.job(JOBS_PER_HOST_MAX - 1).owner == first.owner)
        second = world.add("b")
        await asyncio.sleep(1)
        await world.start(91, namespace="quiet")
        await world.until(lambda: world.job(91).owner is not None)
        assert world.job(91).owner == second.owner

    run_story(story, 2_000)


def test_many_jobs_of_a_host_are_recorded_as_often_as_a_few() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a")
        for number in range(5 * JOBS_PER_HOST_MAX):
            await world.start(number, namespace=f"n{number}", rate_per_s=1)
        await world.until(lambda: all(job.owner is not None for job in world.documents.jobs().by_id.values()))
        await asyncio.sleep(2 * WRITE_INTERVAL_S)
        before = world.documents.writes
        await asyncio.sleep(20)
        assert world.documents.writes - before <= 21 * JOBS_PER_HOST_MAX / WRITE_INTERVAL_S

    run_story(story, 2_000)


def test_job_of_another_tier_is_left_alone() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a", tier="slow")
        await world.start()
        await asyncio.sleep(60)
        assert world.items.pages == []

    run_story(story)


def test_worker_that_fails_unexpectedly_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: BulkJobWorld) -> None:
        failures = iter([RuntimeError("a bug")])
        make_page = world.items.make_page

        async def break_once(*arguments: object) -> object:
            error = next(failures, None) if len(world.items.pages) == 12 else None
            if error is not None:
                raise error
            return await make_page(*arguments)  # type: ignore[arg-type]

        world.items.make_page = break_once  # type: ignore[method-assign, assignment]
        world.add("a")
        await world.start()
        job = await world.ended()
        assert (job.state, job.counts.at_least) == (BulkJobState.DONE, True)
        assert world.items.is_each_changed_once

    run_story(story)
    assert "failed with an unexpected error" in caplog.text


def test_record_that_changes_often_is_read_about_ten_times_a_second() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.add("a", tier="slow")
        await world.start()
        await asyncio.sleep(5)
        reads, begun_s = world.documents.reads, time_s()
        for _ in range(200):
            await world.control(BulkJobCommand.INTERRUPT)
            await world.control(BulkJobCommand.RESUME)
        by_the_host = world.documents.reads - reads - 400
        assert 3 <= by_the_host <= (time_s() - begun_s) / READ_INTERVAL_S + 1

    run_story(story)


def test_unexpected_error_does_not_end_the_work_of_a_host(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: BulkJobWorld) -> None:
        await world.start()
        read = world.documents.read
        failures = iter([RuntimeError("a bug")])

        async def break_once(name: str) -> VersionedDocument | None:
            for error in failures:
                raise error
            return await read(name)

        world.documents.read = break_once  # type: ignore[method-assign]
        world.add("a")
        assert (await world.ended()).state is BulkJobState.DONE

    run_story(story)
    assert "failed with an unexpected error" in caplog.text


# ------------------------------------------------------- a death at each moment


def _run_with_a_death(step: int, change: BulkChange = REDRIVE) -> tuple[BulkJobWorld, BulkJobRecord, int]:
    """Run a job of two hosts, and kill the first one before this step of the program. Returns the number of steps too."""
    found: list[tuple[BulkJobWorld, BulkJobRecord, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        world = BulkJobWorld(NotedItems(3 * PAGE_ITEMS_MAX))
        world.items.page_s = 0.5
        await world.start(change=change)
        first = world.add("a")
        await world.until(lambda: world.job().owner is not None)
        second_step = loop.steps + step

        def on_step(number: int) -> None:
            if number == second_step and first.process.alive:
                world.kill(first)

        loop.on_step = on_step
        world.add("b")
        job = await world.ended()
        loop.on_step = None
        found.append((world, job, loop.steps))

    run_virtual(main, until_s=1_000)
    return found[0]


def _assert_done(world: BulkJobWorld, job: BulkJobRecord) -> None:
    assert job.state is BulkJobState.DONE
    assert world.items.is_each_changed_once
    count = len(world.items.walks)
    assert job.counts.changed <= count
    assert job.counts.at_least or job.counts.changed == count


def test_each_item_is_changed_once_whenever_the_owner_dies() -> None:
    _, job, steps = _run_with_a_death(10**9)
    assert job.run == 1
    runs = set()
    for step in range(1, steps):
        world, job, _ = _run_with_a_death(step)
        _assert_done(world, job)
        runs.add(job.run)
    assert runs == {1, 2}


@pytest.mark.once
def test_count_is_exact_and_changes_nothing_whenever_the_owner_dies() -> None:
    count = BulkChange(bulk_actions.COUNT)
    _, job, steps = _run_with_a_death(10**9, count)
    runs = set()
    for step in range(1, steps):
        world, job, _ = _run_with_a_death(step, count)
        assert (job.state, job.counts) == (BulkJobState.DONE, BulkJobCounts(seen=len(world.items.walks)))
        assert not any(world.items.walks)
        runs.add(job.run)
    assert runs == {1, 2}


def test_count_whose_page_is_lost_or_interrupted_goes_on_exactly() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.items.errors = [UnknownOutcome("x"), Unavailable("y")]
        world.add("a")
        await world.start(change=BulkChange(bulk_actions.COUNT))
        await world.until(lambda: world.job().counts.seen > 0)
        await world.control(BulkJobCommand.INTERRUPT)
        await world.until(lambda: world.job().owner is None)
        assert 0 < world.job().counts.seen < COUNT
        await world.control(BulkJobCommand.RESUME)
        job = await world.ended()
        assert (job.state, job.counts) == (BulkJobState.DONE, BulkJobCounts(seen=COUNT))

    run_story(story)


def test_count_pauses_after_each_page_as_long_as_the_page_took() -> None:
    async def story(world: BulkJobWorld) -> None:
        world.items.page_s = 0.5
        world.add("a")
        await world.start(change=BulkChange(bulk_actions.COUNT))
        await world.ended()
        _, *began_s = [time_s for time_s, _, _ in world.items.pages]
        assert len(began_s) == PAGES
        assert all(later - earlier > 2 * 0.499 for earlier, later in pairwise(began_s))

    run_story(story)


@pytest.mark.once
def test_worker_that_does_not_record_the_start_of_its_walk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: the cursor is written only with the first full second."""

    def report_unless_first(
        jobs: BulkJobRecords, job_id: str, progress: BulkJobProgress, now_ms: int
    ) -> tuple[BulkJobRecords, BulkJobRecord]:
        written = report(jobs, job_id, progress, now_ms)
        return written if progress.counts.seen else (jobs, jobs.by_id[job_id])

    monkeypatch.setattr(bulk_job_worker, "report", report_unless_first)
    _, _, steps = _run_with_a_death(10**9)
    worlds = [_run_with_a_death(step)[0] for step in range(1, steps)]
    assert not all(world.items.is_each_changed_once for world in worlds)
