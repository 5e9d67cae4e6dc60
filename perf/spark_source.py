"""How fast is the Spark source, and whom does it disturb? `python -m perf.spark_source`

Fills a host, and reads all items without payloads: by two processes with the source's
code without Spark, and by Spark with two task slots. Then a load of half the host's
capacity runs, first alone and then beside a read with a rate. The figures are the rate
that the read kept, and the 99th percentile of the load's calls, in milliseconds, from
the moment at which each was to begin. Every row is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, Item
from foqs_client.spark.item_reader import check_source, read_pages
from foqs_client.spark.source_options import SourceOptions
from perf.lib import machine
from perf.lib.report import Report, percentile, say
from perf.lib.stage import Stage, add_stage_options, stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN: Final = (
    "how",
    "items",
    "rows_per_s",
    "items_per_s",
    "host_us",
    "database_us",
    "enqueue_p99_ms",
    "dequeue_p99_ms",
)
PROCESSES: Final = 2
LOAD_TOPIC: Final = "load"
CALL_ITEMS: Final = 20
"""Items of each call of the load."""
CAPACITY_S: Final = 5.0
"""How long the load runs as fast as it can, to find the capacity."""
_CALLERS: Final = 16


def main() -> None:
    options = _parser().parse_args()
    report = Report("spark-source")
    with ExitStack() as stack:
        found = stack.enter_context(stage(options.system, options.shards))
        found.fill(options.items, options.payload_bytes)
        source = SourceOptions.parse({"url": found.place, "page_rows": "1000"})
        ways: dict[str, Callable[[], int]] = {"source without Spark": lambda: _in_processes(source)}
        if not options.no_spark:
            session = _session(stack)
            ways["Spark"] = lambda: _spark(session, found.place)
        for how, read in ways.items():
            report.add({"how": how, **_parameters(options)}, _timed(found, options.items, read))
        capacity = asyncio.run(_load(found.place, CAPACITY_S, None))["items_per_s"]
        say(f"the load alone reaches {capacity:,.0f} items/s")
        for rate in (None, options.rows_per_second):
            figures = _beside(found.place, capacity / 2, rate, options.seconds)
            report.add({"how": "load" if rate is None else "load and read", **_parameters(options)}, figures)
    report.table(SHOWN)


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    names = ("items", "shards", "payload_bytes", "rows_per_second", "seconds", "system")
    return {name: getattr(options, name) for name in names}


def _timed(found: Stage, items: int, read: Callable[[], int]) -> dict[str, float]:
    """Return the figures of one read. Raise AssertionError if a row is missing or doubled."""
    before, begun = found.cpu_s(), time.monotonic()
    rows = read()
    took_s = time.monotonic() - begun
    after = found.cpu_s()
    assert rows == items, f"{rows} rows of {items} items were read"
    used = {f"{name}_us": round((after[name] - before[name]) / items * 1e6, 1) for name in after}
    return {"rows_per_s": round(items / took_s), **used}


# ------------------------------------------------------------------- the reads


def _in_processes(source: SourceOptions) -> int:
    """Return the number of rows that two processes read."""
    shards = check_source(source)
    with multiprocessing.get_context("forkserver").Pool(PROCESSES) as pool:
        return sum(pool.starmap(_read, [(source, shards[number::PROCESSES]) for number in range(PROCESSES)]))


def _read(source: SourceOptions, shards: Sequence[int]) -> int:
    return sum(len(page.items) for page in read_pages(source, shards))


def _session(stack: ExitStack) -> SparkSession:
    from perf.lib.spark import spark_session

    folder = stack.enter_context(TemporaryDirectory(prefix="foqs-perf-spark-"))
    return stack.enter_context(spark_session(Path(folder)))


def _spark(session: SparkSession, place: str) -> int:
    return session.read.format("foqs").option("url", place).option("page_rows", 1_000).load().count()


# -------------------------------------------------------------------- the load


def _beside(place: str, items_per_s: float, rows_per_second: int | None, seconds: float) -> dict[str, float]:
    """Return the figures of a load, and of a read beside it if there is a rate."""
    context = multiprocessing.get_context("forkserver")
    if rows_per_second is None:
        return asyncio.run(_load(place, seconds, items_per_s))
    ours, theirs = context.Pipe()
    reader = context.Process(target=_read_with_rate, args=(place, rows_per_second, seconds, theirs), daemon=True)
    reader.start()
    figures = asyncio.run(_load(place, seconds, items_per_s))
    figures["rows_per_s"] = ours.recv()
    reader.join()
    return figures


def _read_with_rate(place: str, rows_per_second: int, seconds: float, result: Connection) -> None:
    """Read with a rate for some seconds, and send the rate that was kept."""
    source = SourceOptions.parse({"url": place, "rows_per_second": str(rows_per_second)})
    begun, rows = time.monotonic(), 0
    for page in read_pages(source, check_source(source)):
        rows += len(page.items)
        if time.monotonic() - begun > seconds:
            break
    result.send(round(rows / (time.monotonic() - begun)))


async def _load(place: str, seconds: float, items_per_s: float | None) -> dict[str, float]:
    """Enqueue, dequeue and ack; without a rate as fast as it can. Return the rate, and percentiles of the calls."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    took: dict[str, list[float]] = {"enqueue": [], "dequeue": []}
    done = 0
    async with Client(place, timeout_ms=60_000) as client:

        async def caller(number: int) -> None:
            nonlocal done
            every_s = 0.0 if items_per_s is None else _CALLERS * CALL_ITEMS / items_per_s
            at = begun + number * every_s / _CALLERS
            while at < begun + seconds:
                await asyncio.sleep(at - loop.time())
                await client.enqueue([Item(LOAD_TOPIC, b"x" * 1_024) for _ in range(CALL_ITEMS)])
                took["enqueue"].append(loop.time() - at)
                asked = loop.time()
                items = await client.dequeue({LOAD_TOPIC: CALL_ITEMS})
                took["dequeue"].append(loop.time() - asked)
                await client.ack(items)
                done += len(items)
                at = at + every_s if items_per_s is not None else loop.time()

        await asyncio.gather(*(caller(number) for number in range(_CALLERS)))
    figures = {f"{name}_p99_ms": round(1_000 * (percentile(sorted(each), 0.99) or 0), 1) for name, each in took.items()}
    return {"items_per_s": round(done / (loop.time() - begun)), **figures}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.spark_source", description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--payload-bytes", type=int, default=1_024)
    parser.add_argument("--rows-per-second", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    add_stage_options(parser, shards=8)
    parser.add_argument("--no-spark", action="store_true", help="leave out Spark: neither Java nor PySpark is needed")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        machine.facts()
        main()
