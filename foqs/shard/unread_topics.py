"""Reads the best key of a topic from which nobody dequeues, when somebody asks for its age.

A takeover knows only which topics may have READY items, and a window is filled by a dequeue.
If no consumer runs, no list and no metric would show how long the items wait.

Always true: one such read at a time, and together they take a tenth of the time, unless the database is slow.
Knows nothing of rows and connections.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from foqs.core.items.item import TopicName

_REQUESTS_MAX: Final = 10_000
"""Topics that wait for their read. Further requests are dropped: the next list or metrics scrape repeats them."""
_PAUSE_PER_READ: Final = 9
"""The pause after a read, as a multiple of its duration."""
_PAUSE_S_MAX: Final = 1.0
"""The longest pause, so that a read that hung once delays the others little."""


class UnreadTopics:
    """The topics whose best key is to be read.

    Args:
        read_first_key: reads the best key of a topic; returns when the read has ended.
    """

    def __init__(
        self, read_first_key: Callable[[TopicName], Awaitable[None]], stopwatch_s: Callable[[], float]
    ) -> None:
        self._read_first_key = read_first_key
        self._stopwatch_s = stopwatch_s
        self._requests: OrderedDict[TopicName, None] = OrderedDict()
        self._wake = asyncio.Event()

    def request(self, topic: TopicName) -> None:
        """Have the best key of the topic read, after those that were requested before."""
        if len(self._requests) < _REQUESTS_MAX:
            self._requests[topic] = None
            self._wake.set()

    async def run(self) -> None:
        """Read until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._requests:
                topic, _ = self._requests.popitem(last=False)
                began_s = self._stopwatch_s()
                await self._read_first_key(topic)
                await asyncio.sleep(min(_PAUSE_S_MAX, _PAUSE_PER_READ * (self._stopwatch_s() - began_s)))
