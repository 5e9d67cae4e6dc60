"""How far a shard is with the owner that it should have, as far as its members tell.

Pure. Knows neither the registry nor the plan as a whole.
"""

from __future__ import annotations

from shardmgr.model import Assignment, Member
from shardmgr.ownership import OwnershipState


def ownership_state_of(shard: int, assignment: Assignment | None, owner: Member | None) -> str:
    """A value of `Ownership`.

    Args:
        assignment: the shard's; None where nobody should own it.
        owner: the member that it names; None where that is gone.
    """
    if assignment is None:
        return OwnershipState.FREE.value
    if owner is None:
        return OwnershipState.LOST.value
    holding = owner.held_shards.get(shard)
    # What it told of an earlier assignment says nothing of this one.
    started = holding is not None and holding.epoch == assignment.epoch
    return holding.state if started and holding is not None else OwnershipState.ACQUIRING.value
