"""The numbers of new items: assigned once, and resolved only when their outcome is known."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.flush.item_numbers import ItemNumbers
from foqs.core.flush.operation import Inserts
from foqs.core.items.item import SEQUENCE_MAX, make_number, parse_id
from foqs.core.items.life import Event, EventKind
from foqs.core.timing.arrivals import Arrivals
from foqs.queue.port import ALREADY_GONE
from foqs_contract.errors import NotFound, Unavailable
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.plain_intake import finish

EPOCH = 3


class Assigned:
    """Item numbers, with the operations that a flush is writing."""

    def __init__(self) -> None:
        self.writing: list[Inserts] = []
        self.arrivals = Arrivals(0)
        self.numbers = ItemNumbers(EPOCH, self.arrivals, self.writing.__contains__)

    def inserts(self, count: int) -> Inserts:
        operation = Inserts("n", [new_item()] * count, self.numbers.next_number, 0, None)
        self.numbers.assign(operation)
        return operation


def number(sequence: int) -> int:
    return make_number(EPOCH, sequence)


def test_a_number_is_resolved_with_its_item_whatever_happened_to_earlier_ones() -> None:
    assigned = Assigned()
    first, second = assigned.inserts(3), assigned.inserts(2)
    assert second.numbers == range(number(4), number(6))
    finish(second, 0, [None, None])
    assert assigned.numbers.unresolved([number(at) for at in range(1, 7)]) == [number(6), *map(number, range(1, 4))]
    assert assigned.numbers.resolved_up_to == number(1) - 1
    finish(first, 0, [None])
    assert assigned.numbers.unresolved([number(at) for at in range(1, 4)]) == [number(2), number(3)]
    first.fail(1, 3, Unavailable("refused", retry_after_ms=1))
    assert assigned.numbers.resolved_up_to == number(5)
    assert not assigned.numbers.unresolved([number(2)])


def test_the_numbers_of_an_abandoned_operation_are_resolved_when_its_flush_has_ended() -> None:
    assigned = Assigned()
    operation = assigned.inserts(2)
    operation.seal(0, 1)
    assigned.writing.append(operation)
    operation.abandon()
    assert assigned.numbers.unresolved([number(1)])
    assert assigned.numbers.resolved_up_to < number(1)
    assigned.writing.clear()
    assert not assigned.numbers.unresolved([number(1)])
    assert assigned.numbers.resolved_up_to == number(2)


def test_numbers_of_other_epochs_count_as_resolved() -> None:
    assert not Assigned().numbers.unresolved([make_number(EPOCH + 1, 1)])
    assert not Assigned().numbers.unresolved([make_number(EPOCH - 1, 1)])


def test_some_numbers_are_kept_in_reserve_at_the_end_of_an_epoch() -> None:
    numbers = Assigned().numbers
    numbers.assign_sealed(SEQUENCE_MAX - 1_000_000)
    assert numbers.can_assign(0)
    assert not numbers.can_assign(1)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=300))
def test_exactly_the_numbers_of_finished_operations_are_resolved(steps: list[tuple[int, int]]) -> None:
    assigned = Assigned()
    operations: list[Inserts] = []
    for count, completed in steps:
        operations.append(assigned.inserts(count))
        if completed < len(operations):
            done = operations[-1 - completed]
            if done.is_open:
                finish(done, 0, [None] * len(done))
        pending = {number for operation in operations if operation.is_open for number in operation.numbers}
        numbers = {number for operation in operations for number in operation.numbers}
        assert set(assigned.numbers.unresolved([*numbers, make_number(EPOCH - 1, 1)])) == pending
        assert assigned.numbers.unresolved([assigned.numbers.next_number]) == [assigned.numbers.next_number]
        assert assigned.numbers.resolved_up_to == (min(pending) if pending else assigned.numbers.next_number) - 1


def test_a_check_asks_only_operations_among_its_numbers() -> None:
    """Thousands of enqueues may wait while items are acked, one call for each."""
    asked: list[Inserts] = []
    numbers = ItemNumbers(EPOCH, Arrivals(0), lambda operation: asked.append(operation) or False)  # type: ignore[func-returns-value]
    operations = []
    for place in range(60):  # fewer than are searched for resolved ones
        operation = Inserts("n", [new_item()] * 2, numbers.next_number, 0, None)
        numbers.assign(operation)
        if place:  # the first one waits
            finish(operation, 0, [None, None])
        operations.append(operation)
    assert numbers.unresolved([number(3), number(6), number(4)]) == []
    assert asked == operations[1:3]
    finish(operations[0], 0, [None, None])
    assert numbers.unresolved([number(119), number(120)]) == []
    assert numbers.unresolved([number(120), number(121)]) == [number(121)]


def test_an_item_that_is_being_written_is_not_reported_as_gone() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put("t")
        _, last = parse_id(name, "id")
        world.stall()
        puts = [asyncio.ensure_future(caller.put("t", 2))]
        await world.pass_s(0.01)
        puts.append(asyncio.ensure_future(caller.put("t", 2)))
        await world.pass_s(0.01)
        ids = [f"1-{last + after}" for after in range(1, 5)]
        events = [Event(EventKind.ACK, last + after, "default", token=1) for after in range(1, 5)]
        calls = [asyncio.ensure_future(caller.cancel(*ids))]
        calls.append(asyncio.ensure_future(caller.apply([(1, event) for event in events])))
        await world.pass_s(0.01)
        world.resume()
        for call in calls:
            assert [type(outcome) for outcome in await call] == [NotFound] * 4
        assert await puts[0] + await puts[1] == ids
        assert len((await caller.get("t", 9)).items) == 5
        assert await caller.cancel(*ids, name) == [None] * 5
        assert await caller.cancel(*ids, name) == [ALREADY_GONE] * 5

    run_in_world(story)


def test_finished_operations_behind_a_hanging_one_are_dropped_with_their_items() -> None:
    assigned = Assigned()
    hanging = assigned.inserts(1)
    for _ in range(50):
        operation = Inserts("n", [new_item(payload=b"x" * 100_000)] * 2, assigned.numbers.next_number, 0, None)
        assigned.numbers.assign(operation)
        finish(operation, 0, [None, None])
        assert sum(remembered.bytes for remembered in assigned.numbers._operations) <= 2_000_000
    assert assigned.numbers.resolved_up_to == number(1) - 1
    assert assigned.numbers.unresolved([number(1)])
    assert not assigned.numbers.unresolved([number(2)])
    finish(hanging, 0, [None])
    assert assigned.numbers.resolved_up_to == number(101)
