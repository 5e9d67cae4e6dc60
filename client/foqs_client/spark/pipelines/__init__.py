"""Pipelines that people run: `foqs spark NAME ...`, or `spark-submit` of `__main__.py` with the same arguments.

`load` fills topics from files, `report` shows the backlog, `redrive` and `rewrite` change
items chosen by an SQL predicate, `export` and `import` copy topics to Parquet and back,
`measures` measures a run by the records of its clients.
`report_page`, `measures_page`, `page_parts`, `charts` and `delivery_order` are pure; only
`item_calls` knows pyarrow. Always true: importing this package imports neither PySpark nor
pyarrow.
"""
