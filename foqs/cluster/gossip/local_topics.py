"""What this host tells the others of its topics: which have changed, and what each holds now.

Holds `LocalTopics`. Always true: a topic is looked at only when something of it
has changed, was served anew, or is served here no more; what is told is what is
so when it is told, but of what was gone when it was looked at, only that. The shards note in passing what changes, from when they are
seen first. Knows nothing of who asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from foqs.cluster.gossip.change_log import ChangeLog, Changes
from foqs.core.items.item import TopicName
from foqs.core.memory.sorted_names import SortedNames, merge_names
from foqs.queue.listings import counts_by_state, topic_stats
from foqs.shard.shard import Shard
from foqs_client.idl import ttypes

_PAUSES_MAX: Final = 2
"""Pauses of `in_order` that are passed over without a name between them."""


class LocalTopics:
    """Args:
    shards: of this host, by number; changes as they come and go.
    """

    def __init__(self, shards: Mapping[int, Shard], change_log: ChangeLog) -> None:
        self._shards = shards
        self._change_log = change_log
        self._known_shards: dict[int, Shard] = {}
        """Those that note what changes."""
        self._counting_shards: list[Shard] = []
        """Of them, those whose counts lagged."""
        self._changed_topics: dict[TopicName, None] = {}
        """To be looked at."""
        self._scheduled: deque[tuple[str, Iterator[str | None]]] = deque()
        """To be looked at as well: all topics of shards that came, went or were counted, by namespace, as `in_order` gives them."""
        self._topic_names: dict[str, SortedNames] = {}
        self.refreshed_count = 0
        """Times that a topic was looked at."""

    # ------------------------------------------------------------------- changing

    def refresh(self, topics_max: int, *, include_new: bool = True) -> bool:
        """Looks at so many topics of which something has changed. Returns whether there are more of them.

        Args:
            include_new: what has changed until now is to be looked at as well. Who asks for the rest of a long list must not
                ask for that: on a busy host the list would never end.
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
        """Shards come and go, and all of their topics with them; and end their counting, which changes how all are told."""
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

    def _schedule_all(self, shard: Shard) -> None:
        self._scheduled += [(namespace, merge_names([names], "")) for namespace, names in shard.memory.all_topics()]

    def _select_scheduled(self, topics_max: int) -> None:
        """Has so many topics looked at next, less where more have to be put in order first."""
        coming, changed = self._scheduled, self._changed_topics
        pauses = 0
        while coming and len(changed) < topics_max and pauses <= _PAUSES_MAX:
            namespace, names = coming[0]
            name = next(names, "")
            if name is None:
                pauses += 1
            elif name:
                pauses = 0
                changed[namespace, name] = None
            else:
                coming.popleft()

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

    # -------------------------------------------------------------------- looking

    def serving_shards(self) -> dict[int, Shard]:
        """The shards whose topics this host tells of."""
        return {number: shard for number, shard in self._shards.items() if shard.is_serving}

    @property
    def is_complete(self) -> bool:
        """Every topic of these shards was looked at, but for what has just changed."""
        return not self._changed_topics and not self._scheduled and self._known_shards == self.serving_shards()

    def topic_names(self, namespace: str) -> SortedNames | None:
        """The topics of a namespace, in order; None where there are none. Not to be changed."""
        return self._topic_names.get(namespace)

    def changes_since(self, version: int | None, full_since: int | None, topics_max: int) -> Changes:
        """See `ChangeLog.changes_since`."""
        return self._change_log.changes_since(version, full_since, topics_max)

    def summaries(self, topics: Sequence[TopicName]) -> list[Any]:
        """A TopicSummary of each.

        One that is back, and was not looked at since, is told as gone: it may go
        again before that, and nothing would be told of it then.
        """
        shards = list(self.serving_shards().values())
        return [self._summary(topic, shards if topic in self._change_log else ()) for topic in topics]

    def _summary(self, topic: TopicName, shards: Sequence[Shard]) -> Any:
        holding = [shard for shard in shards if shard.memory.has_topic(topic)]
        if not holding:
            return ttypes.TopicUpdate(*topic)
        stats = topic_stats(topic, holding, counts_by_state(topic, holding), is_paused=False, is_partial=False)
        ready = stats.ready
        if stats.counts_lag and not ready and any(topic in shard.index for shard in holding):
            ready = 1  # it may have some, and who waits elsewhere must hear of it before all is counted
        return ttypes.TopicUpdate(
            *topic,
            ready,
            stats.deferred or None,
            stats.leased or None,
            stats.dead or None,
            stats.best_priority,
            stats.oldest_ready_age_ms,
            stats.counts_lag or None,
        )
