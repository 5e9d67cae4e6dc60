"""The items in flight of a consumer, and their leases: pure bookkeeping.

Holds `InFlightSet` and `InFlightItem`. Always true: at most `items_max` items wait, run
or are reserved for a dequeue. Items that are being settled count too: together at most
`max(items_max, 2 * concurrency)`. At most `concurrency` handlers run. Every item ends
once, in one way. A lost item is neither started nor settled. A lease is renewed until
its item is settled, if items follow from it: a limit may refuse them for a long time.
Times are seconds of one clock. Knows nothing of calls and handlers.

    add ▶ WAITING ──start──▶ RUNNING ──finish──▶ SETTLING ──settled──▶ GONE
             │  └──finish waiting──────────────────▲  └──settle failed──▶ GONE, lost
             └──lease ended──▶ GONE, lost   RUNNING ──lease ended──▶ RUNNING, lost ──finish──▶ GONE
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from foqs_client.consumer.handler_outcome import HandlerOutcome, OutcomeKind
from foqs_client.consumer.job import Job
from foqs_client.types import Delivery

RENEW_FRACTION: Final = 0.5
"""A lease is renewed when this part of it has passed."""
EXTRA_CALL_ITEMS_MIN: Final = 100
"""The least number of items that are worth another call in parallel."""
ROUNDING_S: Final = 0.001
"""A lease may end earlier than stated by this time, because hosts count whole milliseconds."""
RENEW_RETRY_S_MIN: Final = 0.05
"""The least wait before a failed renewal is retried."""


class HandlingState(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    SETTLING = enum.auto()
    GONE = enum.auto()


class InFlightItem:
    """An item in flight.

    Attributes:
        job: the argument of its handler; None before the handler starts.
        own_lease_s: the item's own lease duration.
        lease_end_s: the moment at which its lease ends.
        lease_ms: the duration that the next renewal asks for; None: the item's own.
        is_renewing: a renewal is in flight. There is one at a time, so that hosts get them in order.
        outcome: the outcome by which to settle it; None before its handler ends.
    """

    __slots__ = (
        "delivery",
        "group",
        "is_lost",
        "is_renewing",
        "job",
        "lease_end_s",
        "lease_ms",
        "outcome",
        "own_lease_s",
        "state",
    )

    def __init__(self, delivery: Delivery, now_s: float, lease_ms: int | None) -> None:
        self.delivery = delivery
        self.job: Job | None = None
        self.state = HandlingState.WAITING
        self.own_lease_s = delivery.lease_remaining_ms / 1_000
        self.lease_end_s = _lease_end_s(self, now_s, None)
        self.lease_ms = lease_ms
        self.is_renewing = False
        self.is_lost = False
        self.outcome: HandlerOutcome | None = None
        self.group: _LeaseGroup | None = None

    @property
    def needs_lease(self) -> bool:
        """Whether its lease is to be renewed."""
        if self.state is HandlingState.SETTLING:
            return self.outcome is not None and bool(self.outcome.then)
        return not self.is_lost and self.state is not HandlingState.GONE


class _LeaseGroup:
    """Items of one reply whose leases share their timers. Items that end leave it."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[InFlightItem]) -> None:
        self.items = dict.fromkeys(items)
        for item in self.items:
            if item.group is not None:
                item.group.items.pop(item, None)
            item.group = self


class InFlightSet:
    """The items in flight of one consumer.

    Args:
        items_max: the maximum number of items that wait, run or are reserved.
        concurrency: the maximum number of running handlers.
        lease_ms: the lease duration of every delivery; None: the items' own.

    Attributes:
        ended_counts: the number of ended items by how they ended.
        running_count: the number of running handlers.
    """

    def __init__(self, items_max: int, concurrency: int, lease_ms: int | None = None) -> None:
        self.items_max = items_max
        self.concurrency = concurrency
        self.ended_counts: Counter[OutcomeKind] = Counter()
        self.running_count = 0
        self._with_settling_max = max(items_max, 2 * concurrency)
        self._lease_ms = lease_ms
        self._items: dict[InFlightItem, None] = {}
        self._waiting: deque[InFlightItem] = deque()
        self._waiting_count = 0
        self._reserved_count = 0
        self._timers: list[tuple[float, int, bool, _LeaseGroup]] = []
        """A heap of (when, sequence, whether leases end then or are renewed, group)."""
        self._timer_sequence = 0

    def __len__(self) -> int:
        return len(self._items)

    # ----------------------------------------------------------------- dequeues

    @property
    def room(self) -> int:
        """The number of further items that may be reserved.

        If no item waits for a handler, one whose handler has ended makes room before its ack
        is answered. Otherwise the handlers would be idle during each ack.
        """
        held = self._waiting_count + self.running_count
        return min(self.items_max - held, self._with_settling_max - len(self._items)) - self._reserved_count

    @property
    def waiting_count(self) -> int:
        """The number of items that no handler has started."""
        return self._waiting_count

    def should_dequeue(self, *, is_extra_call: bool = False) -> bool:
        """Return whether a dequeue is worthwhile: a quarter of the room is free, or a handler is idle.

        Args:
            is_extra_call: other dequeues are in flight; an idle handler is then no reason.
        """
        room, quarter = self.room, max(1, self.items_max // 4)
        if is_extra_call:
            return room >= max(quarter, EXTRA_CALL_ITEMS_MIN)
        return room >= quarter or (
            room > 0 and not self._waiting_count and not self._reserved_count and self.running_count < self.concurrency
        )

    def reserve(self, count: int) -> None:
        """Reserve room for the items of a dequeue."""
        assert 0 < count <= self.room
        self._reserved_count += count

    def add(self, reserved_count: int, deliveries: Sequence[Delivery], now_s: float) -> Sequence[Delivery]:
        """Add the items of a dequeue to the room reserved for it. Return the surplus, which the caller releases."""
        self._reserved_count -= reserved_count
        surplus = deliveries[reserved_count:]
        if surplus:
            deliveries = deliveries[:reserved_count]
        items = [InFlightItem(delivery, now_s, self._lease_ms) for delivery in deliveries]
        self._items.update(dict.fromkeys(items))
        self._waiting.extend(items)
        self._waiting_count += len(items)
        self._schedule_renewals(items, now_s)
        return surplus

    # ----------------------------------------------------------------- handlers

    def start_next(self) -> InFlightItem | None:
        """Mark the next item as running and return it; None if no item waits or enough handlers run."""
        if self.running_count >= self.concurrency:
            return None
        waiting = self._waiting
        while waiting:
            item = waiting.popleft()
            if item.state is HandlingState.WAITING:
                self._waiting_count -= 1
                self.running_count += 1
                item.state = HandlingState.RUNNING
                return item
        return None

    def finish(self, item: InFlightItem, outcome: HandlerOutcome) -> bool:
        """Record the end of a handler. Return False if the item was lost and must not be settled."""
        assert item.state is HandlingState.RUNNING
        self.running_count -= 1
        if item.is_lost:
            self._remove(item, OutcomeKind.LOST)
            return False
        self._start_settling(item, outcome)
        return True

    def running_items(self) -> list[InFlightItem]:
        """Return the items whose handlers run."""
        return [item for item in self._items if item.state is HandlingState.RUNNING]

    def finish_waiting(self, outcome: HandlerOutcome) -> list[InFlightItem]:
        """Give all waiting items this outcome, and return them to be settled."""
        found = [item for item in self._waiting if item.state is HandlingState.WAITING]
        self._waiting.clear()
        self._waiting_count = 0
        for item in found:
            self._start_settling(item, outcome)
        return found

    def mark_settled(self, items: Sequence[InFlightItem]) -> None:
        """Remove items that were settled, and count them by their outcomes."""
        for item in items:
            assert item.state is HandlingState.SETTLING
            assert item.outcome is not None
            item.state = HandlingState.GONE
            del self._items[item]
            self.end_renewal(item)
            self.ended_counts[item.outcome.kind] += 1

    def mark_settle_failed(self, item: InFlightItem) -> None:
        """Remove an item that could not be settled, and count it as lost."""
        assert item.state is HandlingState.SETTLING
        self._remove(item, OutcomeKind.LOST)

    def _start_settling(self, item: InFlightItem, outcome: HandlerOutcome) -> None:
        item.state = HandlingState.SETTLING
        item.outcome = outcome
        if not outcome.then:
            self.end_renewal(item)

    def _remove(self, item: InFlightItem, kind: OutcomeKind) -> None:
        item.state = HandlingState.GONE
        self.ended_counts[kind] += 1
        del self._items[item]
        self.end_renewal(item)

    # ------------------------------------------------------------------- leases

    @property
    def next_timer_s(self) -> float | None:
        """The moment at which to call `pop_due` next; None if there is no lease."""
        timers = self._timers
        while timers and not timers[0][3].items:
            heappop(timers)
        return timers[0][0] if timers else None

    def pop_due(self, now_s: float) -> tuple[list[InFlightItem], list[InFlightItem]]:
        """Return the items to renew now, and the items whose leases have ended, which it marks as lost."""
        renew: list[InFlightItem] = []
        lost: list[InFlightItem] = []
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            _, _, is_lease_end, group = heappop(timers)
            if not is_lease_end:
                renew += group.items
                continue
            for item in [item for item in group.items if item.lease_end_s <= now_s]:
                if item.state is HandlingState.SETTLING:  # the reply to its completion says what becomes of it
                    self.end_renewal(item)
                else:
                    self.mark_lost(item)
                    lost.append(item)
        return [item for item in renew if not item.is_lost and item.lease_end_s > now_s], lost

    def mark_lost(self, item: InFlightItem) -> None:
        """Record that the item's lease has ended."""
        item.is_lost = True
        if item.job is not None:
            item.job.lost = True
        if item.state is HandlingState.WAITING:
            self._waiting_count -= 1
            self._remove(item, OutcomeKind.LOST)
        else:
            self.end_renewal(item)

    def end_renewal(self, item: InFlightItem) -> None:
        """Renew the lease of an item no more."""
        if item.group is not None:
            item.group.items.pop(item, None)
            item.group = None

    def on_renewal_sent(self, items: Sequence[InFlightItem], sent_s: float, lease_ms: int | None) -> None:
        """Shorten the leases that a renewal shortens, before its reply, which may be lost. Arguments as for `on_renewed`."""
        shortened: list[InFlightItem] = []
        for item in items:
            until_s = _lease_end_s(item, sent_s, lease_ms)
            if until_s < item.lease_end_s and item.needs_lease:
                item.lease_end_s = until_s
                shortened.append(item)
        self._schedule_renewals(shortened, sent_s)

    def on_renewed(self, items: Sequence[InFlightItem], sent_s: float, lease_ms: int | None) -> None:
        """Set the ends of renewed leases, counted from the moment at which the renewal was sent.

        Args:
            lease_ms: the duration that this renewal asked for; None: the items' own.
        """
        for item in items:
            item.lease_end_s = _lease_end_s(item, sent_s, lease_ms)
        self._schedule_renewals([item for item in items if item.needs_lease], sent_s)

    def on_renewal_failed(self, items: Sequence[InFlightItem], now_s: float) -> None:
        """Schedule another renewal of these leases before they end, because one failed or its outcome is unknown."""
        live = [item for item in items if item.needs_lease]
        if live:
            group = _LeaseGroup(live)
            soonest_s = min(item.lease_end_s for item in live)
            self._schedule(
                now_s + max(RENEW_RETRY_S_MIN, (soonest_s - now_s) * RENEW_FRACTION), group, is_lease_end=False
            )
            self._schedule_lease_ends(group)

    def _schedule_renewals(self, items: Sequence[InFlightItem], now_s: float) -> None:
        """Schedule the timers of leases, in groups of about the same duration."""
        if not items:
            return
        lengths = [item.lease_end_s - now_s for item in items]
        if min(lengths) * 2 >= max(lengths):
            groups: Iterable[list[InFlightItem]] = (list(items),)
        else:
            by_magnitude: dict[int, list[InFlightItem]] = {}
            for item, length_s in zip(items, lengths, strict=True):
                by_magnitude.setdefault(int(length_s * 1_000).bit_length(), []).append(item)
            groups = by_magnitude.values()
        for members in groups:
            group = _LeaseGroup(members)
            shortest_s = min(item.lease_end_s for item in members) - now_s
            self._schedule(now_s + shortest_s * RENEW_FRACTION, group, is_lease_end=False)
            self._schedule_lease_ends(group)

    def _schedule_lease_ends(self, group: _LeaseGroup) -> None:
        for until_s in sorted({item.lease_end_s for item in group.items}):
            self._schedule(until_s, group, is_lease_end=True)

    def _schedule(self, at_s: float, group: _LeaseGroup, *, is_lease_end: bool) -> None:
        self._timer_sequence += 1
        heappush(self._timers, (at_s, self._timer_sequence, is_lease_end, group))


def _lease_end_s(item: InFlightItem, sent_s: float, lease_ms: int | None) -> float:
    return sent_s + (item.own_lease_s if lease_ms is None else lease_ms / 1_000) - ROUNDING_S
