"""Deadlines of calls, without a timer of the loop for each.

Holds two ways: `Deadlines` for what often expires, one timer for all that fall
into the same hundredth of a second, at the cost of an entry in a dict;
`Backstop` for what hardly ever does, one timer for a whole collection, at the
cost of a comparison, and of a look at all of it when the timer rings. Always
true: nothing expires before its moment, nor much more than `TICK_S` after it;
what was removed does not expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from math import inf
from typing import Final, Protocol

TICK_S: Final = 0.01


class Expirable(Protocol):
    """Something with a deadline."""

    def expire(self) -> None:
        """The deadline has come. Must not raise."""
        ...


class Deadlines:
    """What is still to expire on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Expirable, None]] = {}

    def add(self, deadline: float, thing: Expirable) -> int:
        """`thing` expires at `deadline` on the loop's clock. Returns its slot, for `remove`."""
        slot = int(deadline / TICK_S) + 1
        things = self._buckets.get(slot)
        if things is None:
            things = self._buckets[slot] = {}
            self._loop.call_at(slot * TICK_S, self._expire_bucket, slot)
        things[thing] = None
        return slot

    def remove(self, bucket: int, thing: Expirable) -> None:
        """It expires no more; safe to repeat, and after it has expired."""
        things = self._buckets.get(bucket)
        if things is not None:
            things.pop(thing, None)

    def _expire_bucket(self, bucket: int) -> None:
        things = self._buckets[bucket]
        try:
            while things:
                thing = next(iter(things))
                del things[thing]
                thing.expire()
        finally:
            if things:  # one of them failed, against the rule; it must not keep the others
                self._loop.call_soon(self._expire_bucket, bucket)
            else:
                del self._buckets[bucket]


class HasDeadline(Expirable, Protocol):
    """Something that knows its deadline."""

    @property
    def expires_at(self) -> float:
        """On the loop's clock."""
        ...


class DeadlineSweeper:
    """Ends what is still among `things` at its deadline.

    Whoever puts a thing in calls `sweep_by` when its deadline is before `next_sweep_at`;
    a thing that expires leaves by itself. With deadlines that lie alike far ahead
    the timer rings once in that time, and finds nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, things: Collection[HasDeadline]) -> None:
        self._loop = loop
        self._things = things
        self._timer: asyncio.TimerHandle | None = None
        self.next_sweep_at = inf

    def sweep_by(self, deadline: float) -> None:
        """Looks at everything at `deadline`, on the loop's clock, and not at `next_sweep_at`."""
        self.stop()
        self.next_sweep_at = deadline
        self._timer = self._loop.call_at(deadline + TICK_S, self._sweep)

    def stop(self) -> None:
        """Nothing expires any more, unless `sweep_by` is called again."""
        self.next_sweep_at = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self.stop()
        now = self._loop.time()
        try:
            for thing in [thing for thing in self._things if thing.expires_at <= now]:
                thing.expire()
        finally:
            first = min([thing.expires_at for thing in self._things], default=inf)
            if first < self.next_sweep_at:
                self.sweep_by(first)
