"""Numbers of new items: given once, and settled only when their outcome is."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.errors import NotFound, Unavailable
from foqs.core.flush.item_numbers import ItemNumbers
from foqs.core.flush.work import Inserts
from foqs.core.items.item import SEQUENCE_MAX, make_number, parse_id
from foqs.core.items.life import Event, EventKind
from foqs.queue.port import ALREADY_GONE
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world

EPOCH = 3


def nobody() -> None:
    """The callback of a call that nobody waits for."""


class Book:
    """Numbers, with the calls that a flush is writing."""

    def __init__(self) -> None:
        self.writing: list[Inserts] = []
        self.numbers = ItemNumbers(EPOCH, self.writing.__contains__)

    def call(self, count: int) -> Inserts:
        call = Inserts("n", [new_item()] * count, self.numbers.next_number, nobody)
        self.numbers.assign(call)
        return call


def number(sequence: int) -> int:
    return make_number(EPOCH, sequence)


def test_a_number_is_settled_when_its_item_is_whatever_happened_to_those_before() -> None:
    book = Book()
    first, second = book.call(3), book.call(2)
    assert second.numbers == range(number(4), number(6))
    second.complete(0, [None, None])
    assert [book.numbers.is_resolved(number(at)) for at in range(1, 7)] == [False] * 3 + [True, True, False]
    assert book.numbers.resolved_up_to == number(1) - 1
    first.complete(0, [None])
    assert [book.numbers.is_resolved(number(at)) for at in range(1, 4)] == [True, False, False]
    first.fail(1, 3, Unavailable("refused", retry_after_ms=1))
    assert book.numbers.resolved_up_to == number(5)
    assert book.numbers.is_resolved(number(2))


def test_what_nobody_waits_for_is_settled_when_its_flush_has_ended() -> None:
    book = Book()
    call = book.call(2)
    call.seal(0, 1)
    book.writing.append(call)
    call.abandon()
    assert not book.numbers.is_resolved(number(1))
    assert book.numbers.resolved_up_to < number(1)
    book.writing.clear()
    assert book.numbers.is_resolved(number(1))
    assert book.numbers.resolved_up_to == number(2)


def test_numbers_of_other_epochs_are_the_tables_business() -> None:
    assert Book().numbers.is_resolved(make_number(EPOCH + 1, 1))
    assert Book().numbers.is_resolved(make_number(EPOCH - 1, 1))


def test_numbers_are_kept_back_at_the_end_of_an_epoch() -> None:
    numbers = Book().numbers
    numbers._last_sequence = SEQUENCE_MAX - 1_000_000
    assert numbers.can_assign(0)
    assert not numbers.can_assign(1)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=300))
def test_what_is_settled_is_known_exactly_however_many_calls_there_were(story: list[tuple[int, int]]) -> None:
    book = Book()
    calls: list[Inserts] = []
    for count, settle in story:
        calls.append(book.call(count))
        if settle < len(calls):
            done = calls[-1 - settle]
            if done.is_open:
                done.complete(0, [None] * len(done))
        pending = {each for call in calls if call.is_open for each in call.numbers}
        given_out = {each for call in calls for each in call.numbers}
        assert {each for each in given_out if not book.numbers.is_resolved(each)} == pending
        assert book.numbers.resolved_up_to == (min(pending) if pending else book.numbers.next_number) - 1


def test_nobody_is_told_that_an_item_is_gone_which_is_still_being_written() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put("t")
        _, last = parse_id(name, "id")
        world.stall()
        putting = [asyncio.ensure_future(caller.put("t", 2))]
        await world.pass_s(0.01)
        putting.append(asyncio.ensure_future(caller.put("t", 2)))
        await world.pass_s(0.01)
        ids = [f"1-{last + after}" for after in range(1, 5)]
        events = [Event(EventKind.ACK, last + after, "default", token=1) for after in range(1, 5)]
        told = [asyncio.ensure_future(caller.cancel(*ids))]
        told.append(asyncio.ensure_future(caller.apply([(1, event) for event in events])))
        await world.pass_s(0.01)
        world.resume()
        for each in told:
            assert [type(outcome) for outcome in await each] == [NotFound] * 4
        assert await putting[0] + await putting[1] == ids
        assert len((await caller.get("t", 9)).items) == 5
        assert await caller.cancel(*ids, name) == [None] * 5
        assert await caller.cancel(*ids, name) == [ALREADY_GONE] * 5

    run_in_world(story)


def test_calls_behind_one_that_hangs_are_let_go_with_their_items() -> None:
    book = Book()
    hanging = book.call(1)
    for _ in range(50):
        call = Inserts("n", [new_item(payload=b"x" * 100_000)] * 2, book.numbers.next_number, nobody)
        book.numbers.assign(call)
        call.complete(0, [None, None])
        assert sum(kept.bytes for kept in book.numbers._works) <= 2_000_000
    assert book.numbers.resolved_up_to == number(1) - 1
    assert not book.numbers.is_resolved(number(1))
    assert book.numbers.is_resolved(number(2))
    hanging.complete(0, [None])
    assert book.numbers.resolved_up_to == number(101)
