"""Lets Spark find the source and the sink: Spark looks in every top-level package `pyspark_*` for a `DefaultSource`."""

from importlib.util import find_spec

if find_spec("pyspark") is not None:
    from foqs_client.spark.source import FoqsDataSource as DefaultSource

    __all__ = ["DefaultSource"]
