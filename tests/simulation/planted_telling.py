"""Bugs of what hosts tell each other to plant, to show that the simulation of several hosts would find them; as `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foqs.core.item import TopicName
from foqs.shard.memory import ShardMemory
from foqs.tier.journal import Changes, Journal
from tests.simulation.planted import Bug


def gone_unsaid() -> None:
    """Nobody is told that a topic holds nothing any more."""

    def changed(self: Journal, topic: TopicName, *, there: bool) -> None:
        if there:
            original(self, topic, there=there)

    original = Journal.changed
    Journal.changed = changed  # type: ignore[method-assign]


def moved_unsaid() -> None:
    """What a shard holds that comes, or goes, is told only when it changes."""

    ShardMemory.every_topic = lambda self: []  # type: ignore[method-assign]


def told_is_heard() -> None:
    """What was sent in an answer is not told again, though the answer was lost."""

    def since(self: Journal, version: int | None, whole_since: int | None, topics_max: int) -> Changes:
        if version is not None:
            version = max(version, told.get(self, version))
        changes = original(self, version, whole_since, topics_max)
        told[self] = changes.version
        return changes

    told: dict[Any, int] = {}
    original = Journal.since
    Journal.since = since  # type: ignore[method-assign]


BUGS: Final[Mapping[str, Bug]] = {
    "gone-unsaid": Bug(gone_unsaid, (15,)),
    "moved-unsaid": Bug(moved_unsaid, (15,)),
    "told-is-heard": Bug(told_is_heard, (15,)),
}
