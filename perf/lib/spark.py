"""A real Spark on this machine, for measurements and tests: two task slots, each task tried four times.

Always true: its tasks run this interpreter on this source tree. It listens on
loopback only, and writes into a given folder. Knows nothing of queues.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[2]
MASTER: Final = "local[2,4]"


@contextmanager
def spark_session(folder: Path, options: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """Yield a session. Its log of events is in `folder`/events.

    Raises:
        Exception: there is no Java; the text says so.
    """
    (folder / "events").mkdir(parents=True)
    before = dict(os.environ)
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    given = {
        "spark.master": MASTER,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "4",
        **options,
    }
    builder = SparkSession.builder
    for name, value in given.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
    finally:
        os.environ.clear()
        os.environ |= before
