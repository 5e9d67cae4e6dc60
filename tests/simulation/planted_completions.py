"""Planted bugs of completions. See `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from foqs.core.flush import completion_planning
from foqs.core.flush.completions import CompletionEntry, NewNumbers
from foqs.core.flush.flush_keys import FlushKeys
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import completion_key
from foqs.core.items.item import Row
from foqs.core.items.life import FlushContext, new_row
from foqs.shard import flush_planner
from foqs_contract.errors import StaleLease
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def completions_without_ack() -> None:
    """The items that follow are written, and the completed item stays in its table."""

    def writes(self: FlushPlan) -> Writes:
        written = original(self)
        completed = {number for part in self.batch.completions for number in part.numbers}
        return replace(written, deletes=[number for number in written.deletes if number not in completed])

    original = plant(FlushPlan, "writes", writes)


def completions_without_items() -> None:
    """The item is acked, and the items that follow from it are not written."""

    def writes(self: FlushPlan) -> Writes:
        written = original(self)
        new = {
            number
            for part, results in self.results
            if part in self.batch.completions
            for result in results
            if isinstance(result, NewNumbers) and not result.is_repeat
            for number in result.numbers
        }
        return replace(written, inserts=[row for row in written.inserts if row.id not in new])

    original = plant(FlushPlan, "writes", writes)


def stale_completions_insert() -> None:
    """A completion with a token that was superseded is refused, and its items are written nevertheless."""

    def complete(
        namespace: str,
        completion: CompletionEntry,
        row: Row,
        own_number: int,
        accepted_ms: int,
        context: FlushContext,
        purge_markers: PurgeMarkers,
        plan: FlushPlan,
    ) -> Any:
        result = original(namespace, completion, row, own_number, accepted_ms, context, purge_markers, plan)
        if isinstance(result, StaleLease):
            plan.topics.setdefault(namespace, set()).update(item.topic for item in completion.items)
            numbers = range(own_number + 1, own_number + 1 + len(completion.items))
            plan.inserted += [
                new_row(item, number, accepted_ms, context.now_ms)
                for item, number in zip(completion.items, numbers, strict=True)
            ]
        return result

    original = plant(completion_planning, "_complete", complete)


def completions_without_record() -> None:
    """A second attempt does not find that the first one was written."""

    def add(self: FlushKeys, namespace: str, key: bytes, number: int, digest: bytes) -> None:
        if not key.startswith(b"\0done"):
            original(self, namespace, key, number, digest)

    original = plant(FlushKeys, "add", add)


def completions_made_twice() -> None:
    """A second attempt that finds the item gone writes its items again, as if no record was there."""

    def plan_flush(batch: Any, find_row: Any, context: FlushContext, *arguments: Any) -> FlushPlan:
        plan = original(batch, find_row, context, *arguments)
        for part, part_results in plan.results:
            if part not in batch.completions:
                continue
            operation, results = part.operation, cast("list[Any]", part_results)
            for place, result in enumerate(results):
                if isinstance(result, NewNumbers) and result.is_repeat:
                    entry, own = operation.entries[part.start + place], operation.own_numbers[part.start + place]
                    numbers = list(range(own + 1, own + 1 + len(entry.items)))
                    results[place] = NewNumbers(numbers, False)
                    plan.topics.setdefault(operation.namespace, set()).update(item.topic for item in entry.items)
                    plan.inserted += [
                        new_row(item, number, operation.accepted_ms, context.now_ms)
                        for item, number in zip(entry.items, numbers, strict=True)
                    ]
        return plan

    original = plant(flush_planner, "plan_flush", plan_flush)


def records_of_other_completions() -> None:
    """A completion with other items gets the ids of the one that was written."""

    def repeat(namespace: str, completion: CompletionEntry, keys: FlushKeys) -> Any:
        record = keys.record_in_use(namespace, completion_key(completion.number))
        if record is not None:
            completion = completion._replace(digest=record.digest)
        return original(namespace, completion, keys)

    original = plant(completion_planning, "_repeat_of_completion", repeat)


def ids_of_another_ordinal() -> None:
    """A repeat counts the ids of its items from the record's own number on."""

    def repeat(namespace: str, completion: CompletionEntry, keys: FlushKeys) -> Any:
        result = original(namespace, completion, keys)
        if isinstance(result, NewNumbers):
            return NewNumbers([number - 1 for number in result.numbers], True)
        return result

    original = plant(completion_planning, "_repeat_of_completion", repeat)


BUGS: Final[Mapping[str, Bug]] = {
    "completions-without-ack": Bug(completions_without_ack, (1, 4, 13, 21)),
    "completions-without-items": Bug(completions_without_items, (1, 13, 21)),
    "stale-completions-insert": Bug(stale_completions_insert, (16, 21)),
    "completions-without-record": Bug(completions_without_record, (16, 21)),
    "completions-made-twice": Bug(completions_made_twice, (2, 3, 21)),
    "records-of-other-completions": Bug(records_of_other_completions, (2, 3, 16, 21)),
    "ids-of-another-ordinal": Bug(ids_of_another_ordinal, (2, 21)),
}
