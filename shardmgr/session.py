"""How a host stands with its cluster: one table of states and events.

Pure. Whether the session lives is the registry's business, which shards are the
host's the plan's; this says what the host may do meanwhile.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class Standing(enum.Enum):
    """How a host stands."""

    CUT_OFF = "cut off"
    """No session, or one that may be over: it serves nothing."""
    JOINING = "joining"
    """A session, in which not all is announced and read yet: it serves nothing."""
    SERVING = "serving"
    """It does what the plan says."""
    SUSPENDED = "suspended"
    """The session may be ending: it hands out nothing, and still takes in."""


class Turn(enum.Enum):
    """What can happen to it."""

    BEGUN = "begun"
    """The service answers, in a session that nothing was served in or all was dropped."""
    FOLLOWED = "followed"
    """It is announced, and the plan was read and followed."""
    SILENT = "silent"
    """The service does not answer."""
    OVER = "over"
    """The session is over, or may be before long."""


TABLE: Final[Mapping[tuple[Standing, Turn], Standing]] = {
    (Standing.CUT_OFF, Turn.BEGUN): Standing.JOINING,
    (Standing.CUT_OFF, Turn.SILENT): Standing.CUT_OFF,
    (Standing.CUT_OFF, Turn.OVER): Standing.CUT_OFF,
    (Standing.JOINING, Turn.FOLLOWED): Standing.SERVING,
    (Standing.JOINING, Turn.SILENT): Standing.JOINING,
    (Standing.JOINING, Turn.OVER): Standing.CUT_OFF,
    (Standing.SERVING, Turn.FOLLOWED): Standing.SERVING,
    (Standing.SERVING, Turn.SILENT): Standing.SUSPENDED,
    (Standing.SERVING, Turn.OVER): Standing.CUT_OFF,
    (Standing.SUSPENDED, Turn.FOLLOWED): Standing.SERVING,
    (Standing.SUSPENDED, Turn.SILENT): Standing.SUSPENDED,
    (Standing.SUSPENDED, Turn.OVER): Standing.CUT_OFF,
}


def advance(standing: Standing, turn: Turn) -> Standing:
    """The standing that follows. Raises `ValueError` where the table has no way."""
    try:
        return TABLE[standing, turn]
    except KeyError:
        raise ValueError(f"a host that is {standing.value} cannot have {turn.value}") from None
