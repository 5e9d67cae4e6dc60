"""One host's share of what a namespace may enqueue on all hosts of its tier together.

Think of one token bucket for the whole tier, which holds `BURST_S` of the limit.
About once a second every host tells the others how many items it has taken in
all, and how many it was asked to take lately. Between two *rounds*, in each of
which a host has heard of all others, it may take its *part* of what is in the
bucket and of what flows in; what it leaves is in the bucket again at the next
round. So parts need not be exact, nothing is lost when demand moves, and what
was taken too much anywhere is missing everywhere until it is made up for.

A part is a host's demand beside that of all. Always true, while every host hears
the others within `TOLD_PERIODS`: the parts of all hosts make no more than
1 + `LEAST_PART`. For a host counts of its own demand only what it has told for
so long, which the others know by then; a higher demand counts so much later, a
lower one at once. A host that is silent is taken to go on with the part that it
had when it was heard last; it does likewise with those that it does not hear, so
two sides that are cut off from each other go on with what each had.

Knows nothing of how hosts talk, nor which there are. Times are seconds of any
clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from math import ceil, exp, inf
from typing import Final, Generic, TypeVar

from foqs.core.limits.token_bucket import MINUTE_S

HostT = TypeVar("HostT", bound=Hashable)

BURST_S: Final = 2.0
"""So much of the limit may be saved up, by all hosts together."""
FRACTION_MIN: Final = 0.05
"""All hosts without demand have this part together, so that their first items need not wait."""
PROPAGATION_PERIODS: Final = 1.25
"""What was told so many periods of the exchange ago is known to everybody who hears."""
_REPORT_MERGE_PERIODS: Final = 0.25
"""What is told more often counts as told at once: the least of it."""
_DEMAND_TAU_S: Final = 0.4
"""In so long the weight of what was asked for falls to 1/e."""
_IDLE_S: Final = 60.0
"""A namespace that was not asked for so long has no demand, and its bucket is full."""


@dataclass(slots=True, frozen=True)
class HostReport:
    """What a host tells of a namespace.

    Attributes:
        demand: items a minute that it was asked to take lately, taken or refused.
        enqueued: items that it has taken in all; only differences mean anything.
        items, payload_bytes: what it holds.
    """

    demand: int = 0
    enqueued: int = 0
    items: int = 0
    payload_bytes: int = 0


EMPTY_REPORT: Final = HostReport()


@dataclass(slots=True)
class _SentDemand:
    """The least demand that was told between two moments near each other."""

    demand: int
    first_s: float
    last_s: float


class _OtherHost:
    """What is known of one other host."""

    __slots__ = ("assumed_enqueued", "fraction", "report")

    def __init__(self, report: HostReport) -> None:
        self.report = report
        self.fraction = 0.0
        self.assumed_enqueued = 0.0
        """Items that it is taken to have enqueued since, because it is silent."""


class ArrivalRate:
    """A rate that forgets."""

    __slots__ = ("_at_s", "_per_s")

    def __init__(self) -> None:
        self._per_s = 0.0
        self._at_s = -inf

    def add(self, items: int, now_s: float) -> None:
        self._per_s = self._per_s * exp((self._at_s - now_s) / _DEMAND_TAU_S) + items / _DEMAND_TAU_S
        self._at_s = now_s

    def per_minute(self, now_s: float) -> int:
        return round(self._per_s * exp((self._at_s - now_s) / _DEMAND_TAU_S) * MINUTE_S)

    def is_idle(self, now_s: float) -> bool:
        """There were none for a minute."""
        return now_s - self._at_s >= _IDLE_S


class RateAllocation(Generic[HostT]):
    """Of one namespace, at one host. To whoever enqueues it is a bucket, like `TokenBucket`.

    A call larger than the bucket passes when the bucket is full, and leaves it
    with a debt.

    Args:
        host_count: how many there are, this one included.
        period_s: between two times that a host asks another.
        is_complete: all of them were heard, so what was not spoken of was not asked for: the bucket is full. Otherwise there is
            an item in it, so that the first one passes.

    Attributes:
        part: of the limit and of what is left of a backlog, 0 to 1.
    """

    __slots__ = (
        "_arrivals",
        "_at_s",
        "_consumed",
        "_demand_elsewhere",
        "_enqueued",
        "_enqueued_elsewhere",
        "_held_bytes",
        "_held_items",
        "_host_count",
        "_next_update_s",
        "_other_hosts",
        "_period_s",
        "_round_s",
        "_sent_demands",
        "_tier_tokens",
        "_tokens",
        "elsewhere_bytes",
        "elsewhere_items",
        "fraction",
    )

    def __init__(self, host_count: int, period_s: float, now_s: float, *, is_complete: bool) -> None:
        self.fraction = 1 / host_count
        self.elsewhere_items = 0
        self.elsewhere_bytes = 0
        self._period_s = period_s
        self._arrivals = ArrivalRate()
        self._sent_demands = deque((_SentDemand(0, now_s, now_s),))
        """What this host told of its demand, the oldest first."""
        self._other_hosts: dict[HostT, _OtherHost] = {}
        self._demand_elsewhere = 0
        """Of the other hosts."""
        self._enqueued = 0
        """By this host, in all."""
        self._tokens = inf if is_complete else 1.0
        """What this host may take at `_at_s`: more than fits until it is looked at, less than nothing after a large call."""
        self._at_s = now_s
        self._tier_tokens = inf if is_complete else 0.0
        """What was in the tier's bucket at the last round."""
        self._round_s = now_s
        self._consumed = 0.0
        """By this host, since."""
        self._enqueued_elsewhere = 0.0
        """By the others, as they told since."""
        self._held_items = 0
        self._held_bytes = 0
        self._host_count = host_count
        self._next_update_s = inf
        """When more of this host's demand may count, by what it told."""

    # ---------------------------------------------------------------- to enqueue

    def record_request(self, items: int, now_s: float) -> None:
        """So many items are to be enqueued, whatever becomes of them."""
        self._arrivals.add(items, now_s)

    def wait_s(self, items: int, per_minute: int, now_s: float) -> float:
        """How long until so many items may pass: 0 now. No longer than it takes the share to follow demand."""
        self._catch_up(per_minute, now_s)
        missing = min(items, self._burst_items_max(per_minute)) - self._tokens
        if missing <= 0:
            return 0.0
        alone_s = missing * MINUTE_S / per_minute
        return min(alone_s / self.fraction, max(alone_s, PROPAGATION_PERIODS * self._period_s))

    def consume(self, items: int, per_minute: int, now_s: float) -> None:
        """So many items have passed, after `wait_s` said that they may."""
        self._catch_up(per_minute, now_s)
        self._tokens -= items
        self._consumed += items
        self._enqueued += items

    def refund(self, items: int) -> None:
        """So many of those that passed need not have."""
        self._tokens += items
        self._consumed -= items
        self._enqueued -= items

    def items_max(self, limit: int) -> int:
        """How many items this host may hold, of so many on all hosts."""
        return ceil(self._held_items + self.fraction * (limit - self._held_items - self.elsewhere_items))

    def bytes_max(self, limit: int) -> int:
        """How many bytes of payload likewise."""
        return ceil(self._held_bytes + self.fraction * (limit - self._held_bytes - self.elsewhere_bytes))

    # ----------------------------------------------------------- to and from others

    @property
    def is_unused_elsewhere(self) -> bool:
        """No other host has told anything but nothing."""
        return not (self._demand_elsewhere or self.elsewhere_items or self.elsewhere_bytes)

    def is_idle(self, now_s: float) -> bool:
        """Nobody asked here for a minute: there is nothing to tell of demand."""
        return self._arrivals.is_idle(now_s)

    def next_report(self, now_s: float) -> tuple[int, int]:
        """(demand, enqueued) of this host, which are told to others now."""
        demand = self._arrivals.per_minute(now_s)
        last = self._sent_demands[-1]
        if now_s - last.first_s < _REPORT_MERGE_PERIODS * self._period_s:
            last.last_s = now_s
            last.demand = min(last.demand, demand)
        else:
            self._sent_demands.append(_SentDemand(demand, now_s, now_s))
        return demand, self._enqueued

    def on_report(self, host: HostT, report: HostReport, host_count: int, per_minute: int, *, is_first: bool) -> None:
        """Another host says so.

        Args:
            host_count: how many there are, this one included.
            per_minute: the limit; 0 for none.
            is_first: it was not heard before, of any namespace.
        """
        known = self._other_hosts.get(host)
        if known is None:
            # A host that had nothing to tell the last time has taken little since, and one that is new took it before.
            recent_s = 0.0 if is_first else PROPAGATION_PERIODS * self._period_s + BURST_S
            lately = min(report.enqueued, ceil(recent_s * per_minute / MINUTE_S))
            known = self._other_hosts[host] = _OtherHost(HostReport(enqueued=report.enqueued - lately))
        before = known.report
        if report is EMPTY_REPORT:
            report = HostReport(enqueued=before.enqueued)
        self._enqueued_elsewhere += report.enqueued - before.enqueued - known.assumed_enqueued
        self._demand_elsewhere += report.demand - before.demand
        self.elsewhere_items += report.items - before.items
        self.elsewhere_bytes += report.payload_bytes - before.payload_bytes
        known.report = report
        known.assumed_enqueued = 0.0
        known.fraction = _fraction(report.demand, self._own_demand() + self._demand_elsewhere, host_count)

    def on_host_left(self, host: HostT) -> None:
        """That host is there no more: what it was asked for and held counts no longer."""
        known = self._other_hosts.pop(host, None)
        if known is not None:
            self._demand_elsewhere -= known.report.demand
            self.elsewhere_items -= known.report.items
            self.elsewhere_bytes -= known.report.payload_bytes

    def update_fraction(self, host_count: int, per_minute: int, now_s: float) -> None:
        """Has the part follow what is known, of so many hosts, this one included."""
        self._host_count = host_count
        known_s = now_s - PROPAGATION_PERIODS * self._period_s
        while len(self._sent_demands) > 1 and self._sent_demands[0].last_s <= known_s:
            self._sent_demands.popleft()
        self._next_update_s = (
            self._sent_demands[0].last_s + PROPAGATION_PERIODS * self._period_s if len(self._sent_demands) > 1 else inf
        )
        own = self._own_demand()
        self._add_tokens(per_minute, now_s)
        self.fraction = _fraction(own, own + self._demand_elsewhere, host_count)

    def end_round(
        self,
        host_count: int,
        unresponsive: Collection[HostT],
        per_minute: int,
        own_usage: tuple[int, int],
        now_s: float,
    ) -> None:
        """All but the silent were heard since the last round.

        Args:
            unresponsive: those that were not heard lately.
            own_usage: (items, bytes) that this host holds.
        """
        self.update_fraction(host_count, per_minute, now_s)
        self._held_items, self._held_bytes = own_usage
        gained = (now_s - self._round_s) * per_minute / MINUTE_S
        for host in unresponsive:
            assumed = self._assumed_fraction(host) * gained
            self._enqueued_elsewhere += assumed
            known = self._other_hosts.get(host)
            if known is not None:
                known.assumed_enqueued += assumed
        full = BURST_S * per_minute / MINUTE_S
        level = min(full, self._tier_tokens) + gained - self._consumed - self._enqueued_elsewhere
        # A debt is forgotten beyond a minute's worth, whatever anybody tells.
        self._tier_tokens = max(-float(per_minute), min(full, level))
        tokens = self.fraction * self._tier_tokens
        if self.fraction <= FRACTION_MIN / host_count:
            # What the least part has saved up is not the others' to use up.
            tokens = max(tokens, min(self._tokens, self._burst_items_max(per_minute)))
        self._tokens = tokens
        self._consumed = self._enqueued_elsewhere = 0.0
        self._at_s = self._round_s = now_s

    # --------------------------------------------------------------------- inside

    def _own_demand(self) -> int:
        """What counts of this host's demand: what it told all the while."""
        return min([told.demand for told in self._sent_demands])

    def _assumed_fraction(self, host: HostT) -> float:
        """The part of a silent host: that of before; an equal one if it was never heard."""
        known = self._other_hosts.get(host)
        return 1 / self._host_count if known is None else known.fraction

    def _burst_items_max(self, per_minute: int) -> float:
        return self.fraction * BURST_S * per_minute / MINUTE_S

    def _catch_up(self, per_minute: int, now_s: float) -> None:
        if now_s >= self._next_update_s:
            self.update_fraction(self._host_count, per_minute, now_s)
        self._add_tokens(per_minute, now_s)

    def _add_tokens(self, per_minute: int, now_s: float) -> None:
        gained = (now_s - self._at_s) * self.fraction * per_minute / MINUTE_S
        self._tokens = min(self._burst_items_max(per_minute), self._tokens + gained)
        self._at_s = now_s


def _fraction(demand: int, total_demand: int, host_count: int) -> float:
    """The part of a host with this demand, of the demand of so many hosts."""
    return max(FRACTION_MIN / host_count, demand / total_demand) if total_demand else 1 / host_count
