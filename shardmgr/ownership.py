"""The ownership of a shard by one host: one table of states and events.

Pure. Who should own a shard is the coordinator's business, who may write is
the database's; this says what the host believes and what may follow.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class OwnershipState(enum.Enum):
    """What a host believes of one shard."""

    FREE = "free"
    """Not ours, or given back."""
    ACQUIRING = "acquiring"
    """Assigned to us; the database has not made us the owner yet."""
    RECOVERING = "recovering"
    """Ours by the database; memory is being rebuilt from rows."""
    OWNED = "owned"
    """Served."""
    DRAINING = "draining"
    """Ours, takes in nothing more, writes what waits."""
    LOST = "lost"
    """The database fenced us."""


class OwnershipEvent(enum.Enum):
    """What can happen to an ownership."""

    ASSIGNED = "assigned"
    ACQUIRED = "taken over"
    RECOVERED = "recovered"
    RELEASE_REQUESTED = "release asked"
    RELEASED = "released"
    FENCED = "fenced"
    FAILED = "failed"
    """The database went away, or an attempt went wrong: try again."""
    DROPPED = "dropped"
    """It is another's, or may be: whatever is under way ends at once."""


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
    """The state that follows. Raises `ValueError` where the table has no way."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a shard that is {state.value} cannot be {event.value}") from None
