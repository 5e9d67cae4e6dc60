"""Tests that each row is an item or a dead letter, on a host that remembers keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foqs_client import Item, KeyConflict, LimitExceeded
from foqs_client.spark.batch_markers import MARKER_TOPIC, BatchRun, StreamChecks, stream_markers
from foqs_client.spark.item_columns import VALUE_BYTES_MAX, SinkError
from foqs_client.spark.options import OnError
from foqs_client.spark.partition_writer import StreamGuard
from foqs_client.spark.row_errors import CUT_PAYLOAD_BYTES, METADATA_BYTES_MAX, RowErrors
from foqs_client.spark.row_items import RowConverter
from foqs_client.spark.row_keys import KEY_SLOTS, RowKeys
from foqs_client.spark.sender import Sender
from foqs_client.types import Enqueued
from tests.support.virtual_time import run_virtual

PAYLOAD_BYTES_MAX = 10_240


class Host:
    """Remembers keys and items as a host does, and limits the payload."""

    def __init__(self) -> None:
        self.rows: list[Item] = []
        self._known: dict[str, Item] = {}

    async def enqueue(self, items: Sequence[Item], *, timeout_ms: int) -> list[Enqueued]:
        return [self._enqueued(place, item) for place, item in enumerate(items)]

    def _enqueued(self, place: int, item: Item) -> Enqueued:
        if len(item.payload) > PAYLOAD_BYTES_MAX:
            return Enqueued(error=LimitExceeded("this has too many bytes", field=f"items[{place}].payload"))
        content = replace(item, trace_context=None)
        known = self._known.setdefault(item.idempotency_key or "", content)
        if known is not content:
            return Enqueued("0-1", repeated=True) if known == content else Enqueued(error=KeyConflict("another item"))
        self.rows.append(item)
        return Enqueued("0-1")

    async def close(self) -> None:
        """Nothing is open."""


def send(host: Host, items: Sequence[Item]) -> tuple[int, int]:
    """Return the number of items that a task enqueued, and of those that were repeats."""

    async def main() -> tuple[int, int]:
        errors = RowErrors(OnError.DEADLETTER, "dead")
        async with Sender(lambda namespace: host, 1, 60_000, Random(1), errors) as sender:
            await sender.submit("default", items)
            await sender.wait_all_enqueued()
            return sender.enqueued_count, sender.repeated_count

    return run_virtual(main)


def test_each_of_several_different_rows_with_one_key_is_an_item_or_a_dead_letter() -> None:
    host = Host()
    row = Item("a", b"p", idempotency_key="k")
    rows = [
        row,
        replace(row, priority=5),
        replace(row, deliver_after_ms=5),
        replace(row, ttl_ms=5),
        replace(row, lease_ms=5),
    ]
    assert send(host, rows) == (5, 0)
    assert [item.topic for item in host.rows] == ["a", "dead", "dead", "dead", "dead"]
    assert send(host, rows) == (5, 5)
    assert len(host.rows) == 5


def test_refused_row_in_the_topic_of_dead_letters_becomes_one() -> None:
    host = Host()
    rows = [Item("dead", payload, idempotency_key="k") for payload in (b"1", b"2")]
    assert send(host, rows) == (2, 0)
    assert [item.payload for item in host.rows] == [b"1", b"2"]


def test_dead_letter_of_a_refused_row_has_its_namespace_and_its_trace() -> None:
    host = Host()
    row = Item("a", b"1", idempotency_key="k", trace_context=b"00-ab")
    send(host, [row, replace(row, payload=b"2")])
    notes = json.loads(host.rows[1].metadata)
    assert (notes["namespace"], notes["trace_context"]) == ("default", "00-ab")


@pytest.mark.parametrize("payload_bytes", [PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1, VALUE_BYTES_MAX + 1])
@pytest.mark.parametrize("wrong", [{"topic": [None]}, {"topic": ["a"], "priority": [1 << 40]}])
def test_row_that_is_wrong_in_another_column_has_a_dead_letter_whatever_its_payload(
    wrong: dict[str, Sequence[Any]], payload_bytes: int
) -> None:
    columns = {**wrong, "metadata": [b"m" * 2_000], "trace_context": [b"t" * 300], "payload": [b"x" * payload_bytes]}
    host = Host()
    for attempt in range(2):
        errors = RowErrors(OnError.DEADLETTER, "dead")
        [items] = RowConverter({}, RowKeys("run", 0, KEY_SLOTS, 100), 1, errors).items(columns, 1).values()
        assert send(host, items) == (1, attempt)
        assert errors.dead_letter_count == 1
    [letter] = host.rows
    notes = json.loads(letter.metadata)
    assert len(letter.metadata) <= METADATA_BYTES_MAX
    if payload_bytes > PAYLOAD_BYTES_MAX:
        assert len(letter.payload) == CUT_PAYLOAD_BYTES
        assert notes["payload_bytes"] == payload_bytes
    else:
        assert len(letter.payload) == payload_bytes
        assert "payload_bytes" not in notes


def run_batch(host: Host, columns: dict[str, Sequence[Any]], dead_letter_topic: str = "dead") -> None:
    """Run a task of a batch of a stream, as `write_partition` does."""
    batch = BatchRun("q", "0", "")
    keys = RowKeys(batch.name, 0, KEY_SLOTS, 100)
    markers = stream_markers(batch, [(name, "string") for name in columns], {"topic": "a"})
    guard = StreamGuard(keys, StreamChecks(markers, "default"), 0)
    malformed, refused = (RowErrors(OnError.DEADLETTER, dead_letter_topic) for _ in range(2))

    async def main() -> None:
        async with Sender(lambda namespace: host, 1, 60_000, Random(1), refused) as sender:
            for (namespace, _), items in RowConverter({"topic": "a"}, keys, 1, malformed).items(columns, 1).items():
                await guard.check(sender, namespace)
                await sender.submit(namespace, items)
            await sender.wait_all_enqueued()

    run_virtual(main)


def payloads(host: Host) -> list[bytes]:
    return [item.payload for item in host.rows if item.topic != MARKER_TOPIC]


@pytest.mark.parametrize("is_first", [True, False])
def test_batch_that_is_run_again_with_or_without_its_column_of_keys_is_refused(is_first: bool) -> None:
    host = Host()
    attempts: list[dict[str, Sequence[Any]]] = [{"payload": [b"p"], "idempotency_key": ["own"]}, {"payload": [b"p"]}]
    first, second = attempts if is_first else attempts[::-1]
    run_batch(host, first)
    with pytest.raises(SinkError, match="was begun with other columns or options"):
        run_batch(host, second)
    assert payloads(host) == [b"p"]


def test_batch_that_is_run_again_with_another_topic_of_dead_letters_adds_none() -> None:
    host = Host()
    for topic in ("dead", "other"):
        run_batch(host, {"payload": [b"p"], "priority": [1 << 40]}, topic)
    assert payloads(host) == [b"p"]
