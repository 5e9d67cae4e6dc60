"""Writes to a peer at the pace at which it reads, and counts what it has not taken.

A transport of asyncio takes any number of bytes at once, and one that encrypts passes them
on to another whose buffer nobody sees. So this one stands before it, and gives it one piece
after the other. Always true: the transport behind it holds a piece more than its limit at
most; replies are kept once; what a peer has not taken is a holding in a `PeerBudget`;
`give_back` is called for a reply of which no byte was passed on before the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from foqs.runtime.peer_budget import PeerBudget

PIECE_BYTES: Final = 128 * 1024
"""The number of bytes that are passed on at once: few writes for a large reply, and little memory that is not counted for a slow peer."""


class PacedTransport(asyncio.Transport):
    """A transport in front of the real one of a connection. The connection calls `on_pause`, `on_resume` and `on_lost` of it.

    Args:
        inner: the transport of the connection, whose own limits are set.
        peer: see `PeerBudget`.
        high_bytes: the limit of unread bytes; beyond it the connection is blocked.
        on_blocked, on_unblocked: called alternately. A connection is unblocked when its peer has taken everything.
        on_evicted: called if others need the memory. The connection must be aborted.

    Attributes:
        unread_bytes: the bytes that the peer has not taken, if it does not read as fast as it gets replies; else 0.
    """

    def __init__(
        self,
        inner: asyncio.Transport,
        unread: PeerBudget,
        peer: str,
        high_bytes: int,
        on_blocked: Callable[[], None],
        on_unblocked: Callable[[], None],
        on_evicted: Callable[[], None],
    ) -> None:
        super().__init__()
        self.peer = peer
        self.unread_bytes = 0
        self.on_evicted = on_evicted
        self._inner = inner
        self._unread = unread
        self._high_bytes = high_bytes
        self._on_blocked = on_blocked
        self._on_unblocked = on_unblocked
        self._waiting: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        """Replies, oldest first, each with its `give_back`."""
        self._waiting_bytes = 0
        """The sizes of the replies in `_waiting`."""
        self._sent_of_first = 0
        self._is_sending = False
        self._is_paused = False
        self._is_blocked = False
        self._is_closing = False

    # ------------------------------------------------- what the connection passes on

    def on_pause(self) -> None:
        """Pass on nothing, because the transport behind this one accepts no more bytes for now."""
        self._is_paused = True
        self._update()

    def on_resume(self) -> None:
        """Pass on waiting replies, because the transport behind this one accepts bytes again."""
        self._is_paused = False
        self._send()

    def on_lost(self) -> None:
        """Give back the replies of which nothing was passed on, because the connection has ended."""
        unsent, begun_bytes = self._waiting, self._sent_of_first
        self._waiting, self._waiting_bytes, self._sent_of_first = deque(), 0, 0
        self._unread.hold(self, 0)
        if begun_bytes:
            unsent.popleft()
        for _, give_back in unsent:
            if give_back is not None:
                give_back()

    # ----------------------------------------------------------- asyncio's methods

    def write(self, data: bytes | bytearray | memoryview, give_back: Callable[[], None] | None = None) -> None:
        """Write a reply; call `give_back`, which never raises, if the connection ends before its first byte was passed on."""
        if self._is_closing:
            if give_back is not None:
                give_back()
            return
        if not data:
            return
        if not self._waiting and not self._is_paused and len(data) <= PIECE_BYTES:
            self._inner.write(data)
            return
        self._waiting.append((bytes(data), give_back))
        self._waiting_bytes += len(data)
        self._send()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:  # a join would copy a large reply
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self._inner.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._is_closing or self._inner.is_closing()

    def close(self) -> None:
        self._is_closing = True
        if not self._waiting:
            self._inner.close()

    def abort(self) -> None:
        self._is_closing = True
        self.on_lost()
        self._inner.abort()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    # ---------------------------------------------------------------------- inside

    def _send(self) -> None:
        """Pass on waiting replies until the transport pauses. It may pause and resume within one write."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._waiting and not self._is_paused:
                self._send_piece()
        finally:
            self._is_sending = False
        self._update()
        if self._is_closing and not self._waiting:
            self._inner.close()

    def _send_piece(self) -> None:
        (first, _), start = self._waiting[0], self._sent_of_first
        end = start + PIECE_BYTES
        if end < len(first):
            self._sent_of_first = end
            self._inner.write(memoryview(first)[start:end])
            return
        self._waiting.popleft()
        self._waiting_bytes -= len(first)
        self._sent_of_first = 0
        self._inner.write(memoryview(first)[start:] if start else first)

    def _update(self) -> None:
        """Count what is unread, and report a change."""
        if self._is_sending:
            return
        self.unread_bytes = self.get_write_buffer_size() if self._is_paused else 0
        self._unread.hold(self, self.unread_bytes)
        if self._is_blocked and not self._is_paused:
            self._is_blocked = False
            self._on_unblocked()
        elif not self._is_blocked and self.unread_bytes > self._high_bytes:
            self._is_blocked = True
            self._on_blocked()
