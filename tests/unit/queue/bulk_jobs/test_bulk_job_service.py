"""The calls on jobs: what is refused, what is recorded, and what a caller learns of the record's failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT
from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import State
from foqs.core.items.row_filter import RowFilter
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs.bulk_job import BulkJobCommand, BulkJobState
from foqs.queue.bulk_jobs.bulk_job_service import BulkJobService
from foqs.queue.bulk_jobs.bulk_job_store import BulkJobStore
from foqs_contract import bulk_actions
from foqs_contract.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    NamespaceNotFound,
    NotFound,
    Unavailable,
    UnknownOutcome,
)
from tests.support.builders import NAMESPACE
from tests.support.bulk_job_world import SharedDocuments, spec_of
from tests.support.virtual_time import run_virtual

MOVE = BulkChange(bulk_actions.MOVE, move_to="u")


def run_story(story: Callable[[BulkJobService, SharedDocuments], Awaitable[None]]) -> None:
    async def main() -> None:
        namespaces = Namespaces(NAMESPACE)
        document = changes.create(EMPTY_DOCUMENT, "default", None, {}, incarnation=42)
        namespaces.apply(changes.create(document, "elsewhere", "slow", {}))
        documents = SharedDocuments()
        await story(BulkJobService(BulkJobStore(documents), namespaces, lambda: 1_000, Random(7)), documents)

    run_virtual(main)


def in_s(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def test_started_job_is_recorded_and_listed() -> None:
    async def story(service: BulkJobService, documents: SharedDocuments) -> None:
        spec = spec_of(started_by="ops", expected=5, rate_per_s=10)
        job = await service.start(spec, in_s())
        assert (job.spec, job.incarnation, job.tier, job.state) == (spec, 42, "default", BulkJobState.RUNNING)
        assert job.started_at_ms == 1_000
        assert await service.list_jobs("default", in_s()) == [job]
        assert documents.jobs().by_id == {job.id: job}

    run_story(story)


def test_newest_job_is_listed_first_and_only_those_of_the_namespace() -> None:
    async def story(service: BulkJobService, documents: SharedDocuments) -> None:
        first = await service.start(spec_of(start_key="1"), in_s())
        second = await service.start(spec_of(start_key="2"), in_s())
        assert [job.id for job in await service.list_jobs("default", in_s())] == [second.id, first.id]
        assert await service.list_jobs("elsewhere", in_s()) == []

    run_story(story)


def test_start_can_be_repeated_after_a_lost_answer() -> None:
    async def story(service: BulkJobService, documents: SharedDocuments) -> None:
        documents.lost_replies = 1
        with pytest.raises(UnknownOutcome):
            await service.start(spec_of(), in_s())
        job = await service.start(spec_of(), in_s())
        assert list(documents.jobs().by_id) == [job.id]

    run_story(story)


def test_redrive_concerns_dead_items_only() -> None:
    async def story(service: BulkJobService, documents: SharedDocuments) -> None:
        job = await service.start(spec_of(item_filter=RowFilter("t")), in_s())
        assert job.spec.item_filter.states == (State.DEAD,)

    run_story(story)


@pytest.mark.parametrize(
    ("changed", "error", "field"),
    [
        ({"namespace": "nowhere"}, NamespaceNotFound, "namespace_name"),
        ({"namespace": "elsewhere"}, InvalidArgument, "namespace_name"),
        ({"change": MOVE, "item_filter": RowFilter()}, InvalidArgument, "filter.topic"),
        ({"change": MOVE, "item_filter": RowFilter("u")}, InvalidArgument, "move_to"),
        ({"rate_per_s": 0}, InvalidArgument, "rate_per_s"),
        ({"start_key": ""}, InvalidArgument, "start_key"),
        (
            {"item_filter": RowFilter(topics=tuple(f"topic {number}" for number in range(1_000)))},
            LimitExceeded,
            "filter",
        ),
    ],
)
def test_wrong_job_is_refused_and_not_recorded(changed: dict[str, object], error: type[FoqsError], field: str) -> None:
    async def story(service: BulkJobService, documents: SharedDocuments) -> None:
        with pytest.raises(error) as refused:
            await service.start(spec_of(**changed), in_s())
        assert refused.value.field == field
        assert documents.writes == 0

    run_story(story)


def test_commands_are_recorded() -> None:
    async def story(service: BulkJobService, documents: SharedDocuments) -> None:
        job = await service.start(spec_of(), in_s())
        for command, state in (
            (BulkJobCommand.INTERRUPT, BulkJobState.INTERRUPTED),
            (BulkJobCommand.RESUME, BulkJobState.RUNNING),
            (BulkJobCommand.CANCEL, BulkJobState.CANCELLED),
        ):
            assert (await service.control("default", job.id, command, in_s())).state is state
            assert documents.jobs().by_id[job.id].state is state
        with pytest.raises(InvalidArgument):
            await service.control("default", job.id, BulkJobCommand.RESUME, in_s())
        with pytest.raises(NotFound):
            await service.control("elsewhere", job.id, BulkJobCommand.CANCEL, in_s())

    run_story(story)


def test_record_that_does_not_answer_is_unavailable() -> None:
    async def story(service: BulkJobService, documents: SharedDocuments) -> None:
        documents.is_down = True
        with pytest.raises(Unavailable):
            await service.start(spec_of(), in_s())
        with pytest.raises(Unavailable):
            await service.list_jobs("default", in_s())

    run_story(story)


def test_call_whose_time_ends_says_whether_it_may_be_recorded() -> None:
    async def story(service: BulkJobService, documents: SharedDocuments) -> None:
        with pytest.raises(DeadlineExceeded):
            await service.list_jobs("default", in_s(0.0))
        with pytest.raises(UnknownOutcome):
            await service.start(spec_of(), in_s(0.0015))
        await asyncio.sleep(1)
        assert len(documents.jobs().by_id) == 1

    run_story(story)
