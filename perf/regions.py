"""What does a database with a server in each region cost, and what a lost one? `python -m perf.regions TRIAL`

- `distance`: how many items are enqueued, dequeued and acked a second, and how long does each call take, if the regions are
  apart by some milliseconds? The policy is `semi-sync`, so each flush waits for a replica in another region.
- `loss`: how many acknowledged items are lost if the primary is killed, by how far the replicas are behind? The policy is
  `async`, and an administrator accepts the loss. It fails if a loss is above `max_lag_ms`, or outside the range of
  `foqs region report`.

Load, the primary, its host and ZooKeeper are in one region. `foqs/dev/region_network.py` is the distance; it needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from random import Random
from typing import Any, Final

import pymysql
import uvloop

from foqs.dev.local_cluster import LocalCluster
from foqs.dev.region_database import NAME, PRIMARY
from foqs.dev.server_process import ServerNotAvailable, stop_on_signals
from foqs_client import Client, Item
from perf.lib.dequeue_all import dequeue_all
from perf.lib.region_loss import CONDITIONS, Ledger, judged
from perf.lib.report import Report, middle, say
from perf.lib.stage import Stage
from perf.lib.trial import Trial, medians, run_on

REGIONS: Final = 3
_SHOWN: Final = {
    "distance": (
        "shards", "batch", "distance_ms", "trip_ms", "items_per_s", "enqueue_p50_ms", "enqueue_p99_ms", "alone_enqueue_ms",
        "alone_dequeue_ms", "alone_ack_ms",
    ),
    "loss": (
        "delay_ms", "repetition", "lag_ms", "lost", "unanswered", "reported_min", "reported_max", "acknowledged_ms",
        "accepted_ms", "max_lag_ms", "promoted_s", *CONDITIONS,
    ),
}  # fmt: skip
_TOPIC: Final = "loss"
_LAG_METRIC: Final = "foqs_replica_lag_seconds{"
_TRIPS: Final = 11
_POLL_S: Final = 0.1
_OWNED_TIMEOUT_S: Final = 60.0


def distance(options: argparse.Namespace, report: Report) -> None:
    """Measure each number of shards on one cluster, whose distance changes."""
    for shards in options.shards:
        say(f"{shards} shards ...")
        with LocalCluster(shards=shards, regions=REGIONS, with_distance=True) as cluster:
            asyncio.run(_owned_in_first_region(cluster))
            for distance_ms, batch in itertools.product(options.distances, options.batch):
                _set_delay(cluster, distance_ms / 2)
                trial = Trial("foqs-regions", "both", batch, options.callers, shards=shards, seconds=options.seconds)
                stage = Stage(trial.system, cluster.hosts[0].address, shards)
                say(f"  {distance_ms:g} ms, {batch} a call")
                figures = medians([run_on(stage, trial) for _ in range(options.repeats)], trial)
                figures |= {"trip_ms": _trip_ms(cluster), **uvloop.run(_alone(stage.place, batch, options.calls))}
                parameters = {"trial": "distance", "distance_ms": distance_ms, "shards": shards, "batch": batch}
                report.add({**parameters, "callers": options.callers, "seconds": options.seconds}, figures)


async def _alone(address: str, batch: int, calls: int) -> dict[str, float]:
    """Return the median milliseconds of each call of one caller, if nobody else calls."""
    times_s: dict[str, list[float]] = {"enqueue": [], "dequeue": [], "ack": []}
    async with Client(address, automatic_keys=False) as client:
        for _ in range(calls):
            begun_s = time.monotonic()
            for result in await client.enqueue([Item("alone", b"x" * 1_024)] * batch):
                result.require()
            enqueued_s = time.monotonic()
            found = await client.dequeue({"alone": batch}, wait_ms=10_000)
            dequeued_s = time.monotonic()
            for outcome in await client.ack(found):
                outcome.require()
            times_s["enqueue"].append(enqueued_s - begun_s)
            times_s["dequeue"].append(dequeued_s - enqueued_s)
            times_s["ack"].append(time.monotonic() - dequeued_s)
        await client.purge_topic("alone")
    return {f"alone_{name}_ms": 1_000 * middle(values) for name, values in times_s.items()}


def _trip_ms(cluster: LocalCluster) -> float:
    """Return the milliseconds of a round trip to the server of another region, as a statement takes them."""
    times_s = []
    with closing(pymysql.connect(user="hosts", host="127.0.0.1", port=cluster.databases[1].port)) as connection:
        for _ in range(_TRIPS):
            begun_s = time.monotonic()
            connection.ping(reconnect=False)
            times_s.append(time.monotonic() - begun_s)
    return 1_000 * middle(times_s)


def loss(options: argparse.Namespace, report: Report) -> None:
    """Lose the primary of a new cluster in each repetition."""
    rng = Random(options.seed)
    for repetition, delay_ms in itertools.product(range(1, options.repetitions + 1), options.delays):
        say(f"{delay_ms:g} ms each way, repetition {repetition} of {options.repetitions} ...")
        bound = {f"databases.{NAME}.max_lag_ms": options.max_lag}
        lived_s = options.seconds + rng.random()
        with LocalCluster(
            shards=options.shards[0], regions=REGIONS, options=bound, policy="async", with_distance=True
        ) as cluster:
            figures = uvloop.run(_lose_primary(cluster, delay_ms, lived_s, options))
        parameters = {"trial": "loss", "delay_ms": delay_ms, "repetition": repetition, "max_lag_ms": options.max_lag}
        report.add({**parameters, "rate": options.rate, "lived_s": lived_s, "seed": options.seed}, figures)


async def _lose_primary(
    cluster: LocalCluster, delay_ms: float, lived_s: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what the death of the primary under load has cost."""
    await _owned_in_first_region(cluster)
    ledger = Ledger(_TOPIC)
    near = cluster.hosts[0].address
    async with Client(near, automatic_keys=False) as producer, Client(cluster.url) as client:
        async with ledger.producers(producer, options.rate):
            _set_delay(cluster, delay_ms)
            await asyncio.sleep(lived_s)
            lag_ms = await asyncio.to_thread(_lag_ms, cluster)
            await asyncio.to_thread(_kill, cluster)
            killed_s = time.monotonic()
            # The distance is of no use any more; a promotion takes several round trips of each of its many statements.
            _set_delay(cluster, 0)
            promote = ("database", "promote", NAME, "--lost", PRIMARY, "--accept-loss", "--yes")
            await asyncio.to_thread(cluster.run_foqs, *promote)
            promoted_s = time.monotonic() - killed_s
        rows = json.loads(await asyncio.to_thread(cluster.run_foqs, "region", "report", "-o", "json"))
        taken = await dequeue_all(client, _TOPIC)
    found = judged(ledger, taken, rows, options.max_lag)
    return {"lag_ms": lag_ms, "promoted_s": promoted_s, **asdict(found)}


def _kill(cluster: LocalCluster) -> None:
    """Kill the primary, and lose what is on its way from it: otherwise the replicas would get that."""
    assert cluster.network is not None
    primary = cluster.databases[0]
    primary.send_signal(signal.SIGKILL)
    cluster.network.lose(primary.port)
    primary.stop(signal.SIGKILL)


def _lag_ms(cluster: LocalCluster) -> float | None:
    """Return how far the nearest replica is behind, as the owner of the shards sees it."""
    lines = [line.rpartition(" ") for line in cluster.hosts[0].get("/metrics").splitlines()]
    return min((1_000 * float(value) for name, _, value in lines if name.startswith(_LAG_METRIC)), default=None)


async def _owned_in_first_region(cluster: LocalCluster) -> None:
    """Return once the host in the region of the primary owns all shards. Raises TimeoutError."""
    host = ("127.0.0.1", cluster.hosts[0].port)
    async with Client(cluster.url) as client, asyncio.timeout(_OWNED_TIMEOUT_S):
        while {shard.owner for shard in (await client.routing()).shards} != {host}:  # noqa: ASYNC110 - hosts do not call back
            await asyncio.sleep(_POLL_S)


def _set_delay(cluster: LocalCluster, delay_ms: float) -> None:
    assert cluster.network is not None
    cluster.network.delay_s = delay_ms / 1_000


_TRIALS: Final[dict[str, Callable[[argparse.Namespace, Report], None]]] = {"distance": distance, "loss": loss}


def main() -> int:
    options = _parser().parse_args()
    report = Report("regions")
    failed = False
    try:
        _TRIALS[options.trial](options, report)
    except ServerNotAvailable as error:
        failed = True
        say(f"  no figure: {error}")
    report.table(_SHOWN[options.trial])
    if report.lines and not options.no_plots:
        from perf.lib import plots

        draw = plots.distance if options.trial == "distance" else plots.loss
        say(f"plot: {draw(report)}")
    faults = [line for line in report.lines if not all(line["figures"].get(name, True) for name in CONDITIONS)]
    for line in faults:
        say(f"FAULT: {json.dumps(line['parameters'])}: {json.dumps(line['figures'])}")
    return 1 if failed or faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.regions", description=__doc__.partition("\n")[0])
    parser.add_argument("trial", choices=list(_TRIALS))
    parser.add_argument(
        "--shards", nargs="+", type=int, default=[1, 4, 16], help="shards of the database; `loss` uses the first"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="the window of `distance`; how long load runs in `loss`"
    )
    parser.add_argument("--no-plots", action="store_true")
    only = parser.add_argument_group("distance")
    only.add_argument(
        "--distances", nargs="+", type=float, default=[0, 10, 30, 80], help="milliseconds of a round trip"
    )
    only.add_argument("--batch", nargs="+", type=int, default=[1, 100], help="items of a call")
    only.add_argument("--callers", type=int, default=64, help="callers of both roles together")
    only.add_argument("--repeats", type=int, default=1, help="the figures are medians of this many windows")
    only.add_argument("--calls", type=int, default=30, help="calls of the caller that is alone")
    only = parser.add_argument_group("loss")
    only.add_argument("--delays", nargs="+", type=float, default=[0, 100, 500], help="milliseconds in each direction")
    only.add_argument("--repetitions", type=int, default=3, help="losses with each delay")
    only.add_argument("--rate", type=float, default=300.0, help="items a second")
    only.add_argument(
        "--max-lag", type=int, default=3_000, help="the bound in milliseconds; hosts accept no less than 3,000"
    )
    only.add_argument("--seed", type=int, default=1, help="of the moments at which primaries are killed")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        sys.exit(main())
