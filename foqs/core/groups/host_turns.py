"""The turns of the fair topics of one host, which all its shards share.

Always true: while a shard holds the turns of a topic, each other shard that asks for them gets the same object. Those that no
shard holds are forgotten, so nobody removes them. Knows no shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from foqs.core.groups.group_debts import GroupDebts
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.items.item import TopicName


class HostTurns:
    """The turns by topic.

    Args:
        stopwatch_s: returns seconds that never go back.
        weight_of: returns the weight of a namespace, at least 1.
    """

    def __init__(self, stopwatch_s: Callable[[], float], weight_of: Callable[[str], int]) -> None:
        self._stopwatch_s: Final = stopwatch_s
        self._debts: Final = GroupDebts(weight_of)
        self._turns: WeakValueDictionary[TopicName, TopicTurns] = WeakValueDictionary()

    def of(self, topic: TopicName, weights: Mapping[str, int], *, by_time: bool) -> TopicTurns:
        """Return the turns of a topic, with these weights from now on. They are new if turns were counted otherwise before."""
        turns = self._turns.get(topic)
        if turns is None or turns.by_time != by_time:
            debts = self._debts.of_topic(topic[0])
            turns = self._turns[topic] = TopicTurns(self._stopwatch_s, by_time=by_time, debts=debts)
        turns.weights = weights
        return turns
