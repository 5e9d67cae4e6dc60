"""The fence, which makes writes of a former owner impossible.

The owner row of each shard holds (epoch, nonce, flush). A flush commits only if the
row shows this ownership and the previous flush, and then it increments the flush
number. So the number says whether a flush was committed, and an owner that was
replaced cannot change anything. Pure; the stores read the row.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

from foqs.core.items.item import make_number

Position: TypeAlias = tuple[int, int]
"""(epoch, flush): the place of a flush in the history of its shard."""

_CLUSTER_END: Final = ":"


def ownership_nonce(cluster: str, run: str) -> str:
    """Return the nonce of all ownerships of one run of a host. It names the cluster and the run."""
    return f"{cluster}{_CLUSTER_END}{run}"


def cluster_of(nonce: str) -> str | None:
    """Return the cluster that a nonce names; None for a host alone, and for a host of an earlier version."""
    cluster, end, _ = nonce.partition(_CLUSTER_END)
    return cluster if end else None


@dataclass(slots=True, frozen=True)
class Owner:
    """The owner row of a shard: the ownership that may write, and its last flush."""

    epoch: int
    nonce: str
    """Names the owner: a run of a host, and its cluster."""
    flush: int
    clock_ms: int
    """The shard clock's time at the last write."""
    connection: int
    """The database connection of the owner. A takeover that it blocks kills it."""
    offset_ms: int = 0
    """The shard clock's time minus the database's clock at the last write."""
    arrival_ms: int = 0
    """The arrival clock's time of the last item that the owner had accepted by the last write, in this shard or another."""


@dataclass(slots=True, frozen=True)
class Fence:
    """The ownership, the number and the clocks of a flush that is about to be written.

    `flush` is its own number. The owner row still shows the number before it.
    """

    epoch: int
    nonce: str
    flush: int
    clock_ms: int
    offset_ms: int = 0
    arrival_ms: int = 0

    @property
    def position(self) -> Position:
        return (self.epoch, self.flush)

    @property
    def token(self) -> int:
        """The token of every lease that this flush makes."""
        return make_number(self.epoch, self.flush)


class CommitOutcome(enum.Enum):
    """The outcomes of a flush, as an owner row shows them.

    FENCED: the row has another ownership or an unexpected flush number, so this owner has lost the shard.
    """

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    FENCED = "fenced"


def commit_outcome(fence: Fence, owner: Owner) -> CommitOutcome:
    """Return the outcome of `fence`'s flush. The owner row must be read after the flush's connection was closed."""
    if (owner.epoch, owner.nonce) != (fence.epoch, fence.nonce):
        return CommitOutcome.FENCED
    if owner.flush == fence.flush:
        return CommitOutcome.COMMITTED
    if owner.flush == fence.flush - 1:
        return CommitOutcome.NOT_COMMITTED
    return CommitOutcome.FENCED
