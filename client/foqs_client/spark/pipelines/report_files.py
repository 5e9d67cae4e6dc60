"""The files of a report: its tables as Parquet and one HTML page.

Holds `write_report_files`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from foqs_client.spark.pipelines.connection import PipelineError
from foqs_client.spark.pipelines.terminal import say


def write_report_files(spark: SparkSession, folder: str, name: str, tables: Mapping[str, DataFrame], html: str) -> None:
    """Write the tables and the page `name`.html into a new folder.

    Raises:
        PipelineError: the folder cannot be written, or has a table.
    """
    try:
        for each, table in tables.items():
            table.coalesce(1).write.parquet(f"{folder}/{each}.parquet")
    except AnalysisException as error:
        raise PipelineError(f"the report cannot be written to {folder}: {str(error).strip().splitlines()[0]}") from None
    if "://" in folder:
        # Not a local folder: Spark writes the page as one line of a text file.
        spark.createDataFrame([(json.dumps(html),)], "value string").coalesce(1).write.text(f"{folder}/{name}.json")
        say(f"The page is a JSON text in {folder}/{name}.json, because the folder is not on this machine.")
        return
    target = Path(folder) / f"{name}.html"
    target.parent.mkdir(parents=True, exist_ok=True)  # on a cluster, Spark may have made it on other machines only
    target.write_text(html, encoding="utf-8")
    say(f"Open {target.resolve().as_uri()}")
