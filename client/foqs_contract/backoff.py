"""The pauses between the attempts of something that fails.

Holds `Backoff`. Always true: pauses double up to a limit, and are spread at random so
that many callers do not retry together. No pause is shorter than the other side asked
for. Pure: the caller counts its attempts and passes the source of randomness.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

_DOUBLINGS_MAX: Final = 30


@dataclass(slots=True, frozen=True)
class Backoff:
    """The bounds of the pauses, in seconds, and their jitter.

    Attributes:
        s_min: the first pause.
        s_max: the longest pause.
        rng: draws the jitter, once for each pause. None: no jitter.
        jitter: a pause is multiplied by a random factor between these two.
    """

    s_min: float
    s_max: float
    rng: Random | None = None
    jitter: tuple[float, float] = (0.5, 1.0)

    def pause_s(self, failures: int, retry_after_ms: int | None = None) -> float:
        """Return the pause before the next attempt, in seconds.

        Args:
            failures: how often the pause has doubled. After a success it is 0 again.
            retry_after_ms: the least pause.
        """
        least_s = (retry_after_ms or 0) / 1_000
        pause_s = max(min(self.s_max, self.s_min * (1 << min(failures, _DOUBLINGS_MAX))), least_s)
        if self.rng is None:
            return pause_s
        low, high = self.jitter
        return max(pause_s * (low + (high - low) * self.rng.random()), least_s)
