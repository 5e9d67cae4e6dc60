"""Writes the rows of a partition, which is one task.

Holds `write_partition`, and `StreamGuard`, which checks a namespace before the first
rows of a stream. Always true: when a write returns, every row is a durable item, or was
skipped because the options say so. A repeated task sends the same keys, on any machine,
at the same time or later. A thread reads rows while calls are in flight. Does not know
PySpark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any, TypeAlias

from foqs_client.admin_calls import Namespace
from foqs_client.client import Client
from foqs_client.errors import FoqsError, KeyConflict
from foqs_client.spark.batch_markers import Marker, StreamChecks
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.row_errors import RowErrors
from foqs_client.spark.row_items import RowConverter, batches
from foqs_client.spark.row_keys import KEY_SLOTS, RowKeys
from foqs_client.spark.sender import EnqueueClient, Sender, open_client
from foqs_client.spark.start_check import check_key_window
from foqs_client.types import Enqueued, Item

ColumnBatch: TypeAlias = tuple[Mapping[str, Sequence[Any]], int]
"""Rows by column, and their number."""
EnqueueCall: TypeAlias = tuple[str, Sequence[Item]]
"""A namespace and the items of a call."""


@dataclass(slots=True, frozen=True)
class WriteResult:
    """The result of a task.

    Attributes:
        items: the number of its items, dead letters included.
        repeated: how many of them an earlier attempt of the task had enqueued.
        skipped: the number of rows that were skipped.
        dead_letters: the number of rows that became dead letters.
        reasons: why, for the first few of both.
    """

    items: int
    repeated: int
    skipped: int = 0
    dead_letters: int = 0
    reasons: tuple[str, ...] = ()


def write_partition(
    column_batches: Iterator[ColumnBatch],
    partition: int,
    group_count: int,
    options: SinkOptions,
    stream: StreamChecks | None = None,
) -> WriteResult:
    """Enqueue the rows of a partition.

    Args:
        column_batches: the rows.
        partition: the number of the partition.
        group_count: see `RowConverter`.
        options: the options of the write; `run` names it.
        stream: the checks of a task of a stream; None for a write.

    Raises:
        SinkError: a row cannot be an item, or was not enqueued; the text names the partition.
    """
    keys = RowKeys(options.run, partition, KEY_SLOTS, options.partition_rows_max)
    # Two, because a thread converts rows while the event loop sends.
    malformed, refused = (RowErrors(options.on_error, options.dead_letter_topic) for _ in range(2))
    calls = _calls(column_batches, RowConverter(options.defaults, keys, group_count, malformed), options)
    guard = None if stream is None else StreamGuard(keys, stream, options.replay_window_ms)
    try:
        items, repeated = asyncio.run(_send(calls, options, refused, guard))
    except SinkError as error:
        raise SinkError(f"partition {partition}: {error}") from None
    return WriteResult(
        items,
        repeated,
        malformed.skipped_count + refused.skipped_count,
        malformed.dead_letter_count + refused.dead_letter_count,
        (*malformed.reasons, *refused.reasons),
    )


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


async def _send(
    calls: Iterator[Sequence[EnqueueCall]], options: SinkOptions, errors: RowErrors, guard: StreamGuard | None
) -> tuple[int, int]:
    """Enqueue the items of these calls. Return the number of items, and the number of repeats among them."""
    sender = Sender(
        lambda namespace: open_client(options, namespace), options.calls_in_flight, options.timeout_ms, Random(), errors
    )
    async with sender:
        while (batch := await asyncio.to_thread(next, calls, None)) is not None:
            for namespace, items in batch:
                if guard is not None:
                    await guard.check(sender, namespace)
                await sender.submit(namespace, items)
        await sender.wait_all_enqueued()
    return sender.enqueued_count, sender.repeated_count


class StreamGuard:
    """Checks, once for a namespace, that the rows of a batch can be enqueued exactly once.

    Args:
        keys: the keys of the task. Without a made key, only the markers of all keys are needed.
        stream: the checks.
        window_ms_min: the shortest key window.
    """

    def __init__(self, keys: RowKeys, stream: StreamChecks, window_ms_min: int) -> None:
        self._keys = keys
        self._markers = stream.markers
        self._window_ms_min = window_ms_min
        self._with_window = {stream.checked_namespace}
        self._enqueued: set[tuple[str, Marker]] = set()
        """The markers that a namespace has."""

    async def check(self, sender: Sender, namespace: str) -> None:
        """Check a namespace before its first items. Raises SinkError."""
        try:
            if namespace not in self._with_window:
                settings = await sender.call(namespace, _get_namespace)
                check_key_window(settings, self._window_ms_min)
                self._with_window.add(namespace)
            # Another batch of rows may be the first with a made key.
            markers = [
                marker
                for marker in self._markers
                if (self._keys.are_used or not marker.is_for_made_keys) and (namespace, marker) not in self._enqueued
            ]
            if markers:
                await _enqueue_markers(sender, namespace, markers)
                self._enqueued.update((namespace, marker) for marker in markers)
        except FoqsError as error:
            raise SinkError(f"the namespace {namespace!r} accepted none of its rows: {error}") from None


async def _enqueue_markers(sender: Sender, namespace: str, markers: Sequence[Marker]) -> None:
    async def enqueue(client: EnqueueClient, timeout_ms: int) -> list[Enqueued]:
        results = await client.enqueue([marker.item for marker in markers], timeout_ms=timeout_ms)
        for result in results:
            if result.error is not None and result.error.may_succeed_later:
                raise result.error
        return results

    for marker, result in zip(markers, await sender.call(namespace, enqueue), strict=True):
        if isinstance(result.error, KeyConflict):
            raise SinkError(marker.conflict)
        if result.error is not None:
            raise result.error


async def _get_namespace(client: Client, timeout_ms: int) -> Namespace:
    return await client.get_namespace(timeout_ms=timeout_ms)
