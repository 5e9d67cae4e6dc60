"""Gives the topics of `GroupClient` and `TurnTaker` policies, and judges the limits.

The hosts of the process have the policies from the beginning: a call would reach them at different moments, and until then
deliveries by other rules would be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from foqs.catalog.document import Document
from foqs.catalog.namespaces import Namespaces
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.item import TopicName
from foqs.shard import shard_memory
from tests.simulation.group_client import FIRST, LIMITS, NEXT
from tests.simulation.planting import plant
from tests.simulation.turn_taker import TURNS_TOPIC, WEIGHTS
from tests.support.clock_bounds import ClockBounds
from tests.support.group_rules import broken_limits
from tests.support.item_histories import ItemHistories

_FAIRNESS: Final = {FIRST: Fairness.ITEMS, NEXT: Fairness.TIME}
_UNITS: Final = 100
"""Memory for all groups of `TurnTaker`. Else there is room for two."""
_LITTLE: Final = 2

_limits: dict[str, int] = {}
"""The limits of topics, if they have some."""
_is_fair: list[bool] = []


def install(*, has_limits: bool, is_fair: bool) -> None:
    """Give the topics of all hosts of this process their policies."""
    _limits.update(LIMITS if has_limits else {})
    _is_fair.extend([True] if is_fair else [])
    rules = {
        ("default", topic): GroupRules(_limits.get(topic), _FAIRNESS[topic] if is_fair else None)
        for topic in (_FAIRNESS if is_fair else _limits)
    }
    if is_fair:
        rules["default", TURNS_TOPIC] = GroupRules(fair=Fairness.ITEMS, weights=WEIGHTS)

    def init(self: Namespaces, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.group_rules = rules

    def apply(self: Namespaces, document: Document) -> list[TopicName]:
        resumed = original_apply(self, document)
        self.group_rules = rules
        return resumed

    original = plant(Namespaces, "__init__", init)
    original_apply = plant(Namespaces, "apply", apply)


def are_fair() -> bool:
    """Return whether topics are fair."""
    return bool(_is_fair)


def begin(seed: int) -> bool:
    """Choose the memory for groups of a run. Return whether the turns may be judged: all groups fit."""
    has_room = are_fair() and seed % 4 != 3
    plant(shard_memory, "GROUPS_MIN", _UNITS if has_room else _LITTLE)
    return has_room


def violations(histories: ItemHistories, bounds: ClockBounds) -> Iterator[str]:
    """Yield the violations of invariants 23 and 24, if there are limits."""
    for invariant, ids, problem in broken_limits(histories, _limits, bounds):
        timeline = [line for id in ids for line in histories.item_history(id).timeline()]
        head = f"invariant {invariant}: {problem} (item {', '.join(ids)})"
        yield "\n".join([head, *(f"  {line}" for line in timeline)])
