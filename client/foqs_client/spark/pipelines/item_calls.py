"""Calls on the items of a frame, made by Spark's tasks.

Holds `ItemCalls` and `count_outcomes`. Always true: a task that is repeated does no harm,
because its calls do none; at worst the outcomes of its last attempt are counted. A task
has some calls in flight, and reads its rows meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from foqs_client.spark.pipelines.connection import Connection, PipelineError
from foqs_client.spark.pipelines.error_sentence import error_sentence
from foqs_client.spark.pipelines.item_actions import ItemAction, call_until_accepted, outcome_of
from foqs_client.spark.pipelines.restored_rows import restored_items
from foqs_client.sync_client import SyncClient

ENTRIES_PER_CALL: Final = 500
CALLS_IN_FLIGHT: Final = 3
"""The maximum number of a task's calls at a time. A call has entries of one batch of rows."""
OUTCOME_COLUMNS: Final = "outcome string, message string, items bigint"


class ItemCalls:
    """Applies an action to the rows of a task. The output has the number of items for each outcome."""

    def __init__(self, connection: Connection, action: ItemAction) -> None:
        self._connection = connection
        self._action = action

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: Counter[tuple[str, str]] = Counter()
        in_flight: deque[Future[list[tuple[str, str]]]] = deque()
        with self._connection.open_client() as client, ThreadPoolExecutor(CALLS_IN_FLIGHT) as threads:
            for batch in batches:
                entries, expired = self._entries(batch)
                counts["expired", "its TTL had ended when it was exported"] += expired
                for start in range(0, len(entries), ENTRIES_PER_CALL):
                    if len(in_flight) == CALLS_IN_FLIGHT:
                        counts.update(in_flight.popleft().result())
                    part = entries[start : start + ENTRIES_PER_CALL]
                    in_flight.append(threads.submit(self._outcomes, client, part))
            for call in in_flight:
                counts.update(call.result())
        found = [(*outcome, items) for outcome, items in counts.items() if items]
        columns = [pa.array([row[place] for row in found], kind) for place, kind in enumerate(_TYPES)]
        yield pa.RecordBatch.from_arrays(columns, names=["outcome", "message", "items"])

    def _outcomes(self, client: SyncClient, entries: Sequence[Any]) -> list[tuple[str, str]]:
        results = call_until_accepted(
            entries, lambda part: self._action.call(client, part), self._connection.timeout_ms / 1_000
        )
        return [outcome_of(result) for result in results]

    def _entries(self, batch: pa.RecordBatch) -> tuple[list[Any], int]:
        if self._action.name != "restore":
            return batch.column("id").to_pylist(), 0
        moments = ("enqueued_at", "due_at")
        columns = {
            name: (
                batch.column(name).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()) if name in moments else column
            )
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        rows = pa.RecordBatch.from_pydict(columns).to_pylist()
        return restored_items(rows, str(self._action.argument))


_TYPES: Final = (pa.string(), pa.string(), pa.int64())


def count_outcomes(frame: DataFrame, calls: ItemCalls) -> dict[tuple[str, str], int]:
    """Apply the calls to the rows of a frame. Return the number of items by (outcome, message).

    Raises:
        PipelineError: a task failed; the text is the sentence of its error.
    """
    try:
        rows = frame.mapInArrow(calls, OUTCOME_COLUMNS).groupBy("outcome", "message").sum("items").collect()
    except Exception as error:
        raise PipelineError(f"a task failed: {error_sentence(error)}; repeat the command for the rest") from None
    return {(row["outcome"], row["message"] or ""): row["sum(items)"] for row in rows}
