"""The Spark sink: `df.write.format("foqs").option("url", ...).mode("append").save()`.

`options`, `item_columns`, `row_items` and `row_keys` are pure. `sender` and
`start_check` call hosts. `partition_writer` writes the rows of one task. Only `source`
knows PySpark, only `arrow` knows pyarrow. `environment` checks the Python of Spark's
tasks. Spark finds the sink by the package `pyspark_foqs`. Always true: importing this
package imports neither PySpark nor pyarrow.
"""
