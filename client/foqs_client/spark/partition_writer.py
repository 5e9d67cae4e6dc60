"""Writes the rows of a partition, which is one task.

Holds `write_partition`. Always true: when it returns, every row is a durable item. A
repeated task sends the same keys, on any machine, at the same time or later. A thread
reads rows while calls are in flight. Does not know PySpark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any, TypeAlias

from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.row_items import RowConverter, batches
from foqs_client.spark.row_keys import RowKeys
from foqs_client.spark.sender import Sender, open_client
from foqs_client.types import Item

ColumnBatch: TypeAlias = tuple[Mapping[str, Sequence[Any]], int]
"""Rows by column, and their number."""
EnqueueCall: TypeAlias = tuple[str, Sequence[Item]]
"""A namespace and the items of a call."""


@dataclass(slots=True, frozen=True)
class WriteResult:
    """The result of a task.

    Attributes:
        items: the number of its rows.
        repeated: how many of them an earlier attempt of the task had enqueued.
    """

    items: int
    repeated: int


def write_partition(
    column_batches: Iterator[ColumnBatch], partition: int, key_slot_count: int, options: SinkOptions
) -> WriteResult:
    """Enqueue the rows of a partition.

    Args:
        column_batches: the rows.
        partition: the number of the partition.
        key_slot_count: see `RowKeys`.
        options: the options of the write.

    Raises:
        SinkError: a row cannot be an item, or was not enqueued; the text names the partition.
    """
    keys = RowKeys(options.run, partition, key_slot_count, options.partition_rows_max)
    calls = _calls(column_batches, RowConverter(options.defaults, keys, key_slot_count), options)
    try:
        return asyncio.run(_send(calls, options))
    except SinkError as error:
        raise SinkError(f"partition {partition}: {error}") from None


def _calls(
    column_batches: Iterator[ColumnBatch], converter: RowConverter, options: SinkOptions
) -> Iterator[Sequence[EnqueueCall]]:
    """Yield the calls of each batch of rows. Neighbouring calls are of different groups."""
    for columns, count in column_batches:
        groups = [
            [(namespace, call) for call in batches(items, options.batch_items, options.batch_bytes)]
            for (namespace, _), items in converter.items(columns, count).items()
        ]
        yield [call for turn in zip_longest(*groups) for call in turn if call is not None]


async def _send(calls: Iterator[Sequence[EnqueueCall]], options: SinkOptions) -> WriteResult:
    sender = Sender(
        lambda namespace: open_client(options, namespace), options.calls_in_flight, options.timeout_ms, Random()
    )
    async with sender:
        while (batch := await asyncio.to_thread(next, calls, None)) is not None:
            for namespace, items in batch:
                await sender.submit(namespace, items)
        await sender.wait_all_enqueued()
    return WriteResult(sender.enqueued_count, sender.repeated_count)
