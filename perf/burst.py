"""How much does other work suffer while very many delayed items come due in one second? `python -m perf.burst`

The database itself writes the items into the tables: DEFERRED, all with one due
time. Two quiet callers, one in the same namespace and one in another, enqueue an
item into their own topic several times per second, dequeue it and ack it: before
the due time, and then until the last delayed item was delivered and acked.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

import uvloop

from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, Item, Namespace
from perf.lib import backlog, machine
from perf.lib.packets import query
from perf.lib.payload import HEAD_BYTES, NUMBER_BYTES
from perf.lib.report import Report, say
from perf.lib.stage import Stage, stage

SHOWN: Final = (
    "items", "due_to_last_s", "items_per_s", "before_p50_ms", "before_p99_ms", "neighbour_p50_ms", "neighbour_p99_ms",
    "stranger_p50_ms", "stranger_p99_ms", "host_peak_mib", "host_grown_mib",
)  # fmt: skip
_TURN: Final = 100
"""The number of items in a consumer's call."""
_STALLED_S: Final = 60.0


@dataclass(slots=True)
class Seen:
    """The figures of the callers. Latencies are seconds from an enqueue to its ack."""

    due_s: float
    seen: bytearray
    delivered: int = 0
    doubled: int = 0
    early: int = 0
    before: list[float] = field(default_factory=list)
    neighbour: list[float] = field(default_factory=list)
    stranger: list[float] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)


def main() -> None:
    options = _parser().parse_args()
    report = Report("burst")
    with stage("foqs-mariadb", options.shards) as found:
        due_s = _write_delayed_items(found, options.items, options.lead)
        assert found.host is not None
        before_mib = machine.resident_mib(found.host.pid) or 0.0
        seen = uvloop.run(_race(found.host.address, options, due_s))
        peak_mib = machine.peak_mib(found.host.pid) or 0.0
        took_s = time.time() - due_s
        report.add(
            {"items": options.items, "shards": options.shards, "consumers": options.consumers, "rate": options.rate},
            {
                "delivered": seen.delivered,
                "doubled": seen.doubled,
                "early": seen.early,
                "due_to_last_s": round(took_s, 2),
                "items_per_s": round(options.items / took_s),
                "neighbour": len(seen.neighbour),
                "stranger": len(seen.stranger),
                **_latencies("before", seen.before),
                **_latencies("neighbour", seen.neighbour),
                **_latencies("stranger", seen.stranger),
                "host_peak_mib": round(peak_mib),
                "host_grown_mib": round(peak_mib - before_mib),
            },
        )
    report.table(SHOWN)


def _write_delayed_items(found: Stage, items: int, lead_s: float) -> float:
    """Fill the tables and start the host on them. Return when the items are due, as `time.time` counts."""
    assert found.host is not None and found.mariadb is not None
    asyncio.run(_templates(found.host.address, found.shards))
    found.host.stop()
    connection = found.mariadb.connect()
    held = [_count(connection, shard) for shard in range(found.shards)]
    connection.close()
    backlog.fill_mariadb(found.mariadb, backlog.shares(found.shards, sum(held), items), 64)
    due_s = time.time() + lead_s + items / 15_000
    connection = found.mariadb.connect()
    first = 0
    for shard in range(found.shards):
        table = f"foqs_{shard}_item"
        # The templates get lower numbers than the copies: a row's number is its place.
        connection.run(query(f"SET @n = {first - 1}"))
        connection.run(
            query(
                f"UPDATE {table} SET payload = CONCAT(LPAD(@n := @n + 1, {NUMBER_BYTES}, '0'), "
                f"SUBSTR(payload, {NUMBER_BYTES + 1})) ORDER BY id LIMIT {held[shard]}"
            )
        )
        first += held[shard]
        due_ms = int(due_s * 1000)
        connection.run(query(f"UPDATE {table} SET due_ms = {due_ms}, deliver_after_ms = {due_ms}"))
        timers = f"foqs_{shard}_timer"
        connection.run(query(f"DELETE FROM {timers}"))
        connection.run(query(f"INSERT INTO {timers} (due_ms, id) SELECT due_ms, id FROM {table}"))
    connection.close()
    found.host.start()
    say(f"{items:,} items are written; they are due in {due_s - time.time():.1f} s")
    return due_s


def _count(connection: Any, shard: int) -> int:
    ((count,),) = connection.run(query(f"SELECT COUNT(*) FROM foqs_{shard}_item"))[0].rows
    return int(count)


async def _templates(address: str, shards: int) -> None:
    """Enqueue delayed items, so that every shard has some to copy."""
    async with Client(address, automatic_keys=False) as client:
        for _ in range(shards * 16):
            for result in await client.enqueue([Item("burst", b"0" * (HEAD_BYTES + 64), delay_ms=86_400_000)]):
                result.require()
            await asyncio.sleep(0.05)


async def _race(address: str, options: argparse.Namespace, due_s: float) -> Seen:
    seen = Seen(due_s, bytearray(options.items))
    async with (
        Client(address, automatic_keys=False) as client,
        Client(address, namespace="other", automatic_keys=False) as other,
    ):
        await other.create_namespace(Namespace("other"))
        quiet = (_quiet(client, options.rate, seen, seen.neighbour), _quiet(other, options.rate, seen, seen.stranger))
        await asyncio.gather(*(_consume(client, seen) for _ in range(options.consumers)), *quiet, _watch(seen))
    return seen


async def _consume(client: Client, seen: Seen) -> None:
    while not seen.over.is_set():
        found = await client.dequeue({"burst": _TURN}, wait_ms=1_000)
        for delivery in found:
            number = int(delivery.payload[:NUMBER_BYTES])
            seen.doubled += seen.seen[number]
            seen.seen[number] = 1
            seen.early += time.time() < seen.due_s - 0.1
        for outcome in await client.ack(found) if found else ():
            outcome.require()
        seen.delivered += len(found)
        if seen.delivered - seen.doubled >= len(seen.seen):
            seen.over.set()


async def _watch(seen: Seen) -> None:
    """Raise TimeoutError if no more items are delivered."""
    while not seen.over.is_set():
        before = seen.delivered
        try:
            async with asyncio.timeout(_STALLED_S):
                await seen.over.wait()
        except TimeoutError:
            if seen.delivered == before and time.time() > seen.due_s + _STALLED_S:
                raise TimeoutError(f"only {seen.delivered:,} items were delivered") from None


async def _quiet(client: Client, rate: float, seen: Seen, during: list[float]) -> None:
    """Enqueue, dequeue and ack an item of another topic, `rate` times a second."""
    while not seen.over.is_set():
        begun = time.time()
        for result in await client.enqueue([Item("quiet", b"q" * 100)]):
            result.require()
        found = await client.dequeue({"quiet": 1}, wait_ms=5_000)
        for outcome in await client.ack(found):
            outcome.require()
        took = time.time() - begun
        (seen.before if begun + took < seen.due_s else during).append(took)
        await asyncio.sleep(max(0.0, 1 / rate - took))


def _latencies(name: str, found: list[float]) -> dict[str, float]:
    if len(found) < 2:
        return {}
    return {
        f"{name}_p50_ms": round(median(found) * 1000, 1),
        f"{name}_p99_ms": round(quantiles(found, n=100)[98] * 1000, 1),
        f"{name}_max_ms": round(max(found) * 1000, 1),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.burst", description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument(
        "--lead", type=float, default=12.0, help="seconds for the start of the host and for the quiet callers alone"
    )
    parser.add_argument("--consumers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=50.0, help="items per second of each quiet caller")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
