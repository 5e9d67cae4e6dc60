"""Deadlines of calls, without one timer of the loop for each.

`Deadlines` is for things that often expire: one timer for all that fall into
the same hundredth of a second. Each costs an entry in a dict.
`DeadlineSweeper` is for things that hardly ever expire: one timer for a whole
collection. Each costs a comparison; the timer scans the collection.
Always true: nothing expires before its deadline, nor much more than `TICK_S`
after it; a removed thing does not expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from math import inf
from typing import Final, Protocol

TICK_S: Final = 0.01


class Expirable(Protocol):
    """A thing with a deadline."""

    def expire(self) -> None:
        """End the thing, because its deadline has passed. Must not raise."""
        ...


class Deadlines:
    """The pending deadlines of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Expirable, None]] = {}

    def add(self, deadline: float, thing: Expirable) -> int:
        """Expire `thing` at `deadline` on the loop's clock. Returns its bucket, for `remove`."""
        bucket = int(deadline / TICK_S) + 1
        things = self._buckets.get(bucket)
        if things is None:
            things = self._buckets[bucket] = {}
            self._loop.call_at(bucket * TICK_S, self._expire_bucket, bucket)
        things[thing] = None
        return bucket

    def remove(self, bucket: int, thing: Expirable) -> None:
        """Cancel the deadline of `thing`. Safe to repeat, and after the thing has expired."""
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
            if things:  # `expire` raised, against its contract: the others must still expire
                self._loop.call_soon(self._expire_bucket, bucket)
            else:
                del self._buckets[bucket]


class HasDeadline(Expirable, Protocol):
    """A thing that knows its deadline."""

    @property
    def expires_at(self) -> float:
        """The deadline, on the loop's clock."""
        ...


class DeadlineSweeper:
    """Expires each of `things` that is still in the collection at its deadline.

    The code that adds a thing calls `sweep_by` if the deadline is before
    `next_sweep_at`. A thing that expires removes itself. If all deadlines are about
    equally far ahead, the timer fires once per that time and finds nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, things: Collection[HasDeadline]) -> None:
        self._loop = loop
        self._things = things
        self._timer: asyncio.TimerHandle | None = None
        self.next_sweep_at = inf

    def sweep_by(self, deadline: float) -> None:
        """Scan all things at `deadline` on the loop's clock, instead of at `next_sweep_at`."""
        self.stop()
        self.next_sweep_at = deadline
        self._timer = self._loop.call_at(deadline + TICK_S, self._sweep)

    def stop(self) -> None:
        """Expire nothing until `sweep_by` is called again."""
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
