"""Reads the best items of topics from which no consumer dequeues, so that their priority and age are known.

A takeover knows only which topics may have READY items, and only a dequeue reads them.
If no consumer runs, no metric would show how long the items wait.

Always true: one such read at a time, and together they take at most a tenth of the time.
Knows nothing of rows and connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from foqs.core.items.item import TopicName
from foqs.core.memory.ready_index import ReadyIndex

_FIRST_WALK_AFTER_S: Final = 1.0
"""The pause after a takeover, in which dequeues that wait read first."""
_WALK_INTERVAL_S: Final = 60.0
"""The pause after all topics were inspected: a consumer that stops may leave a topic whose next items are not read."""
_PAUSE_PER_READ: Final = 9
"""The pause after a read, as a multiple of its duration."""
_PAUSE_S_MIN: Final = 0.02
_TOPICS_PER_STEP: Final = 1_000
"""Topics inspected in one step: less than a millisecond."""


async def run_reads_of_unread_topics(
    index: ReadyIndex, refill: Callable[[TopicName], Awaitable[None]], stopwatch_s: Callable[[], float]
) -> None:
    """Read each topic whose window is empty though the table may hold items of it. Runs until it is cancelled.

    Args:
        refill: extends the window of a topic; returns when the read has ended.
    """
    await asyncio.sleep(_FIRST_WALK_AFTER_S)
    while True:
        topics = index.topics()
        for start in range(0, len(topics), _TOPICS_PER_STEP):
            for topic in [topic for topic in topics[start : start + _TOPICS_PER_STEP] if index.needs_refill(topic)]:
                if index.needs_refill(topic):  # a dequeue may have read it meanwhile
                    began_s = stopwatch_s()
                    await refill(topic)
                    await asyncio.sleep(max(_PAUSE_S_MIN, _PAUSE_PER_READ * (stopwatch_s() - began_s)))
            await asyncio.sleep(0)
        await asyncio.sleep(_WALK_INTERVAL_S)
