"""Bugs of how long a host reckons its session, to plant, to show that the simulation of several hosts would find them.

As `planted`: each is the mistake that a rule prevents, made in one place, and
names the invariants by which it may show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardmgr.registry.session_lifetime import SessionLifetime
from tests.simulation.planted import Bug


def answer_prolongs_the_session() -> None:
    """A heartbeat that was answered counts at once, although the leader may not know of it."""

    def answered(self: SessionLifetime, sent_ms: int, now_ms: int) -> None:
        self.alive_until_ms = max(self.alive_until_ms, sent_ms + self.timeout_ms)

    SessionLifetime.on_sync_answered = answered  # type: ignore[method-assign]


BUGS: Final[Mapping[str, Bug]] = {
    "answer-prolongs-the-session": Bug(answer_prolongs_the_session, (12,)),
}
