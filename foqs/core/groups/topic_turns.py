"""The turns of the groups of a fair topic, on all shards of one host.

Always true: `served` is the highest turn that was served, and a group that is served, or begins to wait, gets a turn after
it. So while a group waits, each other one is delivered from at most twice, by weight, and a group that had nothing to do has
saved nothing. Knows no item and no table, and nothing is stored: after a takeover all groups begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from foqs.core.groups.group import Group
from foqs.core.groups.group_debts import GroupDebts, TopicDebts
from foqs.core.groups.places import UNGROUPED
from foqs.core.items.item import TURN_MAX

TURN: Final = 1 << 14
"""How far the turn of a group of weight 1 moves with a delivery. With 55 bits, a group that waits alone has 2^41 of them."""
WEIGHT_MAX: Final = 100
"""The highest weight of a group. Its turns are 163 of these parts, so a weight is met within 0.6 percent."""
DEBT_TURNS_MAX: Final = 256
"""A group waits for at most this many of its turns because of the time that it held leases. A longer lease is not paid in full."""
CREDIT_TURNS_MAX: Final = 4
"""By time, a group may be this many of its turns behind the others, and come forward: its leases were shorter than expected."""
_LEASE_S_FIRST: Final = 1.0
"""The mean lease before one has ended."""
_LEASES_FIRST: Final = 0.1
"""As how many leases this counts afterwards: few, so that the mean is soon that of real ones."""
_LEASES_FEW: Final = 20
"""Up to this many, a lease counts for the mean by which it is charged. Else the first ones, far from a second, would be debts."""
_LEASE_S_MIN: Final = 0.001
"""The least mean."""
_LEASES_COUNTED: Final = 1_000
"""The mean is that of about this many leases."""


class TopicTurns:
    """The turns of one topic.

    Args:
        stopwatch_s: returns seconds that never go back.
        weights: of groups that have another weight than 1; up to `WEIGHT_MAX`.
        by_time: whether groups take turns by the time that they hold leases, and not by items.
        debts: those of the topic, which the host remembers.

    Attributes:
        served: the highest turn that was served.
    """

    def __init__(
        self,
        stopwatch_s: Callable[[], float],
        weights: Mapping[str, int] = MappingProxyType({}),
        *,
        by_time: bool = False,
        debts: TopicDebts | None = None,
    ) -> None:
        self.weights = weights
        self.by_time = by_time
        self.served = 0
        self._stopwatch_s: Final = stopwatch_s
        self._leased_s = _LEASE_S_FIRST * _LEASES_FIRST
        self._ended_leases = _LEASES_FIRST
        self._debts: Final = GroupDebts(lambda _: 1).of_topic("") if debts is None else debts
        """The turns of groups that have left the memory, if these lie further ahead than those of others."""
        self._swept = 0
        """`served` when the debts were swept last."""

    def cost(self, name: str) -> int:
        """Return how far a delivery moves the turn of a group."""
        return TURN // self.weights.get(name, 1)

    def add(self, group: Group) -> None:
        """Note that a group enters the memory. A debt that it has left is its own again."""
        group.turn = self._debts.take_turn(group.name) if self.by_time else 0
        group.accounted_s = self._stopwatch_s() if self.by_time else 0.0

    def remove(self, group: Group) -> None:
        """Note that a group leaves the memory."""
        if not self.by_time:
            return
        if self.served - self._swept > DEBT_TURNS_MAX * TURN:
            self._swept = self.served
            self._debts.forget_passed(self.served)
        if group.turn > self.served + self.cost(group.name):
            self._debts.remember(group.name, group.turn)

    def begin_wait(self, group: Group) -> None:
        """Give a turn to a group that begins to wait."""
        group.is_waiting, group.since_s = True, self._stopwatch_s()
        group.turn = min(TURN_MAX, max(group.turn, self.served + self.cost(group.name)))

    def serve(self, group: Group, items: int = 1) -> None:
        """Note that the turn of a group has come, and give it the next one. Then its item is reserved, or the items of a run.

        `served` is the turn at which it waited, and not the one after what it held since: nobody has waited at that.
        """
        self.served = max(self.served, group.turn)
        if self.by_time:
            self.account(group)
            group.busy += items
            group.advances += items
        group.turn = self.next_turn(group.name, group.turn, self.served)
        if items > 1:
            group.turn = min(TURN_MAX, group.turn + (items - 1) * self.cost(group.name))
        group.since_s = self._stopwatch_s()

    def next_turn(self, name: str, turn: int, served: int) -> int:
        """Return the turn of a group after this one, if the highest turn that was served is `served`."""
        cost = self.cost(name)
        least = served - (CREDIT_TURNS_MAX * cost if self.by_time else 0)
        return min(TURN_MAX, max(turn, least) + cost)

    def waited_s(self, group: Group) -> float:
        """Return how long a group that waits has done so, since it began or was served."""
        return max(0.0, self._stopwatch_s() - group.since_s)

    def account(self, group: Group) -> None:
        """By time: charge the leases that a group held since it was accounted last.

        A delivery moves the turn as a mean lease does. This advance is taken back when its lease has ended, or when its
        reservation was given back: then the time that it took is charged. Leases that were read, or began again without a
        delivery, have no advance. Leases of items without a group are charged to nobody.
        """
        if not self.by_time or group.name.startswith(UNGROUPED):
            return
        now_s, busy = self._stopwatch_s(), len(group.leased) + len(group.reserved)
        held_s, ended = group.held * (now_s - group.accounted_s), max(0, group.busy - busy)
        if held_s or ended:
            cost, returned = self.cost(group.name), min(ended, group.advances)
            group.advances -= returned
            mean_s = self._mean_lease_s
            self._count(held_s, ended)
            if self._ended_leases < _LEASES_FEW:
                mean_s = self._mean_lease_s
            moved = int(cost * (held_s / mean_s - returned))
            group.turn = max(0, min(group.turn + moved, self.served + DEBT_TURNS_MAX * cost))
        group.accounted_s, group.busy, group.held = now_s, busy, len(group.leased)

    @property
    def _mean_lease_s(self) -> float:
        return max(_LEASE_S_MIN, self._leased_s / self._ended_leases)

    def _count(self, leased_s: float, ended: int) -> None:
        """Follow the mean lease: the time of all leases by the number of those that ended."""
        self._leased_s += leased_s
        self._ended_leases += ended
        if self._ended_leases > _LEASES_COUNTED:
            self._leased_s /= 2
            self._ended_leases /= 2
