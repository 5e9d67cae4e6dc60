"""The items that a consumer has in hand, and their leases: pure bookkeeping.

Holds `Hand` and `Held`. Always true: never more than `items_max` items are in
hand or asked for; at most `concurrency` handlers run; every item leaves once,
with one fate; what was lost is begun by nobody, and told to no host. Times are
seconds of one clock. Knows nothing of calls and handlers.

    taken ▶ WAITING ──begin──▶ RUNNING ──end──▶ SETTLING ──settle──▶ GONE
               │  └──drain───────────────────────▲  └──(told to no avail)──▶ GONE, lost
               └──lease over──▶ GONE, lost   RUNNING ──lease over──▶ RUNNING, lost ──end──▶ GONE
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
"""A lease is renewed when so much of it is over."""
EXTRA_CALL_ITEMS_MIN: Final = 100
"""A call beside others is not worth what it costs for fewer."""
ROUNDING_S: Final = 0.001
"""A lease may end this much earlier than it says: a host counts whole milliseconds."""
RENEW_RETRY_S_MIN: Final = 0.05
"""A renewal that failed is not tried again sooner."""


class HandlingState(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    SETTLING = enum.auto()
    GONE = enum.auto()


class InFlightItem:
    """One item.

    Attributes:
        job: what its handler has; None while nobody has begun it.
        until_s: when its lease ends.
        lease_ms: how long the next renewal makes the lease; None: as long as the item's own duration.
        renewing: a renewal is under way. There is one at a time, so that hosts see them in order.
        verdict: what is to be told of it, once its handler ended.
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


class _LeaseGroup:
    """Items whose leases are looked at together: those of one reply. Those that have ended leave it."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[InFlightItem]) -> None:
        self.items = dict.fromkeys(items)
        for one in self.items:
            if one.group is not None:
                one.group.items.pop(one, None)
            one.group = self


class InFlightSet:
    """All items of one consumer.

    Args:
        items_max: in hand or asked for.
        concurrency: handlers that run.
        lease_ms: of every delivery; None: the items' own.

    Attributes:
        fates: how many items have left, by what they ended as.
        running: how many handlers run.
    """

    def __init__(self, items_max: int, concurrency: int, lease_ms: int | None = None) -> None:
        self.items_max = items_max
        self.concurrency = concurrency
        self.ended_counts: Counter[OutcomeKind] = Counter()
        self.running_count = 0
        self._lease_ms = lease_ms
        self._items: dict[InFlightItem, None] = {}
        self._waiting: deque[InFlightItem] = deque()
        self._waiting_count = 0
        self._reserved_count = 0
        self._timers: list[tuple[float, int, bool, _LeaseGroup]] = []
        """When a group is to be looked at: whether its leases are over, or are to be renewed."""
        self._timer_sequence = 0

    def __len__(self) -> int:
        return len(self._items)

    # ------------------------------------------------------------------ coming

    @property
    def room(self) -> int:
        """How many more items may be asked for."""
        return self.items_max - len(self._items) - self._reserved_count

    @property
    def waiting_count(self) -> int:
        """Items that no handler has begun."""
        return self._waiting_count

    def should_dequeue(self, *, is_extra_call: bool = False) -> bool:
        """It is worth a call: a quarter of the bound is free, or a handler has nothing to do.

        Args:
            is_extra_call: others are under way: it has to be for a quarter, and for some number of items.
        """
        room, quarter = self.room, max(1, self.items_max // 4)
        if is_extra_call:
            return room >= max(quarter, EXTRA_CALL_ITEMS_MIN)
        return room >= quarter or (
            room > 0 and not self._waiting_count and not self._reserved_count and self.running_count < self.concurrency
        )

    def reserve(self, count: int) -> None:
        """A call for so many is made."""
        assert 0 < count <= self.room
        self._reserved_count += count

    def add(self, reserved_count: int, deliveries: Sequence[Delivery], now_s: float) -> Sequence[Delivery]:
        """The call for so many ended and brought these. Returns what is beyond the bound, for whoever gives it back."""
        self._reserved_count -= reserved_count
        surplus = deliveries[reserved_count:]
        if surplus:
            deliveries = deliveries[:reserved_count]
        taken = [InFlightItem(delivery, now_s, self._lease_ms) for delivery in deliveries]
        self._items.update(dict.fromkeys(taken))
        self._waiting.extend(taken)
        self._waiting_count += len(taken)
        self._schedule_renewals(taken, now_s)
        return surplus

    # ----------------------------------------------------------------- handlers

    def start_next(self) -> InFlightItem | None:
        """The item that is to be begun now; None where there is none, or enough handlers run."""
        if self.running_count >= self.concurrency:
            return None
        waiting = self._waiting
        while waiting:
            held = waiting.popleft()
            if held.state is HandlingState.WAITING:
                self._waiting_count -= 1
                self.running_count += 1
                held.state = HandlingState.RUNNING
                return held
        return None

    def finish(self, item: InFlightItem, outcome: HandlerOutcome) -> bool:
        """Its handler has ended. False: it was lost before, and nothing is to be told."""
        assert item.state is HandlingState.RUNNING
        self.running_count -= 1
        if item.is_lost:
            self._remove(item, OutcomeKind.LOST)
            return False
        self._start_settling(item, outcome)
        return True

    def running_items(self) -> list[InFlightItem]:
        """Those whose handlers run."""
        return [held for held in self._items if held.state is HandlingState.RUNNING]

    def drain_waiting(self, outcome: HandlerOutcome) -> list[InFlightItem]:
        """Those that nobody has begun, and nobody will: they are to be told with this verdict."""
        found = [held for held in self._waiting if held.state is HandlingState.WAITING]
        self._waiting.clear()
        self._waiting_count = 0
        for held in found:
            self._start_settling(held, outcome)
        return found

    def mark_settled(self, items: Sequence[InFlightItem]) -> None:
        """What was to be told of these is told: they end as that."""
        for held in items:
            assert held.state is HandlingState.SETTLING
            assert held.outcome is not None
            held.state = HandlingState.GONE
            del self._items[held]
            self.ended_counts[held.outcome.kind] += 1

    def mark_settle_failed(self, item: InFlightItem) -> None:
        """What was to be told was told to no avail: it is lost."""
        assert item.state is HandlingState.SETTLING
        self._remove(item, OutcomeKind.LOST)

    def _start_settling(self, item: InFlightItem, outcome: HandlerOutcome) -> None:
        item.state = HandlingState.SETTLING
        item.outcome = outcome
        if item.group is not None:
            item.group.items.pop(item, None)
            item.group = None

    def _remove(self, item: InFlightItem, kind: OutcomeKind) -> None:
        item.state = HandlingState.GONE
        self.ended_counts[kind] += 1
        del self._items[item]
        if item.group is not None:
            item.group.items.pop(item, None)
            item.group = None

    # ------------------------------------------------------------------- leases

    @property
    def next_timer_s(self) -> float | None:
        """When `pop_due` has something to say, or may have."""
        moments = self._timers
        while moments and not moments[0][3].items:
            heappop(moments)
        return moments[0][0] if moments else None

    def pop_due(self, now_s: float) -> tuple[list[InFlightItem], list[InFlightItem]]:
        """Items whose leases are to be renewed now, and those that are lost from now on."""
        renew: list[InFlightItem] = []
        lost: list[InFlightItem] = []
        moments = self._timers
        while moments and moments[0][0] <= now_s:
            _, _, over, group = heappop(moments)
            if not over:
                renew += group.items
                continue
            lost += [held for held in group.items if held.lease_end_s <= now_s]
        for held in lost:
            self.mark_lost(held)
        return [held for held in renew if not held.is_lost and held.lease_end_s > now_s], lost

    def mark_lost(self, item: InFlightItem) -> None:
        """Its lease is over."""
        item.is_lost = True
        if item.job is not None:
            item.job.lost = True
        if item.state is HandlingState.WAITING:
            self._waiting_count -= 1
            self._remove(item, OutcomeKind.LOST)
        elif item.group is not None:
            item.group.items.pop(item, None)
            item.group = None

    def on_renewal_sent(self, items: Sequence[InFlightItem], sent_s: float, lease_ms: int | None) -> None:
        """Books a renewal that is sent now, as far as it shortens leases: its reply may be lost. Arguments as for `on_renewed`."""
        shortened: list[InFlightItem] = []
        for one in items:
            until_s = _lease_end_s(one, sent_s, lease_ms)
            if until_s < one.lease_end_s and _is_live(one):
                one.lease_end_s = until_s
                shortened.append(one)
        self._schedule_renewals(shortened, sent_s)

    def on_renewed(self, items: Sequence[InFlightItem], sent_s: float, lease_ms: int | None) -> None:
        """Books the leases that a renewal gave: as long as it asked for, from the moment at which it was sent.

        Args:
            lease_ms: what that renewal asked for, whatever has been wished for since; None: the items' own durations.
        """
        for one in items:
            one.lease_end_s = _lease_end_s(one, sent_s, lease_ms)
        self._schedule_renewals([one for one in items if _is_live(one)], sent_s)

    def on_renewal_failed(self, items: Sequence[InFlightItem], now_s: float) -> None:
        """It is not known, or not so, that these were renewed: again, in time before they end."""
        live = [one for one in items if _is_live(one)]
        if live:
            group = _LeaseGroup(live)
            soonest_s = min(one.lease_end_s for one in live)
            self._schedule(
                now_s + max(RENEW_RETRY_S_MIN, (soonest_s - now_s) * RENEW_FRACTION), group, is_lease_end=False
            )
            self._schedule_lease_ends(group)

    def _schedule_renewals(self, items: Sequence[InFlightItem], now_s: float) -> None:
        """Has leases looked at in groups, those of about the same length together."""
        if not items:
            return
        lengths = [held.lease_end_s - now_s for held in items]
        if min(lengths) * 2 >= max(lengths):
            groups: Iterable[list[InFlightItem]] = (list(items),)
        else:
            kinds: dict[int, list[InFlightItem]] = {}
            for held, length_s in zip(items, lengths, strict=True):
                kinds.setdefault(int(length_s * 1_000).bit_length(), []).append(held)
            groups = kinds.values()
        for members in groups:
            group = _LeaseGroup(members)
            shortest_s = min(held.lease_end_s for held in members) - now_s
            self._schedule(now_s + shortest_s * RENEW_FRACTION, group, is_lease_end=False)
            self._schedule_lease_ends(group)

    def _schedule_lease_ends(self, group: _LeaseGroup) -> None:
        for until_s in sorted({held.lease_end_s for held in group.items}):
            self._schedule(until_s, group, is_lease_end=True)

    def _schedule(self, at_s: float, group: _LeaseGroup, *, is_lease_end: bool) -> None:
        self._timer_sequence += 1
        heappush(self._timers, (at_s, self._timer_sequence, is_lease_end, group))


def _lease_end_s(item: InFlightItem, sent_s: float, lease_ms: int | None) -> float:
    return sent_s + (item.own_lease_s if lease_ms is None else lease_ms / 1_000) - ROUNDING_S


def _is_live(item: InFlightItem) -> bool:
    return not item.is_lost and item.state in (HandlingState.WAITING, HandlingState.RUNNING)
