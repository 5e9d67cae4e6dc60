"""One Spark session for all tests of the sink."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from perf.lib.spark import spark_session
from tests.support.spark_cluster import JAVA_OPTIONS

os.environ["SPARK_SUBMIT_OPTS"] = JAVA_OPTIONS  # also of the programs that tests start


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
