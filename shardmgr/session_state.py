"""The session state of a host: one table of states and events.

Pure. The registry knows whether its session lives, and the plan which shards the
host owns. This table says what the host may do.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class SessionState(enum.Enum):
    """The session state of a host, which says what it may do."""

    CUT_OFF = "cut off"
    """The host has no session, or one that may be over: it serves nothing."""
    JOINING = "joining"
    """The host has a registry session, but has not announced itself and followed the plan yet: it serves nothing."""
    SERVING = "serving"
    """The host follows the plan, and serves its shards."""
    SUSPENDED = "suspended"
    """The session may be ending: the host delivers nothing, but still accepts items."""


class SessionEvent(enum.Enum):
    """An event that changes the session state."""

    STARTED = "begun"
    """The service answers in a session in which the host serves nothing yet."""
    PLAN_FOLLOWED = "followed"
    """The host is announced, and has read and followed the plan."""
    UNRESPONSIVE = "silent"
    """The service does not answer."""
    ENDED = "over"
    """The session is over, or may be soon."""


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
    """Return the next state. Raises `ValueError` if the table has none."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a host that is {state.value} cannot have {event.value}") from None
