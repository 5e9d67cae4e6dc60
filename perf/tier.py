"""How soon does an urgent item reach a consumer of another host? `python -m perf.tier`

Three hosts, two MariaDB servers and eight shards run on this machine. One consumer
works at half of its rate, on items of one priority that are enqueued at all hosts.
Urgent items are enqueued between them, at each host in turn. The same is measured
with all items at one host and a consumer that knows only this host. A latency lasts
from before the enqueue until the consumer has the delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from foqs.dev.local_cluster import LocalCluster
from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, FoqsError, Item
from perf.lib.report import Report, percentile, say

SHOWN: Final = ("consumer", "items_per_s", "urgent", "p50_ms", "p99_ms", "ratio_p99")
URGENT: Final = -1_000
_URGENT_EVERY_S: Final = 0.02
_CALL: Final = 10
_ITEMS_PER_DEQUEUE: Final = 10


def main() -> None:
    options = _parser().parse_args()
    report = Report("tier")
    with LocalCluster() as cluster:
        asyncio.run(_measure(report, cluster, options.seconds, options.rate))
    report.table(SHOWN)


async def _measure(report: Report, cluster: LocalCluster, seconds: float, rate: float) -> None:
    urls = [f"foqs://127.0.0.1:{host.port}" for host in cluster.hosts]
    async with contextlib.AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(Client(url, automatic_keys=False)) for url in urls]
        one = await stack.enter_async_context(Client(urls[0], automatic_keys=False))
        all_hosts = await stack.enter_async_context(Client(cluster.url))
        if not rate:
            rate = 0.5 * await _rate_max(producers, all_hosts, "most", seconds / 2)
        say(f"half load: {rate:,.0f} items a second")
        own = await _latencies(producers[:1], one, "own", rate, seconds)
        any_host = await _latencies(producers, all_hosts, "any", rate, seconds)
    base = percentile(own, 0.99) or 0.0
    for name, latencies in (("of the item's host", own), ("of all hosts", any_host)):
        p99 = percentile(latencies, 0.99) or 0.0
        figures: dict[str, Any] = {
            "urgent": len(latencies),
            "p50_ms": 1_000 * (percentile(latencies, 0.5) or 0.0),
            "p99_ms": 1_000 * p99,
            "ratio_p99": p99 / base if base else None,
        }
        report.add({"consumer": name, "items_per_s": round(rate)}, figures)


async def _rate_max(producers: Sequence[Client], consumer: Client, topic: str, seconds: float) -> float:
    """Return the items per second that are delivered without a limit."""
    until = time.perf_counter() + seconds
    done = 0

    async def produce(producer: Client) -> None:
        while time.perf_counter() < until:
            await producer.enqueue([Item(topic, b"x")] * _CALL)

    async def consume() -> None:
        nonlocal done
        while time.perf_counter() < until:
            found = await consumer.dequeue({topic: _ITEMS_PER_DEQUEUE}, wait_ms=200)
            if found:
                await consumer.ack(found)
            done += len(found)

    await asyncio.gather(*map(produce, producers), consume())
    return done / seconds


async def _latencies(
    producers: Sequence[Client], consumer: Client, topic: str, rate: float, seconds: float
) -> list[float]:
    """Return the latencies of urgent items in seconds, sorted."""
    sent: dict[bytes, float] = {}
    latencies: list[float] = []
    stopping = asyncio.Event()

    async def consume() -> None:
        while not (stopping.is_set() and len(latencies) == len(sent)):
            found = await consumer.dequeue({topic: _ITEMS_PER_DEQUEUE}, wait_ms=200)
            now = time.perf_counter()
            latencies.extend(now - sent[each.payload] for each in found if each.priority == URGENT)
            if found:
                await consumer.ack(found)

    async def put(producer: Client, items: Sequence[Item]) -> None:
        with contextlib.suppress(FoqsError):
            await producer.enqueue(items)

    async def produce(every_s: float, urgent: bool) -> None:
        next_s = time.perf_counter()
        calls: set[asyncio.Task[None]] = set()
        number = 0
        while not stopping.is_set():
            next_s += every_s
            await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
            number += 1
            if urgent:
                payload = f"{topic}-{number}".encode()
                sent[payload] = time.perf_counter()
                items = [Item(topic, payload, URGENT)]
            else:
                items = [Item(topic, b"x")] * _CALL
            call = asyncio.ensure_future(put(producers[number % len(producers)], items))
            calls.add(call)
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)

    consuming = asyncio.ensure_future(consume())
    producing = [
        asyncio.ensure_future(produce(_CALL / rate, False)),
        asyncio.ensure_future(produce(_URGENT_EVERY_S, True)),
    ]
    await asyncio.sleep(seconds)
    stopping.set()
    await asyncio.gather(*producing)
    await asyncio.wait_for(consuming, 60)
    return sorted(latencies)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each measurement (20)")
    parser.add_argument("--rate", type=float, default=0.0, help="items per second; 0: half of the measured maximum (0)")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
