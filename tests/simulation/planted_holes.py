"""Planted bugs that only unit tests found before; the simulation finds them too. See `planted`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foqs.core.flush import flush_keys, planning
from foqs.core.flush.batch import Part
from foqs.core.flush.fence import CommitOutcome, Fence
from foqs.core.flush.flush_plan import FindRow, FlushPlan
from foqs.core.flush.operation import Acks, Inserts
from foqs.core.items import life
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import OrderKey, Row, State, TopicName
from foqs.core.items.life import FlushContext
from foqs.core.memory.ready_window import Refill
from foqs.core.timing.due_timers import DueTimers
from foqs.core.timing.lease_ends import LeaseEnds
from foqs.shard.background_reads import RefillRead
from foqs.shard.shard import OwnedShard
from foqs.shard.timer_service import TimerService
from foqs.shard.writer import Writer
from foqs.store.port import Reads, Store
from foqs_contract.errors import FoqsError
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def lost_reply_as_unwritten() -> None:
    """A flush whose reply was lost counts as not written if the shard has another owner by then."""

    async def resolve(self: Writer, fence: Fence, reason: str) -> CommitOutcome:
        self._is_maybe_written = False
        return await original(self, fence, reason)

    original = plant(Writer, "_resolve_outcome", resolve)


class _ReadsIgnoringPurges:
    """Reads of READY keys that include purged items."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def ready_order_keys(
        self, past: Fence, topic: TopicName, after: OrderKey | None, limit: int, last_cut: int = 0
    ) -> Sequence[OrderKey]:
        return await self._reads.ready_order_keys(past, topic, after, limit)


def refills_ignore_purges() -> None:
    """A refill adds purged items to the index until their rows are deleted."""

    async def run(self: RefillRead, reads: Any, committed: Fence) -> None:
        await original(self, _ReadsIgnoringPurges(reads), committed)

    original = plant(RefillRead, "run", run)


def refusals_on_full_pages_forgotten() -> None:
    """Items that the database refused do not hold the watermark back, if the page was full."""

    async def submit_rows(self: TimerService, numbers: list[int], timer_dues: Sequence[int], store: Store) -> Any:
        written = await original(self, numbers, timer_dues, store)
        return written if len(numbers) < self._constants.timer_page_items else _without_errors(written)

    async def _without_errors(written: Any) -> list[Any]:
        return [None if isinstance(result, FoqsError) else result for result in await written]

    original = plant(TimerService, "_submit_rows", submit_rows)


def dues_in_the_past_not_raised() -> None:
    """A lease that ends after the TTL of its item makes it READY with a due in the past, below the watermark.

    There are two mistakes: raising dues to the watermark makes the first one
    harmless, and with correct dues there is nothing to raise.
    """

    def expired(row: Row, now_ms: int) -> bool:
        return row.state is not State.LEASED and original(row, now_ms)

    original: Callable[[Row, int], bool] = plant(life, "_is_expired", expired)
    plant(DueTimers, "raise_to_watermark", lambda self, due_ms: due_ms)


def refills_miss_concurrent_writes() -> None:
    """A refill does not see changes that were written while it read."""
    plant(Refill, "record_changes", lambda self, numbers, keys: None)


def disputes_ignored() -> None:
    """A shard serves the key slots in its table even if another shard is recorded as their holder."""
    plant(OwnedShard, "dispute_key_slots", lambda self, key_slots, reason: None)


def acks_of_other_namespaces() -> None:
    """An ack that names another namespace deletes the item."""

    def decide_acks(parts: Sequence[Part[Acks]], find_row: FindRow, context: FlushContext, plan: FlushPlan) -> None:
        for part in parts:

            def find(number: int, namespace: str = part.operation.namespace) -> Row | None:
                row = find_row(number)
                return None if row is None else replace(row, namespace=namespace)

            original([part], find, context, plan)

    original: Callable[..., None] = plant(planning, "_decide_acks", decide_acks)


def key_window_at_the_retry() -> None:
    """The end of a key's window is compared with the time of the attempt that is written, not of the first one."""

    def counts(record: IdempotencyKey, context: FlushContext) -> bool:
        return original(record, replace(context, first_attempt_ms=context.now_ms))

    original: Callable[..., bool] = plant(flush_keys, "_is_in_use", counts)


def key_ends_ignored() -> None:
    """A key whose end is over and that is forgotten is given to a second item."""

    def key_ends(self: Inserts, start: int, stop: int) -> list[int | None]:
        return [None] * (stop - start)

    plant(Inserts, "key_ends", key_ends)


def failed_looks_forgotten() -> None:
    """A look that fails is repeated for the first of its ranges only."""

    def fail_look(self: LeaseEnds, retry_ms: int) -> None:
        if self._look is not None:
            del self._look.ranges[1:]
        original(self, retry_ms)

    original = plant(LeaseEnds, "fail_look", fail_look)


BUGS: Final[Mapping[str, Bug]] = {
    "acks-of-other-namespaces": Bug(acks_of_other_namespaces, (17,)),
    "key-window-at-the-retry": Bug(key_window_at_the_retry, (3,), seed_count=60, first_seed=4),
    "key-ends-ignored": Bug(key_ends_ignored, (3,)),
    "failed-looks-forgotten": Bug(failed_looks_forgotten, (10, 11)),
    "lost-reply-as-unwritten": Bug(lost_reply_as_unwritten, (2, 16)),
    "refills-ignore-purges": Bug(refills_ignore_purges, (13,), seed_count=32, first_seed=4),
    "refusals-on-full-pages-forgotten": Bug(refusals_on_full_pages_forgotten, (10,), seed_count=60, first_seed=8),
    "dues-in-the-past-not-raised": Bug(dues_in_the_past_not_raised, (10,)),
    "refills-miss-concurrent-writes": Bug(refills_miss_concurrent_writes, (10, 11, 13), seed_count=60),
    "disputes-ignored": Bug(disputes_ignored, (3,), first_seed=2),
}
