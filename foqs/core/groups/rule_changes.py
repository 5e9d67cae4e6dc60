"""Which topics of a host have other rules for groups than before, compared once for all its shards.

Always true: a result is a function of the two mappings, which nobody changes. Knows no group and no shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foqs.core.groups.group import STRICT
from foqs.core.groups.group_rules import GroupRules
from foqs.core.items.item import TopicName


@dataclass(slots=True, frozen=True)
class ChangedRules:
    """What a shard must follow.

    Attributes:
        topics: those that have got rules, have others, or have none any more.
        limited_names: all topics that have a limit now.
        strict_names: those of them whose groups are strict.
    """

    topics: Sequence[TopicName]
    limited_names: frozenset[TopicName]
    strict_names: frozenset[TopicName] = frozenset()


class RuleChanges:
    """Compares the rules of all topics. All shards of a host follow a change one after the other, so it remembers the last result."""

    def __init__(self) -> None:
        self._former: Mapping[TopicName, GroupRules] | None = None
        self._rules: Mapping[TopicName, GroupRules] | None = None
        self._result = ChangedRules((), frozenset())

    def between(self, former: Mapping[TopicName, GroupRules], rules: Mapping[TopicName, GroupRules]) -> ChangedRules:
        """Return what has changed from one mapping to the other."""
        if self._former is not former or self._rules is not rules:
            self._former, self._rules = former, rules
            gone = [topic for topic in former if topic not in rules]
            changed = [topic for topic, own in rules.items() if former.get(topic) != own]
            limited = frozenset([topic for topic, own in rules.items() if own.leases_max is not None])
            strict = frozenset([topic for topic in limited if rules[topic].leases_max == STRICT])
            self._result = ChangedRules([*gone, *changed], limited, strict)
        return self._result
