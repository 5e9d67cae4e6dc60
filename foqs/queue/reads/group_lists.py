"""Lists groups of a topic: the largest, or those that have waited longest, and what holds each back.

Always true: no row is read, and other tasks run between two steps of a long list. A list counts at most `GROUPS_COUNTED_MAX`
groups of a shard, and `GROUPS_PER_STEP` of each further shard after `COUNT_S_MAX`; then it says that groups may be missing. What flushes change meanwhile may be
shown as it was or as it is. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heappush, heapreplace
from itertools import count
from typing import Final

from foqs.catalog.namespaces import Namespaces
from foqs.core.groups.group import ABOVE_ALL, Group
from foqs.core.groups.group_stats import (
    GroupFigures,
    GroupRank,
    GroupState,
    figures_of,
    first_ready,
    rank_function,
    state_of,
)
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.groups.places import UNGROUPED
from foqs.core.items.item import TopicName, format_id, unpack_order_key
from foqs.queue.port import GroupList, GroupStats, WantedGroups
from foqs.shard.shard import OwnedShard

GROUPS_COUNTED_MAX: Final = 50_000
"""Groups of one shard that a list counts: more than the memory of a shard holds by default. Their references are copied in
one step, in about two milliseconds."""
GROUPS_PER_STEP: Final = 500
"""Groups that are ranked in one turn of the event loop: about a millisecond."""
FIGURES_PER_STEP: Final = 100
"""Groups whose figures are collected in one turn of the event loop: about a millisecond."""
COUNT_S_MAX: Final = 0.5
"""After this time, only the first groups of a shard are counted."""


class _GroupCounts:
    """Counts groups, and keeps the first of them in the wanted order. Knows one topic on several shards."""

    def __init__(self, wanted: WantedGroups) -> None:
        self.by_state: Counter[GroupState] = Counter()
        self.ungrouped = 0
        """The known READY items without a group."""
        self._wanted = wanted
        self._rank = rank_function(wanted.order)
        self._entries = count()
        self._first: list[tuple[GroupRank, int, OwnedShard, LimitedTopic, Group]] = []
        """A heap of at most `limit` groups. The numbers make all entries different: of equal ranks, the earlier one comes first."""

    def add(self, shard: OwnedShard, limited: LimitedTopic, some: Sequence[Group], now_ms: int) -> None:
        """Count these groups."""
        wanted = self._wanted
        limit = limited.groups.limit
        for group in some:
            if group.name.startswith(UNGROUPED):
                self.ungrouped += len(group.waiting)
                continue
            state = state_of(group, limit)
            self.by_state[state] += 1
            if wanted.states is not None and state not in wanted.states:
                continue
            first = first_ready(group)
            age_ms = None if first is None else max(0, now_ms - unpack_order_key(first)[1])
            rank = self._rank(len(group.waiting) + len(group.returned), group.cut < ABOVE_ALL, age_ms)
            entry = (rank, -next(self._entries), shard, limited, group)
            if len(self._first) < wanted.limit:
                heappush(self._first, entry)
            elif rank > self._first[0][0]:
                heapreplace(self._first, entry)

    def first(self) -> list[tuple[OwnedShard, LimitedTopic, Group]]:
        """Return the first groups in order."""
        return [entry[2:] for entry in sorted(self._first, key=lambda entry: entry[:2], reverse=True)]


async def list_groups(
    shards: Sequence[OwnedShard], all_shards: Mapping[int, OwnedShard], namespaces: Namespaces, wanted: WantedGroups
) -> GroupList:
    """See `QueueReads.list_groups`. `all_shards` are those of this host, among which groups take turns."""
    topic = (wanted.namespace, wanted.topic)
    counts = _GroupCounts(wanted)
    loop = asyncio.get_running_loop()
    ends_at_s = loop.time() + COUNT_S_MAX
    is_partial = is_full = False
    for place, shard in enumerate(shards):
        if place:
            await asyncio.sleep(0)
        limited = shard.memory.limited_topics.get(topic)
        if limited is None:
            continue
        shard.loader.request_groups(topic)
        groups = limited.groups
        is_full = is_full or limited.room.is_full
        is_partial = is_partial or (groups.is_partial and shard.memory.has_topic(topic))
        counts.ungrouped += len(groups.ungrouped.keys)
        if wanted.group is not None:
            group = groups.get(wanted.group)
            found = [] if group is None else [group]
        else:
            found = groups.some_groups(GROUPS_COUNTED_MAX)
            is_partial = is_partial or len(found) < len(groups)
        for start in range(0, len(found), GROUPS_PER_STEP):
            if start:
                await asyncio.sleep(0)
                if loop.time() >= ends_at_s:
                    is_partial = True
                    break
            counts.add(shard, limited, found[start : start + GROUPS_PER_STEP], shard.now_ms())
    return GroupList(
        await _stats_of(counts.first(), all_shards.values(), topic, wanted.states),
        counts.by_state,
        counts.ungrouped if wanted.group is None else None,
        is_partial=is_partial,
        is_full=is_full,
        is_paused=topic in namespaces.paused_topics,
        rules=namespaces.group_rules.get(topic),
    )


async def _stats_of(
    first: Sequence[tuple[OwnedShard, LimitedTopic, Group]],
    shards: Collection[OwnedShard],
    topic: TopicName,
    states: frozenset[GroupState] | None,
) -> list[GroupStats]:
    """Return the figures of these groups as they are now, without those that have left the memory or the wanted states."""
    stats: list[GroupStats] = []
    for place, (shard, limited, group) in enumerate(first):
        if place and not place % FIGURES_PER_STEP:
            await asyncio.sleep(0)
        if shard.memory.limited_topics.get(topic) is not limited or limited.groups.get(group.name) is not group:
            continue
        figures = figures_of(group, limited)
        if states is None or figures.state in states:
            stats.append(_stats(shard, shards, topic, figures))
    return stats


def _stats(shard: OwnedShard, shards: Collection[OwnedShard], topic: TopicName, figures: GroupFigures) -> GroupStats:
    now_ms = shard.now_ms()
    priority = since_ms = None
    if figures.first is not None:
        priority, since_ms, _ = unpack_order_key(figures.first)
    head = figures.head
    return GroupStats(
        shard.number,
        figures.name,
        figures.state,
        figures.ready,
        figures.has_more,
        figures.leased,
        figures.backing_off,
        priority,
        None if since_ms is None else max(0, now_ms - since_ms),
        [format_id(shard.number, number) for number in figures.blockers],
        None if figures.resumes_at_ms is None else max(0, figures.resumes_at_ms - now_ms),
        None if head is None else sum([each.index.rank(topic, head)[0] for each in shards]),
        figures.weight,
    )
