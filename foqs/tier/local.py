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

from foqs.core.item import TopicName
from foqs.core.names import SortedNames, in_order
from foqs.service.listed import counts_of, stats_of
from foqs.shard.shard import Shard
from foqs.tier.journal import Changes, Journal
from foqs_client.idl import ttypes

_PAUSES_MAX: Final = 2
"""Pauses of `in_order` that are passed over without a name between them."""


class LocalTopics:
    """Args:
    shards: of this host, by number; changes as they come and go.
    """

    def __init__(self, shards: Mapping[int, Shard], journal: Journal) -> None:
        self._shards = shards
        self._journal = journal
        self._seen: dict[int, Shard] = {}
        """Those that note what changes."""
        self._counting: list[Shard] = []
        """Of them, those whose counts lagged."""
        self._changed: dict[TopicName, None] = {}
        """To be looked at."""
        self._coming: deque[tuple[str, Iterator[str | None]]] = deque()
        """To be looked at as well: all topics of shards that came, went or were counted, by namespace, as `in_order` gives them."""
        self._names: dict[str, SortedNames] = {}
        self.looked_at = 0
        """Times that a topic was looked at."""

    # ------------------------------------------------------------------- changing

    def gather(self, topics_max: int, *, anew: bool = True) -> bool:
        """Looks at so many topics of which something has changed. Returns whether there are more of them.

        Args:
            anew: what has changed until now is to be looked at as well. Who asks for the rest of a long list must not
                ask for that: on a busy host the list would never end.
        """
        self._follow()
        if anew:
            self._take_touched()
        self._take_coming(topics_max)
        changed, serving = self._changed, list(self._seen.values())
        for _ in range(min(topics_max, len(changed))):
            topic, _ = changed.popitem()
            self._look(topic, there=any(shard.memory.has(topic) for shard in serving))
        return bool(changed or self._coming)

    def _follow(self) -> None:
        """Shards come and go, and all of their topics with them; and end their counting, which changes how all are told."""
        serving = self.serving()
        for shard in [shard for number, shard in self._seen.items() if serving.get(number) is not shard]:
            del self._seen[shard.number]
            shard.counts.touched = None
            if shard in self._counting:
                self._counting.remove(shard)
            self._look_at_all(shard)
        for number, shard in serving.items():
            if number not in self._seen:
                self._seen[number] = shard
                shard.counts.touched = {}
                self._look_at_all(shard)
                if shard.counts.lag:
                    self._counting.append(shard)
        for shard in [shard for shard in self._counting if not shard.counts.lag]:
            self._counting.remove(shard)
            self._look_at_all(shard)

    def _look_at_all(self, shard: Shard) -> None:
        self._coming += [(namespace, in_order([names], "")) for namespace, names in shard.memory.every_topic()]

    def _take_coming(self, topics_max: int) -> None:
        """Has so many topics looked at next, less where more have to be put in order first."""
        coming, changed = self._coming, self._changed
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

    def _take_touched(self) -> None:
        for shard in self._seen.values():
            touched = shard.counts.touched
            if touched:
                shard.counts.touched = {}
                self._changed.update(dict.fromkeys([place[:2] for place in touched]))

    def _look(self, topic: TopicName, *, there: bool) -> None:
        self.looked_at += 1
        self._journal.changed(topic, there=there)
        namespace, name = topic
        names = self._names.get(namespace)
        if there:
            if names is None:
                names = self._names[namespace] = SortedNames()
            names.add(name)
        elif names is not None:
            names.discard(name)
            if not names:
                del self._names[namespace]

    # -------------------------------------------------------------------- looking

    def serving(self) -> dict[int, Shard]:
        """The shards whose topics this host tells of."""
        return {number: shard for number, shard in self._shards.items() if shard.serving}

    @property
    def is_whole(self) -> bool:
        """Every topic of these shards was looked at, but for what has just changed."""
        return not self._changed and not self._coming and self._seen == self.serving()

    def names(self, namespace: str) -> SortedNames | None:
        """The topics of a namespace, in order; None where there are none. Not to be changed."""
        return self._names.get(namespace)

    def since(self, version: int | None, whole_since: int | None, topics_max: int) -> Changes:
        """See `Journal.since`."""
        return self._journal.since(version, whole_since, topics_max)

    def summaries(self, topics: Sequence[TopicName]) -> list[Any]:
        """A TopicSummary of each.

        One that is back, and was not looked at since, is told as gone: it may go
        again before that, and nothing would be told of it then.
        """
        shards = list(self.serving().values())
        return [self._summary(topic, shards if topic in self._journal else ()) for topic in topics]

    def _summary(self, topic: TopicName, shards: Sequence[Shard]) -> Any:
        holding = [shard for shard in shards if shard.memory.has(topic)]
        if not holding:
            return ttypes.TopicSummary(*topic)
        stats = stats_of(topic, holding, counts_of(topic, holding), paused=False, partial=False)
        ready = stats.ready
        if stats.counts_lag and not ready and any(topic in shard.index for shard in holding):
            ready = 1  # it may have some, and who waits elsewhere must hear of it before all is counted
        return ttypes.TopicSummary(
            *topic,
            ready,
            stats.deferred or None,
            stats.leased or None,
            stats.dead or None,
            stats.best_priority,
            stats.oldest_ready_age_ms,
            stats.counts_lag or None,
        )
