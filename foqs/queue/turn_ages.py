"""How long the next group of a fair topic has waited for its turn on this host.

Hosts compare it in place of turns, which mean nothing elsewhere. Reads the memory of shards and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from foqs.core.items.item import TopicName, arrival_rank
from foqs.shard.shard import OwnedShard


def turn_age_ms(topic: TopicName, shards: Iterable[OwnedShard]) -> int | None:
    """Return how long the group that is next on these shards has waited; None if the topic is not fair, or has no group that waits."""
    best: int | None = None
    waited_s: float | None = None
    for shard in shards:
        limited = shard.memory.limited_topics.get(topic)
        key = None if limited is None or not limited.heads.takes_turns else shard.index.best_key(topic)
        if limited is not None and key is not None and (best is None or arrival_rank(key) < best):
            best, waited_s = arrival_rank(key), limited.heads.waited_s(key)
    return None if waited_s is None else int(waited_s * 1_000)
