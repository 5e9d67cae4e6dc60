"""Tests the items in flight of a consumer: the limit, the outcomes, the leases."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from foqs_client.consumer.handler_outcome import DONE, RELEASED, OutcomeKind
from foqs_client.consumer.in_flight_set import ROUNDING_S, HandlingState, InFlightItem, InFlightSet
from foqs_client.consumer.job import Job
from foqs_client.types import Delivery


def deliveries(count: int, lease_ms: int = 10_000, first: int = 0) -> list[Delivery]:
    return [Delivery(id=f"0-{first + n}", token=n + 1, lease_remaining_ms=lease_ms) for n in range(count)]


def filled(count: int, lease_ms: int = 10_000, concurrency: int = 2) -> InFlightSet:
    hand = InFlightSet(20, concurrency)
    hand.reserve(count)
    hand.add(count, deliveries(count, lease_ms), 0.0)
    return hand


def begun(hand: InFlightSet) -> InFlightItem:
    held = hand.start_next()
    assert held is not None
    held.job = Job(held.delivery, lambda job, lease_ms: None)
    return held


class HandMachine(RuleBasedStateMachine):
    """Runs random events: the limits hold, and each item ends once."""

    @initialize(items=st.integers(1, 12), concurrency=st.integers(1, 12))
    def begin_hand(self, items: int, concurrency: int) -> None:
        self.hand = InFlightSet(items, min(items, concurrency))
        self.now_s = 0.0
        self.asked: list[int] = []
        self.taken = 0
        self.running: list[InFlightItem] = []
        self.settling: list[InFlightItem] = []
        self.renewing: list[InFlightItem] = []
        self.left: list[InFlightItem] = []

    @precondition(lambda self: self.hand.room > 0)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        items = data.draw(st.integers(1, self.hand.room))
        self.hand.reserve(items)
        self.asked.append(items)

    @precondition(lambda self: self.asked)
    @rule(share=st.floats(0, 1.4), lease_ms=st.sampled_from([100, 1_000, 3_000, 60_000]))
    def take(self, share: float, lease_ms: int) -> None:
        items = self.asked.pop()
        found = deliveries(int(items * share), lease_ms, first=self.taken)
        surplus = self.hand.add(items, found, self.now_s)
        assert len(surplus) == max(0, len(found) - items)
        self.taken += len(found) - len(surplus)

    @rule()
    def start(self) -> None:
        held = self.hand.start_next()
        if held is not None:
            assert not held.is_lost
            held.job = Job(held.delivery, lambda job, lease_ms: None)
            self.running.append(held)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        held = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        told = self.hand.finish(held, DONE)
        assert told != held.is_lost
        if told:
            self.settling.append(held)

    @precondition(lambda self: self.settling)
    @rule(to_no_avail=st.booleans())
    def settle(self, to_no_avail: bool) -> None:
        if to_no_avail:
            self.hand.mark_settle_failed(self.settling.pop())
        else:
            self.hand.mark_settled([self.settling.pop() for _ in range(min(2, len(self.settling)))])

    @rule()
    def drain(self) -> None:
        self.settling += self.hand.drain_waiting(RELEASED)

    @rule(seconds=st.sampled_from([0.04, 0.5, 1.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        renew, lost = self.hand.pop_due(self.now_s)
        self.renewing += renew
        for held in lost:
            assert held.lease_end_s <= self.now_s
            assert held.is_lost
            assert held.job is None or held.job.lost

    @precondition(lambda self: self.renewing)
    @rule(worked=st.booleans())
    def renewal(self, worked: bool) -> None:
        members, self.renewing = self.renewing, []
        members = [held for held in members if held.state in (HandlingState.WAITING, HandlingState.RUNNING)]
        if worked:
            self.hand.on_renewed(members, self.now_s, None)
        else:
            self.hand.on_renewal_failed(members, self.now_s)

    @invariant()
    def nothing_is_beyond_its_bound(self) -> None:
        hand = self.hand
        assert hand.room >= 0
        assert len(hand) + sum(self.asked) + hand.room == hand.items_max
        assert 0 <= hand.running_count <= hand.concurrency
        assert hand.waiting_count == sum(held.state is HandlingState.WAITING for held in hand._items)

    @invariant()
    def each_item_is_in_hand_or_has_one_fate(self) -> None:
        assert self.hand.ended_counts.total() + len(self.hand) == self.taken

    @invariant()
    def each_lease_is_watched(self) -> None:
        for held in self.hand._items:
            if held.state in (HandlingState.WAITING, HandlingState.RUNNING) and not held.is_lost:
                watched = [entry[0] for entry in self.hand._timers if held in entry[3].items and entry[2]]
                assert held.lease_end_s in watched


HandMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_every_item_ends_once_and_nothing_is_beyond_its_bound = HandMachine.TestCase


def test_leases_of_one_reply_are_renewed_together_when_half_of_their_time_has_passed() -> None:
    hand = filled(6)
    assert hand.next_timer_s == pytest.approx(5.0, abs=ROUNDING_S)
    assert hand.pop_due(4.9) == ([], [])
    renew, lost = hand.pop_due(5.0)
    assert (len(renew), lost) == (6, [])
    hand.on_renewed(renew, 5.0, None)
    assert hand.next_timer_s == pytest.approx(10.0, abs=ROUNDING_S)


def test_settled_item_is_not_renewed_and_is_forgotten() -> None:
    hand = filled(2)
    first = begun(hand)
    hand.finish(first, DONE)
    renew, _ = hand.pop_due(5.0)
    assert first not in renew
    hand.mark_settled([first])
    hand.on_renewed(renew, 5.0, None)
    second = begun(hand)
    hand.finish(second, DONE)
    assert not any(entry[3].items for entry in hand._timers)


def test_renewal_sets_the_duration_it_asked_for_and_not_a_later_one() -> None:
    hand = filled(1)
    held = begun(hand)
    held.lease_ms = 120_000
    hand.on_renewed([held], 5.0, None)
    assert held.lease_end_s == 15.0 - ROUNDING_S
    hand.on_renewed([held], 6.0, 120_000)
    assert held.lease_end_s == 126.0 - ROUNDING_S


def test_failed_renewal_is_retried_before_the_lease_ends() -> None:
    hand = filled(1)
    renew, _ = hand.pop_due(5.0)
    hand.on_renewal_failed(renew, 6.0)
    assert hand.next_timer_s == pytest.approx(8.0, abs=ROUNDING_S)


def test_item_is_lost_when_its_lease_ends_during_a_renewal() -> None:
    hand = filled(3, concurrency=1)
    running = begun(hand)
    assert running.job is not None
    hand.pop_due(5.0)
    _, lost = hand.pop_due(10.0)
    assert len(lost) == 3
    assert running.job.lost
    assert len(hand) == 1  # its handler still runs
    assert not hand.finish(running, DONE)
    assert hand.ended_counts == {OutcomeKind.LOST: 3}
    assert hand.start_next() is None


def test_leases_of_very_different_durations_have_separate_timers() -> None:
    hand = InFlightSet(20, 2)
    hand.reserve(2)
    short, long = deliveries(1, 1_000)[0], deliveries(1, 3_600_000, first=9)[0]
    hand.add(2, [short, long], 0.0)
    renew, _ = hand.pop_due(0.5)
    assert [held.delivery for held in renew] == [short]


def test_dequeue_is_worthwhile_when_a_quarter_is_free_or_a_handler_is_idle() -> None:
    hand = filled(16, concurrency=4)
    assert not hand.should_dequeue()
    for _ in range(4):
        begun(hand)
    assert not hand.should_dequeue()
    hand.drain_waiting(RELEASED)
    assert not hand.should_dequeue()  # they are not told yet, and every handler has something
    full = filled(20, concurrency=19)
    assert full.room == 0
    assert not full.should_dequeue()
