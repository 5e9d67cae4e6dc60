"""The numbers that an ownership of a shard gives its new items, and which of them are settled.

Always true: a number is given once, in ascending order; it is settled when its
item is committed, or was refused or withdrawn. Until then no caller was told of
it, and nobody may be told that its item is gone. Knows calls, no single items.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from foqs.core.item import SEQUENCE_MAX, make_number, split_number
from foqs.core.work import OPEN, Inserts

_RESERVE: Final = 1_000_000
"""Kept back, so that whatever is queued still gets a number."""

_COMPACT: Final = 64
_COMPACT_BYTES: Final = 1 << 20
"""Calls kept at least, and bytes of their items, before those that are settled are looked for and let go."""


class Numbers:
    """Args:
    epoch: of the ownership.
    writes: whether a call's items are in the flush under way.
    """

    def __init__(self, epoch: int, writes: Callable[[Inserts], bool]) -> None:
        self._epoch = epoch
        self._writes = writes
        self._last = 0
        """The last sequence given."""
        self._calls: list[Inserts] = []
        """In order of their numbers; those that are not settled, and others."""
        self._compact_at = _COMPACT
        self._bytes = 0
        """Of the calls kept, those included that left since it was reckoned."""
        self._compact_bytes = _COMPACT_BYTES

    def has(self, count: int) -> bool:
        """So many can still be given."""
        return self._last + count <= SEQUENCE_MAX - _RESERVE

    @property
    def next(self) -> int:
        """The first that is not given."""
        return make_number(self._epoch, self._last + 1)

    def gave(self, call: Inserts) -> None:
        """The numbers from `next` on are this call's."""
        self._last += len(call)
        self._calls.append(call)
        self._bytes += call.bytes
        if len(self._calls) > self._compact_at or self._bytes > self._compact_bytes:
            self._calls = [each for each in self._calls if self._is_pending(each)]
            self._bytes = sum([each.bytes for each in self._calls])
            self._compact_at = max(_COMPACT, 2 * len(self._calls))
            self._compact_bytes = max(_COMPACT_BYTES, 2 * self._bytes)

    @property
    def settled(self) -> int:
        """Every number up to here that was given is settled."""
        calls = self._calls
        settled = 0
        while settled < len(calls) and not self._is_pending(calls[settled]):
            settled += 1
        if settled:
            del calls[:settled]
        return (calls[0].numbers[0] if calls else self.next) - 1

    def is_settled(self, number: int) -> bool:
        """False when this number is of our epoch and not given yet, or not settled.

        Of another epoch the table knows: a number of a later one means that we
        were replaced, and the fence will say so.
        """
        epoch, sequence = split_number(number)
        if epoch != self._epoch:
            return True
        if sequence > self._last:
            return False
        at = bisect_right(self._calls, number, key=_first) - 1
        if at < 0:
            return True
        call = self._calls[at]
        place = number - call.numbers[0]
        if place >= len(call) or call.results[place] is None:
            return True
        return call.results[place] is not OPEN and not self._writes(call)

    def _is_pending(self, call: Inserts) -> bool:
        return call.is_open or (call.abandoned and self._writes(call))


def _first(call: Inserts) -> int:
    return call.numbers[0]
