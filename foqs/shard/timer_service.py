"""The timers of one shard and its clock: finds due rows, submits their transitions, and compares clocks.

Always true: the watermark rises only when all rows that a scan found are
committed. Due rows are written by the writer like all others, and the decision
uses the row as it is then. Knows nothing of the transitions of a due row.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from foqs.core.flush.flush_plan import FindRow
from foqs.core.flush.intake import Intake
from foqs.core.flush.operation import Dues
from foqs.core.timing.due_timers import DueTimers
from foqs.core.timing.shard_clock import ShardClock
from foqs.options.shard_options import ShardOptions
from foqs.shard.writer import Writer
from foqs.store.port import DueRow, Store
from foqs_contract.errors import FoqsError, NotOwner, Unavailable


class TimerService:
    """Two tasks of a shard: `run` for its timers, `run_clock_sync` for its clock.

    Args:
        find_cached: returns a cached row.
    """

    def __init__(
        self,
        writer: Writer,
        intake: Intake,
        timers: DueTimers,
        shard_clock: ShardClock,
        find_cached: FindRow,
        settings: ShardOptions,
    ) -> None:
        self._writer = writer
        self._intake = intake
        self._timers = timers
        self._shard_clock = shard_clock
        self._find_cached = find_cached
        self._settings = settings
        self._wake = asyncio.Event()
        self._waiting_until_ms: int | None = None
        """When `run` wakes up; None while it does not wait."""

    def on_due_written(self, due_ms: int) -> None:
        """A row with this `due_ms` was committed."""
        self._timers.on_due_written(due_ms)
        if self._waiting_until_ms is not None and due_ms < self._waiting_until_ms:
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
                    self._timers.on_scan_incomplete(self._retry_at_ms(), None, swept=True)

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
        pause. A sweep also writes the owner row, so that an idle host learns that it
        was replaced.
        """
        now_ms = self._shard_clock.now_ms()
        low_ms = self._timers.scan_lower_bound_ms(now_ms)
        if low_ms is None:
            self._writer.request_flush()
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
            next_ms = await store.next_due_ms(now_ms)
            if complete:
                self._timers.on_scan_completed(now_ms, next_ms, swept=low_ms is None)
            else:
                self._timers.on_scan_incomplete(self._retry_at_ms(), next_ms, swept=low_ms is None)

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
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        if page:
            current = {row.id: row for row in rows if self._intake.is_free(row.id)}

            def on_finished() -> None:
                if not done.done():
                    done.set_result(operation.results)

            operation = Dues(numbers, current, on_finished)
            self._writer.submit(operation, is_internal=True)
        return page, done

    def _retry_at_ms(self) -> int:
        return self._shard_clock.now_ms() + self._settings.retry_ms_max
