"""Gives the topics of `GroupClient` limits on the leases of their groups, and judges them.

The hosts of the process have the policies from the beginning: a call would reach them at different moments, and until then
deliveries without a limit would be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from foqs.catalog.document import Document
from foqs.catalog.namespaces import Namespaces
from foqs.core.groups.group_rules import GroupRules
from foqs.core.items.item import TopicName
from tests.simulation.group_client import LIMITS
from tests.simulation.planting import plant
from tests.support.clock_bounds import ClockBounds
from tests.support.group_rules import broken_limits
from tests.support.item_histories import ItemHistories

_GROUP_RULES: Final = {("default", topic): GroupRules(limit) for topic, limit in LIMITS.items()}
_installed: list[bool] = []


def install() -> None:
    """Give the topics of all hosts of this process their limits."""

    def init(self: Namespaces, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.group_rules = _GROUP_RULES

    def apply(self: Namespaces, document: Document) -> frozenset[TopicName]:
        resumed = original_apply(self, document)
        self.group_rules = _GROUP_RULES
        return resumed

    original = plant(Namespaces, "__init__", init)
    original_apply = plant(Namespaces, "apply", apply)
    _installed.append(True)


def violations(histories: ItemHistories, bounds: ClockBounds) -> Iterator[str]:
    """Yield the violations of invariants 23 and 24, if there are limits."""
    for invariant, ids, problem in broken_limits(histories, LIMITS, bounds) if _installed else ():
        timeline = [line for id in ids for line in histories.item_history(id).timeline()]
        head = f"invariant {invariant}: {problem} (item {', '.join(ids)})"
        yield "\n".join([head, *(f"  {line}" for line in timeline)])
