"""Jobs of a cluster, as a program: `environment/bin/python -P spark_cluster_job.py JSON`.

It imports no module of the tests, because the environment that is shipped has none. Spark's
settings are in PYSPARK_SUBMIT_ARGS. The result is written to the file `result` of the job's
folder, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import SparkSession

POLL_S = 0.02


def run_everything(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the page's program, which writes a frame. Then read the queue, stream into it, and stream all out of it.

    Args:
        job: `program`; `url` of the hosts; `folder`, which has text files in `lines`.
    """
    variables: dict[str, Any] = {}
    exec(job["program"], variables)
    spark: SparkSession = variables["spark"]
    url, folder = str(job["url"]), Path(job["folder"])

    def with_place(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Add the address of the worker, and where foqs is imported from."""
        import foqs_client

        for frame in frames:
            yield frame.assign(address=os.environ["SPARK_LOCAL_IP"], package=foqs_client.__file__)

    read = spark.read.format("foqs").option("url", url).option("topics", "orders").load().select("id")
    rows = read.mapInPandas(with_place, "id string, address string, package string").collect()

    lines = spark.readStream.schema("value string").text(str(folder / "lines")).selectExpr("value AS payload")
    into = lines.writeStream.format("foqs").option("url", url).option("topic", "lines")
    into.option("checkpointLocation", str(folder / "into")).trigger(availableNow=True).start().awaitTermination()

    out = spark.readStream.format("foqs").option("url", url).option("topics", "orders,lines")
    taken = out.option("staging_location", str(folder / "staged")).load().selectExpr("CAST(payload AS string) AS text")
    files = taken.writeStream.format("parquet").option("path", str(folder / "rows"))
    files.option("checkpointLocation", str(folder / "out")).trigger(availableNow=True).start().awaitTermination()
    texts = [row.text for row in spark.read.parquet(str(folder / "rows")).collect()]
    spark.stop()
    return {
        "ids": [row.id for row in rows],
        "addresses": sorted({row.address for row in rows}),
        "packages": sorted({row.package for row in rows}),
        "taken": texts,
    }


def run_twice(job: Mapping[str, Any]) -> dict[str, Any]:
    """Write a frame, one of whose tasks stops half way, and so does the copy that Spark starts of it.

    Each of the two writes its process id to the file `attempt-0` or `attempt-1` of the folder,
    and goes on when there is a file `go`.

    Args:
        job: `url` of the hosts, `topic`, `folder`, `rows`, `partitions`, `step` (rows that are passed on at once).
    """
    spark = SparkSession.builder.getOrCreate()
    folder, step = Path(job["folder"]), int(job["step"])

    def stop_half_way(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        assert context is not None
        rows = pd.concat(frames)
        half = len(rows) // 2
        yield from (rows[at : at + step] for at in range(0, half, step))
        if context.partitionId() == 0:
            part = folder / f"part-{context.attemptNumber()}"
            part.write_text(str(os.getpid()))
            part.rename(folder / f"attempt-{context.attemptNumber()}")
            while not (folder / "go").exists():
                time.sleep(POLL_S)
        yield rows[half:]

    columns = "rpad(lpad(cast(id AS string), 8, '0'), 500, '.') AS payload", "spark_partition_id() AS priority"
    frame = spark.range(0, job["rows"], 1, job["partitions"]).selectExpr(*columns)
    written = frame.mapInPandas(stop_half_way, "payload string, priority int").write.format("foqs")
    written.option("url", job["url"]).option("topic", job["topic"]).mode("append").save()
    spark.stop()
    return {}


JOBS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "everything": run_everything,
    "twice": run_twice,
}


def main() -> None:
    job = json.loads(sys.argv[1])
    result = JOBS[job["name"]](job)
    (Path(job["folder"]) / "result").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
