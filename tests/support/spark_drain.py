"""A stream out of topics into Parquet, as a program: `python -m tests.support.spark_drain JSON`.

A test starts it as a process, so that it can be killed at any moment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

import pandas as pd
from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MODULE: Final = "tests.support.spark_drain"
_POLL_S: Final = 0.05


def start_drain(
    session: SparkSession,
    folder: Path,
    options: Mapping[str, str],
    *,
    pause_batch: int | None = None,
    available_now: bool = True,
) -> StreamingQuery:
    """Start a query that writes ids and payloads to `folder`/rows.

    Args:
        session: the Spark session.
        folder: has the rows, the checkpoint and, unless an option says otherwise, the staging location.
        options: of the source.
        pause_batch: in this batch, each task stops after its rows and writes `folder`/paused. If that file
            exists, nothing stops.
        available_now: the query ends when it has taken what was ready.
    """
    given = {"staging_location": str(folder / "staged"), **options}
    frame = session.readStream.format("foqs").options(**given).load().select("id", "payload")
    if pause_batch is not None:
        paused = str(folder / "paused")

        def pause(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            context = TaskContext.get()
            assert context is not None
            yield from frames
            if context.getLocalProperty("streaming.sql.batchId") == str(pause_batch) and not os.path.exists(paused):  # noqa: PTH110
                Path(paused).touch()
                while True:
                    time.sleep(_POLL_S)  # until the process is killed

        frame = frame.mapInPandas(pause, "id string, payload binary")
    writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def main() -> None:
    from perf.lib.spark import spark_session

    job = json.loads(sys.argv[1])
    folder = Path(job["folder"])
    with ExitStack() as stack:
        # A killed session leaves its folder.
        scratch = Path(mkdtemp(prefix="session-", dir=folder))
        session = stack.enter_context(spark_session(scratch))
        start_drain(
            session,
            folder,
            job["options"],
            pause_batch=job.get("pause_batch"),
            available_now=job.get("available_now", True),
        ).awaitTermination()


if __name__ == "__main__":
    main()
