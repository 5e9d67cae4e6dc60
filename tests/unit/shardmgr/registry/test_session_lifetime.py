"""Tests of a session's lifetime with a leader that learns of requests when it pings."""

from __future__ import annotations

from random import Random

import pytest

from shardmgr.registry.session_lifetime import SessionLifetime

TICK_MS = 2_000
TIMEOUT_MS = 6_000


def lifetime(tick_ms: int = TICK_MS, timeout_ms: int = TIMEOUT_MS) -> SessionLifetime:
    """Return the lifetime of a session that was requested at 0 and granted."""
    made = SessionLifetime(tick_ms, timeout_ms)
    made.on_connected(0, timeout_ms)
    return made


def test_a_connect_counts_from_when_it_was_sent() -> None:
    assert lifetime().alive_until_ms == TIMEOUT_MS


def test_an_answered_sync_does_not_prolong_the_session_by_itself() -> None:
    session = lifetime()
    session.on_sync_answered(1_000, 1_010)
    session.on_sync_answered(3_009, 3_020)
    assert session.alive_until_ms == TIMEOUT_MS


def test_sync_counts_once_a_sync_a_tick_later_is_answered() -> None:
    session = lifetime()
    session.on_sync_answered(1_000, 1_010)
    session.on_sync_answered(3_010, 3_020)
    assert session.alive_until_ms == 1_000 + TIMEOUT_MS


def test_reconnect_forgets_requests_that_the_former_server_may_not_have_reported() -> None:
    session = lifetime()
    session.on_sync_answered(1_000, 1_010)
    session.on_connected(900, TIMEOUT_MS)
    session.on_sync_answered(5_000, 5_010)
    assert session.alive_until_ms == 900 + TIMEOUT_MS


def test_a_server_that_grants_less_shortens_the_session() -> None:
    session = lifetime()
    session.on_connected(10, 4_000)
    assert (session.alive_until_ms, session.timeout_ms) == (4_010, 4_000)


def test_a_tick_is_at_most_half_of_a_timeout() -> None:
    assert lifetime(tick_ms=10_000, timeout_ms=4_000).tick_ms == 2_000


@pytest.mark.parametrize("timeout_ms", [4_000, 6_000, 40_000])
def test_leader_ends_no_session_before_the_computed_moment(timeout_ms: int) -> None:
    for seed in range(300):
        rng = Random(seed)
        session, every_ms = lifetime(timeout_ms=timeout_ms), timeout_ms / 12
        known_ms, active_ms = 0.0, -1.0  # the leader's, and the follower's since it last passed anything on
        relay_ms, sync_ms = rng.uniform(0, TICK_MS / 2), rng.uniform(0, every_ms)
        stop_ms = rng.uniform(0, 3 * timeout_ms)
        while min(relay_ms, sync_ms) < stop_ms:
            if relay_ms <= sync_ms:
                if active_ms >= 0:
                    known_ms, active_ms = relay_ms, -1.0
                relay_ms += TICK_MS / 2 * rng.uniform(1.0, 1.1)
            else:
                active_ms = sync_ms
                session.on_sync_answered(int(sync_ms), int(sync_ms) + 1)
                sync_ms += every_ms * rng.uniform(1.0, 1.5)
        assert session.alive_until_ms <= known_ms + timeout_ms, seed
