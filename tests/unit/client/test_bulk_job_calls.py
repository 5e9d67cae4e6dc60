"""The client's calls about bulk jobs, over a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT
from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import State
from foqs.core.items.row_filter import RowFilter
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs.bulk_job import BulkJobRecord, BulkJobSpec
from foqs.queue.bulk_jobs.bulk_job_service import BulkJobService
from foqs.queue.bulk_jobs.bulk_job_store import BulkJobStore, LocalDocuments
from foqs.rpc.bulk_job_handlers import bulk_job_handlers
from foqs_client import Change, Client, InvalidArgument, ItemFilter, KeyConflict, NotFound, UnknownOutcome
from foqs_contract.bulk_actions import COUNT, MOVE, UPDATE
from tests.support.aio import run
from tests.support.builders import NAMESPACE
from tests.support.fake_queue import FakeQueue
from tests.support.rpc_server import serve_queue


class RecordingJobs(BulkJobService):
    """Jobs that are recorded and not worked on; the answers to some starts are lost."""

    def __init__(self) -> None:
        namespaces = Namespaces(NAMESPACE)
        namespaces.apply(changes.create(EMPTY_DOCUMENT, "default", None, {}))
        super().__init__(BulkJobStore(LocalDocuments(None)), namespaces, lambda: 1_700_000_000_000, Random(7))
        self.specs: list[BulkJobSpec] = []
        self.errors: list[Exception] = []

    async def start(self, spec: BulkJobSpec, deadline: float) -> BulkJobRecord:
        self.specs.append(spec)
        job = await super().start(spec, deadline)
        if self.errors:
            raise self.errors.pop(0)
        return job


@asynccontextmanager
async def served() -> AsyncIterator[tuple[RecordingJobs, Client]]:
    jobs = RecordingJobs()
    calls = bulk_job_handlers(jobs, lambda name: NAMESPACE)
    async with serve_queue(FakeQueue(), calls=calls) as host, Client(host.url, timeout_ms=5_000) as client:
        yield jobs, client


def run_story(story: Callable[[RecordingJobs, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with served() as (jobs, client):
            await story(jobs, client)

    run(main())


def test_job_is_started_listed_and_shown() -> None:
    async def story(jobs: RecordingJobs, client: Client) -> None:
        only = ItemFilter("t", ("ready",), priority_max=5, age_min_ms=7)
        change = Change(3, delay_ms=9, metadata=b"m")
        job = await client.start_bulk_job("update", only, change, rate_per_s=4, expected=8)
        assert (job.action, job.only, job.change, job.rate_per_s, job.expected) == ("update", only, change, 4, 8)
        assert (job.state, job.is_live, job.is_settled, job.changed, job.started_by) == (
            "running",
            True,
            False,
            0,
            None,
        )
        [spec] = jobs.specs
        assert spec.item_filter == RowFilter("t", (State.READY,), priority_max=5, age_min_ms=7)
        assert spec.change == BulkChange(UPDATE, 3, 9, None, b"m")
        assert await client.bulk_jobs() == [job]
        assert await client.bulk_job(job.id) == job
        with pytest.raises(NotFound):
            await client.bulk_job("0" * 16)

    run_story(story)


def test_move_has_a_target_and_no_action_of_its_own() -> None:
    async def story(jobs: RecordingJobs, client: Client) -> None:
        job = await client.start_bulk_job("move", ItemFilter("t"), move_to="u")
        assert (job.action, job.move_to) == ("move", "u")
        assert jobs.specs[0].change == BulkChange(MOVE, move_to="u")

    run_story(story)


def test_count_keeps_the_change_that_it_is_made_for() -> None:
    async def story(jobs: RecordingJobs, client: Client) -> None:
        job = await client.start_bulk_job("count", ItemFilter("t"), move_to="u", counts_for="move")
        assert (job.action, job.counts_for, job.move_to) == ("count", "move", "u")
        assert jobs.specs[0].change == BulkChange(COUNT)
        assert jobs.specs[0].counts_for == BulkChange(MOVE, move_to="u")
        job = await client.start_bulk_job("count", ItemFilter("t"), Change(4), counts_for="update")
        assert (job.action, job.counts_for, job.change) == ("count", "update", Change(4))
        job = await client.start_bulk_job("count", ItemFilter("t"))
        assert (job.action, job.counts_for, job.move_to) == ("count", None, None)

    run_story(story)


def test_start_whose_answer_is_lost_is_sent_once_more_with_the_same_key() -> None:
    async def story(jobs: RecordingJobs, client: Client) -> None:
        jobs.errors = [UnknownOutcome("lost")]
        job = await client.start_bulk_job("redrive", ItemFilter("t"))
        assert [found.id for found in await client.bulk_jobs()] == [job.id]
        assert len(jobs.specs) == 2
        assert jobs.specs[0] == jobs.specs[1]
        jobs.errors = [UnknownOutcome("lost"), UnknownOutcome("lost")]
        with pytest.raises(UnknownOutcome):
            await client.start_bulk_job("redrive", ItemFilter("t"))
        assert len({spec.start_key for spec in jobs.specs}) == 2

    run_story(story)


def test_refused_start_is_not_repeated() -> None:
    async def story(jobs: RecordingJobs, client: Client) -> None:
        jobs.errors = [InvalidArgument("no")]
        with pytest.raises(InvalidArgument):
            await client.start_bulk_job("redrive", ItemFilter("t"))
        assert len(jobs.specs) == 1
        await client.start_bulk_job("redrive", ItemFilter("t"), start_key="k")
        with pytest.raises(KeyConflict):
            await client.start_bulk_job("redrive", ItemFilter("u"), start_key="k")

    run_story(story)


def test_job_is_controlled() -> None:
    async def story(jobs: RecordingJobs, client: Client) -> None:
        job = await client.start_bulk_job("redrive", ItemFilter("t"))
        assert (await client.control_bulk_job(job.id, "interrupt")).state == "interrupted"
        assert (await client.control_bulk_job(job.id, "resume")).state == "running"
        done = await client.control_bulk_job(job.id, "cancel")
        assert (done.state, done.is_live, done.is_settled) == ("cancelled", False, True)
        with pytest.raises(InvalidArgument):
            await client.control_bulk_job(job.id, "resume")

    run_story(story)


@pytest.mark.parametrize(
    "call", [lambda c: c.start_bulk_job("explode", ItemFilter()), lambda c: c.control_bulk_job("0" * 16, "stop")]
)
def test_unknown_words_are_refused_by_the_client(call: Callable[[Client], Awaitable[object]]) -> None:
    async def story(jobs: RecordingJobs, client: Client) -> None:
        with pytest.raises(InvalidArgument):
            await call(client)
        assert jobs.specs == []

    run_story(story)
