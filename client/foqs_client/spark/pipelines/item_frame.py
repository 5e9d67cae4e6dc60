"""The items of a queue as a frame: the only place where pipelines read items.

Holds `read_items`. Its columns are those of the source `spark.read.format("foqs")`.
Always true: each topic and state is as its pages pass, so an item that changes its
state meanwhile may be missing or there twice. Pause the topics to have one moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from foqs_client.errors import FoqsError, NotFound
from foqs_client.spark.pipelines.connection import Connection, PipelineError
from foqs_client.sync_client import SyncClient
from foqs_client.types import ItemView

STATES: Final = ("deferred", "ready", "leased", "dead")
_COLUMNS: Final = {
    "id": ("string", pa.string()),
    "shard": ("int", pa.int32()),
    "topic": ("string", pa.string()),
    "state": ("string", pa.string()),
    "priority": ("int", pa.int32()),
    "attempt": ("int", pa.int32()),
    "enqueued_at": ("timestamp", pa.timestamp("us", tz="UTC")),
    "due_at": ("timestamp", pa.timestamp("us", tz="UTC")),
    "lease_until": ("timestamp", pa.timestamp("us", tz="UTC")),
    "age": ("bigint", pa.int64()),
    "payload_bytes": ("int", pa.int32()),
    "metadata": ("binary", pa.binary()),
    "dead_reason": ("string", pa.string()),
}
_PAYLOAD: Final = {"payload": ("binary", pa.binary())}
_DETAILS: Final = {
    "idempotency_key": ("string", pa.string()),
    "ttl_remaining": ("bigint", pa.int64()),
    "lease": ("bigint", pa.int64()),
    "attempts_max": ("int", pa.int32()),
    "at_most_once": ("boolean", pa.bool_()),
    "trace_context": ("binary", pa.binary()),
}
_TOPICS_PAGE: Final = 1_000
_ITEMS_PAGE: Final = 500


def read_items(
    spark: SparkSession,
    connection: Connection,
    *,
    topics: Sequence[str] | None = None,
    states: Sequence[str] = STATES,
    payload: bool = False,
    details: bool = False,
) -> DataFrame:
    """Return the items as rows.

    Args:
        topics: None means all topics of the namespace.
        payload: with the column payload.
        details: with the columns that a copy of an item needs.

    Raises:
        PipelineError: the hosts cannot be called, or refuse the call.
    """
    columns = {**_COLUMNS, **(_PAYLOAD if payload else {}), **(_DETAILS if details else {})}
    try:
        with connection.open_client() as client:
            names = list(_topics(client, states)) if topics is None else list(topics)
    except FoqsError as error:
        raise PipelineError(f"the topics of {connection.namespace!r} cannot be read: {error}") from None
    parts = [(name, state) for name in names for state in states]
    frame = spark.createDataFrame(parts, "topic string, state string").repartition(max(1, min(len(parts), 64)))
    read = _PartReader(connection, list(columns), payload=payload, details=details)
    ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    return frame.mapInArrow(read, ddl)


def _topics(client: SyncClient, states: Sequence[str]) -> Iterator[str]:
    cursor: str | None = None
    while True:
        page = client.topics(states=states, limit=_TOPICS_PAGE, cursor=cursor)
        yield from [topic.topic for topic in page.topics]
        cursor = page.next_cursor
        if cursor is None:
            return


class _PartReader:
    """Reads the items of rows (topic, state), in a task of Spark."""

    def __init__(self, connection: Connection, columns: Sequence[str], *, payload: bool, details: bool) -> None:
        self._connection = connection
        self._columns = columns
        self._payload = payload
        self._details = details

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._connection.open_client() as client:
            for batch in batches:
                for part in batch.to_pylist():
                    yield from self._read(client, part["topic"], part["state"])

    def _read(self, client: SyncClient, topic: str, state: str) -> Iterator[pa.RecordBatch]:
        cursor: str | None = None
        while True:
            page = client.peek(topic, state, _ITEMS_PAGE, cursor, with_payload=self._payload)
            now_ms = int(time.time() * 1_000)
            views = self._with_keys(client, page.items) if self._details else page.items
            if views:
                yield self._batch(views, now_ms)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _with_keys(self, client: SyncClient, views: Sequence[ItemView]) -> list[ItemView]:
        """Return the items with their keys. An item that is gone meanwhile is left out."""
        found = []
        for view in views:
            try:
                found.append(client.item(view.id, with_payload=self._payload))
            except NotFound:
                continue
        return found

    def _batch(self, views: Sequence[ItemView], now_ms: int) -> pa.RecordBatch:
        types = {**_COLUMNS, **_PAYLOAD, **_DETAILS}
        values = [pa.array([_value(view, name, now_ms) for view in views], types[name][1]) for name in self._columns]
        return pa.RecordBatch.from_arrays(values, names=list(self._columns))


def _value(view: ItemView, name: str, now_ms: int) -> Any:
    moments = {"enqueued_at": -(view.age_ms or 0), "due_at": view.due_in_ms, "lease_until": view.lease_remaining_ms}
    if name in moments:
        offset = moments[name]
        return None if offset is None else 1_000 * (now_ms + offset)
    others = {
        "shard": int(view.id.partition("-")[0]),
        "age": view.age_ms,
        "metadata": view.metadata or b"",
        "ttl_remaining": view.ttl_remaining_ms,
        "lease": view.lease_ms,
    }
    return others[name] if name in others else getattr(view, name)
