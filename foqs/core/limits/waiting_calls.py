"""The calls of a port that wait for items, and the memory that they hold: places that owners share.

An owner is a principal or a namespace; a call has all of its owners. Always true: an owner
holds at most as many places, and as many bytes, as were free when it took the last one. So
one owner alone gets half of all, n owners that want everything get 1/(n + 1) each, and
there is room for the next one. Knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class _Held:
    """What one owner holds."""

    __slots__ = ("byte_count", "call_count")

    def __init__(self) -> None:
        self.call_count = 0
        self.byte_count = 0


class WaitingCalls:
    """The places and bytes of one port.

    Attributes:
        call_count: the calls that wait.
        byte_count: what they hold.
    """

    def __init__(self, calls_max: int, bytes_max: int) -> None:
        self.call_count = 0
        self.byte_count = 0
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._held: dict[Hashable, _Held] = {}

    def reserve(self, owners: Sequence[Hashable], byte_count: int) -> bool:
        """Take a place for a call of these owners. Return False if one of them has its share."""
        free_calls = self._calls_max - self.call_count
        free_bytes = self._bytes_max - self.byte_count
        if not free_calls or byte_count > free_bytes:
            return False
        for owner in owners:
            held = self._held.get(owner)
            if held is not None and (held.call_count >= free_calls or held.byte_count + byte_count > free_bytes):
                return False
        for owner in owners:
            held = self._held.get(owner)
            if held is None:
                held = self._held[owner] = _Held()
            held.call_count += 1
            held.byte_count += byte_count
        self.call_count += 1
        self.byte_count += byte_count
        return True

    def release_reservation(self, owners: Sequence[Hashable], byte_count: int) -> None:
        """Give a place back; the arguments are those of `reserve`."""
        self.call_count -= 1
        self.byte_count -= byte_count
        for owner in owners:
            held = self._held[owner]
            held.call_count -= 1
            held.byte_count -= byte_count
            if not held.call_count:
                del self._held[owner]
