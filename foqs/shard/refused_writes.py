"""What the database refused to a shard, and whether it has room.

Holds `RefusedWrites` of one writer. Always true: while `full_reason` says that there is
no room, a flush is tried every `FULL_PROBE_S`, so that an idle shard notices when there
is room again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from foqs.core.flush.batch import Part
from foqs.core.flush.operation import Lane
from foqs.store.port import WriteRefused
from foqs_contract.errors import FoqsError, InvalidArgument, Unavailable

log = logging.getLogger(__name__)

FULL_PROBE_S: Final = 1.0
"""After a refusal for want of room an empty flush is tried this often."""
FULL_S: Final = 5.0
"""A refusal for want of room stands this long: an almost full disk takes small writes between refusals."""

_LANES_OF_VALUES: Final = frozenset({Lane.INSERT, Lane.NACK})
"""The lanes whose entries bring values of their callers, such as metadata."""

_LOG_INTERVAL_S: Final = 1.0
"""The least time between two log lines about refused writes."""


class RefusedWrites:
    """Counts and logs the refusals of one shard's database.

    Args:
        request_flush: lets the writer write a flush even if nothing waits.
    """

    def __init__(self, shard: int, stopwatch_s: Callable[[], float], request_flush: Callable[[], None]) -> None:
        self.count = 0
        """Single entries that the database refused for good, and flushes beside which it had no room."""
        self.full_reason: str | None = None
        """Why the database has no room for writes; None if it has."""
        self._shard = shard
        self._stopwatch_s = stopwatch_s
        self._request_flush = request_flush
        self._full_refusals = 0
        """How many of `Store.full_refusals` it has noted."""
        self._full_at_s = 0.0
        """When the database last refused a write for want of room."""
        self._next_log_s = 0.0
        self._probe: asyncio.TimerHandle | None = None
        """The next flush that tries whether there is room; at most one is planned."""

    def add(self, refusal: WriteRefused) -> None:
        """Count a refusal for good. Not each one is logged: a full disk refuses everything, and may hold the log too."""
        self.count += 1
        if self._stopwatch_s() >= self._next_log_s:
            self._next_log_s = self._stopwatch_s() + _LOG_INTERVAL_S
            log.warning(
                "shard %d: the database refused a write (refusal %d since this host acquired the shard): %s",
                self._shard,
                self.count,
                refusal,
            )

    def error_of(self, refusal: WriteRefused, part: Part[Any]) -> FoqsError:
        """Return the error of a part that was refused alone: of a single entry, or of a whole operation."""
        text = f"the database of shard {self._shard} refused this write: {refusal}"
        if part.count > 1:
            text = (
                f"the database of shard {self._shard} refused one of the {part.count} items, so none is written: {refusal}; "
                "enqueue them one by one to find it"
            )
        if refusal.is_bad_value and part.operation.lane in _LANES_OF_VALUES:
            return InvalidArgument(text)
        return Unavailable(text, retry_after_ms=1_000)

    def on_full(self, reason: str) -> None:
        """Note that the database had no room for a write."""
        self._full_at_s = self._stopwatch_s()
        self.full_reason = reason
        if self._probe is None:
            self._probe_later()

    def on_committed(self, full_refusals: tuple[int, str]) -> None:
        """Note what `Store.full_refusals` says after a flush was committed.

        They are of what the store writes beside a flush. If nothing was refused for a
        while, there is room.
        """
        count, reason = full_refusals
        if count > self._full_refusals:
            self._full_refusals = count
            self.count += 1
            if self.full_reason is None:
                log.warning(
                    "shard %d: the database has no room for rows that the journal owes, so new items will be refused: %s",
                    self._shard,
                    reason,
                )
            self.on_full(reason)
        elif self.full_reason is not None and self._stopwatch_s() - self._full_at_s >= FULL_S:
            log.info("shard %d: the database has room again", self._shard)
            self.full_reason = None

    def close(self) -> None:
        """Try no more whether there is room."""
        if self._probe is not None:
            self._probe.cancel()

    def _probe_later(self) -> None:
        self._probe = asyncio.get_running_loop().call_later(FULL_PROBE_S, self._probe_room)

    def _probe_room(self) -> None:
        self._probe = None
        if self.full_reason is not None:
            self._request_flush()
            self._probe_later()
