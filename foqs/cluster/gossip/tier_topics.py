"""Lists the topics of the whole tier, on any of its hosts.

Holds `TierTopics`. Always true: a page is in the order of names, which are kept
sorted; it shows the current state of this host's shards and the last report of
each peer; a page that skips many topics yields to other tasks. Counts are marked
as lagging while a host has not reported everything, or a shard has no owner that
serves it. Knows nothing of Thrift.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from foqs.cluster.gossip.gossip_view import GossipView, PeerTopicStats
from foqs.cluster.gossip.local_topics import LocalTopics
from foqs.cluster.peers import Peers
from foqs.core.items.item import State, TopicName
from foqs.queue.host_state import HostState
from foqs.queue.port import TopicStats
from foqs.queue.reads.listings import ACTIVE_STATES, counts_by_state, topic_stats
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import Unavailable

_NAMES_PER_STEP: Final = 256
"""The names that are checked before other tasks may run."""
_REFRESHED_TOPICS_MAX: Final = 1_000
"""The maximum number of changed topics of this host that are refreshed before a page."""


class TierPlan(Protocol):
    """Says which shards of the tier have no owner, by the plan; `foqs.cluster.membership.Membership` is one."""

    @property
    def is_fully_served(self) -> bool:
        """Whether every shard of the tier is known to have an owner that serves it."""
        ...

    def unserved_shards(self) -> Collection[int]:
        """Return the shards of the tier that no host serves, without those of this host. Raises `Unavailable`."""
        ...


class TierTopics:
    """The topics of the tier, by gossip and by this host's own shards.

    Args:
        plan: says which shards of the tier are not served.
    """

    def __init__(
        self,
        state: HostState,
        peers: Peers,
        local_topics: LocalTopics,
        view: GossipView,
        plan: TierPlan,
    ) -> None:
        self._state = state
        self._peers = peers
        self._local_topics = local_topics
        self._view = view
        self._plan = plan

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        """List topics as `queue.port.Queue.list_topics` does. Raises `Unavailable` if no topic is known, and some may be missing."""
        wanted = tuple(states) if states else ACTIVE_STATES
        self._local_topics.refresh(_REFRESHED_TOPICS_MAX)
        page: list[TopicStats] = []
        start, is_exclusive = (prefix, False) if cursor is None or cursor < prefix else (cursor, True)
        while True:
            shards = list(self._local_topics.serving_shards().values())
            is_partial = self.is_partial()
            if is_partial and not shards and not len(self._view):
                raise Unavailable("no shard of this tier is known to be served now; try again", retry_after_ms=500)
            names, is_last = self._next_names(namespace, start, is_exclusive=is_exclusive)
            for name in names:
                if not name.startswith(prefix):
                    return page, None
                stats = self._stats((namespace, name), shards, wanted, is_partial=is_partial)
                if stats is None:
                    continue
                if len(page) == limit:
                    return page, page[-1].topic
                page.append(stats)
            if is_last:
                return page, None
            start, is_exclusive = names[-1], True
            await asyncio.sleep(0)

    def unavailable_shards(self) -> int:
        """Return how many shards of the tier are not served, or cannot deliver. Raises `Unavailable`."""
        own = self._state.availability.unavailable_shards() + self._state.availability.unserved_shards()
        return own + self._view.all_unavailable_shards() + len(self._plan.unserved_shards())

    def _next_names(self, namespace: str, start: str, *, is_exclusive: bool) -> tuple[list[str], bool]:
        """Return the next names of all hosts in order, and whether they are the last."""
        own = self._local_topics.topic_names(namespace)
        names: set[str] = set()
        end: str | None = None
        for host_names in [*([] if own is None else [own]), *self._view.topic_names(namespace)]:
            part = host_names.page_from(start, _NAMES_PER_STEP, is_exclusive=is_exclusive)
            names.update(part)
            if len(part) == _NAMES_PER_STEP:
                # After its last name here, this host may have names that sort before those of other hosts.
                end = part[-1] if end is None else min(end, part[-1])
        found = sorted(names)
        return (found, True) if end is None else ([name for name in found if name <= end], False)

    def _stats(
        self, topic: TopicName, shards: Sequence[OwnedShard], wanted: Sequence[State], *, is_partial: bool
    ) -> TopicStats | None:
        """Return the tier's stats of a topic; None if it has no items in the wanted states."""
        shards = [shard for shard in shards if shard.memory.has_topic(topic)]
        reports = self._view.topic_stats(topic)
        if not shards and not reports:
            return None
        is_lagging = any(shard.counts.is_lagging for shard in shards) or any(report.counts_lag for report in reports)
        own = counts_by_state(topic, shards)
        if not is_lagging and not any(
            own[state] or any(report[_FIELD_INDEX[state]] for report in reports) for state in wanted
        ):
            return None
        namespaces = self._state.namespaces
        stats = topic_stats(
            topic,
            shards,
            own,
            is_paused=topic in namespaces.paused_topics,
            is_partial=is_partial,
            rules=namespaces.group_rules.get(topic),
        )
        return _combined_stats(stats, reports, asyncio.get_running_loop().time()) if reports else stats

    def is_partial(self) -> bool:
        """Return whether topics or counts may be missing."""
        return (
            self.misses_shards()
            or len(self._local_topics.serving_shards()) != len(self._state.shards.statuses)
            or not self._local_topics.is_complete
        )

    def misses_shards(self) -> bool:
        """Return whether a shard has no owner that serves it, or a peer has not reported everything."""
        return not (self._plan.is_fully_served and self._view.is_complete(self._peers.by_nonce))


_FIELD_INDEX: Final = {
    State.READY: PeerTopicStats._fields.index("ready"),
    State.DEFERRED: PeerTopicStats._fields.index("deferred"),
    State.LEASED: PeerTopicStats._fields.index("leased"),
    State.DEAD: PeerTopicStats._fields.index("dead"),
}


def _combined_stats(own: TopicStats, peer_stats: Sequence[PeerTopicStats], now_s: float) -> TopicStats:
    """Add the peers' stats of a topic to this host's own."""
    priorities = [stats.best_priority for stats in peer_stats if stats.best_priority is not None]
    ages_ms = [
        round((now_s - stats.oldest_ready_at_s) * 1_000) for stats in peer_stats if stats.oldest_ready_at_s is not None
    ]
    deliverable = None
    if own.deliverable is not None or any(stats.deliverable is not None for stats in peer_stats):
        own_part = own.ready if own.deliverable is None else own.deliverable
        deliverable = own_part + sum([stats.available for stats in peer_stats])
    return TopicStats(
        topic=own.topic,
        ready=own.ready + sum([stats.ready for stats in peer_stats]),
        deferred=own.deferred + sum([stats.deferred for stats in peer_stats]),
        leased=own.leased + sum([stats.leased for stats in peer_stats]),
        dead=own.dead + sum([stats.dead for stats in peer_stats]),
        best_priority=min([*priorities, *_as_sequence(own.best_priority)], default=None),
        oldest_ready_age_ms=max([*ages_ms, *_as_sequence(own.oldest_ready_age_ms)], default=None),
        next_due_in_ms=own.next_due_in_ms,
        paused=own.paused,
        counts_lag=own.counts_lag or any(stats.counts_lag for stats in peer_stats),
        group_leases_max=own.group_leases_max,
        fair=own.fair,
        deliverable=deliverable,
    )


def _as_sequence(value: int | None) -> Sequence[int]:
    return () if value is None else (value,)
