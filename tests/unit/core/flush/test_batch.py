"""Operations, and the batches of flushes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.completions import CompletionEntry, Completions
from foqs.core.flush.operation import ALREADY_GONE, OPEN, Events, Inserts, Lane, Leases
from foqs.core.items.life import Event, EventKind
from foqs_contract.errors import DeadlineExceeded, NotFound, Unavailable, UnknownOutcome
from tests.support.plain_flush import keys_of, make_item, make_keyed_item
from tests.support.plain_intake import (
    Caller,
    entries_of,
    finish,
    operation_of,
)

# ------------------------------------------------------------------------ an operation


def test_idempotency_keys_count_among_the_bytes_of_new_items() -> None:
    items = [make_keyed_item(b"k" * 3, payload=b"p" * 10), make_keyed_item(b"k" * 5, payload=b"p" * 20)]
    operation = Inserts("n", items, 5, 0, None, has_idempotency_keys=True)
    assert (operation.bytes, operation.size(1, 2)) == (38, 25)
    batch = Batch([Part(operation, 0, 1), Part(operation, 1, 2), Part(Caller().inserts(9, 1), 0, 1)])
    assert batch.key_names() == [("n", b"kkk"), ("n", b"kkkkk")]
    assert Batch([Part(operation, 1, 2)]).key_names() == [("n", b"kkkkk")]


def test_the_last_result_finishes_an_operation() -> None:
    caller = Caller()
    operation = caller.acks(1, 2, 3)
    finish(operation, 1, [None, ALREADY_GONE])
    assert operation.is_open
    assert caller.calls == [0]
    finish(operation, 0, [])
    finish(operation, 0, [None])
    assert not operation.is_open
    assert caller.calls == [1]
    assert operation.results == [None, None, ALREADY_GONE]


def test_settle_leaves_the_report_of_the_end_to_its_caller() -> None:
    caller = Caller()
    operation = caller.acks(1, 2)
    assert not operation.settle(0, [None])
    assert operation.settle(1, [ALREADY_GONE])
    assert not operation.is_open
    operation.fail(0, 2, NotFound("too late"))
    assert not operation.abandon()
    assert caller.calls == [0]
    operation.report_end()
    operation.report_end()
    assert caller.calls == [1]
    assert operation.results == [None, ALREADY_GONE]


def test_abandon_withdraws_queued_entries_and_leaves_the_outcome_of_sealed_ones_unknown() -> None:
    caller = Caller()
    operation = caller.acks(1, 2, 3, 4)
    operation.seal(0, 3)
    finish(operation, 0, [None])
    assert operation.abandon() == [3]
    assert operation.results[0] is None
    assert [type(result) for result in operation.results[1:]] == [UnknownOutcome, UnknownOutcome, DeadlineExceeded]
    assert operation.is_abandoned
    assert caller.calls == [1]


def test_an_unsealed_entry_is_withdrawn_like_one_that_was_never_sealed() -> None:
    operation = Caller().inserts(1, 5, 5)
    operation.seal(0, 2)
    operation.unseal(1, 2)
    assert operation.abandon() == [1]
    assert [type(result) for result in operation.results] == [UnknownOutcome, DeadlineExceeded]


def test_an_abandoned_entry_does_not_become_open_again_when_its_flush_is_refused() -> None:
    operation = Caller().inserts(1, 5)
    operation.seal(0, 1)
    operation.abandon()
    operation.unseal(0, 1)
    assert [type(result) for result in operation.results] == [UnknownOutcome]


def test_an_abandoned_work_gets_no_more_results() -> None:
    caller = Caller()
    operation = caller.acks(1, 2)
    operation.seal(0, 2)
    operation.abandon()
    results = list(operation.results)
    finish(operation, 0, [None, None])
    operation.fail(0, 2, NotFound("x"))
    assert operation.abandon() == []
    assert operation.results == results
    assert caller.calls == [1]


def test_sizes_count_payloads_metadata_trace_contexts_and_groups() -> None:
    caller = Caller()
    items = [make_item(payload=b"12345", metadata=b"678"), make_item(payload=b"1", trace_context=b"2", item_group=b"3")]
    inserts = Inserts("n", items, 1, 0, None)
    nacks = Events("n", [Event(EventKind.NACK, 1, metadata=b"1234"), Event(EventKind.NACK, 2)], None)
    assert (inserts.bytes, inserts.size(0, 1), inserts.size(1, 2)) == (11, 8, 3)
    assert (nacks.bytes, nacks.size(0, 1), nacks.size(1, 2)) == (4, 4, 0)
    assert (caller.acks(1).bytes, caller.acks(1).size(0, 1)) == (0, 0)
    assert repr(OPEN) == "OPEN"


def test_a_delivery_returns_its_keys_by_topic() -> None:
    operation = Leases("n", [(("n", "t"), keys_of([1, 2])), (("n", "u"), keys_of([3, 4, 5]))], None, 0, None)
    assert operation.numbers == [1, 2, 3, 4, 5]
    assert operation.order_keys_at([0, 3, 4]) == [(("n", "t"), keys_of([1])), (("n", "u"), keys_of([4, 5]))]
    assert operation.order_keys_at([2]) == [(("n", "u"), keys_of([3]))]


# ----------------------------------------------------------------------- a batch


def test_a_batch_knows_the_numbers_of_its_events() -> None:
    caller = Caller()
    batch = Batch()
    for operation in (caller.acks(1, 2), caller.events(EventKind.NACK, 3), caller.delivery(4, 5), caller.inserts(6, 1)):
        batch.add([Part(operation, 0, len(operation))])
    assert (batch.event_numbers, batch.lease_numbers) == ([1, 2, 3], [4, 5])
    assert len(batch) == 6
    assert [len(parts) for parts in (batch.acks, batch.events, batch.leases, batch.inserts)] == [1, 1, 1, 1]


@given(
    st.lists(st.tuples(st.sampled_from([Lane.ACK, Lane.LEASE, Lane.INSERT]), st.integers(1, 5)), min_size=1, max_size=5)
)
def test_a_batch_splits_into_two_halves(sizes: list[tuple[Lane, int]]) -> None:
    caller = Caller()
    batch = Batch()
    for place, (lane, count) in enumerate(sizes):
        operation = operation_of(caller, lane, place * 10, count)
        batch.add([Part(operation, 0, count)])
    first, second = batch.split()
    assert len(first) == len(batch) // 2
    assert all(part.count for part in (*first.parts, *second.parts))
    assert Counter(entries_of([*first.parts, *second.parts])) == Counter(entries_of(batch.parts))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=5))
def test_a_batch_splits_between_operations_that_are_whole(sizes: list[tuple[bool, int]]) -> None:
    operations = []
    for place, (is_whole, count) in enumerate(sizes):
        operations.append(Caller().inserts(place * 10, *[1] * count, is_whole=is_whole))
    batch = Batch([Part(operation, 0, len(operation)) for operation in operations])
    pending, ends = [batch], []
    while pending:
        half = pending.pop()
        if not half.is_divisible:
            ends.append(half)
            continue
        first, second = half.split()
        assert first
        assert second
        assert entries_of([*first.parts, *second.parts]) == entries_of(half.parts)
        pending += [second, first]
    assert [len(end) for end in ends] == [
        size for is_whole, count in sizes for size in ([count] if is_whole else [1] * count)
    ]


def completions(number: int) -> Completions:
    return Completions("n", [CompletionEntry(number, 5, [make_item()], b"digest")], 0, None)


def test_the_parts_that_insert_nothing_keep_their_order_of_precedence() -> None:
    caller = Caller()
    batch = Batch()
    for operation in (
        caller.inserts(6, 1),
        completions(7),
        caller.delivery(4, 5),
        caller.acks(1, 2),
        caller.events(EventKind.NACK, 3),
    ):
        batch.add([Part(operation, 0, len(operation))])
    assert batch.parts_without_items() == [*batch.acks, *batch.events, *batch.leases]
    assert len(Batch(batch.parts_without_items())) == len(batch) - 2
    assert batch.adds_items
    assert not Batch(batch.parts_without_items()).adds_items


def test_refused_inserts_are_sealed_again_unless_their_caller_withdrew_them() -> None:
    operations = [Caller().inserts(1, 5), Caller().inserts(2, 5)]
    refused = Batch([Part(operation, 0, 1) for operation in operations])
    operations[0].abandon()
    again = refused.reseal()
    assert [part.operation for part in again.inserts] == [operations[1]]
    assert operations[1].abandon() == []
    assert [type(result) for result in operations[1].results] == [UnknownOutcome]


def test_a_part_fails_only_its_own_entries() -> None:
    operation = Caller().acks(1, 2, 3, 4)
    part = Part(operation, 1, 3)
    assert list(part.numbers) == [2, 3]
    finish(operation, part.start, [None, ALREADY_GONE])
    assert operation.results == [OPEN, None, ALREADY_GONE, OPEN]
    error = Unavailable("x")
    Part(operation, 3, 4).fail(error)
    assert operation.results == [OPEN, None, ALREADY_GONE, error]
