"""The filters of a query that the hosts can apply.

Holds `Comparison` and `narrowed`. Always true: an item that all comparisons accept
matches the narrowed filter; others may match, too. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from foqs_client.spark.source_options import STATES, TOPICS_MAX
from foqs_client.types import ItemFilter

_INT32: Final = range(-(2**31), 2**31)


@dataclass(slots=True, frozen=True)
class Comparison:
    """A comparison of a column with a value.

    Attributes:
        kind: the name of Spark's class: EqualTo, In, GreaterThan and so on.
        column: the name of the column.
        value: the value; with In, several.
    """

    kind: str
    column: str
    value: Any

    @property
    def values(self) -> Sequence[Any] | None:
        """The values that the column may have, if the kind is In, EqualTo or EqualNullSafe; else None."""
        if self.kind == "In":
            return [value for value in self.value if value is not None]
        return [self.value] if self.kind in ("EqualTo", "EqualNullSafe") else None


def narrowed(only: ItemFilter, comparisons: Sequence[Comparison]) -> ItemFilter:
    """Return a filter that leaves out items that one of the comparisons refuses.

    Its `topics` or `states` are empty if no item can match.
    """
    for each in comparisons:
        values = each.values
        if each.column == "topic" and values is not None:
            topics = [name for name in dict.fromkeys(values) if only.topics is None or name in only.topics]
            if len(topics) <= TOPICS_MAX:
                only = replace(only, topics=tuple(topics))
        elif each.column == "state" and values is not None:
            only = replace(only, states=tuple(name for name in only.states or STATES if name in values))
        elif each.column == "priority" and isinstance(each.value, int):
            only = _with_priority(only, each.kind, each.value)
    return only


def _with_priority(only: ItemFilter, kind: str, value: int) -> ItemFilter:
    least = _INT32[0] if only.priority_min is None else only.priority_min
    greatest = _INT32[-1] if only.priority_max is None else only.priority_max
    if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual"):
        least = max(least, value)
    elif kind == "GreaterThan":
        least = max(least, value + 1)
    if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual"):
        greatest = min(greatest, value)
    elif kind == "LessThan":
        greatest = min(greatest, value - 1)
    if least > greatest:
        return replace(only, topics=())
    return replace(only, priority_min=least, priority_max=greatest)
