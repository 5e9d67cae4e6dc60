"""What a relay says about rows that the queue does not take for a while.

Holds `RowRefusals`. Always true: a problem lasts from the first refusal until none has come for some seconds, because a refused
row is found by a sweep and sent again. Pure.
"""

from __future__ import annotations

from typing import Final

from foqs_contract.errors import FoqsError

QUIET_S: Final = 10.0
"""How long no refusal comes until all is well."""


class RowRefusals:
    """The refusals of one ownership, by a monotonic clock."""

    def __init__(self) -> None:
        self._count = 0
        self._last: FoqsError | None = None
        self._quiet_s = 0.0

    def add(self, error: FoqsError, now_s: float) -> None:
        """A send of a row got this answer, and the row waits."""
        self._count += 1
        self._last = error
        self._quiet_s = now_s + QUIET_S

    def problem(self, now_s: float) -> str | None:
        """Return what is wrong; None: nothing, for some seconds."""
        if now_s >= self._quiet_s:
            self._count, self._last = 0, None
        return (
            None if self._last is None else f"{self._count} sends of rows were refused, the last one with {self._last}"
        )
