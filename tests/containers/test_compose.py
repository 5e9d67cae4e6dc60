"""The cluster of configs/docker/compose.yml comes up, takes load, and survives the loss of its containers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.composed import HOSTS, ComposedCluster
from tests.support.faulty_cluster import check_history
from tests.support.history import History, machine_clock_ms
from tests.support.open_load import OpenLoad
from tests.support.poll import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1_200)]

RATE: Final = 60.0
"""Items per second."""
SETTLE_S: Final = 120.0
STOP_S: Final = 30


@pytest.fixture
def cluster(context: Path) -> Iterator[ComposedCluster]:
    found = ComposedCluster(context)
    try:
        found.compose("up", "--build", "--detach")
        until(found.is_settled, "the cluster is served", SETTLE_S)
        yield found
    finally:
        found.down()


def test_the_cluster_survives_the_loss_of_each_kind_of_container_under_load(cluster: ComposedCluster) -> None:
    history = History(machine_clock_ms, source="load")
    load = OpenLoad(cluster.url, history, cluster.slots(), RATE, seed=1, spoil=0.05)

    async def story() -> None:
        await load.more(200)
        # The engine starts a container again whose process was killed.
        crashed = await asyncio.to_thread(crash, cluster, "host1")
        await settled(cluster)
        assert cluster.container("host1").attrs["State"]["Pid"] != crashed
        await load.more(200)
        # A removed container does not come back by itself.
        await asyncio.to_thread(cluster.container("host2").remove, force=True)
        others = set(HOSTS) - {"host2"}
        await asyncio.to_thread(until, lambda: cluster.owners() == others, "the others serve", SETTLE_S)
        await load.more(200)
        await asyncio.to_thread(cluster.compose, "up", "--detach", "host2")
        await settled(cluster)
        for service in ("db1", "zookeeper"):
            await asyncio.to_thread(crash, cluster, service)
            await load.more(200)
            await settled(cluster)

    async def play() -> None:
        await load.play(story())
        await load.drain(cluster.remaining_items)
        history.healed()

    try:
        asyncio.run(play())
        history.present(cluster.tables().rows())
        _, found, _ = check_history(history)
        assert found.acknowledged > 1_000
    except BaseException as error:
        for name in HOSTS:
            error.add_note(f"the log of {name}:\n{cluster.log(name)[-4_000:]}")
        raise
    stops_in_order(cluster)


def stops_in_order(cluster: ComposedCluster) -> None:
    """Stop each host; it must end by itself, after it has handed its shards over."""
    for name in HOSTS:
        cluster.container(name).stop(timeout=STOP_S)
        state = cluster.container(name).attrs["State"]
        assert (state["Running"], state["ExitCode"]) == (False, 0), cluster.log(name)


def crash(cluster: ComposedCluster, service: str) -> int:
    """Kill the process of a container, as a crash would, and return its id."""
    pid = int(cluster.container(service).attrs["State"]["Pid"])
    os.kill(pid, signal.SIGKILL)
    return pid


async def settled(cluster: ComposedCluster) -> None:
    await asyncio.to_thread(until, cluster.is_settled, "every host serves shards", SETTLE_S)
