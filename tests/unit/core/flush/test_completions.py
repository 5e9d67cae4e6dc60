"""The operation of completions: its numbers, its bytes and its results, and how it waits."""

from __future__ import annotations

import pytest

from foqs.core.flush.batch import Batch
from foqs.core.flush.completions import NEW_ITEM_BYTES, CompletedIds, CompletionEntry, Completions, NewNumbers
from foqs.core.items.atomic_items import check_completion_items
from foqs.core.items.idempotency_keys import completed_item_key, completion_digest, completion_key, own_key
from foqs.core.items.item import NewItem
from foqs.core.items.life import EventKind
from foqs.core.limits.in_flight import InFlight
from foqs_contract.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    StaleLease,
    Unavailable,
    UnknownOutcome,
)
from tests.support.plain_flush import make_item, make_keyed_item
from tests.support.plain_intake import Caller, intake


def completions(*item_counts: int, first: int = 1) -> Completions:
    entries = [
        CompletionEntry(number, 5, [make_item()] * count, b"digest") for number, count in enumerate(item_counts, first)
    ]
    return Completions("n", entries, 0, None)


def test_each_entry_has_a_number_of_its_own_before_those_of_its_items() -> None:
    operation = completions(2, 1, 3)
    assert operation.number_count(0, 3) == 9
    operation.number(0, 2, 100)
    operation.number(2, 3, 200)
    assert operation.own_numbers == [100, 103, 200]
    operation.settle(0, [NewNumbers([101, 102], False), StaleLease("gone"), NewNumbers([201, 9, 203], True)])
    done, stale, repeat = operation.outcomes(7)
    assert (done, repeat) == (CompletedIds(["7-101", "7-102"], False), CompletedIds(["7-201", "7-9", "7-203"], True))
    assert isinstance(stale, StaleLease)
    assert operation.not_inserted_count == 1 + 3


def test_item_that_repeats_the_one_of_its_key_is_not_charged() -> None:
    operation = completions(3)
    operation.number(0, 1, 100)
    operation.settle(0, [NewNumbers([101, 9, 103], False)])
    assert operation.not_inserted_count == 1


def test_items_of_an_unknown_outcome_stay_charged_and_those_of_a_withdrawn_entry_do_not() -> None:
    operation = completions(2, 3)
    operation.number(0, 1, 100)
    operation.seal(0, 1)
    operation.abandon()
    assert [*map(type, operation.results)] == [UnknownOutcome, DeadlineExceeded]
    assert operation.not_inserted_count == 3


def test_new_item_counts_a_kib_beside_its_bytes() -> None:
    keyed = make_keyed_item(b"key", payload=b"p" * 7, metadata=b"m", trace_context=b"t", item_group=b"g")
    operation = Completions(
        "n", [CompletionEntry(1, 5, [make_item(payload=b"")], b""), CompletionEntry(2, 5, [keyed], b"")], 0, None
    )
    assert (operation.size(0, 1), operation.size(1, 2)) == (NEW_ITEM_BYTES, NEW_ITEM_BYTES + 13)
    assert operation.bytes == 2 * NEW_ITEM_BYTES + 13


def test_growth_in_flight_is_counted_until_its_entry_has_its_result() -> None:
    operation, in_flight = completions(2, 1, 3), InFlight()
    operation.count_in_flight(in_flight, [0, 9, 1])
    assert (in_flight.items, in_flight.bytes) == (1 + 0 + 2, 2 + 0 + 2)
    operation.settle(0, [NewNumbers([1, 2], False)])
    assert (in_flight.items, in_flight.bytes) == (2, 2)
    operation.fail(0, 2, Unavailable("x"))
    assert (in_flight.items, in_flight.bytes) == (2, 2)
    operation.abandon()
    assert (in_flight.items, in_flight.bytes) == (0, 0)


def test_completions_that_wait_are_removed_and_the_next_events_on_their_items_are_free() -> None:
    queue, caller = intake(), Caller()
    queue.submit(completions(1, 2))
    queue.submit(caller.acks(1, 9))
    queue.submit(caller.events(EventKind.NACK, 7))
    queue.check(Batch())
    removed = queue.pop_completions()
    assert [list(part.numbers) for part in removed] == [[1, 2]]
    queue.check(Batch())
    assert queue.held_back_count == 0
    batch = queue.seal()
    assert sorted(batch.event_numbers) == [1, 7, 9]
    assert queue.pop_completions() == []


@pytest.mark.parametrize(
    ("items", "kind", "field"),
    [
        ([make_item()] * 4, LimitExceeded, "items"),
        ([make_item(payload=b"x" * 60), make_item(metadata=b"x" * 41)], LimitExceeded, "items"),
        ([make_keyed_item(b"a"), make_item(), make_keyed_item(b"a")], InvalidArgument, "items[2].idempotency_key"),
    ],
)
def test_items_of_a_completion_are_few_and_small_and_have_distinct_keys(
    items: list[NewItem], kind: type[FoqsError], field: str
) -> None:
    check_completion_items([make_keyed_item(b"a"), make_item(), make_keyed_item(b"b")], 3, 100)
    with pytest.raises(kind) as caught:
        check_completion_items(items, 3, 100)
    assert caught.value.field == field


def test_digest_has_the_token_and_each_item_with_its_key_and_begins_with_the_incarnation() -> None:
    one, two = (b"1" * 16, b""), (b"2" * 16, b"key")
    digests = {
        completion_digest(5, [one, two], b""),
        completion_digest(6, [one, two], b""),
        completion_digest(5, [two, one], b""),
        completion_digest(5, [one], b""),
        completion_digest(5, [one, (two[0], b"kez")], b""),
        completion_digest(5, [one, (two[0], b"")], b""),
    }
    assert len(digests) == 6
    named = completion_digest(5, [one, two], b"12345678")
    assert (len(named), named[:8]) == (16, b"12345678")


def test_keys_of_records_are_reserved_and_distinct() -> None:
    keys = {completion_key(1), completion_key(11), completed_item_key(1, 1), completed_item_key(11, 1)}
    assert len(keys) == 4
    assert [*map(own_key, keys)] == [None] * 4
