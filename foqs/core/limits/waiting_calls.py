"""The calls of a server that wait for items, and the memory that they hold: places that holders share.

A holder is a principal or a namespace; a call has all of its holders. Always true: a holder
holds at most as many places, and as many bytes, as were free when it took the last one. So
one holder alone gets half of all, n holders that want everything get 1/(n + 1) each, and
there is room for the next one. Knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class HolderShare:
    """The places and the bytes of one holder."""

    __slots__ = ("byte_count", "call_count", "holder")

    def __init__(self, holder: Hashable) -> None:
        self.holder = holder
        self.call_count = 0
        self.byte_count = 0


class WaitingPlace:
    """The place of one call, with its bytes."""

    __slots__ = ("byte_count", "shares")

    def __init__(self, shares: Sequence[HolderShare], byte_count: int) -> None:
        self.shares = shares
        self.byte_count = byte_count


class WaitingCalls:
    """The places and the bytes that the waiting calls of one server hold, within its limits.

    Attributes:
        call_count: the calls that wait.
        byte_count: the bytes that they hold.
    """

    def __init__(self, calls_max: int, bytes_max: int) -> None:
        self.call_count = 0
        self.byte_count = 0
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._shares: dict[Hashable, HolderShare] = {}
        """The shares of the holders that have a place. Others are not kept: a caller can name any number of holders."""

    @property
    def holder_count(self) -> int:
        """The number of holders that have a place."""
        return len(self._shares)

    def reserve(self, holders: Sequence[Hashable], byte_count: int) -> WaitingPlace | None:
        """Take a place for a call of these holders. Return None if there is no room, or if one of them has its share."""
        free_calls = self._calls_max - self.call_count
        free_bytes = self._bytes_max - self.byte_count
        if not free_calls or byte_count > free_bytes:
            return None
        shares = []
        for holder in holders:
            share = self._shares.get(holder)
            if share is None:
                share = HolderShare(holder)
            elif share.call_count >= free_calls or share.byte_count + byte_count > free_bytes:
                return None
            shares.append(share)
        for share in shares:
            if not share.call_count:
                self._shares[share.holder] = share
            share.call_count += 1
            share.byte_count += byte_count
        self.call_count += 1
        self.byte_count += byte_count
        return WaitingPlace(shares, byte_count)

    def release_reservation(self, place: WaitingPlace) -> None:
        """Give a place back, once."""
        self.call_count -= 1
        self.byte_count -= place.byte_count
        for share in place.shares:
            share.call_count -= 1
            share.byte_count -= place.byte_count
            if not share.call_count:
                del self._shares[share.holder]
