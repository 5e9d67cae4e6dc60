"""The Spark sink: `df.write.format("foqs").option("url", ...).mode("append").save()`.

Holds the sink in small parts: `options`, `columns`, `rows` and `keys` are pure;
`sender` and `probe` speak to hosts; `partition` writes the rows of one task;
`source` alone knows PySpark, and `arrow` alone pyarrow; `environment` says whether Spark's Python has them. Spark finds the sink by
the package `pyspark_foqs`. Always true: importing this package imports neither.
"""
