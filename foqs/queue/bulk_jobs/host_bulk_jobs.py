"""The bulk jobs of one host, put together: the record, the calls, and the work.

Knows nothing of what the parts do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from random import Random
from typing import Final

from foqs.catalog.namespaces import Namespaces
from foqs.queue.bulk_jobs.bulk_job import BulkJobOwner, BulkJobRecords
from foqs.queue.bulk_jobs.bulk_job_host import BulkJobHost
from foqs.queue.bulk_jobs.bulk_job_service import BulkJobService
from foqs.queue.bulk_jobs.bulk_job_store import BulkJobStore, Documents
from foqs.queue.bulk_jobs.bulk_job_worker import BulkJobObserver, BulkJobPages, BulkJobTools
from foqs.queue.bulk_jobs.bulk_jobs import BulkJobs
from foqs_contract.backoff import Backoff

RETRY_S_MIN: Final = 0.2
RETRY_S_MAX: Final = 30.0


class HostBulkJobs:
    """Serves the calls at once, and works on jobs from `start` to `stop`.

    Args:
        documents: the store of the recorded jobs.
        now_ms: milliseconds since 1970-01-01 UTC.
    """

    def __init__(
        self,
        documents: Documents,
        namespaces: Namespaces,
        now_ms: Callable[[], int],
        rng: Random,
        observer: BulkJobObserver,
    ) -> None:
        self._store = BulkJobStore(documents)
        self._namespaces = namespaces
        self._now_ms = now_ms
        self._rng = rng
        self._observer = observer
        self.calls: BulkJobs = BulkJobService(self._store, namespaces, now_ms, rng)
        self._host: BulkJobHost | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def jobs(self) -> BulkJobRecords:
        """The jobs as they were read last."""
        return BulkJobRecords() if self._host is None else self._host.jobs

    def start(self, pages: BulkJobPages, owner: BulkJobOwner, members: Callable[[], Collection[str] | None]) -> None:
        """Take and work on jobs; see `BulkJobHost`."""
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, self._rng)
        tools = BulkJobTools(self._store, pages, self._incarnation_of, self._now_ms, backoff, self._observer)
        self._host = BulkJobHost(tools, owner, self._namespaces.tier, members)
        self._task = asyncio.ensure_future(self._host.run())

    async def stop(self, timeout_s: float) -> None:
        """Give the jobs up; see `BulkJobHost.stop`."""
        if self._task is None or self._host is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._host.stop(timeout_s)

    def _incarnation_of(self, namespace: str) -> int | None:
        found = self._namespaces.document.namespaces.get(namespace)
        return None if found is None else found.incarnation
