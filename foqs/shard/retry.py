"""How long to wait before a store in trouble is asked again. Pure: chance is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(slots=True, frozen=True)
class Backoff:
    """Pause between attempts against a store in trouble: doubles from min to max, in milliseconds."""

    ms_min: int
    ms_max: int
    rng: Random

    def pause_s(self, attempt: int) -> float:
        ceiling = min(self.ms_max, self.ms_min << min(attempt, 30))
        return float(ceiling * (0.5 + self.rng.random() / 2) / 1000)
