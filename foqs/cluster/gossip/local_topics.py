"""The reports of this host about its topics: which changed, and how many items each holds now.

Holds `LocalTopics`. Always true: a topic is refreshed only when it changed, or when
one of its shards came or went; an update is current when it is sent, except that
a topic that was gone at its last refresh is reported as gone. The shards record
their changed topics from the moment they are first seen. Knows nothing of peers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from foqs.cluster.gossip.change_log import ChangeLog, Changes
from foqs.core.items.item import TopicName
from foqs.core.memory.sorted_names import SortedNames, merge_names
from foqs.queue.reads.listings import counts_by_state, topic_stats
from foqs.queue.turn_ages import turn_age_ms
from foqs.shard.shard import OwnedShard
from foqs_contract.idl import ttypes

_PAUSES_MAX: Final = 2
"""Pauses (None) of `merge_names` that are skipped without a name between them."""


class LocalTopics:
    """The topics of this host and their changes.

    Args:
        shards: this host's shards by number; the mapping changes as they come and go.
    """

    def __init__(self, shards: Mapping[int, OwnedShard], change_log: ChangeLog) -> None:
        self._shards = shards
        self._change_log = change_log
        self._known_shards: dict[int, OwnedShard] = {}
        """The shards that record their changed topics."""
        self._counting_shards: list[OwnedShard] = []
        """The known shards whose counts lag."""
        self._changed_topics: dict[TopicName, None] = {}
        """Topics to refresh next."""
        self._scheduled: deque[tuple[str, Iterator[str | None]]] = deque()
        """Topics to refresh later: all of shards that came, went or were counted, by namespace, from `merge_names`."""
        self._topic_names: dict[str, SortedNames] = {}
        self.refreshed_count = 0
        """How many times a topic was refreshed."""

    # ------------------------------------------------------------------- changing

    def refresh(self, topics_max: int, *, include_new: bool = True) -> bool:
        """Refresh at most `topics_max` changed topics. Returns whether more are left.

        Args:
            include_new: whether to include changes since the last call. A caller that continues a long list must not
                include them: on a busy host the list would never end.
        """
        self._sync_shards()
        if include_new:
            self._collect_touched()
        self._select_scheduled(topics_max)
        changed, serving = self._changed_topics, list(self._known_shards.values())
        for _ in range(min(topics_max, len(changed))):
            topic, _ = changed.popitem()
            self._refresh_topic(topic, exists=any(shard.memory.has_topic(topic) for shard in serving))
        return bool(changed or self._scheduled)

    def _sync_shards(self) -> None:
        """Schedule all topics of shards that came, went, or whose counts are no longer lagging."""
        serving = self.serving_shards()
        for shard in [shard for number, shard in self._known_shards.items() if serving.get(number) is not shard]:
            del self._known_shards[shard.number]
            shard.counts.changed = None
            if shard in self._counting_shards:
                self._counting_shards.remove(shard)
            self._schedule_all(shard)
        for number, shard in serving.items():
            if number not in self._known_shards:
                self._known_shards[number] = shard
                shard.counts.changed = {}
                self._schedule_all(shard)
                if shard.counts.is_lagging:
                    self._counting_shards.append(shard)
        for shard in [shard for shard in self._counting_shards if not shard.counts.is_lagging]:
            self._counting_shards.remove(shard)
            self._schedule_all(shard)

    def _schedule_all(self, shard: OwnedShard) -> None:
        self._scheduled += [(namespace, merge_names([names], "")) for namespace, names in shard.memory.all_topics()]

    def _select_scheduled(self, topics_max: int) -> None:
        """Move scheduled topics to those to refresh next, up to `topics_max`; fewer if names must be sorted first."""
        scheduled, changed = self._scheduled, self._changed_topics
        pauses = 0
        while scheduled and len(changed) < topics_max and pauses <= _PAUSES_MAX:
            namespace, names = scheduled[0]
            name = next(names, "")
            if name is None:
                pauses += 1
            elif name:
                pauses = 0
                changed[namespace, name] = None
            else:
                scheduled.popleft()

    def _collect_touched(self) -> None:
        for shard in self._known_shards.values():
            touched = shard.counts.changed
            if touched:
                shard.counts.changed = {}
                self._changed_topics.update(dict.fromkeys([place[:2] for place in touched]))

    def _refresh_topic(self, topic: TopicName, *, exists: bool) -> None:
        self.refreshed_count += 1
        self._change_log.record(topic, exists=exists)
        namespace, name = topic
        names = self._topic_names.get(namespace)
        if exists:
            if names is None:
                names = self._topic_names[namespace] = SortedNames()
            names.add(name)
        elif names is not None:
            names.discard(name)
            if not names:
                del self._topic_names[namespace]

    # -------------------------------------------------------------------- reading

    def serving_shards(self) -> dict[int, OwnedShard]:
        """Return the shards whose topics this host reports."""
        return {number: shard for number, shard in self._shards.items() if shard.is_serving}

    @property
    def is_complete(self) -> bool:
        """Whether every topic of the serving shards was refreshed, except for the latest changes."""
        return not self._changed_topics and not self._scheduled and self._known_shards == self.serving_shards()

    def topic_names(self, namespace: str) -> SortedNames | None:
        """Return the sorted topic names of a namespace; None if there are none. Read-only."""
        return self._topic_names.get(namespace)

    def changes_since(self, version: int | None, full_since: int | None, topics_max: int) -> Changes:
        """See `ChangeLog.changes_since`."""
        return self._change_log.changes_since(version, full_since, topics_max)

    def updates(self, topics: Sequence[TopicName]) -> list[Any]:
        """Return a `TopicUpdate` of each topic.

        A topic that came back and was not refreshed since is reported as gone: it may be
        deleted again before its refresh, and that deletion would not be recorded.
        """
        shards = list(self.serving_shards().values())
        return [self._update(topic, shards if topic in self._change_log else ()) for topic in topics]

    def _update(self, topic: TopicName, shards: Sequence[OwnedShard]) -> Any:
        holding = [shard for shard in shards if shard.memory.has_topic(topic)]
        if not holding:
            return ttypes.TopicUpdate(*topic)
        stats = topic_stats(topic, holding, counts_by_state(topic, holding), is_paused=False, is_partial=False)
        ready = stats.ready
        if stats.counts_lag and not ready and any(topic in shard.index for shard in holding):
            ready = 1  # there may be READY items, and dequeues that wait at peers must not wait for the count
        return ttypes.TopicUpdate(
            *topic,
            ready,
            stats.deferred or None,
            stats.leased or None,
            stats.dead or None,
            stats.best_priority,
            stats.oldest_ready_age_ms,
            stats.counts_lag or None,
            stats.deliverable,
            turn_age_ms(topic, holding),
        )
