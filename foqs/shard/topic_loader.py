"""Loads into a shard's memory what it does not know of its topics: refills, prefetches, pages of groups and best keys.

Always true: of each topic at most one refill, one prefetch and one page of groups is under way. Knows nothing of rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from foqs.core.items.item import OrderKey, TopicName, order_key_number
from foqs.shard.background_reads import FirstKeyRead, PrefetchRead, RefillRead, RunBetweenFlushes
from foqs.shard.group_reads import GroupReads
from foqs.shard.host_services import HostServices
from foqs.shard.row_queries import KEYS_PER_ROW
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.shard_reader import ShardReader
from foqs.shard.unread_topics import UnreadTopics


class TopicLoader:
    """Loads keys, rows and groups of the topics of one shard.

    Args:
        reader: reads what deliveries wait for.
        query_reader: reads what a list or a metric asks for, so that it delays no delivery.
        is_open: returns whether the shard is served.
    """

    def __init__(
        self,
        memory: ShardMemory,
        reader: ShardReader,
        query_reader: ShardReader,
        run_between_flushes: RunBetweenFlushes,
        host: HostServices,
        is_open: Callable[[], bool],
    ) -> None:
        window_keys_max = host.constants.ready_window_items_max
        self._memory = memory
        self._reader = reader
        self._query_reader = query_reader
        self._run_between_flushes = run_between_flushes
        self._delivery_port = host.delivery_port
        self._weight = host.namespaces.weight_of
        self._stopwatch_s = host.clock.stopwatch_s
        self._refill_cost: Final = window_keys_max / KEYS_PER_ROW
        self._refilling: set[TopicName] = set()
        self._prefetching: set[TopicName] = set()
        self._unread_topics = UnreadTopics(self._read_first_key, self._stopwatch_s)
        self.groups = GroupReads(memory, reader, run_between_flushes, window_keys_max, is_open, self._on_more_known)

    @property
    def is_idle(self) -> bool:
        """Whether no refill, prefetch or page of groups is under way."""
        return not (self._refilling or self._prefetching or self.groups.topics)

    async def run(self) -> None:
        """Read the best keys that are requested, until it is cancelled."""
        await self._unread_topics.run()

    def start_refill(self, topic: TopicName) -> None:
        """Extend the topic's window. The delivery port is notified when that is done."""
        if topic in self._memory.limited_topics:
            self.groups.request(topic)
        elif topic not in self._refilling:
            self._refilling.add(topic)

            def on_ended() -> None:
                self._refilling.discard(topic)
                self._on_more_known(topic)

            read = RefillRead(self._memory, topic, self._run_between_flushes, on_ended)
            self._reader.submit(topic[0], self._refill_cost, read)

    def _on_more_known(self, topic: TopicName) -> None:
        self._memory.counts.mark_changed([topic])
        self._delivery_port.on_items_ready([topic])

    def start_prefetch(self, topic: TopicName, order_keys: Sequence[OrderKey]) -> bool:
        """Load the rows of READY keys, which are in the order of delivery, so that their delivery reads nothing.

        Returns False, and does nothing, if others of the topic are being loaded.
        """
        if topic in self._prefetching:
            return False
        rows = map(self._memory.cache.get, map(order_key_number, order_keys))
        if any(row is None or row.payload is None for row in rows):
            self._prefetching.add(topic)
            read = PrefetchRead(
                self._memory,
                topic,
                order_keys,
                self._weight(topic[0]),
                self._stopwatch_s(),
                self._run_between_flushes,
                lambda: self._prefetching.discard(topic),
            )
            self._reader.submit(topic[0], len(order_keys), read)
        else:
            self._memory.index.set_prefetched(topic, order_keys[-1])
        return True

    def request_first_key(self, topic: TopicName) -> None:
        """Have the best key of a topic whose window is empty read soon."""
        self._unread_topics.request(topic)

    def request_groups(self, topic: TopicName) -> None:
        """Have the first rows of a topic with rules for groups read soon, if none were read since the takeover."""
        limited = self._memory.limited_topics.get(topic)
        if limited is not None and limited.groups.is_unread and self._memory.has_topic(topic):
            self._unread_topics.request(topic)

    async def _read_first_key(self, topic: TopicName) -> None:
        """Read the best key of a topic whose window is empty. Its stats are reported again when it is known."""
        if topic in self._memory.limited_topics:
            await self.groups.read_first(topic)
            return
        ended = asyncio.get_running_loop().create_future()

        def on_ended() -> None:
            if self._memory.index.first_known_key(topic) is not None:
                self._memory.counts.mark_changed([topic])
            if not ended.done():
                ended.set_result(None)

        read = FirstKeyRead(self._memory, topic, self._run_between_flushes, on_ended)
        self._query_reader.submit(topic[0], 1, read)
        await ended
