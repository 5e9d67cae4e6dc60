"""What a shard and the queue report about themselves, for metrics and logs.

The domain says what happened; whoever listens decides what to make of it.
"""

from __future__ import annotations

from typing import Protocol


class Facts(Protocol):
    """Called in batches, never per item. Must not raise."""

    def enqueued(self, items: int) -> None: ...
    def handed_out(self, items: int) -> None: ...
    def acked(self, items: int) -> None: ...
    def nacked(self, items: int) -> None: ...
    def released(self, items: int) -> None: ...
    def expired(self, items: int) -> None: ...
    def dead(self, items: int) -> None: ...
    def flushed(self, shard: int, items: int, seconds: float) -> None: ...
    def flush_retried(self, shard: int) -> None: ...
    def unknown_commit(self, shard: int) -> None: ...
    def fenced(self, shard: int) -> None: ...
    def breaker_changed(self, shard: int, state: str) -> None: ...

    def taken_over(self, shard: int, seconds: float) -> None: ...

    def handed_over(self, shard: int, seconds: float) -> None: ...


class NoFacts:
    """Nobody listens."""

    def enqueued(self, items: int) -> None:
        pass

    def handed_out(self, items: int) -> None:
        pass

    def acked(self, items: int) -> None:
        pass

    def nacked(self, items: int) -> None:
        pass

    def released(self, items: int) -> None:
        pass

    def expired(self, items: int) -> None:
        pass

    def dead(self, items: int) -> None:
        pass

    def flushed(self, shard: int, items: int, seconds: float) -> None:
        pass

    def flush_retried(self, shard: int) -> None:
        pass

    def unknown_commit(self, shard: int) -> None:
        pass

    def fenced(self, shard: int) -> None:
        pass

    def breaker_changed(self, shard: int, state: str) -> None:
        pass

    def taken_over(self, shard: int, seconds: float) -> None:
        pass

    def handed_over(self, shard: int, seconds: float) -> None:
        pass
