"""Bulk jobs whose record is in memory and on which nobody works, for tests of their callers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foqs.queue.bulk_jobs import bulk_job_transitions
from foqs.queue.bulk_jobs.bulk_job import BulkJobCommand, BulkJobRecord, BulkJobRecords, BulkJobSpec


class MemoryJobs:
    """Implements `foqs.queue.bulk_jobs.bulk_jobs.BulkJobs`. The time is that of the test, in milliseconds."""

    def __init__(self) -> None:
        self.jobs = BulkJobRecords()
        self.now_ms = 1_000
        self._started = 0

    async def start(self, spec: BulkJobSpec, deadline: float) -> BulkJobRecord:
        self._started += 1
        self.now_ms += 1
        new = BulkJobRecord(f"{self._started:016x}", spec, "default", 0, self.now_ms, self.now_ms)
        self.jobs, job = bulk_job_transitions.start(self.jobs, new)
        return job

    async def list_jobs(self, namespace: str, deadline: float) -> list[BulkJobRecord]:
        return self.jobs.of_namespace(namespace)

    async def control(self, namespace: str, job_id: str, command: BulkJobCommand, deadline: float) -> BulkJobRecord:
        self.jobs, job = bulk_job_transitions.control(self.jobs, namespace, job_id, command, self.now_ms)
        return job

    def set(self, job_id: str, **fields: Any) -> None:
        """Record what a host would: other fields of a job."""
        self.jobs = replace(self.jobs, by_id={**self.jobs.by_id, job_id: replace(self.jobs.by_id[job_id], **fields)})
