"""The numbers that an ownership of a shard gives its new items, and which of them are settled.

Always true: a number is given once, in ascending order; it is settled when its
item is committed, or was refused or withdrawn. Until then no caller was told of
it, and nobody may be told that its item is gone. Knows calls, no single items.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from foqs.core.flush.work import OPEN, Inserts
from foqs.core.items.item import SEQUENCE_MAX, make_number, split_number

_RESERVED_COUNT: Final = 1_000_000
"""Kept back, so that whatever is queued still gets a number."""

_COMPACT_WORKS: Final = 64
_COMPACT_BYTES: Final = 1 << 20
"""Calls kept at least, and bytes of their items, before those that are settled are looked for and let go."""


class ItemNumbers:
    """Args:
    epoch: of the ownership.
    is_being_written: whether a call's items are in the flush under way.
    """

    def __init__(self, epoch: int, is_being_written: Callable[[Inserts], bool]) -> None:
        self._epoch = epoch
        self._is_being_written = is_being_written
        self._last_sequence = 0
        """The last sequence given."""
        self._works: list[Inserts] = []
        """In order of their numbers; those that are not settled, and others."""
        self._compact_at = _COMPACT_WORKS
        self._bytes = 0
        """Of the calls kept, those included that left since it was reckoned."""
        self._compact_bytes = _COMPACT_BYTES

    def can_assign(self, count: int) -> bool:
        """So many can still be given."""
        return self._last_sequence + count <= SEQUENCE_MAX - _RESERVED_COUNT

    @property
    def next_number(self) -> int:
        """The first that is not given."""
        return make_number(self._epoch, self._last_sequence + 1)

    def assign(self, work: Inserts) -> None:
        """The numbers from `next` on are this call's."""
        self._last_sequence += len(work)
        self._works.append(work)
        self._bytes += work.bytes
        if len(self._works) > self._compact_at or self._bytes > self._compact_bytes:
            self._works = [each for each in self._works if self._is_pending(each)]
            self._bytes = sum([each.bytes for each in self._works])
            self._compact_at = max(_COMPACT_WORKS, 2 * len(self._works))
            self._compact_bytes = max(_COMPACT_BYTES, 2 * self._bytes)

    @property
    def resolved_up_to(self) -> int:
        """Every number up to here that was given is settled."""
        calls = self._works
        settled = 0
        while settled < len(calls) and not self._is_pending(calls[settled]):
            settled += 1
        if settled:
            del calls[:settled]
        return (calls[0].numbers[0] if calls else self.next_number) - 1

    def is_resolved(self, number: int) -> bool:
        """False when this number is of our epoch and not given yet, or not settled.

        Of another epoch the table knows: a number of a later one means that we
        were replaced, and the fence will say so.
        """
        epoch, sequence = split_number(number)
        if epoch != self._epoch:
            return True
        if sequence > self._last_sequence:
            return False
        at = bisect_right(self._works, number, key=_first_number) - 1
        if at < 0:
            return True
        call = self._works[at]
        place = number - call.numbers[0]
        if place >= len(call) or call.results[place] is None:
            return True
        return call.results[place] is not OPEN and not self._is_being_written(call)

    def _is_pending(self, work: Inserts) -> bool:
        return work.is_open or (work.is_abandoned and self._is_being_written(work))


def _first_number(work: Inserts) -> int:
    return work.numbers[0]
