"""The ownership of a shard by one host: one table of states and events.

Pure. Who should own a shard is the coordinator's business, who may write is
the database's; this says what the host believes and what may follow.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class Ownership(enum.Enum):
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


class Happening(enum.Enum):
    """What can happen to an ownership."""

    ASSIGNED = "assigned"
    TAKEN_OVER = "taken over"
    RECOVERED = "recovered"
    RELEASE_ASKED = "release asked"
    RELEASED = "released"
    FENCED = "fenced"
    FAILED = "failed"
    """The database went away, or an attempt went wrong: try again."""
    DROPPED = "dropped"
    """It is another's, or may be: whatever is under way ends at once."""


TABLE: Final[Mapping[tuple[Ownership, Happening], Ownership]] = {
    (Ownership.FREE, Happening.ASSIGNED): Ownership.ACQUIRING,
    (Ownership.ACQUIRING, Happening.TAKEN_OVER): Ownership.RECOVERING,
    (Ownership.ACQUIRING, Happening.FAILED): Ownership.ACQUIRING,
    (Ownership.ACQUIRING, Happening.RELEASE_ASKED): Ownership.FREE,
    (Ownership.RECOVERING, Happening.RECOVERED): Ownership.OWNED,
    (Ownership.RECOVERING, Happening.FAILED): Ownership.ACQUIRING,
    (Ownership.RECOVERING, Happening.FENCED): Ownership.LOST,
    (Ownership.RECOVERING, Happening.RELEASE_ASKED): Ownership.FREE,
    (Ownership.OWNED, Happening.RELEASE_ASKED): Ownership.DRAINING,
    (Ownership.OWNED, Happening.FENCED): Ownership.LOST,
    (Ownership.OWNED, Happening.FAILED): Ownership.LOST,
    (Ownership.DRAINING, Happening.RELEASED): Ownership.FREE,
    (Ownership.DRAINING, Happening.FENCED): Ownership.LOST,
    (Ownership.DRAINING, Happening.FAILED): Ownership.LOST,
    (Ownership.LOST, Happening.ASSIGNED): Ownership.ACQUIRING,
    (Ownership.LOST, Happening.RELEASED): Ownership.FREE,
    **{(state, Happening.DROPPED): Ownership.FREE for state in Ownership},
}


def advance(state: Ownership, happening: Happening) -> Ownership:
    """The state that follows. Raises `ValueError` where the table has no way."""
    try:
        return TABLE[state, happening]
    except KeyError:
        raise ValueError(f"a shard that is {state.value} cannot be {happening.value}") from None
