"""What a host asks of its coordinator: with which epoch to take a shard over.

Implementations: `local`, for a host that owns everything.
"""

from __future__ import annotations

from typing import Protocol


class CoordinatorFailed(Exception):
    """The coordinator could not answer; the text says why and what to do."""


class Coordinator(Protocol):
    """Issues epochs. No epoch is ever issued twice, across restarts too."""

    async def issue_epoch(self, shard: int, above: int) -> int:
        """An epoch for a takeover of `shard`, higher than any issued before and than `above`.

        It is recorded durably before this returns.

        Raises:
            CoordinatorFailed: it could not be recorded.
        """
        ...
