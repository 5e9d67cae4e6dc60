"""Works on one bulk job, page by page, as long as this host owns it.

Always true: the cursor is recorded before the first item is changed; at most the pages
of one write interval, and one more, are not recorded; a page whose outcome is unknown is
repeated with the same cursor. Knows nothing of how a page is made or where the record is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from foqs.queue.bulk_jobs.bulk_job import BulkJobRecord, BulkJobSpec, BulkJobState
from foqs.queue.bulk_jobs.bulk_job_store import BulkJobStore
from foqs.queue.bulk_jobs.bulk_job_transitions import BulkJobProgress, BulkJobTaken, report
from foqs.queue.port import PageResult
from foqs_contract.backoff import Backoff
from foqs_contract.errors import FoqsError, NamespaceNotFound
from shardmgr.registry.port import RegistryError

log = logging.getLogger(__name__)

PAGE_ITEMS_MAX: Final = 500
WRITE_INTERVAL_S: Final = 1.0
"""How often the progress of a job is recorded, while its host has few."""
GONE_S: Final = 10.0
"""A job fails when its namespace has been missing for this long: a host may read late that a namespace exists."""


class BulkJobPages(Protocol):
    """Changes or counts the items of a job, in all shards of the tier."""

    async def make_page(self, spec: BulkJobSpec, cursor: str | None, limit: int) -> PageResult:
        """Change or count a page of at most `limit` items, and return the result. A limit of 0 only starts the filter walk.

        A page of a count has as many items as can be read in about half a second.

        Raises:
            FoqsError: nothing was changed, unless it is an `UnknownOutcome`.
        """
        ...


class BulkJobObserver(Protocol):
    """Counts the items of jobs."""

    def bulk_items(self, action: str, changed: int, failed: int) -> None:
        """Count the items of a page."""
        ...


@dataclass(slots=True, frozen=True)
class BulkJobTools:
    """The parts that the workers of a host share.

    Attributes:
        incarnation_of: the incarnation of a namespace; None if this host knows no such namespace.
        now_ms: milliseconds since 1970-01-01 UTC.
        backoff: the pauses after errors.
    """

    store: BulkJobStore
    pages: BulkJobPages
    incarnation_of: Callable[[str], int | None]
    now_ms: Callable[[], int]
    backoff: Backoff
    observer: BulkJobObserver


class BulkJobWorker:
    """Works on a job that this host has taken.

    Args:
        job: as it was recorded when the host took it.
        write_interval_s: returns how often to record the progress.
    """

    def __init__(self, job: BulkJobRecord, tools: BulkJobTools, write_interval_s: Callable[[], float]) -> None:
        self._job = job
        self._tools = tools
        self._write_interval_s = write_interval_s
        self._progress = BulkJobProgress(job.run, job.cursor, job.counts, job.refusal)
        self._loop = asyncio.get_running_loop()
        self._written_at_s = self._loop.time()
        self._failures = 0
        self._missing_since_s: float | None = None
        self._attention = asyncio.Event()
        self._is_leaving = False

    @property
    def run_number(self) -> int:
        """The run of the job that this worker was made for."""
        return self._job.run

    def request_check(self) -> None:
        """Let the worker read its record before the next page: the job may be interrupted, or taken by another host."""
        self._attention.set()

    def leave(self) -> None:
        """Give the job up after the page in progress. `run` returns then."""
        self._is_leaving = True
        self._attention.set()

    async def run(self) -> None:
        """Work until the job ends, is interrupted, or is not this host's any more."""
        try:
            while await self._step():
                pass
        except BulkJobTaken:
            log.info("this host no longer works on bulk job %s: it ended, or another host works on it", self._job.id)

    async def _step(self) -> bool:
        """Write and check the record if that is requested, and do one page. Returns whether the job goes on.

        Raises:
            BulkJobTaken: this host does not own the job any more.
        """
        if self._attention.is_set():
            self._attention.clear()
            if not await self._write(is_leaving=self._is_leaving):
                return False
        spec, cursor = self._job.spec, self._progress.cursor
        began_s = self._loop.time()
        try:
            self._check_incarnation()
            page = await self._tools.pages.make_page(spec, cursor, 0 if cursor is None else _page_items(spec))
        except FoqsError as error:
            return await self._on_error(error)
        page_s = self._loop.time() - began_s
        self._failures, self._missing_since_s = 0, None
        self._add(page)
        if page.next_cursor is None:
            return await self._write(end=BulkJobState.DONE)
        is_due = self._loop.time() - self._written_at_s >= self._write_interval_s()
        if (cursor is None or is_due) and not await self._write():
            return False
        if spec.is_count:
            # A count reads at most half of the time: the shard has other readers.
            await self._pause(page_s)
        elif spec.rate_per_s is not None and page.changed:
            await self._pause(page.changed / spec.rate_per_s)
        return True

    def _check_incarnation(self) -> None:
        """Raise `NamespaceNotFound` if the namespace is another one of the same name."""
        name = self._job.spec.namespace
        if self._tools.incarnation_of(name) not in (None, self._job.incarnation):
            raise _Replaced(
                f"the namespace {name!r} was deleted; one of the same name was created since; start a new job for it"
            )

    def _add(self, page: PageResult) -> None:
        progress = self._progress
        counts = replace(
            progress.counts,
            seen=progress.counts.seen + page.matched,
            changed=progress.counts.changed + page.changed,
            failed=progress.counts.failed + page.refused,
        )
        refusal = progress.refusal
        if refusal is None and page.refusal is not None:
            refusal = page.refusal.message
        cursor = progress.cursor if page.next_cursor is None else page.next_cursor
        self._progress = replace(progress, cursor=cursor, counts=counts, refusal=refusal, problem=None)
        if not self._job.spec.is_count:
            self._tools.observer.bulk_items(self._job.spec.change.action.name, page.changed, page.refused)

    async def _on_error(self, error: FoqsError) -> bool:
        """Record why the job cannot go on. If it may be tried again, pause and return True; else end it and return False."""
        progress = self._progress
        if error.hides_write and not self._job.spec.is_count:
            progress = replace(progress, counts=replace(progress.counts, at_least=True))
        is_new = progress.problem != error.message
        self._progress = replace(progress, problem=error.message)
        if not self._may_succeed_later(error):
            return await self._write(end=BulkJobState.FAILED)
        if is_new and not await self._write():
            return False
        await self._pause(self._tools.backoff.pause_s(self._failures, error.retry_after_ms))
        self._failures += 1
        return True

    def _may_succeed_later(self, error: FoqsError) -> bool:
        if isinstance(error, NamespaceNotFound) and not isinstance(error, _Replaced):
            now_s = self._loop.time()
            if self._missing_since_s is None:
                self._missing_since_s = now_s
            return now_s - self._missing_since_s < GONE_S
        return error.may_succeed_later

    async def _pause(self, pause_s: float) -> None:
        """Wait until the time is over, or until the record must be checked."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._attention.wait()

    async def _write(self, *, end: BulkJobState | None = None, is_leaving: bool = False) -> bool:
        """Record the progress, however long that takes. Returns whether this host goes on. Raises `BulkJobTaken`."""
        tools, job_id = self._tools, self._job.id
        progress = replace(self._progress, end=end, is_leaving=is_leaving)
        failures = 0
        while True:
            try:
                job = await tools.store.update(lambda jobs: report(jobs, job_id, progress, tools.now_ms()))
                break
            except RegistryError as error:
                if not failures:
                    log.warning(
                        "bulk job %s waits, because its progress cannot be recorded; trying again: %s", job_id, error
                    )
                await asyncio.sleep(tools.backoff.pause_s(failures))
                failures += 1
        self._written_at_s = self._loop.time()
        return job.owner is not None


class _Replaced(NamespaceNotFound):
    """The namespace of the job is gone for certain."""


def _page_items(spec: BulkJobSpec) -> int:
    """Return the size of a page: what may be changed in a second, at most."""
    return PAGE_ITEMS_MAX if spec.rate_per_s is None else min(PAGE_ITEMS_MAX, spec.rate_per_s)
