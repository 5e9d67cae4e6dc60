"""Calls on the items of a frame, made by Spark's tasks.

Holds `ItemCalls` and `count_outcomes`. Always true: every call may be made twice, so a
task that is repeated does no harm; at worst the second attempt's outcomes are counted.
A call that a host refuses for lack of room is repeated until its time ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from foqs_client.errors import FoqsError
from foqs_client.spark.pipelines.connection import Connection, PipelineError
from foqs_client.spark.pipelines.restored_rows import restored_items
from foqs_client.sync_client import SyncClient
from foqs_client.types import Change

ENTRIES_PER_CALL: Final = 500
OUTCOME_COLUMNS: Final = "outcome string, message string, items bigint"
_PAUSE_S_MIN: Final = 0.1

E = TypeVar("E")
Results = Sequence[Any]
"""Outcomes or Enqueued, with an `error`."""


@dataclass(slots=True, frozen=True)
class Action:
    """What is done to each item. `argument`: the priority or the topic; of a restore, the name of the export."""

    name: str
    argument: Any = None

    def __str__(self) -> str:
        words = {"priority": f"give priority {self.argument} to", "move": f"move to topic {self.argument!r}"}
        return words.get(self.name, self.name)

    def call(self, client: SyncClient, entries: Sequence[Any]) -> Results:
        """Make one call. Raises FoqsError."""
        match self.name:
            case "redrive":
                return client.redrive(entries)
            case "cancel":
                return client.cancel(entries)
            case "priority":
                return client.update(entries, Change(priority=self.argument))
            case "move":
                return client.move(entries, self.argument)
            case _:
                return client.restore(entries)


class ItemCalls:
    """Applies an action to the rows of a task. The output has the number of items for each outcome."""

    def __init__(self, connection: Connection, action: Action) -> None:
        self._connection = connection
        self._action = action

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: Counter[tuple[str, str]] = Counter()
        with self._connection.open_client() as client:
            for batch in batches:
                entries, expired = self._entries(batch)
                counts["expired", "its TTL had ended when it was exported"] += expired
                for start in range(0, len(entries), ENTRIES_PER_CALL):
                    part = entries[start : start + ENTRIES_PER_CALL]
                    results = _until_accepted(
                        part, lambda part: self._action.call(client, part), self._connection.timeout_ms / 1_000
                    )
                    counts.update(map(_outcome, results))
        found = [(*outcome, items) for outcome, items in counts.items() if items]
        columns = [pa.array([row[place] for row in found], kind) for place, kind in enumerate(_TYPES)]
        yield pa.RecordBatch.from_arrays(columns, names=["outcome", "message", "items"])

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
        raise PipelineError(f"a task failed: {_last_line(str(error))}; repeat the command for the rest") from None
    return {(row["outcome"], row["message"] or ""): row["sum(items)"] for row in rows}


def _until_accepted(entries: Sequence[E], call: Callable[[Sequence[E]], Results], timeout_s: float) -> list[Any]:
    """Call until each entry has a result that is final, or the time ends. Raises FoqsError if a whole call fails."""
    results: dict[int, Any] = {}
    places = list(range(len(entries)))
    until_s = time.monotonic() + timeout_s
    while places:
        errors: list[FoqsError] = []
        again: list[int] = []
        try:
            for place, result in zip(places, call([entries[place] for place in places]), strict=True):
                results[place] = result
                if result.error is not None and result.error.retryable:
                    again.append(place)
                    errors.append(result.error)
        except FoqsError as error:
            if not error.retryable:
                raise
            again, errors = places, [error]
        pause_s = max([_PAUSE_S_MIN, *[(error.retry_after_ms or 0) / 1_000 for error in errors]])
        if not again:
            break
        if time.monotonic() + pause_s > until_s:
            if len(results) < len(entries):
                raise errors[0]
            break
        time.sleep(pause_s)
        places = again
    return [results[place] for place in range(len(entries))]


def _outcome(result: Any) -> tuple[str, str]:
    if result.error is not None:
        return result.error.code, result.error.message
    if getattr(result, "repeated", False):
        return "repeated", "an earlier call did it, or its key is in use"
    if getattr(result, "already_gone", False):
        return "gone", "it was gone already"
    return "done", ""


def _last_line(text: str) -> str:
    """Return the sentence of an error of a task: Spark puts its traceback before it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line or line.startswith("foqs_")]
    return (named or lines or [text])[-1]
