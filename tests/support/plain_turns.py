"""The turns of groups in their plainest form: one line of groups for a whole host, and what a consumer may see of it.

The specification of `foqs.core.groups.topic_turns`; see docs/design/groups.md. `TurnAccount` judges deliveries from the rows alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction


class PlainTurns:
    """The turns of the groups that wait. `served` is the highest turn that was served."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.weights = weights
        self.served = Fraction(0)
        self.turn: dict[str, Fraction] = {}

    def begin(self, group: str) -> None:
        self.turn[group] = self.served + Fraction(1, self.weights.get(group, 1))

    def end(self, group: str) -> None:
        self.turn.pop(group, None)

    def serve(self, groups: Iterable[str]) -> str:
        """Serve the one of these groups, all of which wait, whose turn comes first."""
        group = min(groups, key=lambda each: (self.turn[each], each))
        self.served = max(self.served, self.turn[group])
        self.begin(group)
        return group


class TurnAccount:
    """What each waiting group has seen the others get, since it began to wait or was served itself.

    `most` is the highest number of deliveries of another group during a wait, less those that its weight allows: at most 1
    means that the bound holds.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.weights = weights
        self.seen: dict[str, Counter[str]] = {}
        self.most = Fraction(0)

    def follow(self, waiting: Mapping[str, int]) -> None:
        """Note which groups wait now, with the priority of the first item of each."""
        for group in [group for group in self.seen if group not in waiting]:
            del self.seen[group]
        for group in waiting:
            self.seen.setdefault(group, Counter())

    def deliver(self, group: str, priority: int, waiting: Mapping[str, int]) -> None:
        """Note a delivery, before which these groups waited."""
        self.follow(waiting)
        for other, counts in self.seen.items():
            if other != group and waiting[other] == priority:
                counts[group] += 1
                allowed = Fraction(self.weights.get(group, 1), self.weights.get(other, 1))
                self.most = max(self.most, counts[group] - allowed)
        self.seen[group] = Counter()
