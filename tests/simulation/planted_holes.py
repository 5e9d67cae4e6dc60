"""Bugs that unit tests alone had shown, to plant, to show that the simulation would find them.

As `planted`: each is the mistake that a rule prevents, made in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foqs.core import life
from foqs.core.errors import FoqsError
from foqs.core.fence import Fence, Standing
from foqs.core.item import Key, Row, State, TopicName
from foqs.core.ready import Refill
from foqs.core.timers import Timers
from foqs.shard.hints import RefillJob
from foqs.shard.shard import Shard
from foqs.shard.timekeeper import Timekeeper
from foqs.shard.writer import Writer
from foqs.store.port import Due, Reads, Store
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def lost_reply_as_unwritten() -> None:
    """A flush whose reply was lost counts as not written when the shard turns out to have another owner."""

    async def resolve(self: Writer, fence: Fence, why: str) -> Standing:
        self._maybe_written = False
        return await original(self, fence, why)

    original = Writer._resolve
    Writer._resolve = resolve  # type: ignore[method-assign]


class _Uncut:
    """Reads of READY keys that do not leave out what is purged."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def ready(
        self, past: Fence, topic: TopicName, after: Key | None, limit: int, last_cut: int = 0
    ) -> Sequence[Key]:
        return await self._reads.ready(past, topic, after, limit)


def refills_uncut() -> None:
    """A refill takes in what is purged as long as its row is there."""

    async def run(self: RefillJob, reads: Any, past: Fence) -> None:
        await original(self, _Uncut(reads), past)  # type: ignore[arg-type]

    original = RefillJob.run
    RefillJob.run = run  # type: ignore[method-assign]


def scan_judged_by_its_last_page() -> None:
    """What the database refused of a full page does not keep the watermark down."""

    async def begin(self: Timekeeper, low_ms: int | None, now_ms: int, after: Due | None, store: Store) -> Any:
        page, written = await original(self, low_ms, now_ms, after, store)
        if len(page) < self._settings.timer_page_items:
            return page, written
        return page, _without_errors(written)

    async def _without_errors(written: Any) -> list[Any]:
        return [None if isinstance(result, FoqsError) else result for result in await written]

    original = Timekeeper._begin
    Timekeeper._begin = begin  # type: ignore[method-assign]


def dues_in_the_past_unlifted() -> None:
    """A lease that outlives its item's TTL ends in READY, with a due in the past, which is not lifted to the watermark.

    Both at once: the lift makes the first mistake harmless, and where dues are
    reckoned rightly there is nothing to lift.
    """

    def expired(row: Row, now_ms: int) -> bool:
        return row.state is not State.LEASED and original(row, now_ms)

    original: Callable[[Row, int], bool] = plant(life, "_expired", expired)
    Timers.lift = lambda self, due_ms: due_ms  # type: ignore[method-assign]


def refills_note_nothing() -> None:
    """A refill does not learn what was written while it read."""
    Refill.note = lambda self, numbers, keys: None  # type: ignore[method-assign]


def disputes_ignored() -> None:
    """A shard answers for the slots that it holds, though they are recorded as another's."""
    Shard.dispute = lambda self, slots, reason: None  # type: ignore[method-assign]


BUGS: Final[Mapping[str, Bug]] = {
    "lost-reply-as-unwritten": Bug(lost_reply_as_unwritten, (2, 16)),
    "refills-uncut": Bug(refills_uncut, (13,)),
    "scan-judged-by-its-last-page": Bug(scan_judged_by_its_last_page, (10,)),
    "dues-in-the-past-unlifted": Bug(dues_in_the_past_unlifted, (10,)),
    "refills-note-nothing": Bug(refills_note_nothing, (10, 11, 13)),
    "disputes-ignored": Bug(disputes_ignored, (3,)),
}
