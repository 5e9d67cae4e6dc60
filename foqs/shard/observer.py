"""The facts that shards and the queue report, for metrics and logs.

The domain reports what happened; the observer decides what to do with it.
"""

from __future__ import annotations

from typing import Protocol


class ShardObserver(Protocol):
    """Counts facts. Called in batches, never per item. Must not raise.

    `items_timed_out`: items whose lease, TTL or retention ended. `items_dead_lettered`: items that became dead.
    """

    def items_enqueued(self, item_count: int) -> None: ...
    def items_delivered(self, item_count: int) -> None: ...
    def items_acked(self, item_count: int) -> None: ...
    def items_nacked(self, item_count: int) -> None: ...
    def items_released(self, item_count: int) -> None: ...
    def items_timed_out(self, item_count: int) -> None: ...
    def items_dead_lettered(self, item_count: int) -> None: ...
    def items_moved(self, item_count: int) -> None: ...
    def flush_committed(self, shard: int, entry_count: int, seconds: float) -> None: ...
    def flush_retried(self, shard: int) -> None: ...
    def commit_outcome_unknown(self, shard: int) -> None: ...
    def shard_fenced(self, shard: int) -> None: ...
    def breaker_changed(self, shard: int, state: str) -> None: ...

    def shard_acquired(self, shard: int, seconds: float) -> None: ...

    def shard_handed_over(self, shard: int, seconds: float) -> None: ...


class NullObserver:
    """Ignores all facts."""

    def items_enqueued(self, item_count: int) -> None:
        pass

    def items_delivered(self, item_count: int) -> None:
        pass

    def items_acked(self, item_count: int) -> None:
        pass

    def items_nacked(self, item_count: int) -> None:
        pass

    def items_released(self, item_count: int) -> None:
        pass

    def items_timed_out(self, item_count: int) -> None:
        pass

    def items_dead_lettered(self, item_count: int) -> None:
        pass

    def items_moved(self, item_count: int) -> None:
        pass

    def flush_committed(self, shard: int, entry_count: int, seconds: float) -> None:
        pass

    def flush_retried(self, shard: int) -> None:
        pass

    def commit_outcome_unknown(self, shard: int) -> None:
        pass

    def shard_fenced(self, shard: int) -> None:
        pass

    def breaker_changed(self, shard: int, state: str) -> None:
        pass

    def shard_acquired(self, shard: int, seconds: float) -> None:
        pass

    def shard_handed_over(self, shard: int, seconds: float) -> None:
        pass
