"""The topics of the whole tier, as any of its hosts lists them.

Holds `TierTopics`. Always true: a page is in the order of names, which are kept
in that order and not sorted for it; of this host's shards it shows what is so
now, of the others' what they told last; a page that has to pass over many topics
lets others run meanwhile. Counts lag where a host has not told everything, or a
shard has no owner who serves it. Speaks no Thrift.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from foqs.cluster.gossip.gossip_view import GossipView, PeerTopicStats
from foqs.cluster.gossip.local_topics import LocalTopics
from foqs.cluster.peers import Peers
from foqs.core.errors import Unavailable
from foqs.core.items.item import State, TopicName
from foqs.queue.engine import Engine
from foqs.queue.listings import ACTIVE_STATES, counts_by_state, topic_stats
from foqs.queue.port import TopicStats
from foqs.shard.shard import Shard

_NAMES_PER_STEP: Final = 256
"""Names looked at before others may run."""
_REFRESHED_TOPICS_MAX: Final = 1_000
"""Changed topics of this host that a page takes in first."""


class TierTopics:
    """Args:
    is_fully_served: every shard of the tier has an owner who serves it, as far as is known.
    """

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        local_topics: LocalTopics,
        view: GossipView,
        is_fully_served: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._local_topics = local_topics
        self._view = view
        self._is_fully_served = is_fully_served

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        """As of `queue.port.Queue`. Raises `Unavailable`: no host is known to serve anything."""
        wanted = tuple(states) if states else ACTIVE_STATES
        self._local_topics.refresh(_REFRESHED_TOPICS_MAX)
        page: list[TopicStats] = []
        least, beyond = (prefix, False) if cursor is None or cursor < prefix else (cursor, True)
        while True:
            shards = list(self._local_topics.serving_shards().values())
            if not shards and not len(self._view):
                raise Unavailable("no shard of this tier is known to be served now; try again", retry_after_ms=500)
            partial = self._is_partial()
            names, last = self._next_names(namespace, least, is_exclusive=beyond)
            for name in names:
                if not name.startswith(prefix):
                    return page, None
                stats = self._stats((namespace, name), shards, wanted, partial=partial)
                if stats is None:
                    continue
                if len(page) == limit:
                    return page, page[-1].topic
                page.append(stats)
            if last:
                return page, None
            least, beyond = names[-1], True
            await asyncio.sleep(0)

    def _next_names(self, namespace: str, start: str, *, is_exclusive: bool) -> tuple[list[str], bool]:
        """The next names in order, whoever has them, and whether they are the last."""
        own = self._local_topics.topic_names(namespace)
        names: set[str] = set()
        end: str | None = None
        for known in [*([] if own is None else [own]), *self._view.topic_names(namespace)]:
            part = known.page_from(start, _NAMES_PER_STEP, is_exclusive=is_exclusive)
            names.update(part)
            if len(part) == _NAMES_PER_STEP:
                # Beyond its last name it may have others that come before theirs.
                end = part[-1] if end is None else min(end, part[-1])
        found = sorted(names)
        return (found, True) if end is None else ([name for name in found if name <= end], False)

    def _stats(
        self, topic: TopicName, shards: Sequence[Shard], wanted: Sequence[State], *, partial: bool
    ) -> TopicStats | None:
        """What the tier holds of a topic; None where it is in none of these states."""
        shards = [shard for shard in shards if shard.memory.has_topic(topic)]
        told = self._view.topic_stats(topic)
        lag = any(shard.counts.is_lagging for shard in shards) or any(each.counts_lag for each in told)
        if not shards and not told:
            return None
        own = counts_by_state(topic, shards)
        if not lag and not any(own[state] or any(each[_FIELD_INDEX[state]] for each in told) for state in wanted):
            return None
        paused = topic in self._engine.namespaces.paused_topics
        stats = topic_stats(topic, shards, own, is_paused=paused, is_partial=partial)
        return _combined_stats(stats, told, asyncio.get_running_loop().time()) if told else stats

    def _is_partial(self) -> bool:
        """Something may be missing."""
        return not (
            self._is_fully_served()
            and len(self._local_topics.serving_shards()) == len(self._engine.statuses)
            and self._local_topics.is_complete
            and self._view.is_complete(self._peers.by_nonce)
        )


_FIELD_INDEX: Final = {
    State.READY: PeerTopicStats._fields.index("ready"),
    State.DEFERRED: PeerTopicStats._fields.index("deferred"),
    State.LEASED: PeerTopicStats._fields.index("leased"),
    State.DEAD: PeerTopicStats._fields.index("dead"),
}


def _combined_stats(own: TopicStats, peer_stats: Sequence[PeerTopicStats], now_s: float) -> TopicStats:
    """What this host holds of a topic, and what others do."""
    bests = [each.best_priority for each in peer_stats if each.best_priority is not None]
    ages_ms = [
        round((now_s - each.oldest_ready_at_s) * 1_000) for each in peer_stats if each.oldest_ready_at_s is not None
    ]
    return TopicStats(
        topic=own.topic,
        ready=own.ready + sum([each.ready for each in peer_stats]),
        deferred=own.deferred + sum([each.deferred for each in peer_stats]),
        leased=own.leased + sum([each.leased for each in peer_stats]),
        dead=own.dead + sum([each.dead for each in peer_stats]),
        best_priority=min([*bests, *_as_sequence(own.best_priority)], default=None),
        oldest_ready_age_ms=max([*ages_ms, *_as_sequence(own.oldest_ready_age_ms)], default=None),
        next_due_in_ms=own.next_due_in_ms,
        paused=own.paused,
        counts_lag=own.counts_lag or any(each.counts_lag for each in peer_stats),
    )


def _as_sequence(value: int | None) -> Sequence[int]:
    return () if value is None else (value,)
