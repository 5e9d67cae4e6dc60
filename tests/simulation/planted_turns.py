"""Planted bugs of the turns of groups. See `planted`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from foqs.core.groups import topic_heads
from foqs.core.groups.group import Group
from foqs.core.groups.host_turns import HostTurns
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.items.item import OrderKey, TopicName
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def heads_without_turns() -> None:
    """The heads of a fair topic are in the order of their items."""
    without_turn: Callable[[OrderKey, int], OrderKey] = lambda order_key, turn: order_key  # noqa: E731
    plant(topic_heads, "with_turn", without_turn)


def turns_of_each_shard() -> None:
    """Each shard of a host counts the turns of its groups for itself."""

    def of(self: HostTurns, topic: TopicName, weights: Mapping[str, int], *, by_time: bool) -> TopicTurns:
        turns = TopicTurns(self._stopwatch_s, by_time=by_time)
        turns.weights = weights
        return turns

    plant(HostTurns, "of", of)


def beginners_first() -> None:
    """A group that begins to wait comes before all that wait already."""

    def begin_wait(self: TopicTurns, group: Group) -> None:
        original(self, group)
        group.turn = self.served

    original = plant(TopicTurns, "begin_wait", begin_wait)


def turns_saved() -> None:
    """A group that was not served for a while catches up: its next turn follows its last one."""

    def next_turn(self: TopicTurns, name: str, turn: int, served: int) -> int:
        return original(self, name, turn, turn)

    original = plant(TopicTurns, "next_turn", next_turn)


BUGS: Final[Mapping[str, Bug]] = {
    "heads-without-turns": Bug(heads_without_turns, (26,)),
    "turns-of-each-shard": Bug(turns_of_each_shard, (26,)),
    "beginners-first": Bug(beginners_first, (26,)),
    "turns-saved": Bug(turns_saved, (26,)),
}
"""Bugs that show if topics are fair."""
