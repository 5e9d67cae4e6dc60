"""The numbers that a shard's owner assigns to new items, and which of them are resolved.

Always true: numbers are assigned once, in ascending order. A number is resolved when
its item was committed, refused or withdrawn. Before that, no caller knows the number,
and no reply may say that its item is gone. Knows works, not single items.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from foqs.core.flush.work import OPEN, Inserts
from foqs.core.items.item import SEQUENCE_MAX, make_number, split_number

_RESERVED_COUNT: Final = 1_000_000
"""Sequences kept in reserve, so that calls that are already queued still get numbers."""

_COMPACT_WORKS: Final = 64
_COMPACT_BYTES: Final = 1 << 20
"""With fewer works and bytes than this, resolved works are not searched for and dropped."""


class ItemNumbers:
    """Assigns numbers and tracks the works that they belong to.

    Args:
        epoch: the epoch of the ownership.
        is_being_written: returns whether a work's items are in the flush in progress.
    """

    def __init__(self, epoch: int, is_being_written: Callable[[Inserts], bool]) -> None:
        self._epoch = epoch
        self._is_being_written = is_being_written
        self._last_sequence = 0
        """The last sequence assigned."""
        self._works: list[Inserts] = []
        """In order of their numbers: all that are not resolved, and some that are."""
        self._compact_at = _COMPACT_WORKS
        self._bytes = 0
        """Bytes of the works kept, and of those dropped since the last compaction."""
        self._compact_bytes = _COMPACT_BYTES

    def can_assign(self, count: int) -> bool:
        """Return whether `count` numbers are left."""
        return self._last_sequence + count <= SEQUENCE_MAX - _RESERVED_COUNT

    @property
    def next_number(self) -> int:
        """The first number that is not assigned."""
        return make_number(self._epoch, self._last_sequence + 1)

    def assign(self, work: Inserts) -> None:
        """Assign the numbers from `next_number` on to this work."""
        self._last_sequence += len(work)
        self._works.append(work)
        self._bytes += work.bytes
        if len(self._works) > self._compact_at or self._bytes > self._compact_bytes:
            self._works = [pending for pending in self._works if self._is_pending(pending)]
            self._bytes = sum([pending.bytes for pending in self._works])
            self._compact_at = max(_COMPACT_WORKS, 2 * len(self._works))
            self._compact_bytes = max(_COMPACT_BYTES, 2 * self._bytes)

    @property
    def resolved_up_to(self) -> int:
        """The last number before the first unresolved one."""
        works = self._works
        resolved = 0
        while resolved < len(works) and not self._is_pending(works[resolved]):
            resolved += 1
        if resolved:
            del works[:resolved]
        return (works[0].numbers[0] if works else self.next_number) - 1

    def is_resolved(self, number: int) -> bool:
        """Return False if this number is of this epoch and not assigned yet, or not resolved.

        Numbers of other epochs count as resolved: the table has their items. A number of
        a later epoch means that this owner was replaced, which the fence will detect.
        """
        epoch, sequence = split_number(number)
        if epoch != self._epoch:
            return True
        if sequence > self._last_sequence:
            return False
        at = bisect_right(self._works, number, key=_first_number) - 1
        if at < 0:
            return True
        work = self._works[at]
        place = number - work.numbers[0]
        if place >= len(work) or work.results[place] is None:
            return True
        return work.results[place] is not OPEN and not self._is_being_written(work)

    def _is_pending(self, work: Inserts) -> bool:
        return work.is_open or (work.is_abandoned and self._is_being_written(work))


def _first_number(work: Inserts) -> int:
    return work.numbers[0]
