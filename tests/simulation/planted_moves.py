"""Planted bugs of moves. See `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from foqs.core.flush.batch import Batch
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import move_key
from foqs.shard import flush_planner
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def moves_without_record() -> None:
    """A repeated move does not find that the first one was committed."""

    def plan_flush(batch: Batch, find_row: Any, context: Any, timers: Any, keys: Mapping[Any, Any], *more: Any) -> Any:
        moved = {(part.operation.namespace, move_key(number)) for part in batch.moves for number in part.numbers}
        others = {name: record for name, record in keys.items() if name not in moved}
        return original(batch, find_row, context, timers, others, *more)

    original = plant(flush_planner, "plan_flush", plan_flush)


def moved_items_kept() -> None:
    """A move inserts the new item and leaves the old one in its table."""

    def writes(self: FlushPlan) -> Writes:
        written = original(self)
        copies = [replace(new, payload=b"" if old.payload is None else old.payload) for old, new in self.moved]
        return replace(written, moves=[], inserts=[*written.inserts, *copies])

    original = plant(FlushPlan, "writes", writes)


BUGS: Final[Mapping[str, Bug]] = {
    "moves-without-record": Bug(moves_without_record, (16,)),
    "moved-items-kept": Bug(moved_items_kept, (1, 2, 4, 10, 13)),
}
