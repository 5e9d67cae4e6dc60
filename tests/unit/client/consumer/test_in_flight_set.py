"""Tests the items in flight of a consumer: the limit, the outcomes, the leases."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from foqs_client.consumer.handler_outcome import DONE, RELEASED, HandlerOutcome, OutcomeKind
from foqs_client.consumer.in_flight_set import ROUNDING_S, HandlingState, InFlightItem, InFlightSet
from foqs_client.consumer.job import Job
from foqs_client.types import Delivery, Item
from tests.support.example_counts import examples

WITH_FOLLOWER = HandlerOutcome(OutcomeKind.DONE, then=[Item("u")])


def deliveries(count: int, lease_ms: int = 10_000, first: int = 0) -> list[Delivery]:
    return [Delivery(id=f"0-{first + n}", token=n + 1, lease_remaining_ms=lease_ms) for n in range(count)]


def filled(count: int, lease_ms: int = 10_000, concurrency: int = 2) -> InFlightSet:
    in_flight = InFlightSet(20, concurrency)
    in_flight.reserve(count)
    in_flight.add(count, deliveries(count, lease_ms), 0.0)
    return in_flight


def begun(in_flight: InFlightSet) -> InFlightItem:
    item = in_flight.start_next()
    assert item is not None
    item.job = Job(item.delivery, lambda job, lease_ms: None)
    return item


def items_of(in_flight: InFlightSet) -> list[InFlightItem]:
    return list(in_flight._items)


def timers_of(in_flight: InFlightSet) -> list[tuple[float, bool, Collection[InFlightItem]]]:
    """Return (time, whether leases end then, their items) of each timer."""
    return [(at_s, is_end, group.items) for at_s, _, is_end, group in in_flight._timers]


class InFlightSetMachine(RuleBasedStateMachine):
    """Runs random events: the limits hold, and each item ends once."""

    @initialize(items=st.integers(1, 12), concurrency=st.integers(1, 12))
    def make_set(self, items: int, concurrency: int) -> None:
        self.in_flight = InFlightSet(items, min(items, concurrency))
        self.now_s = 0.0
        self.asked: list[int] = []
        self.taken = 0
        self.running: list[InFlightItem] = []
        self.settling: list[InFlightItem] = []
        self.renewing: list[InFlightItem] = []
        self.left: list[InFlightItem] = []

    @precondition(lambda self: self.in_flight.room > 0)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        items = data.draw(st.integers(1, self.in_flight.room))
        self.in_flight.reserve(items)
        self.asked.append(items)

    @precondition(lambda self: self.asked)
    @rule(share=st.floats(0, 1.4), lease_ms=st.sampled_from([100, 1_000, 3_000, 60_000]))
    def receive(self, share: float, lease_ms: int) -> None:
        items = self.asked.pop()
        found = deliveries(int(items * share), lease_ms, first=self.taken)
        surplus = self.in_flight.add(items, found, self.now_s)
        assert len(surplus) == max(0, len(found) - items)
        self.taken += len(found) - len(surplus)

    @rule()
    def start(self) -> None:
        item = self.in_flight.start_next()
        if item is not None:
            assert not item.is_lost
            item.job = Job(item.delivery, lambda job, lease_ms: None)
            self.running.append(item)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from([DONE, WITH_FOLLOWER]))
    def end(self, data: st.DataObject, outcome: HandlerOutcome) -> None:
        item = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        must_settle = self.in_flight.finish(item, outcome)
        assert must_settle != item.is_lost
        if must_settle:
            self.settling.append(item)

    @precondition(lambda self: self.settling)
    @rule(fails=st.booleans())
    def settle(self, fails: bool) -> None:
        if fails:
            self.in_flight.mark_settle_failed(self.settling.pop())
        else:
            self.in_flight.mark_settled([self.settling.pop() for _ in range(min(2, len(self.settling)))])

    @rule()
    def finish_waiting(self) -> None:
        self.settling += self.in_flight.finish_waiting(RELEASED)

    @rule(seconds=st.sampled_from([0.04, 0.5, 1.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        renew, lost = self.in_flight.pop_due(self.now_s)
        self.renewing += renew
        for item in lost:
            assert item.lease_end_s <= self.now_s
            assert item.is_lost
            assert item.job is None or item.job.lost

    @precondition(lambda self: self.renewing)
    @rule(worked=st.booleans())
    def renewal(self, worked: bool) -> None:
        members, self.renewing = self.renewing, []
        members = [item for item in members if item.needs_lease]
        if worked:
            self.in_flight.on_renewed(members, self.now_s, None)
        else:
            self.in_flight.on_renewal_failed(members, self.now_s)

    @invariant()
    def limits_hold(self) -> None:
        in_flight = self.in_flight
        held, asked = in_flight.waiting_count + in_flight.running_count, sum(self.asked)
        with_settling_max = max(in_flight.items_max, 2 * in_flight.concurrency)
        assert in_flight.room >= 0
        assert held + asked <= in_flight.items_max
        assert len(in_flight) + asked <= with_settling_max
        assert in_flight.room == min(in_flight.items_max - held, with_settling_max - len(in_flight)) - asked
        assert 0 <= in_flight.running_count <= in_flight.concurrency
        assert in_flight.waiting_count == sum(item.state is HandlingState.WAITING for item in items_of(in_flight))

    @invariant()
    def each_item_is_in_flight_or_ended_once(self) -> None:
        assert self.in_flight.ended_counts.total() + len(self.in_flight) == self.taken

    @invariant()
    def each_lease_is_watched(self) -> None:
        for item in items_of(self.in_flight):
            if item.needs_lease and item.lease_end_s > self.now_s:
                watched = [at_s for at_s, is_end, items in timers_of(self.in_flight) if item in items and is_end]
                assert item.lease_end_s in watched


InFlightSetMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
test_every_item_ends_once_and_limits_hold = InFlightSetMachine.TestCase


def test_leases_of_one_reply_are_renewed_together_when_half_of_their_time_has_passed() -> None:
    in_flight = filled(6)
    assert in_flight.next_timer_s == pytest.approx(5.0, abs=ROUNDING_S)
    assert in_flight.pop_due(4.9) == ([], [])
    renew, lost = in_flight.pop_due(5.0)
    assert (len(renew), lost) == (6, [])
    in_flight.on_renewed(renew, 5.0, None)
    assert in_flight.next_timer_s == pytest.approx(10.0, abs=ROUNDING_S)


def test_settled_item_is_not_renewed_and_is_forgotten() -> None:
    in_flight = filled(2)
    first = begun(in_flight)
    in_flight.finish(first, DONE)
    renew, _ = in_flight.pop_due(5.0)
    assert first not in renew
    in_flight.mark_settled([first])
    in_flight.on_renewed(renew, 5.0, None)
    second = begun(in_flight)
    in_flight.finish(second, DONE)
    assert not any(items for _, _, items in timers_of(in_flight))


def test_lease_is_renewed_until_the_item_is_settled_if_items_follow() -> None:
    in_flight = filled(1)
    item = begun(in_flight)
    in_flight.finish(item, WITH_FOLLOWER)
    assert in_flight.pop_due(5.0) == ([item], [])
    in_flight.on_renewed([item], 5.0, None)
    assert in_flight.pop_due(10.0) == ([item], [])
    in_flight.mark_settled([item])
    in_flight.on_renewed([item], 10.0, None)
    assert in_flight.next_timer_s is None


def test_item_whose_lease_ends_while_it_is_settled_is_not_lost_before_the_reply() -> None:
    in_flight = filled(1)
    item = begun(in_flight)
    in_flight.finish(item, WITH_FOLLOWER)
    assert in_flight.pop_due(30.0) == ([], [])
    assert in_flight.next_timer_s is None
    in_flight.mark_settled([item])
    assert in_flight.ended_counts == {OutcomeKind.DONE: 1}


def test_renewal_sets_the_duration_it_asked_for_and_not_a_later_one() -> None:
    in_flight = filled(1)
    item = begun(in_flight)
    item.lease_ms = 120_000
    in_flight.on_renewed([item], 5.0, None)
    assert item.lease_end_s == 15.0 - ROUNDING_S
    in_flight.on_renewed([item], 6.0, 120_000)
    assert item.lease_end_s == 126.0 - ROUNDING_S


def test_failed_renewal_is_retried_before_the_lease_ends() -> None:
    in_flight = filled(1)
    renew, _ = in_flight.pop_due(5.0)
    in_flight.on_renewal_failed(renew, 6.0)
    assert in_flight.next_timer_s == pytest.approx(8.0, abs=ROUNDING_S)


def test_item_is_lost_when_its_lease_ends_during_a_renewal() -> None:
    in_flight = filled(3, concurrency=1)
    running = begun(in_flight)
    assert running.job is not None
    in_flight.pop_due(5.0)
    _, lost = in_flight.pop_due(10.0)
    assert len(lost) == 3
    assert running.job.lost
    assert len(in_flight) == 1  # its handler still runs
    assert not in_flight.finish(running, DONE)
    assert in_flight.ended_counts == {OutcomeKind.LOST: 3}
    assert in_flight.start_next() is None


def test_leases_of_very_different_durations_have_separate_timers() -> None:
    in_flight = InFlightSet(20, 2)
    in_flight.reserve(2)
    short, long = deliveries(1, 1_000)[0], deliveries(1, 3_600_000, first=9)[0]
    in_flight.add(2, [short, long], 0.0)
    renew, _ = in_flight.pop_due(0.5)
    assert [item.delivery for item in renew] == [short]


def test_dequeue_is_worthwhile_when_a_quarter_is_free_or_a_handler_is_idle() -> None:
    in_flight = filled(16, concurrency=4)
    assert not in_flight.should_dequeue()
    for _ in range(4):
        begun(in_flight)
    assert not in_flight.should_dequeue()
    in_flight.finish_waiting(RELEASED)
    assert not in_flight.should_dequeue()  # they are not settled yet, and every handler has something to do
    full = filled(20, concurrency=19)
    assert full.room == 0
    assert not full.should_dequeue()


def test_item_makes_room_before_it_is_settled_if_no_item_may_wait() -> None:
    in_flight = InFlightSet(2, 2)
    for _ in range(2):
        in_flight.reserve(2)
        in_flight.add(2, deliveries(2, first=len(in_flight)), 0.0)
        for _ in range(2):
            in_flight.finish(begun(in_flight), DONE)
    assert len(in_flight) == 4
    assert in_flight.room == 0  # acks that are not answered are limited too
    in_flight.mark_settled(items_of(in_flight)[:1])
    assert in_flight.room == 1
