"""The connections that have replies of this turn of the loop, which are not written yet.

Holds `UnwrittenReplies`. The server adds connections; the queue writes them after it has
made replies, before other work is done. Always true: all are written by the end of the
turn. Knows nothing of bytes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class ReplyWriter(Protocol):
    """A connection that has replies to write."""

    def write_replies(self) -> None:
        """Write the pending replies. Never raises."""
        ...


class UnwrittenReplies:
    """The unwritten replies of one host."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writers: list[ReplyWriter] = []

    def add(self, writer: ReplyWriter) -> None:
        """Write the replies of a connection at the end of this turn of the loop, or with `write` before that."""
        if not self._writers:
            self._loop.call_soon(self.write)
        self._writers.append(writer)

    def write(self) -> None:
        """Write all replies now."""
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.write_replies()
