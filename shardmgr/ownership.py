"""The ownership of a shard by one host: one table of states and events.

Pure. The coordinator decides who should own a shard, and the database who may
write it. This table says what the host believes and what may follow.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from shardmgr.model import Assignment, Member


class OwnershipState(enum.Enum):
    """A host's belief about one shard."""

    FREE = "free"
    """The shard is not owned by this host, or was handed over."""
    ACQUIRING = "acquiring"
    """The shard is assigned to this host, which is not the owner in the database yet."""
    RECOVERING = "recovering"
    """The host is the owner in the database; memory is being rebuilt from rows."""
    OWNED = "owned"
    """The host serves the shard."""
    DRAINING = "draining"
    """The host is the owner, accepts nothing more and writes what waits."""
    LOST = "lost"
    """The database has fenced this host."""


class OwnershipEvent(enum.Enum):
    """An event that changes the state of an ownership."""

    ASSIGNED = "assigned"
    ACQUIRED = "taken over"
    RECOVERED = "recovered"
    RELEASE_REQUESTED = "release asked"
    RELEASED = "released"
    FENCED = "fenced"
    FAILED = "failed"
    """The database or an attempt failed: try again."""
    DROPPED = "dropped"
    """Another host may own it now: everything in flight ends at once."""


TRANSITIONS: Final[Mapping[tuple[OwnershipState, OwnershipEvent], OwnershipState]] = {
    (OwnershipState.FREE, OwnershipEvent.ASSIGNED): OwnershipState.ACQUIRING,
    (OwnershipState.ACQUIRING, OwnershipEvent.ACQUIRED): OwnershipState.RECOVERING,
    (OwnershipState.ACQUIRING, OwnershipEvent.FAILED): OwnershipState.ACQUIRING,
    (OwnershipState.ACQUIRING, OwnershipEvent.RELEASE_REQUESTED): OwnershipState.FREE,
    (OwnershipState.RECOVERING, OwnershipEvent.RECOVERED): OwnershipState.OWNED,
    (OwnershipState.RECOVERING, OwnershipEvent.FAILED): OwnershipState.ACQUIRING,
    (OwnershipState.RECOVERING, OwnershipEvent.FENCED): OwnershipState.LOST,
    (OwnershipState.RECOVERING, OwnershipEvent.RELEASE_REQUESTED): OwnershipState.FREE,
    (OwnershipState.OWNED, OwnershipEvent.RELEASE_REQUESTED): OwnershipState.DRAINING,
    (OwnershipState.OWNED, OwnershipEvent.FENCED): OwnershipState.LOST,
    (OwnershipState.OWNED, OwnershipEvent.FAILED): OwnershipState.LOST,
    (OwnershipState.DRAINING, OwnershipEvent.RELEASED): OwnershipState.FREE,
    (OwnershipState.DRAINING, OwnershipEvent.FENCED): OwnershipState.LOST,
    (OwnershipState.DRAINING, OwnershipEvent.FAILED): OwnershipState.LOST,
    (OwnershipState.LOST, OwnershipEvent.ASSIGNED): OwnershipState.ACQUIRING,
    (OwnershipState.LOST, OwnershipEvent.RELEASED): OwnershipState.FREE,
    **{(state, OwnershipEvent.DROPPED): OwnershipState.FREE for state in OwnershipState},
}


def next_ownership_state(state: OwnershipState, event: OwnershipEvent) -> OwnershipState:
    """Return the next state. Raises `ValueError` if the table has none."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a shard that is {state.value} cannot be {event.value}") from None


def ownership_state_of(shard: int, assignment: Assignment | None, owner: Member | None) -> str:
    """Return the state of a shard with its planned owner, a value of `OwnershipState`.

    Args:
        assignment: the shard's assignment; None if no host should own it.
        owner: the member that the assignment names; None if it is gone.
    """
    if assignment is None:
        return OwnershipState.FREE.value
    if owner is None:
        return OwnershipState.LOST.value
    holding = owner.held_shards.get(shard)
    # The state under an earlier assignment says nothing about this one.
    started = holding is not None and holding.epoch == assignment.epoch
    return holding.state if started and holding is not None else OwnershipState.ACQUIRING.value
