"""The clock of a database server that runs too fast or too slow, and is stepped.

Always true: a new owner cannot distinguish a step of the clock from time that has
passed. So at a takeover the steps that the last owner has not saved are undone,
except for the skew that two servers may have. Knows nothing of servers.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from foqs.testing.virtual_loop import VirtualClock

MINUTE_MS: Final = 60_000
STEPS_MINUTES: Final = (1, 300)
"""The size of a step, either way: more than any statement's time could explain."""


class ServerClock:
    """Integer milliseconds since 1970.

    Args:
        rate: how fast it runs; 1.01 gains ten milliseconds a second.
        skew_ms: how far it may be off, either way, without a new owner noticing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random, *, rate: float = 1.0, skew_ms: int = 0) -> None:
        self._clock = VirtualClock(loop, rate=rate)
        self._rng = rng
        self._skew_ms = skew_ms
        self.stepped_ms = 0
        """By all steps so far."""

    def now_ms(self) -> int:
        return self._clock.wall_ms() + self.stepped_ms

    def step(self) -> None:
        """Somebody sets it, by minutes to hours."""
        self.stepped_ms += self._rng.choice((-1, 1)) * self._rng.randint(*STEPS_MINUTES) * MINUTE_MS

    def on_owner_change(self, known_ms: int) -> None:
        """A new owner is about to read it, with whatever the last one has saved of its steps."""
        if self.stepped_ms != known_ms or self._rng.random() < 0.5:
            self.stepped_ms = known_ms + self._rng.randint(-self._skew_ms, self._skew_ms)
