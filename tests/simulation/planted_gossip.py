"""Bugs of what hosts tell each other to plant, to show that the simulation of several hosts would find them; as `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foqs.cluster.gossip.change_log import ChangeLog, Changes
from foqs.core.items.item import TopicName
from foqs.shard.shard_memory import ShardMemory
from tests.simulation.planted import Bug


def emptied_topics_unreported() -> None:
    """Nobody is told that a topic holds nothing any more."""

    def changed(self: ChangeLog, topic: TopicName, *, exists: bool) -> None:
        if exists:
            original(self, topic, exists=exists)

    original = ChangeLog.record
    ChangeLog.record = changed  # type: ignore[method-assign]


def moved_shards_unreported() -> None:
    """What a shard holds that comes, or goes, is told only when it changes."""

    ShardMemory.all_topics = lambda self: []  # type: ignore[method-assign]


def sent_counts_as_received() -> None:
    """What was sent in an answer is not told again, though the answer was lost."""

    def since(self: ChangeLog, version: int | None, full_since: int | None, topics_max: int) -> Changes:
        if version is not None:
            version = max(version, told.get(self, version))
        changes = original(self, version, full_since, topics_max)
        told[self] = changes.version
        return changes

    told: dict[Any, int] = {}
    original = ChangeLog.changes_since
    ChangeLog.changes_since = since  # type: ignore[method-assign]


BUGS: Final[Mapping[str, Bug]] = {
    "gone-unsaid": Bug(emptied_topics_unreported, (15,)),
    "moved-unsaid": Bug(moved_shards_unreported, (15,)),
    "told-is-heard": Bug(sent_counts_as_received, (15,)),
}
