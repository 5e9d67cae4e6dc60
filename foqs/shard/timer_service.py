"""The timers of one shard and its clock: finds due rows, submits their transitions, and compares clocks.

Always true: the watermark rises only when all rows that a scan found are
committed. Due rows are written by the writer like all others, and the flush applies
the event to the row as it is then. Knows nothing of the transitions of a due row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from foqs.core.flush.flush_plan import FindRow
from foqs.core.flush.intake import Intake
from foqs.core.flush.operation import Dues
from foqs.core.items.item import Row
from foqs.core.timing.due_timers import DueTimers
from foqs.core.timing.shard_clock import ShardClock
from foqs.options.shard_options import ShardOptions
from foqs.shard.writer import Writer
from foqs.store.port import DueRow, Reads, Store, StoreLost
from foqs_contract.errors import FoqsError, NotOwner, Unavailable

log = logging.getLogger(__name__)


class TimerService:
    """Four tasks of a shard: `run` and `run_sweeps` for its timers, `run_clock_sync` for its clock, `run_ownership_checks`.

    Args:
        find_cached: returns a cached row.
        open_reads: returns a new connection for reading.
    """

    def __init__(
        self,
        writer: Writer,
        intake: Intake,
        timers: DueTimers,
        shard_clock: ShardClock,
        find_cached: FindRow,
        open_reads: Callable[[], Reads],
        settings: ShardOptions,
    ) -> None:
        self._writer = writer
        self._intake = intake
        self._timers = timers
        self._shard_clock = shard_clock
        self._find_cached = find_cached
        self._open_reads = open_reads
        self._settings = settings
        self._wake = asyncio.Event()
        self._waiting_until_ms: int | None = None
        """When `run` wakes up; None while it does not wait."""

    def on_dues_written(self, dues: Collection[int]) -> None:
        """Rows with these dues, at least one, were committed."""
        self._timers.on_dues_written(dues)
        if self._waiting_until_ms is not None and min(dues) < self._waiting_until_ms:
            self._wake.set()

    async def run_clock_sync(self) -> None:
        """Compare the shard clock with the database's clock from time to time."""
        while True:
            await asyncio.sleep(self._settings.clock_sample_interval_ms / 1000)
            try:
                await self._writer.read(self._sample_clock)
            except (NotOwner, Unavailable):
                if self._writer.is_ended:
                    return
            # The clock may run at another rate now, or the machine may have slept during the wait.
            self._wake.set()

    async def _sample_clock(self, store: Store) -> None:
        asked_ms = self._shard_clock.now_ms()
        self._shard_clock.on_database_time(await store.now_ms(), asked_ms)

    async def run(self) -> None:
        """Scan whenever a row is due."""
        while True:
            await self._wait()
            if self._timers.next_scan_ms() <= self._shard_clock.now_ms():
                try:
                    await self._scan()
                except (NotOwner, Unavailable):
                    if self._writer.is_ended:
                        return
                    self._timers.on_scan_incomplete(self._retry_at_ms())

    async def _wait(self) -> None:
        """Wait until the next scan, or until its moment may have changed."""
        self._waiting_until_ms = self._timers.next_scan_ms()
        wait_ms = max(self._shard_clock.wait_ms(self._waiting_until_ms), self._settings.timer_tick_ms_min)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._waiting_until_ms = None

    async def _scan(self) -> None:
        """Apply all due rows, page by page. The watermark rises when all of them are committed.

        A row that the database refuses delays no other; it is tried again after a
        pause.
        """
        now_ms = self._shard_clock.now_ms()
        low_ms = self._timers.watermark_ms
        page_items = self._settings.timer_page_items
        after: DueRow | None = None
        complete = True
        while True:
            page, written = await self._writer.read(partial(self._submit_due_page, low_ms, now_ms, after))
            if page:
                results = await written
                complete = complete and not any(isinstance(result, FoqsError) for result in results)
                after = page[-1]
            if len(page) < page_items:
                break

        async def finish(store: Store) -> None:
            end_ms = self._timers.search_end_ms(now_ms)
            next_ms = await store.next_due_ms(now_ms, end_ms)
            if next_ms is None:
                next_ms = end_ms
            if complete:
                self._timers.on_scan_completed(now_ms, next_ms)
            else:
                self._timers.on_scan_incomplete(min(self._retry_at_ms(), next_ms))

        await self._writer.read(finish)

    async def _submit_due_page(
        self, low_ms: int | None, now_ms: int, after: DueRow | None, store: Store
    ) -> tuple[list[DueRow], asyncio.Future[list[Any]]]:
        """Read a page of due rows and queue it. Returns the page and the future of its results.

        This runs between two flushes, so a row stays as it was read until it is written.
        A row with an operation that waits already is left for the flush to read.
        """
        page = await store.due_rows(low_ms, now_ms, after, self._settings.timer_page_items)
        numbers = [due.id for due in page]
        unknown = [number for number in numbers if self._find_cached(number) is None]
        rows = await store.rows(unknown) if unknown else []
        current = {row.id: row for row in rows if self._intake.is_free(row.id)}
        return page, self._submit(numbers, current)

    def _submit(self, numbers: list[int], current: Mapping[int, Row]) -> asyncio.Future[list[Any]]:
        """Queue DUE events. `current` has rows as they are. Returns the future of the results; none if there are no events."""
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        if numbers:

            def on_finished() -> None:
                if not done.done():
                    done.set_result(operation.results)

            operation = Dues(numbers, current, on_finished)
            self._writer.submit(operation, is_internal=True)
        return done

    async def run_sweeps(self) -> None:
        """From time to time look for due rows below the watermark, so that a bug makes an item late, not lost."""
        while True:
            await asyncio.sleep(self._settings.sweep_interval_ms / 1000)
            reads = self._open_reads()
            try:
                await self._sweep(reads)
            except StoreLost as lost:
                log.warning("a sweep failed and is tried again: %s", lost)
            finally:
                await reads.close()

    async def _sweep(self, reads: Reads) -> None:
        """Apply all due rows below the watermark. Raises `StoreLost`.

        They are read beside the flushes, because the walk over the index may take
        seconds. A row may have changed meanwhile; the flush reads it again.
        """
        if self._timers.watermark_ms is None:
            return
        now_ms, high_ms = self._shard_clock.now_ms(), self._timers.watermark_ms - 1
        after: DueRow | None = None
        complete = True
        while True:
            page = await reads.due_rows(self._writer.last_committed, high_ms, after, self._settings.timer_page_items)
            if not page:
                break
            results = await self._submit([due.id for due in page], {})
            complete = complete and not any(isinstance(result, FoqsError) for result in results)
            after = page[-1]
        if complete:
            self._timers.on_sweep_completed(now_ms)

    async def run_ownership_checks(self) -> None:
        """Write a flush from time to time, so that an idle host learns that it was replaced.

        Not with the sweeps, because one may take much longer than the interval.
        """
        while True:
            await asyncio.sleep(self._settings.sweep_interval_ms / 1000)
            self._writer.request_flush()

    def _retry_at_ms(self) -> int:
        return self._shard_clock.now_ms() + self._settings.retry_ms_max
