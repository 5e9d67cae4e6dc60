"""Tests of when an ensemble of three servers ends the session of a client whose server is frozen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

import pytest
from kazoo.client import KazooClient

from shardmgr.registry.zookeeper_registry import ZooKeeperRegistry
from tests.support.aio import run
from tests.support.registries import boot_ms
from tests.support.zookeeper import ZooKeeper, ensemble

pytestmark = pytest.mark.zookeeper

TICK_MS: Final = 1_000
TIMEOUT_MS: Final = 3_000
CLIENTS: Final = 8
TRIALS: Final = 3
_LATE_MS: Final = 150
"""The leader ends sessions at full ticks of this machine's monotonic clock. A heartbeat shortly after one shows most."""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ZooKeeper]]:
    """Yield three servers, the leader first."""
    with ensemble(TICK_MS) as servers:
        yield servers


@pytest.mark.timeout(300)
def test_session_does_not_end_early_if_its_server_freezes_after_a_heartbeat(
    servers: list[ZooKeeper],
) -> None:
    early = []
    for trial in range(TRIALS):
        folder, follower = f"trial-{trial}", servers[1 + trial % 2]
        with servers[0].client() as leader:
            try:
                alive_until_ms = run(_frozen(follower, folder, leader))
            finally:
                follower.thaw()
        early += [f"trial {trial}, {name}: {left} ms" for name, left in alive_until_ms.items() if left > 0]
    assert early == []


async def _frozen(follower: ZooKeeper, folder: str, leader: KazooClient) -> dict[str, int]:
    """Return for each client of the follower how long before `alive_until_ms` the leader ended its session."""
    registries = {
        f"client-{number}": ZooKeeperRegistry(
            follower.hosts, "/foqs", TIMEOUT_MS, boot_ms, connect_timeout_ms=60_000, tick_ms=TICK_MS
        )
        for number in range(CLIENTS)
    }
    frozen = asyncio.Event()
    try:
        for name, registry in registries.items():
            await registry.open()
            await registry.announce(folder, name, b"")
        gone = _watch(leader, f"/foqs/{folder}")
        not_before_ms = boot_ms() + 3 * TICK_MS
        for registry in registries.values():
            _freeze_after_heartbeat(registry, follower, not_before_ms, frozen)
        await frozen.wait()
        # A client is in another session if the machine stood still before.
        until_ms = {
            name: registry.alive_until_ms
            for name, registry in registries.items()
            if registry.session_number == 1 and name in gone
        }
        assert until_ms
        return {name: at_ms - await gone[name] for name, at_ms in until_ms.items()}
    finally:
        follower.thaw()
        await asyncio.gather(*(registry.close() for registry in registries.values()))


def _freeze_after_heartbeat(
    registry: ZooKeeperRegistry, follower: ZooKeeper, not_before_ms: int, frozen: asyncio.Event
) -> None:
    """Freeze the server in the turn in which a reply to a heartbeat arrives that it sent shortly after a full tick."""
    on_ping_answered = registry._on_ping_answered

    def freeze_on_ping_answered(ping: asyncio.Future[object], sent_ms: int) -> None:
        on_ping_answered(ping, sent_ms)
        into_tick_ms = time.monotonic_ns() // 1_000_000 % TICK_MS
        age_ms = boot_ms() - sent_ms
        if not frozen.is_set() and sent_ms > not_before_ms and age_ms < into_tick_ms < _LATE_MS:
            follower.freeze()
            frozen.set()

    registry._on_ping_answered = freeze_on_ping_answered  # type: ignore[method-assign]


def _watch(leader: KazooClient, path: str) -> dict[str, asyncio.Future[int]]:
    """Return for each member of a folder when the leader ended its session."""
    loop = asyncio.get_running_loop()
    gone: dict[str, asyncio.Future[int]] = {name: loop.create_future() for name in leader.get_children(path)}

    def look(_: object = None) -> None:
        left = set(leader.get_children(path, watch=look))
        now_ms = boot_ms()
        for name in gone.keys() - left:
            loop.call_soon_threadsafe(_note, gone[name], now_ms)

    look()
    return gone


def _note(ended: asyncio.Future[int], now_ms: int) -> None:
    if not ended.done():
        ended.set_result(now_ms)
