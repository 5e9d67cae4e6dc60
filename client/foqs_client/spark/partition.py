"""One task: the rows of a partition, sent and durable.

Holds `write`. Always true: when it returns, every row is an item; a task that is
repeated, on this host or another, while this one runs or later, sends the same
keys. Rows are read in a thread beside the calls. Knows no PySpark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any, TypeAlias

from foqs_client.spark.connect import connect
from foqs_client.spark.errors import SinkError
from foqs_client.spark.keys import RowKeys
from foqs_client.spark.options import Options
from foqs_client.spark.rows import Maker, batches
from foqs_client.spark.sender import Sender
from foqs_client.types import Item

Rows: TypeAlias = tuple[Mapping[str, Sequence[Any]], int]
"""Some rows, column by column, and how many they are."""
Call: TypeAlias = tuple[str, Sequence[Item]]
"""A namespace and the items of a call."""


@dataclass(slots=True, frozen=True)
class Written:
    """What a task did.

    Attributes:
        items: how many its rows are.
        repeated: those of them that an earlier attempt at the task had enqueued.
    """

    items: int
    repeated: int


def write(rows: Iterator[Rows], partition: int, lanes: int, options: Options) -> Written:
    """Enqueues a partition.

    Args:
        lanes: see `RowKeys`.

    Raises:
        SinkError: a row cannot be an item, or was not taken; it names the partition.
    """
    keys = RowKeys(options.run, partition, lanes, options.partition_rows_max)
    calls = _calls(rows, Maker(options.defaults, keys, lanes), options)
    try:
        return asyncio.run(_send(calls, options))
    except SinkError as error:
        raise SinkError(f"partition {partition}: {error}") from None


def _calls(rows: Iterator[Rows], maker: Maker, options: Options) -> Iterator[Sequence[Call]]:
    """The calls of some rows at a time; neighbours are of different lanes."""
    for columns, count in rows:
        lanes = [
            [(namespace, call) for call in batches(items, options.batch_items, options.batch_bytes)]
            for (namespace, _), items in maker.items(columns, count).items()
        ]
        yield [call for turn in zip_longest(*lanes) for call in turn if call is not None]


async def _send(calls: Iterator[Sequence[Call]], options: Options) -> Written:
    sender = Sender(
        lambda namespace: connect(options, namespace), options.calls_in_flight, options.timeout_ms, Random()
    )
    async with sender:
        while (some := await asyncio.to_thread(next, calls, None)) is not None:
            for namespace, items in some:
                await sender.put(namespace, items)
        await sender.all_taken()
    return Written(sender.taken, sender.repeated)
