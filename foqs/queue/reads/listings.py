"""Lists of topics and items: the stats of a topic, and the cursor of a page of items.

Reads the memory of shards and changes nothing. Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from foqs.catalog.namespaces import Namespaces
from foqs.core.groups.group_rules import GroupRules
from foqs.core.items.item import (
    NUMBER_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    SHARD_MAX,
    TIME_MS_MAX,
    OrderKey,
    State,
    TopicName,
    pack_order_key,
    unpack_order_key,
)
from foqs.core.memory.sorted_names import merge_names, merge_views
from foqs.queue.port import TopicStats
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import InvalidArgument

ACTIVE_STATES: Final = (State.READY, State.LEASED)
"""A topic is active if it has items in one of these states."""


class ListedShards(NamedTuple):
    """The shards whose topics are listed. `is_partial`: this host has others. `is_lagging`: some still count their items."""

    shards: list[OwnedShard]
    is_partial: bool
    is_lagging: bool


async def list_topics(
    listed_shards: Callable[[], ListedShards],
    namespaces: Namespaces,
    namespace: str,
    prefix: str,
    states: Sequence[State] | None,
    cursor: str | None,
    limit: int,
) -> tuple[list[TopicStats], str | None]:
    """See `QueueReads.list_topics`. A long list lets other work run; `listed_shards` is called again after that."""
    wanted = tuple(states) if states else ACTIVE_STATES
    listed = first = listed_shards()
    is_partial = listed.is_partial
    page: list[TopicStats] = []
    first_name, is_exclusive = (prefix, False) if cursor is None or cursor < prefix else (cursor, True)
    for name in sorted_topics(first.shards, namespace, first_name, is_exclusive=is_exclusive, prefix=prefix):
        if name is None:
            await asyncio.sleep(0)
            listed = listed_shards()
            is_partial = listed.is_partial or listed.shards != first.shards
            continue
        topic = (namespace, name)
        counts = counts_by_state(topic, listed.shards)
        if not listed.is_lagging and not any(counts[state] for state in wanted):
            continue
        if len(page) == limit:
            return page, page[-1].topic
        is_paused = topic in namespaces.paused_topics
        page.append(
            topic_stats(
                topic,
                listed.shards,
                counts,
                is_paused=is_paused,
                is_partial=is_partial,
                rules=namespaces.group_rules.get(topic),
            )
        )
    return page, None


def sorted_topics(
    shards: Sequence[OwnedShard], namespace: str, first_name: str, *, is_exclusive: bool = False, prefix: str = ""
) -> Iterator[str | None]:
    """Yield the topics that have items, or may have, from a name on: in order, each once. None lets other tasks run.

    While a shard counts its items, all names are sorted for each page.
    """
    if any(shard.counts.is_lagging for shard in shards):
        lists = (shard.memory.topics(namespace) for shard in shards)
        return merge_names(lists, first_name, is_exclusive=is_exclusive, prefix=prefix)
    views = [view for shard in shards if (view := shard.counts.sorted_topics(namespace)) is not None]
    return merge_views(views, first_name, is_exclusive=is_exclusive, prefix=prefix)


def topic_stats(
    topic: TopicName,
    shards: Sequence[OwnedShard],
    counts: Sequence[int],
    *,
    is_paused: bool,
    is_partial: bool,
    rules: GroupRules | None = None,
) -> TopicStats:
    """Return the stats of a topic on these shards.

    Args:
        counts: the items by state; see `counts_by_state`.
        is_partial: whether other shards of this host are not served now.
        rules: what the policy of the topic says about its groups.
    """
    best: OrderKey | None = None
    oldest_ms: int | None = None
    for shard in shards:
        age_ms = shard.oldest_ready_age_ms(topic)
        key = shard.index.first_known_key(topic)
        if key is not None and (best is None or key < best):
            best = key
        if age_ms is not None and (oldest_ms is None or age_ms > oldest_ms):
            oldest_ms = age_ms
    deliverable = None
    if any(topic in shard.memory.limited_names for shard in shards):
        deliverable = max(0, sum([shard.memory.deliverable_count(topic) for shard in shards]))
    return TopicStats(
        topic=topic[1],
        ready=counts[State.READY],
        deferred=counts[State.DEFERRED],
        leased=counts[State.LEASED],
        dead=counts[State.DEAD],
        best_priority=None if best is None else unpack_order_key(best)[0],
        oldest_ready_age_ms=oldest_ms,
        next_due_in_ms=None,
        paused=is_paused,
        counts_lag=is_partial or any(shard.counts.is_lagging for shard in shards),
        group_leases_max=None if rules is None else rules.leases_max,
        fair=None if rules is None else rules.fair,
        deliverable=deliverable,
    )


def counts_by_state(topic: TopicName, shards: Sequence[OwnedShard]) -> list[int]:
    """Return the number of a topic's items by state, as far as these shards have counted them."""
    found = [counts for shard in shards if (counts := shard.counts.counts_by_state(*topic))]
    if not found:
        return [0] * (max(State) + 1)
    # While the counts lag, one may be below nothing.
    return [max(0, items) for items in (found[0] if len(found) == 1 else map(sum, zip(*found, strict=True)))]


def format_cursor(key: OrderKey, shard: int) -> str:
    """Return the cursor of the page after this item. Items with equal keys are ordered by shard."""
    return ":".join(map(str, (*unpack_order_key(key), shard)))


def parse_cursor(cursor: str) -> tuple[OrderKey, int]:
    """Parse a cursor into (key, shard). Raises `InvalidArgument`."""
    try:
        priority, after, number, shard = (int(part) for part in cursor.split(":"))
    except ValueError:
        priority = after = number = shard = -1
    if (
        PRIORITY_MIN <= priority <= PRIORITY_MAX
        and 0 <= after <= TIME_MS_MAX
        and 0 < number <= NUMBER_MAX
        and 0 <= shard <= SHARD_MAX
    ):
        key = pack_order_key(priority, after, number)
        # `int` also accepts signs, spaces and other digits: the comparison refuses these.
        if format_cursor(key, shard) == cursor:
            return key, shard
    raise InvalidArgument("this is not a cursor of an earlier reply; leave it out to begin again", field="page.cursor")
