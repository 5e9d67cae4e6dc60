"""The pauses between retries of a store in trouble. Pure: the caller passes the randomness."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(slots=True, frozen=True)
class Backoff:
    """The pause between two attempts: it doubles from `ms_min` to `ms_max`, with jitter."""

    ms_min: int
    ms_max: int
    rng: Random

    def pause_s(self, attempt: int) -> float:
        ceiling = min(self.ms_max, self.ms_min << min(attempt, 30))
        return float(ceiling * (0.5 + self.rng.random() / 2) / 1000)
