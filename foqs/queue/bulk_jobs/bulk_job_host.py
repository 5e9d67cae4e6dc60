"""The bulk jobs that this host works on: takes those that no host works on, and gives them up when it stops.

Always true: a host works on a job only while the record names it as the owner, or for
one page after that changed; it works on at most `JOBS_PER_HOST_MAX` jobs at a time, and on
one more of each namespace that has waited for a place. Knows nothing of pages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from foqs.queue.bulk_jobs.bulk_job import BulkJobOwner, BulkJobRecord, BulkJobRecords, BulkJobState
from foqs.queue.bulk_jobs.bulk_job_transitions import release, take_jobs, waiting_jobs
from foqs.queue.bulk_jobs.bulk_job_worker import WRITE_INTERVAL_S, BulkJobTools, BulkJobWorker
from shardmgr.registry.port import RegistryError

log = logging.getLogger(__name__)

JOBS_PER_HOST_MAX: Final = 4
OVERDUE_S: Final = 2.0
"""A job that has waited this long is taken by a host without room if no host works on another job of its namespace."""
MISSING_S: Final = 2.0
"""The owner of a job must be missing for this long before another host takes the job."""
TICK_S: Final = 1.0
"""How often the running hosts are read while another host works on a job, or none does."""

READ_INTERVAL_S: Final = 0.1
"""The shortest time between two reads of the record: each write wakes all hosts, and to parse a full one takes milliseconds."""


class BulkJobHost:
    """Runs the jobs of one host.

    Args:
        owner: this host.
        tier: jobs of other tiers are left alone.
        members: returns the nonces of the running hosts; None while this host does not know, or does not serve.
    """

    def __init__(
        self, tools: BulkJobTools, owner: BulkJobOwner, tier: str, members: Callable[[], Collection[str] | None]
    ) -> None:
        self.jobs = BulkJobRecords()
        """The jobs as they were read last."""
        self._tools = tools
        self._owner = owner
        self._tier = tier
        self._members = members
        self._loop = asyncio.get_running_loop()
        self._workers: dict[str, tuple[BulkJobWorker, asyncio.Task[None]]] = {}
        """By the id of the job."""
        self._started_runs: dict[str, int] = {}
        """By the id of a job of this host: the run of its last worker."""
        self._missing_since_s: dict[str, float] = {}
        self._waiting_since_s: dict[str, float] = {}
        """By the id of a job that no host works on: since when this host has known that."""
        self._may_own_jobs = False
        """Whether the record may name this host as an owner."""

    async def run(self) -> None:
        """Take and work on jobs until cancelled."""
        timeout_s: float | None = 0.0
        failures = 0
        while True:
            await self._tools.store.wait_for_change(timeout_s)
            try:
                await self._follow_record()
                failures = 0
                timeout_s = TICK_S if self._needs_checks() else None
            except Exception as error:
                if not isinstance(error, RegistryError):
                    log.exception("the check of the bulk jobs failed with an unexpected error; trying again")
                elif not failures:
                    log.warning("the bulk jobs cannot be read or written; trying again: %s", error)
                timeout_s = self._tools.backoff.pause_s(failures)
                failures += 1
            await asyncio.sleep(READ_INTERVAL_S)

    async def stop(self, timeout_s: float) -> None:
        """Give all jobs up, so that other hosts go on with them at once. `run` must have ended."""
        for worker, _ in self._workers.values():
            worker.leave()
        tasks = [task for _, task in self._workers.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._may_own_jobs:
            nonce, now_ms = self._owner.nonce, self._tools.now_ms()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._tools.store.update(lambda jobs: (release(jobs, nonce, now_ms), None))
            except (RegistryError, TimeoutError):
                log.warning(
                    "this host's bulk jobs could not be given up in time; another host goes on with them when this host's "
                    "registry session is over"
                )

    async def _follow_record(self) -> None:
        """Read the recorded jobs, and start and end workers as the jobs need. Raises `RegistryError`."""
        working = set(self._workers)  # before the read, so that the last write of each worker is read
        self.jobs = await self._tools.store.load()
        missing = self._missing_owners()
        if missing is not None:
            overdue = self._overdue_jobs(missing)
            if self._take_jobs(self.jobs, missing, overdue) is not self.jobs:
                self._may_own_jobs = True
                self.jobs = await self._tools.store.update(
                    lambda jobs: (taken := self._take_jobs(jobs, missing, overdue), taken)
                )
        for job_id, (worker, _) in self._workers.items():
            job = self.jobs.by_id.get(job_id)
            if job is None or job.run != worker.run_number or job.state is not BulkJobState.RUNNING:
                worker.request_check()
        for job in self.jobs.by_id.values():
            if job.owner == self._owner and job.id not in working:
                self._start(job)

    def _take_jobs(self, jobs: BulkJobRecords, missing: Collection[str], overdue: Collection[str]) -> BulkJobRecords:
        room = JOBS_PER_HOST_MAX - sum(job.owner == self._owner for job in jobs.by_id.values())
        return take_jobs(jobs, self._owner, self._tier, missing, room, self._tools.now_ms(), overdue)[0]

    def _overdue_jobs(self, missing: Collection[str]) -> Collection[str]:
        """Return the ids of the jobs that have waited for a host for `OVERDUE_S`."""
        now_s, waiting = self._loop.time(), waiting_jobs(self.jobs, self._tier, missing)
        self._waiting_since_s = {job_id: self._waiting_since_s.get(job_id, now_s) for job_id in sorted(waiting)}
        return [job_id for job_id, since_s in self._waiting_since_s.items() if now_s - since_s >= OVERDUE_S]

    def _missing_owners(self) -> Collection[str] | None:
        """Return the nonces of owners that are gone for certain; None if this host does not know."""
        members, now_s = self._members(), self._loop.time()
        if members is None:
            self._missing_since_s.clear()
            return None
        owners = {job.owner.nonce for job in self.jobs.by_id.values() if job.owner is not None}
        absent = owners.difference(members, (self._owner.nonce,))
        self._missing_since_s = {nonce: self._missing_since_s.get(nonce, now_s) for nonce in sorted(absent)}
        return [nonce for nonce, since_s in self._missing_since_s.items() if now_s - since_s >= MISSING_S]

    def _needs_checks(self) -> bool:
        """Return whether jobs must be checked from time to time, because one may need another owner."""
        return any(
            job.owner != self._owner and (job.owner is not None or job.state is BulkJobState.RUNNING)
            for job in self.jobs.by_id.values()
        )

    def _start(self, job: BulkJobRecord) -> None:
        if self._started_runs.get(job.id) == job.run:  # its former worker failed, perhaps after a page
            job = replace(job, counts=replace(job.counts, at_least=True))
        self._started_runs = {job_id: run for job_id, run in self._started_runs.items() if job_id in self.jobs.by_id}
        self._started_runs[job.id] = job.run
        worker = BulkJobWorker(job, self._tools, self._write_interval_s)
        if job.state is not BulkJobState.RUNNING:
            worker.request_check()
        task = asyncio.ensure_future(worker.run())
        self._workers[job.id] = worker, task
        task.add_done_callback(lambda task: self._on_worker_ended(job.id, task))

    def _write_interval_s(self) -> float:
        """Return how often each worker records its progress: this host writes no more often than with a few jobs."""
        return WRITE_INTERVAL_S * max(1.0, len(self._workers) / JOBS_PER_HOST_MAX)

    def _on_worker_ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        del self._workers[job_id]
        pause_s = 0.0
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "bulk job %s failed with an unexpected error; starting it again", job_id, exc_info=task.exception()
            )
            pause_s = TICK_S
        self._loop.call_later(pause_s, self._tools.store.wake)
