"""Planted bugs of gossip, for the simulation of several hosts; see `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foqs.cluster.gossip.change_log import ChangeLog, Changes
from foqs.core.items.item import TopicName
from foqs.shard.shard_memory import ShardMemory
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def emptied_topics_unreported() -> None:
    """A topic that became empty is not reported to other hosts."""

    def changed(self: ChangeLog, topic: TopicName, *, exists: bool) -> None:
        if exists:
            original(self, topic, exists=exists)

    original = plant(ChangeLog, "record", changed)


def moved_shards_unreported() -> None:
    """The topics of a shard that changes its owner are reported only when they change."""

    plant(ShardMemory, "all_topics", lambda self: [])


def sent_counts_as_received() -> None:
    """Changes that were sent in a reply are not sent again, although the reply was lost."""

    def since(self: ChangeLog, version: int | None, full_since: int | None, topics_max: int) -> Changes:
        if version is not None:
            version = max(version, sent.get(self, version))
        changes = original(self, version, full_since, topics_max)
        sent[self] = changes.version
        return changes

    sent: dict[Any, int] = {}
    original = plant(ChangeLog, "changes_since", since)


BUGS: Final[Mapping[str, Bug]] = {
    "emptied-topics-unreported": Bug(emptied_topics_unreported, (15,)),
    "moved-shards-unreported": Bug(moved_shards_unreported, (15,)),
    "sent-counts-as-received": Bug(sent_counts_as_received, (15,)),
}
