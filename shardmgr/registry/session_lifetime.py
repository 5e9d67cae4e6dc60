"""Until when a session with ZooKeeper lives for certain.

The leader of an ensemble ends sessions. A server that follows it keeps the times
at which its clients were active, and passes them on only when the leader pings
it, twice in each tick. No request of a client passes them on, neither a sync nor
a write. So an answer proves that the leader was reached, not that the leader
knows of the request; it proves that of requests a tick older. Only a connect or
a reconnect goes to the leader as such.

Pure. Always true: `alive_until_ms` goes down only with a connect. Knows no ZooKeeper.
"""

from __future__ import annotations

from collections import deque


class SessionLifetime:
    """One session's.

    Args:
        tick_ms: the servers' tickTime. A tick is at most half of a session's timeout, so a larger value counts as that half.
        timeout_ms: of the session, until a connect says otherwise.
    """

    def __init__(self, tick_ms: int, timeout_ms: int) -> None:
        self.alive_until_ms = 0
        """The leader does not end the session before this moment of the client's clock."""
        self.timeout_ms = timeout_ms
        self._tick_ms = tick_ms
        self._answered: deque[tuple[int, int]] = deque()
        """When requests were sent and answered that the leader may not know of yet."""

    @property
    def tick_ms(self) -> int:
        """How old a request must be when another is sent, whose answer proves that the leader knows of it."""
        return min(self._tick_ms, self.timeout_ms // 2)

    def on_connected(self, sent_ms: int, timeout_ms: int) -> None:
        """A connect that was sent at `sent_ms` was answered. The server before may have granted more."""
        self.timeout_ms = timeout_ms
        self.alive_until_ms = sent_ms + timeout_ms
        self._answered.clear()  # the server before may never have passed them on

    def on_sync_answered(self, sent_ms: int, now_ms: int) -> None:
        """A sync that was sent at `sent_ms` was answered at `now_ms`; later syncs come after."""
        while self._answered and self._answered[0][1] + self.tick_ms <= sent_ms:
            known_ms, _ = self._answered.popleft()
            self.alive_until_ms = max(self.alive_until_ms, known_ms + self.timeout_ms)
        self._answered.append((sent_ms, now_ms))
