"""Counts as people write them: `1 item`, `2 items`, `1,000 items`."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun, or with noun and verb: `counted(2, "shard is", "shards are")`.

    Args:
        many: for every other count than 1; None: `one` with an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
