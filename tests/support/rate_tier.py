"""Hosts of a tier that share limits: quotas, their allocations, and an exchange that delays and loses messages.

Always true: time passes only in `run`, in steps of `STEP_S`. The seed decides which
host asks which, when, and how long it takes. Nothing is stored: a host holds what it
accepted, less what `consume` took.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from foqs.cluster.tier_limits import TierLimits
from foqs.options.options import NamespaceOptions
from foqs.queue.backlogs import Backlogs
from foqs.queue.quota import Quota
from foqs_contract.errors import FoqsError
from tests.support.builders import new_item

NAMESPACE: Final = "default"
STEP_S: Final = 0.02
PERIOD_S: Final = 1.0
"""Between two asks of a peer."""
LATENCY_S: Final = 0.05
_START_S: Final = 1_000.0

Rates = Callable[[float, int], float]
"""(seconds, host) -> items a minute that are to be enqueued there."""


class FixedBacklogs(Backlogs):
    """Usage of namespaces that the test sets."""

    items = 0

    def usage(self, namespace: str) -> tuple[int, int]:
        return self.items, self.items


@dataclass
class RateHost:
    quota: Quota
    backlogs: FixedBacklogs
    limits: TierLimits
    others: list[Any] = field(default_factory=list)
    """The hosts of the plan, as it was read last."""
    asks_s: dict[int, float] = field(default_factory=dict)
    fraction: float = 0.0


class RateTier:
    """Args:
    hosts: how many there are at first.
    items: of each call.
    """

    def __init__(self, hosts: int, settings: NamespaceOptions, seed: int = 0, items: int = 1) -> None:
        self.now_s = _START_S
        self.settings = settings
        self.hosts: dict[int, RateHost] = {}
        self.lost: Callable[[int, int], bool] = lambda asking, asked: False
        """Whether an ask gets no answer."""
        self.taken: list[tuple[float, int, int]] = []
        """(time, host, items) of each call that passed."""
        self.refused: list[tuple[float, int, FoqsError]] = []
        self._rng = Random(seed)
        self._call = [new_item(payload=b"x") for _ in range(items)]
        self._on_the_way: list[tuple[float, int, int, Sequence[Any]]] = []
        for _ in range(hosts):
            self.join()

    def join(self) -> int:
        """A host comes; all know of it at once. Returns its number."""
        number = max(self.hosts, default=-1) + 1
        backlogs = FixedBacklogs({})
        others: list[Any] = list(self.hosts)
        limits = TierLimits(backlogs, lambda: {NAMESPACE: self.settings}, lambda: others, lambda: self.now_s, PERIOD_S)
        quota = Quota({}, backlogs, limits, lambda: self.now_s)
        for host in self.hosts.values():
            host.others.append(number)
        self.hosts[number] = RateHost(quota, backlogs, limits, others)
        return number

    def die(self, number: int) -> None:
        """It does nothing any more; the plan has it until `forget`."""
        del self.hosts[number]

    def forget(self, number: Any) -> None:
        """The plan has it no more."""
        for host in self.hosts.values():
            host.others.remove(number)
            host.limits.on_peers_gone([number])

    def partition(self, number: int) -> float:
        return self.hosts[number].limits.of(NAMESPACE).fraction

    def offer(self, number: int, at_s: float = 0.0) -> FoqsError | None:
        """One call to one host. Returns why it was refused."""
        host = self.hosts[number]
        try:
            host.quota.check_limits(NAMESPACE, self.settings, self._call)
        except FoqsError as error:
            self.refused.append((at_s, number, error))
            return error
        host.quota.charge(NAMESPACE, self.settings, len(self._call))
        host.backlogs.items += len(self._call)
        self.taken.append((at_s, number, len(self._call)))
        return None

    def run(self, seconds: float, rates: Rates = lambda at_s, host: 0.0) -> None:
        """Let time pass while each host is asked at these rates. `rates` gets the time since the beginning."""
        end_s = self.now_s + seconds
        while self.now_s < end_s - STEP_S / 2:
            at_s = self.now_s - _START_S
            self._exchange()
            numbers = list(self.hosts)
            self._rng.shuffle(numbers)
            for number in numbers:
                host = self.hosts[number]
                host.fraction += rates(at_s, number) * STEP_S / 60
                while host.fraction >= len(self._call):
                    host.fraction -= len(self._call)
                    self.offer(number, at_s)
            self.now_s += STEP_S

    def minutes(self, since_s: float = 0.0) -> tuple[int, int]:
        """(least, most) items that passed in any minute."""
        last = round((self.now_s - _START_S - since_s) / STEP_S)
        steps = [0] * (last + 1)
        for at_s, _, items in self.taken:
            if at_s >= since_s:
                steps[round((at_s - since_s) / STEP_S)] += items
        width = round(60 / STEP_S)
        total = sum(steps[:width])
        totals = [total]
        for place in range(width, last):
            total += steps[place] - steps[place - width]
            totals.append(total)
        return min(totals), max(totals)

    def _exchange(self) -> None:
        for number, host in self.hosts.items():
            for peer in host.others:
                if host.asks_s.get(peer, 0.0) > self.now_s:
                    continue
                first = peer not in host.asks_s
                host.asks_s[peer] = self.now_s + PERIOD_S * (
                    self._rng.random() if first else self._rng.uniform(0.9, 1.1)
                )
                if peer in self.hosts and not self.lost(number, peer):
                    answer = self.hosts[peer].limits.namespace_reports()
                    self._on_the_way.append((self.now_s + self._rng.random() * LATENCY_S, number, peer, answer))
        arrived = [each for each in self._on_the_way if each[0] <= self.now_s]
        self._on_the_way = [each for each in self._on_the_way if each[0] > self.now_s]
        for _, asking, asked, reports in arrived:
            self._receive(asking, asked, reports)

    def _receive(self, asking: int, asked: Any, reports: Sequence[Any]) -> None:
        host = self.hosts.get(asking)
        if host is not None and asked in host.others:
            host.limits.on_namespace_reports(asked, reports)


def between(sides: Collection[Collection[int]]) -> Callable[[int, int], bool]:
    """Hosts of different sides do not reach each other."""
    return lambda asking, asked: not any(asking in side and asked in side for side in sides)
