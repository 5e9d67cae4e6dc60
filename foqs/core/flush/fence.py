"""The fence: what makes a write of a former owner impossible.

Each shard's owner row holds (epoch, nonce, flush). A flush commits only where
the row shows this ownership and the flush before it, and counts one up. So a
committed flush is recognised by its number, and an owner that was replaced
changes nothing. Pure; the stores do the reading.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from foqs.core.items.item import make_number


@dataclass(slots=True, frozen=True)
class Owner:
    """The owner row of a shard: who may write, and how far it has come."""

    epoch: int
    nonce: str
    flush: int
    clock_ms: int
    """The shard's own time when it was last written."""
    connection: int
    """The database connection of the owner; killed when it stands in a takeover's way."""
    offset_ms: int = 0
    """The shard's own time less the database's clock, when it was last written."""


@dataclass(slots=True, frozen=True)
class Fence:
    """The flush that is about to be written: `flush` is its own number."""

    epoch: int
    nonce: str
    flush: int
    clock_ms: int
    offset_ms: int = 0

    @property
    def token(self) -> int:
        """The token of every lease that this flush grants."""
        return make_number(self.epoch, self.flush)


class CommitOutcome(enum.Enum):
    """What an owner row says of a flush whose outcome is not known."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    FENCED = "fenced"


def commit_outcome(fence: Fence, owner: Owner) -> CommitOutcome:
    """Judges `fence`'s flush by the owner row read after the old connection is gone."""
    if (owner.epoch, owner.nonce) != (fence.epoch, fence.nonce):
        return CommitOutcome.FENCED
    if owner.flush == fence.flush:
        return CommitOutcome.COMMITTED
    if owner.flush == fence.flush - 1:
        return CommitOutcome.NOT_COMMITTED
    return CommitOutcome.FENCED
