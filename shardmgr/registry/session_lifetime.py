"""The moment until which a ZooKeeper session certainly lives.

The leader of an ensemble ends sessions. A follower records when its clients were
active and reports that only when the leader pings it, twice per tick. No request of a
client triggers the report, neither a sync nor a write. So an answer proves that the
leader was reached, but not that it knows of the request; it proves that only for
requests a tick older. Only a connect or a reconnect reaches the leader itself.

Pure. Always true: `alive_until_ms` decreases only with a connect. Knows no ZooKeeper.
"""

from __future__ import annotations

from collections import deque


class SessionLifetime:
    """The lifetime of one session.

    Args:
        tick_ms: the servers' tickTime. A tick is at most half of a session's timeout, so a larger value counts as that half.
        timeout_ms: the timeout of the session, until a connect returns another.
    """

    def __init__(self, tick_ms: int, timeout_ms: int) -> None:
        self.alive_until_ms = 0
        """The leader does not end the session before this moment of the client's clock."""
        self.timeout_ms = timeout_ms
        self._tick_ms = tick_ms
        self._answered: deque[tuple[int, int]] = deque()
        """(sent, answered) times of requests that the leader may not know yet."""

    @property
    def tick_ms(self) -> int:
        """The age of a request at which the answer to a new one proves that the leader knows it."""
        return min(self._tick_ms, self.timeout_ms // 2)

    def on_connected(self, sent_ms: int, timeout_ms: int) -> None:
        """A connect that was sent at `sent_ms` was answered. The former server may have granted more time."""
        self.timeout_ms = timeout_ms
        self.alive_until_ms = sent_ms + timeout_ms
        self._answered.clear()  # the former server may never have reported them

    def on_sync_answered(self, sent_ms: int, now_ms: int) -> None:
        """A sync that was sent at `sent_ms` was answered at `now_ms`. Calls come in order."""
        while self._answered and self._answered[0][1] + self.tick_ms <= sent_ms:
            known_ms, _ = self._answered.popleft()
            self.alive_until_ms = max(self.alive_until_ms, known_ms + self.timeout_ms)
        self._answered.append((sent_ms, now_ms))
