"""The timers of one shard and its clock: finds due rows, submits their transitions, and compares clocks.

Delays, TTLs and retention are found by *scans* of the timer table. Lease ends are found
by *looks* at the rows of remembered numbers, and by *lease walks* over all LEASED rows.
Always true: the watermark rises only when all rows that a scan, a look or a lease walk found
are committed. Due rows are written by the writer like all others, and the flush applies
the event to the row as it is then. Knows nothing of the transitions of a due row.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from foqs.core.flush.intake import Intake
from foqs.core.flush.operation import Dues
from foqs.core.items.item import OrderKey, Row, TopicName, order_key_number
from foqs.core.timing.deleted_numbers import Range
from foqs.core.timing.lease_ends import NEVER_MS, Look, group_by_due, pages_of
from foqs.core.timing.shard_clock import ShardClock
from foqs.shard.awaited_results import AwaitedResults
from foqs.shard.shard_constants import ShardConstants
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.writer import Writer
from foqs.store.port import DueRow, Reads, Store, StoreLost
from foqs_contract.errors import FoqsError, NotOwner, Unavailable

log = logging.getLogger(__name__)

LOOK_NUMBERS_MAX: Final = 4_000
LOOK_RANGES_MAX: Final = 200
"""The limits of one statement of a look: numbers and ranges. Most of the rows are gone."""
LEASE_WALK_TOPICS: Final = 100
"""The number of topics whose first leases a lease walk reads at once."""
LEASE_WALK_FIRST_ROWS: Final = 20
"""The number of leases of a topic that a lease walk reads together with other topics. The rest of the topic has pages of its own."""

SWEEP_PAUSES: Final = 99
"""The pause after a sweep is at least as many times as long as the sweep was, so sweeps take a hundredth of the time."""


_EndedLeases: TypeAlias = tuple[Sequence[tuple[int, int]], asyncio.Future[list[Any]]]
"""A page of ended leases, each (due_ms, number), and the future of the results."""


class _Alarm:
    """Wakes one task at a moment of the shard clock, which may become earlier while the task waits.

    Args:
        next_ms: returns the moment; `NEVER_MS` if there is none.
        wait_ms_min: the shortest wait.
    """

    def __init__(self, shard_clock: ShardClock, next_ms: Callable[[], int], wait_ms_min: int) -> None:
        self._shard_clock = shard_clock
        self._next_ms = next_ms
        self._wait_ms_min = wait_ms_min
        self._wake = asyncio.Event()
        self._until_ms: int | None = None
        """When the task wakes up; None while it does not wait."""

    async def wait(self) -> None:
        """Wait until the moment, or until it may have changed."""
        until_ms = self._until_ms = self._next_ms()
        wait_ms = max(self._shard_clock.wait_ms(until_ms), self._wait_ms_min)
        try:
            async with asyncio.timeout(None if until_ms == NEVER_MS else wait_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._until_ms = None

    def wake(self) -> None:
        """Let the task compute its wait again."""
        self._wake.set()

    def wake_if_earlier(self) -> None:
        """Wake the task if it waits for longer than it should."""
        if self._until_ms is not None and self._next_ms() < self._until_ms:
            self._wake.set()

    def check(self) -> None:
        """Assert that its task does not wait for longer than it should."""
        until_ms, next_ms = self._until_ms, self._next_ms()
        assert until_ms is None or until_ms <= next_ms or self._wake.is_set(), (
            f"invariant 10: a task of the timers is needed at {next_ms} and sleeps until {until_ms}"
        )


class TimerService:
    """Six tasks of a shard: four for its timers, `run_clock_sync` and `run_ownership_checks`.

    The four are `run_scans`, `run_looks`, `run_lease_walks` and `run_sweeps`. None waits for another one.

    Args:
        sample_clock: compares the database's clock, over this store, with what is known of it.
        open_reads: returns a new connection for reading.
    """

    def __init__(
        self,
        writer: Writer,
        intake: Intake,
        memory: ShardMemory,
        shard_clock: ShardClock,
        sample_clock: Callable[[Store], Awaitable[int]],
        open_reads: Callable[[], Reads],
        constants: ShardConstants,
    ) -> None:
        self._shard = writer.shard
        self._writer = writer
        self._intake = intake
        self._memory = memory
        self._timers = memory.timers
        self._leases = memory.timers.leases
        self._shard_clock = shard_clock
        self._sample_clock = sample_clock
        self._open_reads = open_reads
        self._constants = constants
        tick_ms = constants.timer_tick_ms_min
        self._scan_alarm = _Alarm(shard_clock, self._timers.next_table_scan_ms, tick_ms)
        self._look_alarm = _Alarm(shard_clock, lambda: self._leases.next_look_ms, tick_ms)
        self._lease_walk_alarm = _Alarm(shard_clock, lambda: self._leases.next_lease_walk_ms, 1)
        self._alarms = (self._scan_alarm, self._look_alarm, self._lease_walk_alarm)

    def on_dues_written(self, dues: Collection[int], lease_ends: Mapping[int, list[int]], deleted: list[int]) -> None:
        """Record committed timer entries, by their dues, committed leases, by their ends, and rows that were deleted."""
        self._timers.on_dues_written(dues)
        if lease_ends:
            now_ms = self._shard_clock.now_ms()
            for due_ms, numbers in lease_ends.items():
                self._leases.remember(due_ms, numbers, now_ms)
        if deleted:
            self._leases.on_deleted(deleted)
        self._wake_if_earlier()

    def _wake_if_earlier(self) -> None:
        """Wake tasks that wait for longer than they should."""
        for alarm in self._alarms:
            alarm.wake_if_earlier()

    async def run_clock_sync(self) -> None:
        """Compare the shard clock with the database's clock from time to time."""
        while True:
            await asyncio.sleep(self._constants.clock_sample_interval_ms / 1000)
            try:
                await self._writer.read(self._sample_clock)
            except (NotOwner, Unavailable):
                if self._writer.is_ended:
                    return
            # The clock may run at another rate now, or the machine may have slept during the wait.
            for alarm in self._alarms:
                alarm.wake()

    async def run_scans(self) -> None:
        """Scan the timer table whenever an entry is due."""
        while True:
            await self._scan_alarm.wait()
            now_ms = self._shard_clock.now_ms()
            try:
                if self._timers.next_table_scan_ms() <= now_ms:
                    await self._scan(now_ms)
            except (NotOwner, Unavailable):
                if self._writer.is_ended:
                    return
                self._timers.on_scan_incomplete(self._retry_at_ms())

    async def _scan(self, now_ms: int) -> None:
        """Apply all due entries of the timer table, page by page. The watermark rises when all of them are committed.

        A page is read while the one before is written, so that each flush can have one. A row that
        the database refuses delays no other; it is tried again after a pause.
        """
        low_ms = self._timers.scanned_ms
        page_items = self._constants.timer_page_items
        after: DueRow | None = None
        complete = True
        being_written: asyncio.Future[list[Any]] | None = None
        while True:
            page, written = await self._writer.read(partial(self._submit_due_page, low_ms, now_ms, after))
            if being_written is not None:
                complete &= _is_each_written(await being_written)
            if len(page) < page_items:
                complete &= _is_each_written(await written)
                break
            being_written, after = written, page[-1]

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
        """Read a page of due entries and queue their rows. Returns the page and the future of its results."""
        page = await store.due_rows(low_ms, now_ms, after, self._constants.timer_page_items)
        return page, await self._submit_rows([due.id for due in page], [due.due_ms for due in page], store)

    async def _submit_rows(
        self, numbers: list[int], timer_dues: Sequence[int], store: Store
    ) -> asyncio.Future[list[Any]]:
        """Read the rows that are not cached, and queue DUE events.

        This runs between two flushes, so a row stays as it was read until it is written.
        A row with an operation that waits already is left for the flush to read, and so
        is a row that occurs twice: its second event finds what the first one left.
        """
        find_cached = self._memory.cache.get
        unknown = [number for number in numbers if find_cached(number) is None]
        rows = await store.rows(unknown) if unknown else []
        current = {row.id: row for row in rows if self._intake.is_free(row.id)}
        if len(set(numbers)) < len(numbers):
            for number, count in Counter(numbers).items():
                if count > 1:
                    current.pop(number, None)
        return self._submit(numbers, current, timer_dues)

    async def run_looks(self) -> None:
        """Look at leases whenever one may have ended. A look that hangs delays lease ends only."""
        reads = self._open_reads()
        try:
            while True:
                await self._look_alarm.wait()
                now_ms = self._shard_clock.now_ms()
                try:
                    if self._leases.next_look_ms <= now_ms:
                        await self._look_at_leases(reads, now_ms)
                except (NotOwner, Unavailable):
                    if self._writer.is_ended:
                        return
                    self._fail_look()
        finally:
            await reads.close()

    async def _look_at_leases(self, reads: Reads, now_ms: int) -> None:
        """Read which of the remembered leases still exist, and apply those that have ended.

        The rows are read beside the flushes: of most leases, nothing is left. A lease that
        changes meanwhile is remembered by its own flush.
        """
        look = await self._writer.read(partial(self._begin_look, now_ms))
        if look is None:
            return
        try:
            for page in pages_of(look.ranges, LOOK_NUMBERS_MAX, LOOK_RANGES_MAX):
                await self._apply_leases(await self._read_leases(reads, page, look.last_ms), now_ms)
        except StoreLost as lost:
            log.warning("shard %d: a look at leases failed and is tried again: %s", self._shard, lost)
            self._fail_look()
        else:
            self._leases.end_look()

    def _fail_look(self) -> None:
        """Look again after a pause. If there is no room to remember it, a lease walk may be needed earlier."""
        self._leases.fail_look(self._retry_at_ms())
        self._wake_if_earlier()

    async def _read_leases(self, reads: Reads, ranges: Sequence[Range], last_ms: int) -> list[DueRow]:
        """Read the leases of a page. A read that fails is tried once more over a new connection. Raises `StoreLost`.

        The server may have closed the connection, because it was idle.
        """
        try:
            return await reads.leases_in(self._writer.last_committed, ranges, last_ms)
        except StoreLost as lost:
            log.info(
                "shard %d: the look at leases is repeated over a new connection, because one was lost: %s",
                self._shard,
                lost,
            )
            return await reads.leases_in(self._writer.last_committed, ranges, last_ms)

    async def _begin_look(self, now_ms: int, store: Store) -> Look | None:
        return self._leases.begin_look(now_ms)

    async def _apply_leases(self, leases: Sequence[DueRow], now_ms: int) -> None:
        """Remember leases that end later, and apply the ends of the others, page by page."""
        for due_ms, numbers in group_by_due(
            (lease.due_ms, lease.id) for lease in leases if lease.due_ms > now_ms
        ).items():
            self._leases.remember(due_ms, numbers, now_ms)
        self._wake_if_earlier()
        ended = sorted((lease.due_ms, lease.id) for lease in leases if lease.due_ms <= now_ms)
        page_items = self._constants.timer_page_items
        being_written: _EndedLeases | None = None
        for start in range(0, len(ended), page_items):
            page = ended[start : start + page_items]
            written = await self._writer.read(partial(self._submit_rows, [number for _, number in page], ()))
            if being_written is not None:
                self._remember_refused(being_written[0], await being_written[1])
            being_written = page, written
        if being_written is not None:
            self._remember_refused(being_written[0], await being_written[1])

    def _remember_refused(self, page: Sequence[tuple[int, int]], results: Sequence[Any]) -> None:
        """Remember the ended leases that the database refused to change: they are tried again after a pause."""
        refused = [each for each, result in zip(page, results, strict=True) if isinstance(result, FoqsError)]
        for due_ms, numbers in group_by_due(refused).items():
            self._leases.remember_failed(due_ms, numbers, self._retry_at_ms())
        self._wake_if_earlier()

    async def run_lease_walks(self) -> None:
        """Walk over all LEASED rows after a takeover, and when a lease end that was forgotten may come."""
        while True:
            while self._leases.next_lease_walk_ms > self._shard_clock.now_ms():
                await self._lease_walk_alarm.wait()
            reads = self._open_reads()
            try:
                await self._walk_leases(reads)
            except StoreLost as lost:
                log.warning("shard %d: a lease walk failed and is tried again: %s", self._shard, lost)
                await asyncio.sleep(self._constants.retry_ms_max / 1000)
            except (NotOwner, Unavailable):
                if self._writer.is_ended:
                    return
                await asyncio.sleep(self._constants.retry_ms_max / 1000)
            finally:
                await reads.close()

    async def _walk_leases(self, reads: Reads) -> None:
        """Apply all leases that have ended, and remember the others as far as there is room.

        Leases that are written meanwhile are remembered by their flushes. Raises `StoreLost`.
        """
        self._leases.begin_lease_walk()
        complete = False
        try:
            async for leases in self._leased_rows(reads):
                await self._apply_leases(leases, self._shard_clock.now_ms())
            complete = True
        finally:
            self._leases.end_lease_walk(complete=complete)
            self._wake_if_earlier()

    async def _leased_rows(self, reads: Reads) -> AsyncIterator[list[DueRow]]:
        """Yield the LEASED rows of the shard: first some of each topic, many topics at once, then the rest of each."""
        async for some in self._topics_with_leases():
            first: list[tuple[TopicName, OrderKey | None]] = [(topic, None) for topic in some]
            found = await reads.leases_of(self._writer.last_committed, first, LEASE_WALK_FIRST_ROWS)
            yield [DueRow(due_ms, order_key_number(key)) for page in found for key, due_ms in page]
            for topic, page in zip(some, found, strict=True):
                limit = LEASE_WALK_FIRST_ROWS
                while len(page) >= limit:
                    limit = self._constants.timer_page_items
                    (page,) = await reads.leases_of(self._writer.last_committed, [(topic, page[-1][0])], limit)
                    yield [DueRow(due_ms, order_key_number(key)) for key, due_ms in page]

    async def _topics_with_leases(self) -> AsyncIterator[list[TopicName]]:
        """Yield the topics that may have leases, `LEASE_WALK_TOPICS` at once. Other tasks run between the steps."""
        found: list[TopicName] = []
        for step in self._memory.topics_with_leases():
            found += step
            while len(found) >= LEASE_WALK_TOPICS:
                yield found[:LEASE_WALK_TOPICS]
                del found[:LEASE_WALK_TOPICS]
            await asyncio.sleep(0)
        if found:
            yield found

    def _submit(
        self, numbers: list[int], current: Mapping[int, Row], timer_dues: Sequence[int]
    ) -> asyncio.Future[list[Any]]:
        """Queue DUE events. `current` has rows as they are. Returns the future of the results."""
        awaited = AwaitedResults()
        if numbers:
            self._writer.submit(Dues(numbers, current, awaited, timer_dues), is_internal=True)
        else:
            awaited.future.set_result([])
        return awaited.future

    async def run_sweeps(self) -> None:
        """From time to time look for due rows below the watermark, so that a bug makes an item late, not lost.

        Beside an old snapshot a sweep reads past all rows that were deleted since, so it
        takes longer each time. Then sweeps become rarer.
        """
        clock = asyncio.get_running_loop().time
        interval_s = self._constants.sweep_interval_ms / 1000
        pause_s = interval_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = interval_s
            begun = clock()
            reads = self._open_reads()
            try:
                await self._sweep(reads)
                pause_s = max(interval_s, (clock() - begun) * SWEEP_PAUSES)
            except StoreLost as lost:
                log.warning("shard %d: a sweep failed and is tried again: %s", self._shard, lost)
            finally:
                await reads.close()

    async def _sweep(self, reads: Reads) -> None:
        """Apply all timer entries below the watermark, and all leases that ended before it. Raises `StoreLost`.

        They are read beside the flushes, because reading the table may take
        seconds. A row may have changed meanwhile; the flush reads it again.
        """
        watermark_ms = self._timers.watermark_ms
        if watermark_ms is None:
            return
        now_ms, high_ms = self._shard_clock.now_ms(), watermark_ms - 1
        after: DueRow | None = None
        complete = True
        while True:
            page = await reads.due_rows(self._writer.last_committed, high_ms, after, self._constants.timer_page_items)
            if not page:
                break
            complete &= _is_each_written(await self._submit([due.id for due in page], {}, [due.due_ms for due in page]))
            after = page[-1]
        async for leases in self._leased_rows(reads):
            ended = [lease.id for lease in leases if lease.due_ms <= high_ms]
            complete &= _is_each_written(await self._submit(ended, {}, ()))
        if complete:
            self._timers.on_sweep_completed(now_ms)

    async def run_ownership_checks(self) -> None:
        """Write a flush from time to time, so that an idle host learns that it was replaced.

        Not with the sweeps, because one may take much longer than the interval.
        """
        while True:
            await asyncio.sleep(self._constants.sweep_interval_ms / 1000)
            self._writer.request_flush()

    def _retry_at_ms(self) -> int:
        return self._shard_clock.now_ms() + self._constants.retry_ms_max

    def check(self) -> None:
        """Assert that no scan is too late, and that none counts as done before its time."""
        timers = self._timers
        assert timers.scanned_ms is None or timers.scanned_ms <= self._shard_clock.now_ms(), (
            f"invariant 10: all is processed up to {timers.scanned_ms}, and it is {self._shard_clock.now_ms()}"
        )
        latest_ms = max(
            timers.first_written_ms(), self._retry_at_ms()
        )  # a scan that failed is tried again after a pause
        assert timers.next_table_scan_ms() <= latest_ms, (
            f"invariant 10: a due of {timers.first_written_ms()} was written, and the next scan is at {timers.next_table_scan_ms()}"
        )
        for alarm in self._alarms:
            alarm.check()


def _is_each_written(results: Sequence[Any]) -> bool:
    """Return whether the database refused none of these events."""
    return not any(isinstance(result, FoqsError) for result in results)
