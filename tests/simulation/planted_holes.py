"""Bugs that unit tests alone had shown, to plant, to show that the simulation would find them.

As `planted`: each is the mistake that a rule prevents, made in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foqs.core.errors import FoqsError
from foqs.core.flush.fence import CommitOutcome, Fence
from foqs.core.items import life
from foqs.core.items.item import OrderKey, Row, State, TopicName
from foqs.core.memory.ready_index import Refill
from foqs.core.timing.due_timers import DueTimers
from foqs.shard.background_reads import RefillJob
from foqs.shard.shard import Shard
from foqs.shard.timer_service import TimerService
from foqs.shard.writer import Writer
from foqs.store.port import DueRow, Reads, Store
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def lost_reply_as_unwritten() -> None:
    """A flush whose reply was lost counts as not written when the shard turns out to have another owner."""

    async def resolve(self: Writer, fence: Fence, reason: str) -> CommitOutcome:
        self._is_maybe_written = False
        return await original(self, fence, reason)

    original = Writer._resolve_outcome
    Writer._resolve_outcome = resolve  # type: ignore[method-assign]


class _ReadsIgnoringPurges:
    """Reads of READY keys that do not leave out what is purged."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def ready_keys(
        self, past: Fence, topic: TopicName, after: OrderKey | None, limit: int, last_cut: int = 0
    ) -> Sequence[OrderKey]:
        return await self._reads.ready_keys(past, topic, after, limit)


def refills_ignore_purges() -> None:
    """A refill takes in what is purged as long as its row is there."""

    async def run(self: RefillJob, reads: Any, committed: Fence) -> None:
        await original(self, _ReadsIgnoringPurges(reads), committed)  # type: ignore[arg-type]

    original = RefillJob.run
    RefillJob.run = run  # type: ignore[method-assign]


def refusals_on_full_pages_forgotten() -> None:
    """What the database refused of a full page does not keep the watermark down."""

    async def begin(self: TimerService, low_ms: int | None, now_ms: int, after: DueRow | None, store: Store) -> Any:
        page, written = await original(self, low_ms, now_ms, after, store)
        if len(page) < self._settings.timer_page_items:
            return page, written
        return page, _without_errors(written)

    async def _without_errors(written: Any) -> list[Any]:
        return [None if isinstance(result, FoqsError) else result for result in await written]

    original = TimerService._submit_due_page
    TimerService._submit_due_page = begin  # type: ignore[method-assign]


def dues_in_the_past_unlifted() -> None:
    """A lease that outlives its item's TTL ends in READY, with a due in the past, which is not lifted to the watermark.

    Both at once: the lift makes the first mistake harmless, and where dues are
    reckoned rightly there is nothing to lift.
    """

    def expired(row: Row, now_ms: int) -> bool:
        return row.state is not State.LEASED and original(row, now_ms)

    original: Callable[[Row, int], bool] = plant(life, "_is_expired", expired)
    DueTimers.raise_to_watermark = lambda self, due_ms: due_ms  # type: ignore[method-assign]


def refills_miss_concurrent_writes() -> None:
    """A refill does not learn what was written while it read."""
    Refill.record_changes = lambda self, numbers, keys: None  # type: ignore[method-assign]


def disputes_ignored() -> None:
    """A shard answers for the slots that it holds, though they are recorded as another's."""
    Shard.dispute_key_slots = lambda self, key_slots, reason: None  # type: ignore[method-assign]


BUGS: Final[Mapping[str, Bug]] = {
    "lost-reply-as-unwritten": Bug(lost_reply_as_unwritten, (2, 16)),
    "refills-uncut": Bug(refills_ignore_purges, (13,)),
    "scan-judged-by-its-last-page": Bug(refusals_on_full_pages_forgotten, (10,)),
    "dues-in-the-past-unlifted": Bug(dues_in_the_past_unlifted, (10,)),
    "refills-note-nothing": Bug(refills_miss_concurrent_writes, (10, 11, 13), seed_count=60),
    "disputes-ignored": Bug(disputes_ignored, (3,)),
}
