"""The outage that a dequeue without items reports: shards that may hold items and cannot deliver them.

Pure; knows nothing of calls and of hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from foqs_contract.errors import HANDOVER_RETRY_MS, Unavailable


@dataclass(slots=True, frozen=True)
class Outage:
    """Shards that may hold items of some topics and cannot deliver now.

    Attributes:
        shards: the number of such shards; at least 1.
        is_whole: no other shard that may hold such items could deliver, and no lease was or will be written.
        reason: why one of them cannot deliver, with its number or the name of its host.
        retry_after_ms: the time after which to ask again.
    """

    shards: int
    is_whole: bool
    reason: str
    retry_after_ms: int = HANDOVER_RETRY_MS

    def merged_with(self, other: Self | None) -> Self:
        """Return both outages as one. It is whole if both are."""
        if other is None:
            return self
        return type(self)(
            self.shards + other.shards,
            self.is_whole and other.is_whole,
            self.reason,
            max(self.retry_after_ms, other.retry_after_ms),
        )


def with_given_up_lease(outage: Outage | None) -> Outage:
    """Return the outage of a dequeue that gave up a lease which may be written: never a whole one.

    A whole one makes the call fail as UNAVAILABLE, which promises that nothing was or will be written.
    """
    if outage is None:
        return Outage(1, False, "a lease that was given up may have been written")
    return replace(outage, is_whole=False)


class NothingDeliverable(Unavailable):
    """No shard that may hold items of the topics could deliver; nothing was or will be leased."""

    def __init__(self, outage: Outage) -> None:
        more = f" (and {outage.shards - 1} more)" if outage.shards > 1 else ""
        super().__init__(
            f"there may be items, but no shard that may hold them can deliver now: {outage.reason}{more}; try again",
            retry_after_ms=outage.retry_after_ms,
        )
        self.outage = outage
