"""What a relay says about rows that the queue does not take for a while, and when it sends them again.

Holds `RowRefusals`. Always true: a problem lasts from the first refusal until none has come for some seconds, because a refused
row is found by a sweep and sent again; no `retry_after_ms` stops a relay for longer than `RETRY_S_MAX`. Pure.
"""

from __future__ import annotations

from typing import Final

from foqs_contract.errors import FoqsError, LimitExceeded, RateLimited

QUIET_S: Final = 10.0
"""How long no refusal comes until all is well."""
RETRY_S_MAX: Final = 60.0
_OF_NAMESPACE: Final = (RateLimited, LimitExceeded)
"""The refusals that any row would get. The others are of a shard or a host."""


class RowRefusals:
    """The refusals of one ownership, by a monotonic clock.

    Attributes:
        again_s: rows that were refused are not sent again before this time.
        sends_s: no row is sent before it, because the namespace is at a limit.
    """

    def __init__(self) -> None:
        self.again_s = self.sends_s = 0.0
        self._count = 0
        self._last: FoqsError | None = None
        self._quiet_s = 0.0

    def add(self, error: FoqsError, now_s: float) -> None:
        """A send of a row got this answer, and the row waits."""
        self._count += 1
        self._last = error
        self._quiet_s = now_s + QUIET_S
        after_s = now_s + min((error.retry_after_ms or 0) / 1_000, RETRY_S_MAX)
        self.again_s = max(self.again_s, after_s)
        if isinstance(error, _OF_NAMESPACE):
            self.sends_s = max(self.sends_s, after_s)

    def problem(self, now_s: float) -> str | None:
        """Return what is wrong; None: nothing, for some seconds."""
        if now_s >= self._quiet_s:
            self._count, self._last = 0, None
        return (
            None if self._last is None else f"{self._count} sends of rows were refused, the last one with {self._last}"
        )
