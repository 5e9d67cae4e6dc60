"""Planted bugs of the lifetime of registry sessions, for the simulation of several hosts; see `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardmgr.registry.session_lifetime import SessionLifetime
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def heartbeat_prolongs_session_at_once() -> None:
    """An answered heartbeat prolongs the session at once, although the leader may not know of it."""

    def answered(self: SessionLifetime, sent_ms: int, now_ms: int) -> None:
        self.alive_until_ms = max(self.alive_until_ms, sent_ms + self.timeout_ms)

    plant(SessionLifetime, "on_sync_answered", answered)


BUGS: Final[Mapping[str, Bug]] = {
    "heartbeat-prolongs-session-at-once": Bug(heartbeat_prolongs_session_at_once, (12,), first_seed=4),
}
