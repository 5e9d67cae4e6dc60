"""The record of the jobs: no change overwrites another, and a damaged document is never overwritten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from foqs.queue.bulk_jobs import bulk_job_store
from foqs.queue.bulk_jobs.bulk_job import BulkJobRecords
from foqs.queue.bulk_jobs.bulk_job_store import BulkJobStore, LocalDocuments
from foqs.queue.bulk_jobs.bulk_job_transitions import start
from foqs_contract.errors import LimitExceeded
from shardmgr.registry.port import RegistryConflict, RegistryFailed
from tests.support.aio import run
from tests.support.bulk_job_world import SharedDocuments, job_of
from tests.support.virtual_time import run_virtual


def test_concurrent_changes_of_several_hosts_are_all_kept() -> None:
    async def story() -> None:
        documents = SharedDocuments()
        stores = [BulkJobStore(documents) for _ in range(4)]
        calls = [
            stores[number % 4].update(lambda jobs, number=number: start(jobs, job_of(number)))  # type: ignore[misc]
            for number in range(4)
        ]
        await asyncio.gather(*calls)
        assert sorted(documents.jobs().by_id) == [job_of(number).id for number in range(4)]

    run_virtual(story)


def test_change_that_raises_or_changes_nothing_writes_nothing() -> None:
    async def story() -> None:
        documents = SharedDocuments()
        store = BulkJobStore(documents)

        def refuse(jobs: BulkJobRecords) -> tuple[BulkJobRecords, None]:
            raise LimitExceeded("full")

        with pytest.raises(LimitExceeded):
            await store.update(refuse)
        assert await store.update(lambda jobs: (jobs, 7)) == 7
        assert documents.writes == 0

    run_virtual(story)


def test_own_changes_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store = BulkJobStore(SharedDocuments())
        monkeypatch.setattr(bulk_job_store, "parse_jobs", None)
        for number in range(3):
            await store.update(lambda jobs, number=number: start(jobs, job_of(number)))  # type: ignore[misc]
        assert len((await store.load()).by_id) == 3

    run_virtual(story)


def test_waiter_wakes_with_a_change_of_another_host_and_else_after_its_time() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        documents = SharedDocuments()
        mine, other = BulkJobStore(documents), BulkJobStore(documents)
        await mine.wait_for_change(5.0)
        assert loop.time() == 5.0
        waiting = asyncio.ensure_future(mine.wait_for_change(1_000.0))
        await other.update(lambda jobs: start(jobs, job_of(1)))
        await waiting
        assert loop.time() < 6.0

    run_virtual(story)


def test_record_of_a_host_alone_survives_it(tmp_path: Path) -> None:
    async def story() -> None:
        await BulkJobStore(LocalDocuments(tmp_path)).update(lambda jobs: start(jobs, job_of(1)))
        again = BulkJobStore(LocalDocuments(tmp_path))
        assert list((await again.load()).by_id) == [job_of(1).id]
        await again.update(lambda jobs: start(jobs, job_of(2)))
        assert len((await BulkJobStore(LocalDocuments(tmp_path)).load()).by_id) == 2

    run(story())


def test_record_without_a_folder_lives_in_memory() -> None:
    async def story() -> None:
        store = BulkJobStore(LocalDocuments(None))
        await store.update(lambda jobs: start(jobs, job_of(1)))
        assert len((await store.load()).by_id) == 1

    run(story())


def test_damaged_record_is_reported_and_not_overwritten(tmp_path: Path) -> None:
    async def story() -> None:
        store = BulkJobStore(LocalDocuments(tmp_path))
        with pytest.raises(RegistryFailed, match=r"is damaged.*delete it, restart the host"):
            await store.update(lambda jobs: start(jobs, job_of(1)))

    (tmp_path / "jobs.json").write_text("{")
    run(story())
    assert (tmp_path / "jobs.json").read_text() == "{"


def test_folder_that_cannot_be_written_is_a_failure_and_nothing_is_stored(tmp_path: Path) -> None:
    async def story() -> None:
        store = BulkJobStore(LocalDocuments(tmp_path / "file" / "folder"))
        with pytest.raises(RegistryFailed, match=r"jobs\.json"):
            await store.update(lambda jobs: start(jobs, job_of(1)))

    (tmp_path / "file").write_text("no folder")
    run(story())


def test_replacement_of_another_version_is_a_conflict() -> None:
    async def story() -> None:
        documents = LocalDocuments(None)
        version = await documents.replace("jobs", b"1", None)
        with pytest.raises(RegistryConflict):
            await documents.replace("jobs", b"2", None)
        with pytest.raises(RegistryConflict):
            await documents.replace("jobs", b"2", version + 1)
        assert await documents.replace("jobs", b"2", version) == version + 1

    run(story())
