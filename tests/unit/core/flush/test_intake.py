"""The intake: one number in one flush, limits, and a comparison with a plain list."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.intake import LANE_SHARES, Intake
from foqs.core.flush.operation import OPEN, SEALED, Lane, Operation
from foqs.core.items.life import EventKind
from foqs_contract.errors import Overloaded, Unavailable
from tests.support.example_counts import examples
from tests.support.plain_intake import (
    LIMITS,
    Caller,
    Entry,
    PlainIntake,
    entries_of,
    finish,
    intake,
    is_within,
    lanes_of,
    numbers_at,
    numbers_of,
    operation_of,
    sealed,
)

# --------------------------------------------------------------- one number, one flush


def test_a_number_is_in_one_flush_until_that_is_written() -> None:
    queue, caller = intake(), Caller()
    queue.submit(caller.acks(1, 2))
    queue.submit(caller.acks(2, 3))
    first = queue.seal()
    assert numbers_of(first) == [1, 2, 3]
    assert numbers_of(queue.seal()) == []
    queue.on_flush_ended(first)
    assert numbers_of(sealed(queue)) == [2]
    assert len(queue) == 0


def test_a_number_that_occurs_in_a_work_twice_is_in_two_flushes() -> None:
    queue, caller = intake(), Caller()
    queue.submit(caller.acks(1, 2, 1, 1))
    assert [numbers_of(sealed(queue)) for _ in range(4)] == [[1, 2], [1], [1], []]


def test_events_on_one_number_are_sealed_in_order_whatever_their_lanes() -> None:
    queue, caller = intake(), Caller()
    operations = [operation_of(caller, lane, 7, 1) for lane in (Lane.LEASE, Lane.DUE, Lane.NACK, Lane.ACK, Lane.ACK)]
    for operation in operations:
        queue.submit(operation)
    assert [sealed(queue).parts[0].operation for _ in operations] == operations


def test_an_event_on_a_free_number_does_not_wait_for_events_that_are_held_back() -> None:
    queue, caller = intake(), Caller()
    queue.submit(caller.acks(1))
    queue.submit(caller.acks(1, 2, 3, 1, 4))
    queue.submit(caller.acks(5))
    assert numbers_of(sealed(queue)) == [1, 2, 3, 4, 5]
    assert [numbers_of(sealed(queue)) for _ in range(2)] == [[1], [1]]


def test_a_withdrawn_event_does_not_block_later_ones() -> None:
    queue, caller = intake(), Caller()
    operations = [caller.events(EventKind.NACK, 1, metadata=b"12") for _ in range(4)]
    for operation in operations:
        queue.submit(operation)
    for operation in operations[:3]:
        operation.abandon()
    found = [operation for _ in range(2) for operation, _ in entries_of(sealed(queue).parts)]
    assert found == [operations[3]]
    assert len(queue) == 0


def test_the_entry_of_a_lane_whose_works_were_withdrawn_does_not_go_to_another_lane() -> None:
    queue, caller = intake(flush_items_max=1), Caller()
    withdrawn = caller.acks(1)
    queue.submit(withdrawn)
    queue.submit(caller.events(EventKind.NACK, 2))
    queue.submit(caller.delivery(3))
    queue.submit(caller.inserts(10, 1, 1))
    withdrawn.abandon()
    assert numbers_of(queue.seal()) == [2, 3, 10]


def test_a_withdrawn_insert_frees_no_number() -> None:
    queue, caller = intake(), Caller()
    inserts = caller.inserts(1, 5)
    queue.submit(inserts)
    inserts.abandon()
    assert not queue.seal()
    assert len(queue) == 0


# ---------------------------------------------------------------------- queue limits


def test_a_full_queue_refuses_a_work_completely() -> None:
    queue, caller = intake(queue_items_max=11), Caller()
    queue.submit(caller.acks(1, 2, 3))
    with pytest.raises(Overloaded) as refused:
        queue.submit(caller.acks(4, 5, 6))
    assert refused.value.retry_after_ms
    assert len(queue) == 3
    queue.submit(caller.acks(4, 5))
    assert numbers_of(queue.seal()) == [1, 2, 3, 4, 5]


def test_a_flood_of_inserts_leaves_room_for_events_of_the_same_namespace() -> None:
    queue, caller = intake(queue_items_max=10, queue_bytes_max=1_000), Caller()
    queue.submit(caller.inserts(1, *[100] * 5))
    with pytest.raises(Overloaded):
        queue.submit(caller.inserts(6, 1))
    for number in range(10, 15):
        queue.submit(caller.events(EventKind.NACK, number, metadata=b"12"))
    with pytest.raises(Overloaded):
        queue.submit(caller.acks(20))
    assert len(queue) == 10


def test_a_namespace_fills_its_share_and_the_next_one_still_finds_room() -> None:
    queue, caller = intake({"big": 3}, queue_items_max=1_000, queue_bytes_max=1_000_000), Caller()
    accepted: dict[str, int] = {}
    for place, namespace in enumerate(["big", "a", "b", "c", "d"]):
        accepted[namespace] = 0
        with pytest.raises(Overloaded):
            while True:
                queue.submit(caller.acks(1 + place * 1_000 + accepted[namespace], namespace=namespace))
                accepted[namespace] += 1
    assert accepted == {"big": 750, "a": 125, "b": 62, "c": 31, "d": 16}


def test_the_share_of_a_namespace_also_limits_its_bytes() -> None:
    queue, caller = intake(queue_bytes_max=1_000), Caller()
    queue.submit(caller.inserts(1, 500))
    with pytest.raises(Overloaded):
        queue.submit(caller.inserts(2, 1))
    queue.submit(caller.inserts(3, 250, namespace="m"))
    with pytest.raises(Overloaded):
        queue.submit(caller.inserts(4, 1, namespace="m"))
    queue.submit(caller.inserts(5, 0))
    queue.seal()
    queue.submit(caller.inserts(6, 500))


def test_events_that_are_held_back_count_as_waiting() -> None:
    queue, caller = intake(queue_items_max=10), Caller()
    for _ in range(5):
        queue.submit(caller.acks(1))
    with pytest.raises(Overloaded):
        queue.submit(caller.acks(1))
    assert len(queue) == 5


def test_internal_events_pass_a_full_queue() -> None:
    queue, caller = intake(queue_items_max=2), Caller()
    queue.submit(caller.acks(1))
    with pytest.raises(Overloaded):
        queue.submit(caller.acks(2))
    queue.submit(caller.events(EventKind.DUE, *range(2, 30), namespace=""), is_internal=True)
    assert len(queue) == 29


def test_a_flood_of_deliveries_does_not_keep_acks_out() -> None:
    queue, caller = intake(queue_items_max=10), Caller()
    queue.submit(caller.delivery(*range(100, 150), namespace="m"), is_internal=True)
    queue.submit(caller.acks(1, 2))
    queue.submit(caller.acks(3, namespace="m"))
    assert len(queue) == 53
    while queue:
        sealed(queue)
    queue.submit(caller.acks(*range(1, 6)))


def test_drain_returns_all_waiting_parts_and_leaves_nothing() -> None:
    queue, caller = intake(queue_items_max=100, queue_bytes_max=1_000), Caller()
    queue.submit(caller.acks(1, 2, 1))
    queue.submit(caller.events(EventKind.NACK, 2, 3, metadata=b"x" * 50))
    queue.submit(caller.inserts(10, 100, 400))
    queue.submit(caller.delivery(4))
    assert Counter(numbers_at(queue.remove_all())) == Counter([1, 1, 2, 2, 3, 4, 10, 11])
    assert len(queue) == 0
    assert queue.lease_backlog("m") == (0, 1.0), "no other namespace waits"
    assert not queue.seal()
    queue.submit(caller.inserts(20, 500))
    queue.submit(caller.events(EventKind.NACK, 1, metadata=b"x" * 500))
    assert numbers_of(queue.seal()) == [1, 20]


# ------------------------------------------------------- comparison with the plain intake


def quota_of(operation: Operation) -> int:
    """Return which of the three quotas it uses: internal operations, inserts, or all other events."""
    return {Lane.LEASE: 1, Lane.DUE: 1, Lane.INSERT: 2}.get(operation.lane, 0)


class IntakeMachine(RuleBasedStateMachine):
    """Random operations, flushes, refusals and deadlines, compared with a list of single entries."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = replace(
            LIMITS,
            flush_items_max=9,
            flush_bytes_max=50,
            small_flush_items=4,
            queue_items_max=40,
            queue_bytes_max=500,
            shares=LANE_SHARES,
        )
        self.queue = Intake(self.limits, {"n": 1, "m": 3}.__getitem__)
        self.plain = PlainIntake()
        self.caller = Caller()
        self.operations: list[Operation] = []
        self.in_flight: Batch | None = None
        self.next_number = 1_000
        self.pace = 9

    def submit(self, operation: Operation, *, internal: bool = False) -> None:
        try:
            self.queue.submit(operation, is_internal=internal)
        except Overloaded:
            assert not internal
            operation.abandon()
        else:
            self.plain.submit(operation)
            entries = [entry for entry in self.plain.waiting if quota_of(entry.operation) == quota_of(operation)]
            assert internal or len(entries) <= self.limits.queue_items_max
            assert internal or sum(entry.operation.size(entry.place, entry.place + 1) for entry in entries) <= 500
        self.operations.append(operation)

    @rule(numbers=st.lists(st.integers(1, 6), min_size=1, max_size=5), namespace=st.sampled_from("nm"))
    def ack(self, numbers: list[int], namespace: str) -> None:
        self.submit(self.caller.acks(*numbers, namespace=namespace))

    @rule(
        numbers=st.lists(st.integers(1, 6), min_size=1, max_size=5),
        namespace=st.sampled_from("nm"),
        kind=st.sampled_from([EventKind.NACK, EventKind.RELEASE, EventKind.EXTEND, EventKind.DUE, EventKind.CANCEL]),
        metadata=st.binary(max_size=60),
        internal=st.booleans(),
    )
    def event(self, numbers: list[int], namespace: str, kind: EventKind, metadata: bytes, internal: bool) -> None:
        self.submit(self.caller.events(kind, *numbers, namespace=namespace, metadata=metadata), internal=internal)

    @rule(
        numbers=st.lists(st.integers(1, 6), min_size=1, max_size=5, unique=True),
        namespace=st.sampled_from("nm"),
        read_bytes=st.integers(0, 60),
    )
    def deliver(self, numbers: list[int], namespace: str, read_bytes: int) -> None:
        self.submit(self.caller.delivery(*numbers, namespace=namespace, read_bytes=read_bytes), internal=True)

    @rule(
        sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
        namespace=st.sampled_from("nm"),
        is_whole=st.booleans(),
    )
    def insert(self, sizes: list[int], namespace: str, is_whole: bool) -> None:
        self.submit(self.caller.inserts(self.next_number, *sizes, namespace=namespace, is_whole=is_whole))
        self.next_number += len(sizes)

    @precondition(lambda self: any(operation.is_open for operation in self.operations))
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from([operation for operation in self.operations if operation.is_open]))
        self.plain.withdraw(operation, operation.abandon())

    @rule(items=st.integers(0, 12))
    def set_pace(self, items: int) -> None:
        self.queue.set_flush_items_max(items)
        self.pace = max(1, min(items, 9))

    @precondition(lambda self: self.in_flight is None)
    @rule(inserts=st.booleans())
    def seal(self, inserts: bool) -> None:
        batch = self.queue.seal(with_inserts=inserts)
        self.check(batch)
        assert inserts or not batch.inserts
        self.in_flight = batch

    def check(self, batch: Batch) -> None:
        self.plain.seal(batch)
        whole = [part.count for part in batch.parts if part.operation.is_whole]
        assert len(batch) <= max(self.pace, len(lanes_of(batch))) + max(whole, default=1) - 1
        assert all(part.count == len(part.operation) for part in batch.parts if part.operation.is_whole)
        assert not any(part.operation.is_abandoned for part in batch.parts)
        for lane in Lane:
            parts = [part for part in batch.parts if part.operation.lane is lane]
            assert is_within(parts, self.limits.flush_bytes_max)

    @precondition(lambda self: self.in_flight is not None)
    @rule(refused=st.booleans())
    def write(self, refused: bool) -> None:
        assert self.in_flight is not None
        batch, self.in_flight = self.in_flight, None
        for part in batch.parts:
            if refused:
                part.fail(Unavailable("refused"))
            else:
                finish(part.operation, part.start, [None] * part.count)
        self.queue.on_flush_ended(batch)
        self.plain.on_flush_ended()

    @rule()
    def drain(self) -> None:
        if self.in_flight is not None:
            self.write(refused=False)
        removed = [entry for entry in entries_of(self.queue.remove_all()) if not entry[0].is_abandoned]
        assert Counter(removed) == Counter((entry.operation, entry.place) for entry in self.plain.waiting)
        for entry in self.plain.waiting:
            entry.operation.fail(entry.place, entry.place + 1, Unavailable("closed"))
        self.plain.waiting.clear()
        self.is_empty()

    @invariant()
    def open_entries_wait_or_are_sealed(self) -> None:
        places = Counter(entry.operation for entry in self.plain.waiting)
        if self.in_flight is not None:
            places += Counter(
                operation for operation, _ in entries_of(self.in_flight.parts) if not operation.is_abandoned
            )
        for operation in self.operations:
            assert sum(result in (OPEN, SEALED) for result in operation.results) == places[operation]
        assert len(self.queue) >= len(self.plain.waiting)

    @invariant()
    def a_number_waits_or_is_sealed_once(self) -> None:
        self.queue.check(self.in_flight or Batch())

    @invariant()
    def every_finished_work_was_called_back_once(self) -> None:
        for operation, calls in zip(self.operations, self.caller.calls, strict=True):
            assert calls == (not operation.is_open)

    def teardown(self) -> None:
        if self.in_flight is not None:
            self.write(refused=False)
        self.queue.set_flush_items_max(9)
        self.pace = 9
        for _ in range(10_000):
            if not len(self.queue):
                break
            before = len(self.queue)
            batch = self.queue.seal()
            self.check(batch)
            assert len(self.queue) < before
            self.in_flight = batch
            self.write(refused=False)
        assert not self.plain.waiting
        assert not any(operation.is_open for operation in self.operations)
        self.is_empty()

    def is_empty(self) -> None:
        """Check that the queue is empty and its quotas are free again."""
        assert len(self.queue) == 0
        for operation in (
            self.caller.events(EventKind.NACK, *range(1, 31), namespace="m"),
            self.caller.inserts(1, 375, namespace="m"),
        ):
            self.queue.submit(operation)
        self.queue.submit(self.caller.events(EventKind.NACK, 50, namespace="n", metadata=bytes(250)))
        del self.caller.calls[len(self.operations) :]
        self.queue.remove_all()


TestIntake = IntakeMachine.TestCase
TestIntake.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)


def test_the_plain_intake_allows_a_number_to_be_sealed_once_and_in_order() -> None:
    plain, caller = PlainIntake(), Caller()
    first, second = caller.acks(1), caller.acks(1)
    plain.submit(first)
    plain.submit(second)
    assert [(entry.operation, entry.place) for entry in plain.may_seal()] == [(first, 0)]
    with pytest.raises(KeyError):
        plain.seal(Batch([Part(second, 0, 1)]))
    assert isinstance(plain.waiting[0], Entry)
