"""The reads of a shard's rows that calls need: rows by id, a page in an order, and a count of the rows before a key.

Holds `RowQueries`. Always true: a purged row is not returned. The reads wait for no
flush, so a row may have changed when it arrives. Changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from foqs.core.items.idempotency_keys import own_key
from foqs.core.items.item import OrderKey, Row, State, TopicName
from foqs.core.items.life import RetryPolicy
from foqs.core.items.row_filter import RowFilter
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.shard_reader import ShardReader
from foqs.store.port import IdPage, IdRange

KEYS_PER_ROW: Final = 100
"""This many keys cost a reader as much as one row."""


class RowQueries:
    """The reads of one shard. All raise `Unavailable`.

    Args:
        check_serving: raises `Unavailable` while the shard is not served.
        reader: no refill and no prefetch waits for its reads.
        now_ms: returns the time of the shard.
    """

    def __init__(
        self,
        check_serving: Callable[[], None],
        memory: ShardMemory,
        reader: ShardReader,
        retry_policies: Mapping[str, RetryPolicy],
        now_ms: Callable[[], int],
    ) -> None:
        self._check_serving = check_serving
        self._memory = memory
        self._reader = reader
        self._retry_policies = retry_policies
        self._now_ms = now_ms

    async def by_number(self, namespace: str, numbers: Sequence[int]) -> list[Row]:
        """Return the rows of these numbers that exist, with payload, of any namespace. `namespace` pays for the read."""
        self._check_serving()
        rows = await self._reader.read(namespace, lambda reads, committed: reads.rows(committed, numbers), len(numbers))
        return [row for row in rows if not self._memory.purge_markers.covers(row)]

    async def in_order(self, topic: TopicName, state: State, after: OrderKey | None, limit: int) -> list[Row]:
        """Return a page of a topic's rows in a state, in key order, without payload."""
        self._check_serving()
        markers = self._memory.purge_markers
        return await self._reader.read(
            topic[0],
            lambda reads, committed: reads.list_rows(
                committed, topic, state, after, limit, markers.last_number(topic), with_payload=False
            ),
            limit,
        )

    async def in_id_range(self, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        """Return a page of a namespace's rows that match, by id, without payload."""
        self._check_serving()
        page = await self._reader.read(
            namespace, lambda reads, committed: reads.rows_by_id(committed, namespace, only, ids), ids.rows_max
        )
        covers = self._memory.purge_markers.covers
        return IdPage([row for row in page.rows if not covers(row)], page.last_id)

    async def idempotency_keys(self, namespace: str, rows: Sequence[Row]) -> dict[int, bytes]:
        """Return the idempotency keys of a namespace's items by number, as far as they are remembered.

        A key is missing if its window is over, or if the window of its topic is another one than at the enqueue: it has
        changed, or the item was moved.
        """
        self._check_serving()
        policy, now_ms = self._retry_policies[namespace], self._now_ms()
        ends = ((row.id, row.enqueued_at_ms + policy.key_window_ms_of(row.topic)) for row in rows)
        untils = {number: until_ms for number, until_ms in ends if until_ms > now_ms}
        if not untils:
            return {}
        found = await self._reader.read(
            namespace, lambda reads, committed: reads.idempotency_keys_of(committed, untils), len(untils)
        )
        own_keys = {number: own_key(key) for number, key in found.items()}  # without the prefix of its group
        return {number: key for number, key in own_keys.items() if key is not None}

    async def count_ready_before(self, topic: TopicName, order_key: OrderKey, limit: int) -> int:
        """Count the READY items of a topic before `order_key`, up to `limit` + 1.

        Items outside the window are read from the table, so the count is approximate.
        """
        self._check_serving()
        count, after = self._memory.index.rank(topic, order_key)
        remaining = limit + 1 - count
        if after is not None and remaining > 0:
            purged_up_to = self._memory.purge_markers.last_number(topic)
            order_keys = await self._reader.read(
                topic[0],
                lambda reads, committed: reads.ready_order_keys(committed, topic, after, remaining, purged_up_to),
                remaining / KEYS_PER_ROW,
            )
            count += bisect_left(order_keys, order_key)
        return min(count, limit + 1)
