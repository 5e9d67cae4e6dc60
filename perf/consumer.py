"""What does the consumer loop cost, compared with the plain client? `python -m perf.consumer`

Both empty the same queue on the same host, one after the other in every round: the
plain client with callers that dequeue and ack alternately, the consumer with as
many items in flight and a handler that does nothing. Nothing else runs. Besides the
ratio of rates the program prints the ratio of CPU per item in client, host and
database, which other load changes less. With `--topics` one topic holds nine tenths
of the items, and the program prints when each other topic was first handled.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Final

import uvloop

from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, Item
from foqs_client.consumer import Consumer, Job
from perf.lib.report import Report, middle, say
from perf.lib.stage import PLAIN, Stage, stage

SHOWN: Final = (
    "system", "handler", "items", "in_flight", "bare_items_per_s", "consumer_items_per_s", "ratio", "bare_client_us",
    "consumer_client_us", "cpu_ratio", "topics", "first_of_each_s", "first_median_s", "cpu_s",
)  # fmt: skip
_PUT: Final = 500
_CALL: Final = 100
"""The number of items in a dequeue of the plain client."""
_PUTTERS: Final = 8


def main() -> None:
    options = _parser().parse_args()
    report = Report("consumer")
    with stage(options.system, options.shards) as found:
        for handler in options.handlers:
            uvloop.run(_compare(report, found, options, handler))
        if options.topics:
            uvloop.run(_first_of_each(report, found, options))
    report.table(SHOWN)


async def _compare(report: Report, found: Stage, options: argparse.Namespace, handler: str) -> None:
    assert found.host is not None
    rates: dict[str, list[float]] = {"bare": [], "consumer": []}
    cpu_us: dict[str, list[float]] = {"bare": [], "consumer": []}
    servers_us: dict[str, list[float]] = {"bare": [], "consumer": []}
    async with Client(found.host.address, automatic_keys=False, timeout_ms=30_000) as client:
        for place in range(options.rounds):
            # They take turns: the first may find the machine warmer or colder.
            for kind in ("bare", "consumer")[:: 1 if place % 2 else -1]:
                await _fill(client, ["t"] * options.items, options.payload)
                servers_s = sum(found.cpu_s().values())
                begun_s, cpu_s = time.perf_counter(), time.process_time()
                if kind == "bare":
                    await _bare(client, options.items, options.in_flight)
                else:
                    await _consume(client, options.items, options.in_flight, handler)
                took_s = time.perf_counter() - begun_s
                rates[kind].append(options.items / took_s)
                cpu_us[kind].append((time.process_time() - cpu_s) / options.items * 1e6)
                servers_us[kind].append((sum(found.cpu_s().values()) - servers_s) / options.items * 1e6)
                say(f"{handler}, {kind}: {rates[kind][-1]:,.0f} items/s")
    bare, consumer = middle(rates["bare"]), middle(rates["consumer"])
    all_us = {kind: middle(cpu_us[kind]) + middle(servers_us[kind]) for kind in rates}
    report.add(
        {"system": found.system, "handler": handler, "items": options.items, "payload_bytes": options.payload,
         "in_flight": options.in_flight, "rounds": options.rounds},
        {"bare_items_per_s": round(bare), "consumer_items_per_s": round(consumer), "ratio": round(consumer / bare, 3),
         "bare_client_us": round(middle(cpu_us["bare"]), 1),
         "consumer_client_us": round(middle(cpu_us["consumer"]), 1),
         "bare_servers_us": round(middle(servers_us["bare"]), 1),
         "consumer_servers_us": round(middle(servers_us["consumer"]), 1),
         "cpu_ratio": round(all_us["bare"] / all_us["consumer"], 3), "rates": rates},
    )  # fmt: skip


async def _fill(client: Client, topics: Sequence[str], payload_bytes: int) -> None:
    parts = iter(range(0, len(topics), _PUT))

    async def put() -> None:
        for start in parts:
            items = [Item(topic, b"x" * payload_bytes) for topic in topics[start : start + _PUT]]
            for result in await client.enqueue(items):
                result.require()

    await asyncio.gather(*(put() for _ in range(_PUTTERS)))


async def _bare(client: Client, items: int, in_flight: int) -> None:
    """Run as many callers as together hold the items that the consumer may hold."""
    done = 0

    async def call() -> None:
        nonlocal done
        while done < items:
            found = await client.dequeue({"t": _CALL}, wait_ms=50)
            for outcome in await client.ack(found):
                outcome.require()
            done += len(found)

    await asyncio.gather(*(call() for _ in range(max(1, in_flight // _CALL))))


async def _consume(client: Client, items: int, in_flight: int, handler: str) -> None:
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    begun = itertools.count(1)

    async def work(job: Job) -> None:
        plain(job)

    def plain(job: Job) -> None:
        if next(begun) == items:
            loop.call_soon_threadsafe(over.set_result, None)

    consumer = Consumer(
        client, work if handler == "async" else plain, ["t"], concurrency=in_flight // 2 if handler == "async" else 8,
        in_flight=in_flight,
    )  # fmt: skip
    running = asyncio.ensure_future(consumer.run())
    await asyncio.wait((over, running), return_when=asyncio.FIRST_COMPLETED)
    consumer.stop()
    counts = await running
    if counts.done != items:
        raise AssertionError(f"unexpected results of {items} items: {counts}")


async def _first_of_each(report: Report, found: Stage, options: argparse.Namespace) -> None:
    """Return the times from the consumer's start to the first item of each topic except the large one."""
    assert found.host is not None
    others = [f"small-{number}" for number in range(options.topics - 1)]
    async with Client(found.host.address, automatic_keys=False, timeout_ms=30_000) as client:
        await _fill(client, ["big"] * (9 * len(others)), options.payload)
        await _fill(client, others, options.payload)
        firsts: dict[str, float] = {}
        over = asyncio.get_running_loop().create_future()
        before = found.cpu_s()
        begun_s, cpu_s = time.perf_counter(), time.process_time()

        async def work(job: Job) -> None:
            if job.topic not in firsts:
                firsts[job.topic] = time.perf_counter() - begun_s
                if len(firsts) == options.topics:
                    over.set_result(None)

        consumer = Consumer(client, work, ["*"], concurrency=options.in_flight // 2, in_flight=options.in_flight)
        running = asyncio.ensure_future(consumer.run())
        await asyncio.wait((over, running), return_when=asyncio.FIRST_COMPLETED)
        used = {name: round(value - before[name], 2) for name, value in found.cpu_s().items()}
        used["client"] = round(time.process_time() - cpu_s, 2)
        begun = consumer.counts
        consumer.stop()
        await running
    waits = sorted(firsts.values())
    report.add(
        {"system": found.system, "topics": options.topics, "items": 10 * len(others), "in_flight": options.in_flight,
         "payload_bytes": options.payload},
        {"first_of_each_s": round(waits[-1], 4), "first_median_s": round(waits[len(waits) // 2], 4),
         "done_by_then": begun.done, "cpu_s": used},
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.consumer", description=__doc__.partition("\n")[0])
    parser.add_argument("--system", choices=(PLAIN, "foqs-sqlite"), default=PLAIN)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--items", type=int, default=50_000, help="items of each round")
    parser.add_argument("--payload", type=int, default=1_024, help="bytes")
    parser.add_argument("--in-flight", type=int, default=800, help="items held at a time, by both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--handlers", nargs="*", choices=("async", "thread"), default=["async", "thread"])
    parser.add_argument("--topics", type=int, default=10_000, help="topics of the second measurement; 0: leave it out")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
