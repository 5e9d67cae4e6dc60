"""Tests what a task of a stream checks before the first items of a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from foqs_client import FoqsError, Item, KeyConflict, Namespace, Overloaded, PermissionDenied
from foqs_client.spark.batch_markers import BatchRun, StreamChecks, stream_markers
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.options import OnError
from foqs_client.spark.partition_writer import StreamGuard
from foqs_client.spark.row_errors import RowErrors
from foqs_client.spark.row_keys import KEY_SLOTS, RowKeys
from foqs_client.spark.sender import Sender
from foqs_client.types import Enqueued
from tests.support.virtual_time import run_virtual

DAY_MS = 86_400_000


class Host:
    """A client of a namespace whose first enqueue is refused as the script says."""

    def __init__(self, namespace: str, window_ms: int, script: list[FoqsError | list[FoqsError | None]]) -> None:
        self.namespace = namespace
        self.calls: list[str] = []
        self._window_ms = window_ms
        self._script = script

    async def get_namespace(self, *, timeout_ms: int) -> Namespace:
        self.calls.append("get_namespace")
        return Namespace(self.namespace, key_window_ms=self._window_ms)

    async def enqueue(self, items: Sequence[Item], *, timeout_ms: int) -> list[Enqueued]:
        self.calls.append(f"enqueue {len(items)}")
        reply = self._script.pop(0) if self._script else [None] * len(items)
        if isinstance(reply, FoqsError):
            raise reply
        return [Enqueued("0-1") if error is None else Enqueued(error=error) for error in reply]

    async def close(self) -> None:
        """Nothing is open."""


def check(
    *script: FoqsError | list[FoqsError | None],
    checked: str | None = "orders",
    window_ms: int = DAY_MS,
    makes_keys: bool = True,
) -> list[str]:
    """Return the calls of a guard that is asked twice for one namespace."""
    host = Host("orders", window_ms, list(script))
    keys = RowKeys("run", 0, KEY_SLOTS, 10)
    if makes_keys:
        keys.key("orders", "t", b"", 0, b"", None, None, None, None)
    guard = StreamGuard(keys, StreamChecks(stream_markers(BatchRun("q", "7", ""), [], {}), checked), DAY_MS)

    async def main() -> None:
        async with Sender(lambda namespace: host, 1, 60_000, Random(1), RowErrors(OnError.FAIL, "")) as sender:
            for _ in range(2):
                await guard.check(sender, "orders")

    run_virtual(main)
    return host.calls


def test_markers_are_enqueued_once_before_the_first_row() -> None:
    assert check() == ["enqueue 2"]


def test_rows_with_their_own_keys_need_only_the_marker_of_columns() -> None:
    assert check(makes_keys=False) == ["enqueue 1"]
    with pytest.raises(SinkError, match="was begun with other columns or options"):
        check([KeyConflict("used")], makes_keys=False)


def test_first_made_key_of_a_namespace_brings_the_marker_of_partitions() -> None:
    host = Host("orders", DAY_MS, [])
    keys = RowKeys("run", 0, KEY_SLOTS, 10)
    guard = StreamGuard(keys, StreamChecks(stream_markers(BatchRun("q", "7", ""), [], {}), "orders"), DAY_MS)

    async def main() -> None:
        async with Sender(lambda namespace: host, 1, 60_000, Random(1), RowErrors(OnError.FAIL, "")) as sender:
            await guard.check(sender, "orders")
            keys.key("orders", "t", b"", 0, b"", None, None, None, None)
            for _ in range(2):
                await guard.check(sender, "orders")

    run_virtual(main)
    assert host.calls == ["enqueue 1", "enqueue 1"]


def test_namespace_that_only_a_row_names_is_checked_by_the_task() -> None:
    assert check(checked=None) == ["get_namespace", "enqueue 2"]
    with pytest.raises(SinkError, match="foqs namespace update orders --key-window 24h"):
        check(checked=None, window_ms=600_000)


def test_busy_host_gets_the_same_markers_again() -> None:
    assert check(Overloaded("busy"), [None, Overloaded("busy")]) == ["enqueue 2"] * 3


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ([KeyConflict("used"), None], "batch 7 of the query q was begun with another partitioning"),
        ([None, KeyConflict("used")], "batch 7 of the query q was begun with other columns or options"),
        (PermissionDenied("no grant"), "the namespace 'orders' accepted none of its rows: PERMISSION_DENIED"),
    ],
)
def test_batch_that_is_run_again_in_another_way_is_refused(
    reply: FoqsError | list[FoqsError | None], message: str
) -> None:
    with pytest.raises(SinkError, match=message):
        check(reply)
