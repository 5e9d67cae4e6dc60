"""The markers of a batch of a stream, by which the queue detects that it is run again in another way.

Holds `BatchRun`, `stream_markers` and `PARTITIONING_SETTINGS`. Always true: a marker's
key depends only on the query and the batch. A marker's item ends after 10 s, a
millisecond after it comes due; its key stays for the namespace's key window. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.options import OptionValue
from foqs_client.types import Item
from foqs_contract.key_slots import KEY_SLOT_COUNT

MARKER_TOPIC: Final = "foqs.spark"
MARKER_TTL_MS: Final = 10_000
MARKER_DELAY_MS: Final = MARKER_TTL_MS - 1
"""The delay of a marker: as long as possible, because hosts refuse an item that expires before it is due."""

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""The local properties of a task of a stream. Spark sets them."""

PARTITIONING_SETTINGS: Final = (
    "spark.sql.shuffle.partitions",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.leafNodeDefaultParallelism",
    "spark.default.parallelism",
    "spark.sql.adaptive.enabled",
    "spark.sql.adaptive.streaming.stateless.enabled",
)
"""The settings by which Spark divides a batch into partitions. A task sees those that were set.

From the checkpoint, Spark restores only the number of partitions of a state.
"""
_SIZES: Final = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
_SIZE: Final = re.compile(r"(\d+)([kmgtp]?)b?", re.ASCII)
_MASTER: Final = "spark.master"
"""The setting of the master. A local one names the number of task slots, by which Spark divides some sources."""


@dataclass(slots=True, frozen=True)
class BatchRun:
    """A batch of a query.

    Attributes:
        query: the id of the query, which its checkpoint keeps.
        batch: the number of the batch.
        partitioning: the settings by which Spark divides it into partitions.
    """

    query: str
    batch: str
    partitioning: str

    @classmethod
    def of_task(cls, local_property: Callable[[str], str | None]) -> BatchRun:
        """Return the batch of a task. Raises SinkError if the task is not one of a stream."""
        query, batch = local_property(QUERY_PROPERTY), local_property(BATCH_PROPERTY)
        if not query or not batch:
            raise SinkError("Spark does not name the query and the batch; use a trigger that makes batches")
        settings = {name: local_property(name) for name in PARTITIONING_SETTINGS}
        settings.update({name: _bytes(settings[name] or "") for name in _SIZES})
        master = local_property(_MASTER) or ""
        if master.startswith("local"):
            settings[_MASTER] = master
        return cls(query, batch, " ".join(f"{name}={value}" for name, value in settings.items() if value))

    @property
    def name(self) -> str:
        """The name of the write, from which the keys of its rows are made."""
        return f"stream {self.query} {self.batch}"


@dataclass(slots=True, frozen=True)
class Marker:
    """One marker of a batch: an item that each attempt at the batch enqueues.

    Attributes:
        item: the item, with its key.
        conflict: the sentence for the user if an earlier attempt at the batch had another one.
        is_for_made_keys: whether only rows need it whose keys are made by the job.
    """

    item: Item
    conflict: str
    is_for_made_keys: bool


@dataclass(slots=True, frozen=True)
class StreamChecks:
    """The checks of a task before it enqueues rows of a stream.

    Attributes:
        markers: the markers of the batch.
        checked_namespace: the namespace whose key window the driver has checked.
    """

    markers: Sequence[Marker]
    checked_namespace: str | None


def stream_markers(
    batch: BatchRun, columns: Sequence[tuple[str, str]], defaults: Mapping[str, OptionValue]
) -> list[Marker]:
    """Return the markers of a batch. They are the same in every task.

    Args:
        batch: the batch.
        columns: (name, type name) of each column of the frame.
        defaults: by column, the value of rows that have none.
    """
    shape = " ".join(
        [*(f"{name}:{kind}" for name, kind in columns), *(f"{k}={v!r}" for k, v in sorted(defaults.items()))]
    )
    title = f"batch {batch.batch} of the query {batch.query}"
    remedy = "or give the rows a column idempotency_key and start with a new checkpoint"
    return [
        _marker(
            batch,
            "partitions",
            batch.partitioning,
            f"{title} was begun with another partitioning, and its rows would be enqueued twice; now it has "
            f"{batch.partitioning or 'the default settings'}: restart with the former settings, {remedy}",
            is_for_made_keys=True,
        ),
        _marker(
            batch,
            "columns",
            shape,
            f"{title} was begun with other columns or options, perhaps by another query with this checkpoint: "
            f"start each query with its own checkpoint, restart with the former columns and options, {remedy}",
            is_for_made_keys=False,
        ),
    ]


def _bytes(size: str) -> str:
    """Return a size of Spark, such as `1m`, as its number of bytes: two texts of one size are one setting."""
    found = _SIZE.fullmatch(size.strip().lower())
    return size if found is None else str(int(found[1]) << 10 * " kmgtp".index(found[2] or " "))


def _marker(batch: BatchRun, kind: str, content: str, conflict: str, *, is_for_made_keys: bool) -> Marker:
    digest = blake2b(f"{batch.name}\0{kind}".encode(), digest_size=20).hexdigest()
    slot = int(blake2b(batch.name.encode(), digest_size=2).hexdigest(), 16) % KEY_SLOT_COUNT
    payload = blake2b(content.encode(), digest_size=32).hexdigest().encode()
    item = Item(
        MARKER_TOPIC,
        payload,
        delay_ms=MARKER_DELAY_MS,
        ttl_ms=MARKER_TTL_MS,
        idempotency_key=f"~{slot:03x}{digest}",
    )
    return Marker(item, conflict, is_for_made_keys)
