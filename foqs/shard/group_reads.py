"""When a shard reads pages of its topics with a limit.

Always true: one page of a topic at a time. A page that has found nothing to deliver is followed by a pause as long as it
took, so a topic with many rows that nobody can get takes half of the reads at most. The read of the rows of delivered
items, which nothing can be delivered before, has no pauses. Knows nothing of rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from foqs.core.items.item import TopicName
from foqs.shard.background_reads import GroupPageRead, RunBetweenFlushes
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.shard_reader import ShardReader

_PAGE_ROWS: Final = 500
"""Rows of one page: some milliseconds."""


class GroupReads:
    """The reads of the topics with a limit of one shard.

    Args:
        page_rows_max: the most rows of a page.
        is_open: returns whether the shard is served.
        on_page_read: is called after each page, when its result is in memory.
    """

    def __init__(
        self,
        memory: ShardMemory,
        reader: ShardReader,
        run_between_flushes: RunBetweenFlushes,
        page_rows_max: int,
        is_open: Callable[[], bool],
        on_page_read: Callable[[TopicName], None],
    ) -> None:
        self._memory = memory
        self._reader = reader
        self._run_between_flushes = run_between_flushes
        self._page_rows: Final = min(_PAGE_ROWS, page_rows_max)
        self._is_open = is_open
        self._on_page_read = on_page_read
        self.topics: set[TopicName] = set()
        """Topics of which a page is read, or that pause."""
        self.page_count = 0
        """Pages that were read."""

    def request(self, topic: TopicName) -> None:
        """Read more of a topic: a dequeue wants more heads than are known."""
        groups = self._memory.limited_topics.get(topic)
        if groups is not None:
            groups.request_more()
            self.start(topic)

    def start(self, topic: TopicName) -> None:
        """Read the next page of a topic if it needs one."""
        groups = self._memory.limited_topics.get(topic)
        if groups is None or groups.next_kind is None or topic in self.topics:
            return
        if not self._is_open() or not self._memory.may_read_groups(topic):
            return
        has_pauses = groups.is_read
        self.topics.add(topic)

        def on_ended(has_new_heads: bool, seconds: float) -> None:
            self.page_count += 1
            self._on_page_read(topic)
            if has_new_heads or not has_pauses:
                self._go_on(topic)
            else:
                asyncio.get_running_loop().call_later(seconds, self._go_on, topic)

        read = GroupPageRead(self._memory, topic, self._page_rows, self._run_between_flushes, on_ended)
        self._reader.submit(topic[0], self._page_rows, read)

    def _go_on(self, topic: TopicName) -> None:
        self.topics.discard(topic)
        self.start(topic)
