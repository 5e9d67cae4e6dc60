"""How fast are Spark's pipelines `export` and `import`? `python -m perf.spark_transfer`

Fills a host, exports its items to Parquet, and imports them into a new host. Beside it,
the sink writes the same payloads into another new host. The pipelines carry everything
that an item has; the sink makes new items. The first job of a session is slower, because
Java compiles its code then. Two task slots; every item is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, ItemFilter
from foqs_client.spark.pipelines.connection import Connection
from foqs_client.spark.pipelines.transfer import export_items, import_items
from perf.lib import machine
from perf.lib.report import Report
from perf.lib.spark import spark_session
from perf.lib.stage import Stage, add_stage_options, stage

SHOWN: Final = ("how", "items", "shards", "payload_bytes", "items_per_s", "host_us", "database_us")


def main() -> None:
    options = _parser().parse_args()
    report = Report("spark-transfer")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="foqs-perf-spark-")))
        session = stack.enter_context(spark_session(folder / "spark"))
        export = str(folder / "export")

        def measure(how: str, found: Stage, run: Callable[[], Any]) -> None:
            report.add({"how": how, **_parameters(options)}, _timed(found, options.items, run))

        with stage(options.system, options.shards) as found:
            found.fill(options.items, options.payload_bytes)
            connection = Connection(found.place)
            for how, folder_of_run in (("export, the first job", f"{folder}/first"), ("export", export)):
                run = partial(export_items, session, connection, folder_of_run, None, dry_run=False)
                measure(how, found, run)
        with stage(options.system, options.shards) as found:
            connection = Connection(found.place)
            measure("import", found, lambda: import_items(session, connection, export, None, dry_run=False, yes=True))
        with stage(options.system, options.shards) as found:
            rows = session.read.parquet(f"{export}/items").select("topic", "payload")
            sink = rows.write.format("foqs").option("url", found.place).mode("append")
            measure("sink", found, sink.save)
    report.table(SHOWN)


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("items", "shards", "payload_bytes", "system")}


def _timed(found: Stage, items: int, run: Callable[[], Any]) -> dict[str, float]:
    """Return the figures of one run. Raise AssertionError if the host does not have all items then."""
    before, begun = found.cpu_s(), time.monotonic()
    run()
    took_s = time.monotonic() - begun
    after = found.cpu_s()
    counted = asyncio.run(_count(found.place))
    assert counted == items, f"{counted} items of {items} are there"
    used = {f"{name}_us": round((after[name] - before[name]) / items * 1e6, 1) for name in after}
    return {"items_per_s": round(items / took_s), **used}


async def _count(place: str) -> int:
    async with Client(place) as client:
        return (await client.count(ItemFilter(), timeout_ms=60_000)).items


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.spark_transfer", description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--payload-bytes", type=int, default=1_024)
    add_stage_options(parser, shards=8)
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        machine.facts()
        main()
