"""Decides the completions of a flush: each acks its item and inserts those that follow from it, or does neither. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.core.flush.batch import Part
from foqs.core.flush.completions import CompletionEntry, Completions, NewNumbers
from foqs.core.flush.flush_keys import FlushKeys
from foqs.core.flush.flush_plan import FindRow, FlushPlan
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.items.idempotency_keys import completed_item_key, completion_key
from foqs.core.items.item import KeyedItem, Row
from foqs.core.items.life import Event, EventKind, FlushContext, apply_event, new_row
from foqs.core.timing.due_timers import timer_entry
from foqs_contract.errors import FoqsError, StaleLease


def decide_completions(
    parts: Sequence[Part[Completions]],
    find_row: FindRow,
    context: FlushContext,
    purge_markers: PurgeMarkers,
    plan: FlushPlan,
) -> None:
    """Ack each item and insert those that follow from it, or do neither."""
    for part in parts:
        operation = part.operation
        results: list[Any] = []
        for place in range(part.start, part.stop):
            completion = operation.entries[place]
            row = find_row(completion.number)
            if row is None:
                results.append(_repeat_of_completion(operation.namespace, completion, plan.keys))
            else:
                own_number, accepted_ms = operation.own_numbers[place], operation.accepted_ms
                results.append(
                    _complete(
                        operation.namespace, completion, row, own_number, accepted_ms, context, purge_markers, plan
                    )
                )
        plan.results.append((part, results))


def _complete(
    namespace: str,
    completion: CompletionEntry,
    row: Row,
    own_number: int,
    accepted_ms: int,
    context: FlushContext,
    purge_markers: PurgeMarkers,
    plan: FlushPlan,
) -> Any:
    """Complete the item of a row. Return `NewNumbers`, or the error for which nothing is written."""
    number, keys = completion.number, plan.keys
    error = apply_event(Event(EventKind.ACK, number, namespace, completion.token), row, context).error
    if error is not None:
        return error
    numbers = keys.add_of_completion(namespace, completion.items, own_number + 1, completion.first_place)
    if isinstance(numbers, FoqsError):
        return numbers
    keys.add(namespace, completion_key(number), own_number, completion.digest)
    plan.deleted.setdefault(EventKind.ACK, []).append(row)
    plan.change_timer(timer_entry(row), None)
    topics = plan.topics.setdefault(namespace, set())
    for place, item in enumerate(completion.items):
        if numbers[place] == own_number + 1 + place:
            # As with inserts, a covered item was purged before it was written: its flush was refused and is repeated.
            if numbers[place] > purge_markers.last_number((namespace, item.topic)):
                plan.inserted.append(new_row(item, numbers[place], accepted_ms, context.now_ms))
                topics.add(item.topic)
        else:
            keys.repeat_count += 1
            keys.add(namespace, completed_item_key(number, place), numbers[place], completion.digest)
    return NewNumbers(numbers, False)


def _repeat_of_completion(namespace: str, completion: CompletionEntry, keys: FlushKeys) -> Any:
    """Return the numbers that an earlier attempt wrote, or the error of a completion whose item is gone without its record."""
    number = completion.number
    record = keys.record_in_use(namespace, completion_key(number))
    if record is None or record.digest != completion.digest:
        return StaleLease(
            "this item is gone, and not by this completion as far as is remembered: another consumer may have finished it, "
            "or it was cancelled or purged; nothing was written"
        )
    keys.repeat_count += 1
    numbers = list(range(record.item_id + 1, record.item_id + 1 + len(completion.items)))
    for place, item in enumerate(completion.items):
        if isinstance(item, KeyedItem):
            repeated = keys.record_in_use(namespace, completed_item_key(number, place))
            if repeated is not None:
                numbers[place] = repeated.item_id
    return NewNumbers(numbers, True)
