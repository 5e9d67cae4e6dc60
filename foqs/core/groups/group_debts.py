"""The turns of groups that have left the memory in debt, of all fair topics of one host.

Always true: there are at most `DEBTS_MAX`. Namespaces have shares of them by their weights, and one that has no more than its
share loses nothing to others; it may use what they leave. Beyond `DEBTS_MAX`, the oldest debt of a namespace with more than its
share is forgotten. Knows no group and no turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

DEBTS_MAX: Final = 10_000
"""Debts that a host remembers: four megabytes, if the names of the groups are as long as they may be."""


class GroupDebts:
    """The debts of a host.

    Args:
        weight_of: returns the weight of a namespace, at least 1. A change counts from the next debt of the namespace on.
    """

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._weight_of: Final = weight_of
        self._turns: dict[str, dict[tuple[TopicDebts, str], int]] = {}
        """The turns in debt by namespace, topic and group, oldest first. A namespace without any is missing."""
        self._weights: dict[str, int] = {}
        """The weights of these namespaces."""
        self._weight_sum = 0
        self._count = 0
        self._large = ""
        """The namespace that had most by its weight when one was searched for last."""

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return len(self) > 0

    def of_topic(self, namespace: str) -> TopicDebts:
        """Return the debts of one topic: none at first, also if the topic had others before."""
        return TopicDebts(self, namespace)

    def remember(self, topic: TopicDebts, name: str, turn: int) -> None:
        """Remember the turn of a group that leaves the memory."""
        namespace = topic.namespace
        turns = self._turns.setdefault(namespace, {})
        self._count += (topic, name) not in turns
        turns[topic, name] = turn
        self._set_weight(namespace, self._weight_of(namespace))
        if self._count > DEBTS_MAX:
            self._forget_oldest(namespace if self._is_large(namespace) else self._find_large())

    def take_turn(self, topic: TopicDebts, name: str) -> int:
        """Return the turn of a group, and forget it; 0 if it has no debt."""
        turns = self._turns.get(topic.namespace)
        if turns is None or (topic, name) not in turns:
            return 0
        turn = turns[topic, name]
        self._forget(topic.namespace, [(topic, name)])
        return turn

    def forget_passed(self, topic: TopicDebts, served: int) -> None:
        """Forget the debts of a topic that are over: its turns were served up to here."""
        turns = self._turns.get(topic.namespace, {})
        self._forget(topic.namespace, [key for key, turn in turns.items() if key[0] is topic and turn <= served])

    def _forget_oldest(self, namespace: str) -> None:
        self._forget(namespace, [next(iter(self._turns[namespace]))])

    def _forget(self, namespace: str, keys: list[tuple[TopicDebts, str]]) -> None:
        turns = self._turns.get(namespace, {})
        for key in keys:
            del turns[key]
        self._count -= len(keys)
        if keys and not turns:
            del self._turns[namespace]
            self._set_weight(namespace, 0)

    def _set_weight(self, namespace: str, weight: int) -> None:
        self._weight_sum += weight - self._weights.pop(namespace, 0)
        if weight:
            self._weights[namespace] = weight

    def _is_large(self, namespace: str) -> bool:
        """Return whether a namespace has more than its share."""
        return len(self._turns.get(namespace, ())) * self._weight_sum > DEBTS_MAX * self._weights.get(namespace, 0)

    def _find_large(self) -> str:
        """Return a namespace that has more than its share: there is one, because all together have more. The former one first."""
        if not self._is_large(self._large):
            self._large = max(self._turns, key=lambda name: len(self._turns[name]) / self._weights[name])
        return self._large


class TopicDebts:
    """The debts of one topic. It is no reference to its turns, which are forgotten with their shards."""

    def __init__(self, debts: GroupDebts, namespace: str) -> None:
        self.namespace: Final = namespace
        self._debts: Final = debts

    def remember(self, name: str, turn: int) -> None:
        """See `GroupDebts.remember`."""
        self._debts.remember(self, name, turn)

    def take_turn(self, name: str) -> int:
        """See `GroupDebts.take_turn`."""
        return self._debts.take_turn(self, name)

    def forget_passed(self, served: int) -> None:
        """See `GroupDebts.forget_passed`."""
        self._debts.forget_passed(self, served)
