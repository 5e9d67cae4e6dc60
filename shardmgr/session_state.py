"""How a host stands with its cluster: one table of states and events.

Pure. Whether the session lives is the registry's business, which shards are the
host's the plan's; this says what the host may do meanwhile.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class SessionState(enum.Enum):
    """How a host stands."""

    CUT_OFF = "cut off"
    """No session, or one that may be over: it serves nothing."""
    JOINING = "joining"
    """A session, in which not all is announced and read yet: it serves nothing."""
    SERVING = "serving"
    """It does what the plan says."""
    SUSPENDED = "suspended"
    """The session may be ending: it hands out nothing, and still takes in."""


class SessionEvent(enum.Enum):
    """What can happen to it."""

    STARTED = "begun"
    """The service answers, in a session that nothing was served in or all was dropped."""
    PLAN_FOLLOWED = "followed"
    """It is announced, and the plan was read and followed."""
    UNRESPONSIVE = "silent"
    """The service does not answer."""
    ENDED = "over"
    """The session is over, or may be before long."""


TRANSITIONS: Final[Mapping[tuple[SessionState, SessionEvent], SessionState]] = {
    (SessionState.CUT_OFF, SessionEvent.STARTED): SessionState.JOINING,
    (SessionState.CUT_OFF, SessionEvent.UNRESPONSIVE): SessionState.CUT_OFF,
    (SessionState.CUT_OFF, SessionEvent.ENDED): SessionState.CUT_OFF,
    (SessionState.JOINING, SessionEvent.PLAN_FOLLOWED): SessionState.SERVING,
    (SessionState.JOINING, SessionEvent.UNRESPONSIVE): SessionState.JOINING,
    (SessionState.JOINING, SessionEvent.ENDED): SessionState.CUT_OFF,
    (SessionState.SERVING, SessionEvent.PLAN_FOLLOWED): SessionState.SERVING,
    (SessionState.SERVING, SessionEvent.UNRESPONSIVE): SessionState.SUSPENDED,
    (SessionState.SERVING, SessionEvent.ENDED): SessionState.CUT_OFF,
    (SessionState.SUSPENDED, SessionEvent.PLAN_FOLLOWED): SessionState.SERVING,
    (SessionState.SUSPENDED, SessionEvent.UNRESPONSIVE): SessionState.SUSPENDED,
    (SessionState.SUSPENDED, SessionEvent.ENDED): SessionState.CUT_OFF,
}


def next_session_state(state: SessionState, event: SessionEvent) -> SessionState:
    """The standing that follows. Raises `ValueError` where the table has no way."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a host that is {state.value} cannot have {event.value}") from None
