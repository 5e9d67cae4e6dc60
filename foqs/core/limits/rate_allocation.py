"""One host's part of the enqueue rate limit of a namespace, which all hosts of a tier share.

The model is one token bucket for the whole tier, which holds `BURST_S` of the limit.
About once a second, each host reports to the others how many items it has enqueued
in total, and its *arrival rate*: the items that callers lately asked it to enqueue,
enqueued or refused. A *round* ends when a host has the reports of all others.
Between two rounds, the host may take its *fraction* of the tokens in the bucket and
of those that flow in. Tokens that it does not take are in the bucket again at the
next round. So fractions need not be exact, no tokens are lost when arrivals move,
and tokens taken in excess are missing for all hosts until they are refilled.

A fraction is the host's arrival rate divided by that of all hosts. Always true while
each report arrives within `PROPAGATION_PERIODS`: the fractions of all hosts sum to at
most 1 + `FRACTION_MIN`. This holds because a host counts only the part of its own
rate that it has reported for that long, so the others know it. A rise of the rate
counts after that time, a fall at once. An unresponsive host is assumed to keep its
last known fraction, and does the same. So both sides of a network partition continue
with the fractions that they had.

Knows nothing of how hosts communicate, nor which hosts exist. Times are seconds of
any clock that does not go back.
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
"""All hosts together may save up this many seconds of the limit."""
FRACTION_MIN: Final = 0.05
"""The hosts without arrivals share this fraction, so that their first items need not wait."""
PROPAGATION_PERIODS: Final = 1.25
"""After this many periods of the exchange, every reachable host knows a report."""
_REPORT_MERGE_PERIODS: Final = 0.25
"""Reports within this many periods count as one, with the lowest arrival rate of them."""
_ARRIVALS_TAU_S: Final = 0.4
"""The time in which the weight of a past request falls to 1/e."""
_IDLE_S: Final = 60.0
"""After this time without a request, a namespace has no arrivals, and its bucket is full."""


@dataclass(slots=True, frozen=True)
class HostReport:
    """A host's report on one namespace.

    Attributes:
        arrivals_per_minute: items in recent requests, enqueued or refused.
        enqueued: items enqueued in total; only differences have a meaning.
        items, payload_bytes: the items that the host holds, and the bytes of their payloads.
    """

    arrivals_per_minute: int = 0
    enqueued: int = 0
    items: int = 0
    payload_bytes: int = 0


EMPTY_REPORT: Final = HostReport()


@dataclass(slots=True)
class _ReportedRate:
    """The lowest arrival rate in the reports between two near moments."""

    per_minute: int
    first_s: float
    last_s: float


class _OtherHost:
    """The known facts about one other host."""

    __slots__ = ("assumed_enqueued", "fraction", "report")

    def __init__(self, report: HostReport) -> None:
        self.report = report
        self.fraction = 0.0
        self.assumed_enqueued = 0.0
        """Items that it is assumed to have enqueued since its last report."""


class ArrivalRate:
    """A decaying average of an arrival rate."""

    __slots__ = ("_at_s", "_per_s")

    def __init__(self) -> None:
        self._per_s = 0.0
        self._at_s = -inf

    def add(self, items: int, now_s: float) -> None:
        self._per_s = self._per_s * exp((self._at_s - now_s) / _ARRIVALS_TAU_S) + items / _ARRIVALS_TAU_S
        self._at_s = now_s

    def per_minute(self, now_s: float) -> int:
        return round(self._per_s * exp((self._at_s - now_s) / _ARRIVALS_TAU_S) * MINUTE_S)

    def is_idle(self, now_s: float) -> bool:
        """Return whether nothing arrived for a minute."""
        return now_s - self._at_s >= _IDLE_S


class RateAllocation(Generic[HostT]):
    """The rate allocation of one namespace at one host. Enqueues use it like a `TokenBucket`.

    A call larger than the bucket passes when the bucket is full, and leaves it
    with a debt.

    Args:
        host_count: the number of hosts, this one included.
        period_s: the period of the exchange of reports.
        is_complete: all hosts have reported, so a namespace without a report had no arrivals and the bucket is full.
            Otherwise it holds one token, so that the first item passes.

    Attributes:
        fraction: this host's part, 0 to 1, of the rate limit, and of the items and bytes that may still be added.
        elsewhere_items, elsewhere_bytes: the items that the other hosts hold, and the bytes of their payloads.
    """

    __slots__ = (
        "_arrivals",
        "_arrivals_elsewhere",
        "_at_s",
        "_consumed",
        "_enqueued",
        "_enqueued_elsewhere",
        "_held_bytes",
        "_held_items",
        "_host_count",
        "_next_update_s",
        "_other_hosts",
        "_period_s",
        "_reported_rates",
        "_round_s",
        "_tier_tokens",
        "_tokens",
        "elsewhere_bytes",
        "elsewhere_items",
        "fraction",
    )

    scope = " for all hosts together"

    def __init__(self, host_count: int, period_s: float, now_s: float, *, is_complete: bool) -> None:
        self.fraction = 1 / host_count
        self.elsewhere_items = 0
        self.elsewhere_bytes = 0
        self._period_s = period_s
        self._arrivals = ArrivalRate()
        self._reported_rates = deque((_ReportedRate(0, now_s, now_s),))
        """The arrival rates that this host reported, oldest first."""
        self._other_hosts: dict[HostT, _OtherHost] = {}
        self._arrivals_elsewhere = 0
        self._enqueued = 0
        """Items that this host enqueued in total."""
        self._tokens = inf if is_complete else 1.0
        """This host's tokens at `_at_s`. May exceed the burst until `_add_tokens` caps it; negative after a large call."""
        self._at_s = now_s
        self._tier_tokens = inf if is_complete else 0.0
        """The tokens in the tier's bucket at the last round."""
        self._round_s = now_s
        self._consumed = 0.0
        """Items that passed at this host since the last round."""
        self._enqueued_elsewhere = 0.0
        """Items that other hosts enqueued, by their reports since the last round."""
        self._held_items = 0
        self._held_bytes = 0
        self._host_count = host_count
        self._next_update_s = inf
        """When the next reported arrival rate of this host starts to count."""

    # ---------------------------------------------------------------- to enqueue

    def record_request(self, items: int, now_s: float) -> None:
        """Record that a caller asks to enqueue `items`, whether they will pass or not."""
        self._arrivals.add(items, now_s)

    def wait_s(self, items: int, per_minute: int, now_s: float) -> float:
        """Return the time until `items` may pass; 0 if they may now.

        It is at most the time in which the fraction follows arrivals, or the time that the whole limit would
        need for them, if that is longer.
        """
        self._catch_up(per_minute, now_s)
        missing = min(items, self._burst_items_max(per_minute)) - self._tokens
        if missing <= 0:
            return 0.0
        alone_s = missing * MINUTE_S / per_minute
        return min(alone_s / self.fraction, max(alone_s, PROPAGATION_PERIODS * self._period_s))

    def consume(self, items: int, per_minute: int, now_s: float) -> None:
        """Take the tokens of items that passed, after `wait_s` returned 0."""
        self._catch_up(per_minute, now_s)
        self._tokens -= items
        self._consumed += items
        self._enqueued += items

    def refund(self, items: int) -> None:
        """Return the tokens of consumed items that were not enqueued."""
        self._tokens += items
        self._consumed -= items
        self._enqueued -= items

    def items_max(self, limit: int) -> int:
        """Return how many items this host may hold, if all hosts together may hold `limit`."""
        return ceil(self._held_items + self.fraction * (limit - self._held_items - self.elsewhere_items))

    def bytes_max(self, limit: int) -> int:
        """Return how many payload bytes this host may hold, if all hosts together may hold `limit`."""
        return ceil(self._held_bytes + self.fraction * (limit - self._held_bytes - self.elsewhere_bytes))

    # ------------------------------------------------------ exchange with other hosts

    @property
    def is_unused_elsewhere(self) -> bool:
        """Whether no other host reported any arrivals or items."""
        return not (self._arrivals_elsewhere or self.elsewhere_items or self.elsewhere_bytes)

    def is_idle(self, now_s: float) -> bool:
        """Return whether this host had no request for a minute, so it has no arrivals to report."""
        return self._arrivals.is_idle(now_s)

    def next_report(self, now_s: float) -> tuple[int, int]:
        """Return (arrivals per minute, enqueued) of this host for its next report, and record that it was reported."""
        per_minute = self._arrivals.per_minute(now_s)
        last = self._reported_rates[-1]
        if now_s - last.first_s < _REPORT_MERGE_PERIODS * self._period_s:
            last.last_s = now_s
            last.per_minute = min(last.per_minute, per_minute)
        else:
            self._reported_rates.append(_ReportedRate(per_minute, now_s, now_s))
        return per_minute, self._enqueued

    def on_report(self, host: HostT, report: HostReport, host_count: int, per_minute: int, *, is_first: bool) -> None:
        """Record the report of another host.

        Args:
            host_count: the number of hosts, this one included.
            per_minute: the limit; 0 for none.
            is_first: the host has not reported before, on any namespace.
        """
        known = self._other_hosts.get(host)
        if known is None:
            # A known host that had nothing to report last time can have enqueued only a little since.
            # A new host may have enqueued all of it long ago.
            recent_s = 0.0 if is_first else PROPAGATION_PERIODS * self._period_s + BURST_S
            recent_items = min(report.enqueued, ceil(recent_s * per_minute / MINUTE_S))
            known = self._other_hosts[host] = _OtherHost(HostReport(enqueued=report.enqueued - recent_items))
        before = known.report
        if report is EMPTY_REPORT:
            report = HostReport(enqueued=before.enqueued)
        self._enqueued_elsewhere += report.enqueued - before.enqueued - known.assumed_enqueued
        self._arrivals_elsewhere += report.arrivals_per_minute - before.arrivals_per_minute
        self.elsewhere_items += report.items - before.items
        self.elsewhere_bytes += report.payload_bytes - before.payload_bytes
        known.report = report
        known.assumed_enqueued = 0.0
        known.fraction = _fraction(
            report.arrivals_per_minute, self._own_arrival_rate() + self._arrivals_elsewhere, host_count
        )

    def on_host_left(self, host: HostT) -> None:
        """Stop counting the arrivals and the items of a host that left."""
        known = self._other_hosts.pop(host, None)
        if known is not None:
            self._arrivals_elsewhere -= known.report.arrivals_per_minute
            self.elsewhere_items -= known.report.items
            self.elsewhere_bytes -= known.report.payload_bytes

    def update_fraction(self, host_count: int, per_minute: int, now_s: float) -> None:
        """Compute the fraction again from the known arrival rates. `host_count` includes this host."""
        self._host_count = host_count
        known_s = now_s - PROPAGATION_PERIODS * self._period_s
        while len(self._reported_rates) > 1 and self._reported_rates[0].last_s <= known_s:
            self._reported_rates.popleft()
        self._next_update_s = (
            self._reported_rates[0].last_s + PROPAGATION_PERIODS * self._period_s
            if len(self._reported_rates) > 1
            else inf
        )
        own = self._own_arrival_rate()
        self._add_tokens(per_minute, now_s)
        self.fraction = _fraction(own, own + self._arrivals_elsewhere, host_count)

    def end_round(
        self,
        host_count: int,
        unresponsive: Collection[HostT],
        per_minute: int,
        own_usage: tuple[int, int],
        now_s: float,
    ) -> None:
        """End a round: all hosts have reported since the last one, except the unresponsive ones.

        Args:
            unresponsive: hosts without a recent report.
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
        # A debt is capped at the tokens of one minute, whatever the reports say.
        self._tier_tokens = max(-float(per_minute), min(full, level))
        tokens = self.fraction * self._tier_tokens
        if self.fraction <= FRACTION_MIN / host_count:
            # The other hosts must not use up the tokens saved by a host with the least fraction.
            tokens = max(tokens, min(self._tokens, self._burst_items_max(per_minute)))
        self._tokens = tokens
        self._consumed = self._enqueued_elsewhere = 0.0
        self._at_s = self._round_s = now_s

    # --------------------------------------------------------------------- inside

    def _own_arrival_rate(self) -> int:
        """Return the part of this host's arrival rate that counts: the lowest of the remembered reports."""
        return min([reported.per_minute for reported in self._reported_rates])

    def _assumed_fraction(self, host: HostT) -> float:
        """Return the fraction assumed for an unresponsive host: its last known one, or an equal one if it never reported."""
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


def _fraction(arrival_rate: int, total_rate: int, host_count: int) -> float:
    """Return the fraction of a host with this arrival rate; `total_rate` is that of all hosts."""
    return max(FRACTION_MIN / host_count, arrival_rate / total_rate) if total_rate else 1 / host_count
