"""When a shard reads pages of its topics with a limit.

Always true: one page of a topic at a time. A page that has found nothing to deliver is followed by a pause as long as it
took, so a topic with many rows that nobody can get takes half of the reads at most. The read of the rows of delivered
items, which nothing can be delivered before, has no pauses if a dequeue wants it. Nor have those pages of a fair topic behind
which groups may wait that are not known yet. Else it takes a tenth of the time: a list or
a metric asked for the age of the topic. Knows nothing of rows.
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
_UNWANTED_PAUSES: Final = 9
"""The pause after a page of delivered items that no dequeue wants, as a multiple of its duration."""
_PAUSE_S_MAX: Final = 1.0
"""The longest such pause, which a dequeue may have to wait for."""


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
        self._wanted: set[TopicName] = set()
        """Topics that a dequeue has wanted before their delivered items were read."""
        self._first_reads: dict[TopicName, asyncio.Future[None]] = {}
        """Ends of the reads of delivered items that `read_first` waits for."""
        self.page_count = 0
        """Pages that were read."""

    def request(self, topic: TopicName) -> None:
        """Read more of a topic: a dequeue wants more heads than are known."""
        limited = self._memory.limited_topics.get(topic)
        if limited is not None:
            if not limited.groups.is_read:
                self._wanted.add(topic)
            limited.pages.request_more()
            self.start(topic)

    async def read_first(self, topic: TopicName) -> None:
        """Read a page of a topic for a list or a metric; if its delivered items were not read, all of these."""
        limited = self._memory.limited_topics.get(topic)
        if limited is not None:
            limited.pages.request_more()
            self.start(topic)
        if topic in self.topics:
            await self._first_reads.setdefault(topic, asyncio.get_running_loop().create_future())

    def start(self, topic: TopicName) -> None:
        """Read the next page of a topic if it needs one."""
        limited = self._memory.limited_topics.get(topic)
        if limited is None or limited.pages.next_kind is None or topic in self.topics:
            return
        if not self._is_open() or not self._memory.may_read_groups(topic):
            return
        is_read = limited.groups.is_read
        self.topics.add(topic)

        def on_ended(goes_on: bool, seconds: float) -> None:
            self.page_count += 1
            self._on_page_read(topic)
            if goes_on or (not is_read and topic in self._wanted):
                self._go_on(topic)
            else:
                pause_s = seconds if is_read else min(_UNWANTED_PAUSES * seconds, _PAUSE_S_MAX)
                asyncio.get_running_loop().call_later(pause_s, self._go_on, topic)

        read = GroupPageRead(self._memory, topic, self._page_rows, self._run_between_flushes, on_ended)
        self._reader.submit(topic[0], self._page_rows, read)

    def _go_on(self, topic: TopicName) -> None:
        self.topics.discard(topic)
        self.start(topic)
        limited = self._memory.limited_topics.get(topic)
        if limited is None or limited.groups.is_read:
            self._wanted.discard(topic)
        elif topic in self.topics:
            return
        ended = self._first_reads.pop(topic, None)
        if ended is not None and not ended.done():
            ended.set_result(None)
