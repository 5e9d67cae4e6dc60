"""How fast is the Spark sink? `python -m perf.spark`

Writes the same items into the same host in alternating ways: two processes with the
plain client, two processes with the sink's code without Spark, with keys of one slot
and of more, and Spark with two task slots. A figure is the median of the rounds; the
ratio is to the plain client of the same run. Every item is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, Item, ItemFilter
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.partition_writer import write_partition
from perf.lib import machine
from perf.lib.report import Report, say
from perf.lib.stage import Stage, add_stage_options, stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN: Final = ("how", "key_slots", "items", "shards", "items_per_s", "of_bare", "host_us", "database_us")
PROCESSES: Final = 2
_CALL_ITEMS: Final = 500
_IN_FLIGHT: Final = 8
_ROWS: Final = 10_000
"""The number of rows that Spark passes at once."""


def main() -> None:
    options = _parser().parse_args()
    report = Report("spark")
    with ExitStack() as stack:
        found = stack.enter_context(stage(options.system, options.shards))
        ways: dict[tuple[str, int | None], Callable[[str], None]] = {
            ("bare client", None): partial(_in_processes, _bare, found.place, options)
        }
        for key_slots in options.key_slots:
            ways["sink without Spark", key_slots] = partial(
                _in_processes, partial(_sink, key_slots), found.place, options
            )
        if not options.no_spark:
            session = _session(stack)
            ways["Spark", None] = partial(_spark, session, found.place, options)
            ways["Spark", None]("warm-up")
        rates: dict[tuple[str, int | None], list[dict[str, float]]] = {way: [] for way in ways}
        for number in range(options.rounds):
            for way, run in ways.items():
                rates[way].append(_timed(found, f"{way[0]}-{way[1]}-{number}", options.items, run))
                say(f"{way[0]}, key slots {way[1]}: {rates[way][-1]['items_per_s']:,.0f} items/s")
    bare = median(line["items_per_s"] for line in rates["bare client", None])
    for (how, key_slots), lines in rates.items():
        figures: dict[str, Any] = {name: round(median(line[name] for line in lines), 1) for name in lines[0]}
        figures["of_bare"] = round(figures["items_per_s"] / bare, 3)
        report.add({"how": how, "key_slots": key_slots, **_parameters(options)}, figures)
    report.table(SHOWN)


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    names = ("items", "shards", "payload_bytes", "rounds", "system")
    return {name: getattr(options, name) for name in names}


def _timed(found: Stage, topic: str, items: int, run: Callable[[str], None]) -> dict[str, float]:
    """Return the figures of one round in its own topic. Raise AssertionError if an item is lost or doubled."""
    before, begun = found.cpu_s(), time.monotonic()
    run(topic)
    took = time.monotonic() - begun
    after = found.cpu_s()
    counted = asyncio.run(_count(found.place, topic))
    assert counted == items, f"{counted} items of {items} are there"
    used = {f"{name}_us": (after[name] - before[name]) / items * 1e6 for name in after}
    return {"items_per_s": items / took, **used}


async def _count(place: str, topic: str) -> int:
    async with Client(place) as client:
        return (await client.count(ItemFilter(topic=topic))).items


# ------------------------------------------------------------- without Spark


def _in_processes(
    work: Callable[[str, str, int, int, int], None], place: str, options: argparse.Namespace, topic: str
) -> None:
    """Write the parts in processes that are started before the measurement."""
    context = multiprocessing.get_context("forkserver")
    each = options.items // PROCESSES
    with context.Pool(PROCESSES) as pool:
        pool.map(abs, range(PROCESSES))
        given = [(place, topic, number * each, each, options.payload_bytes) for number in range(PROCESSES)]
        pool.starmap(work, given, chunksize=1)


def _payload(number: int, size: int) -> bytes:
    return b"%016d" % number + b"x" * (size - 16)


def _bare(place: str, topic: str, first: int, count: int, size: int) -> None:
    asyncio.run(_bare_calls(place, topic, first, count, size))


async def _bare_calls(place: str, topic: str, first: int, count: int, size: int) -> None:
    begins = iter(range(first, first + count, _CALL_ITEMS))
    async with Client(place, timeout_ms=60_000) as client:

        async def caller() -> None:
            for begin in begins:
                numbers = range(begin, min(begin + _CALL_ITEMS, first + count))
                for result in await client.enqueue([Item(topic, _payload(number, size)) for number in numbers]):
                    result.require()

        await asyncio.gather(*(caller() for _ in range(_IN_FLIGHT)))


def _sink(key_slots: int, place: str, topic: str, first: int, count: int, size: int) -> None:
    def rows() -> Iterator[tuple[dict[str, list[Any]], int]]:
        for begin in range(first, first + count, _ROWS):
            payloads = [_payload(number, size) for number in range(begin, min(begin + _ROWS, first + count))]
            yield {"payload": payloads}, len(payloads)

    write_partition(rows(), first, key_slots, SinkOptions.parse({"url": place, "topic": topic}))


# ---------------------------------------------------------------- with Spark


def _session(stack: ExitStack) -> SparkSession:
    from perf.lib.spark import spark_session

    folder = stack.enter_context(TemporaryDirectory(prefix="foqs-perf-spark-"))
    return stack.enter_context(spark_session(Path(folder)))


def _spark(session: SparkSession, place: str, options: argparse.Namespace, topic: str) -> None:
    frame = session.range(0, options.items, 1, options.partitions).selectExpr(
        f"rpad(lpad(cast(id AS string), 16, '0'), {options.payload_bytes}, 'x') AS payload"
    )
    frame.write.format("foqs").option("url", place).option("topic", topic).mode("append").save()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.spark", description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--payload-bytes", type=int, default=1_024)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument(
        "--key-slots", type=int, nargs="*", default=[1, 8], help="key slots of a task, for the sink without Spark"
    )
    parser.add_argument("--rounds", type=int, default=3)
    add_stage_options(parser, shards=8)
    parser.add_argument("--no-spark", action="store_true", help="leave out Spark: neither Java nor PySpark is needed")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        machine.facts()
        main()
