"""Planted bugs of the order of delivery. See `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foqs.core.memory import best_items
from foqs.core.timing.arrivals import Arrivals
from foqs.core.timing.database_clock import DatabaseClock
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def arrival_clock_behind_items() -> None:
    """A host that takes a shard over does not look at the time of its last items."""

    def start(self: DatabaseClock, database_ms: int, *saved: int) -> object:
        clock = original(self, database_ms, *saved)
        self._arrival_clock = self._clock(database_ms - 400)
        return clock

    original = plant(DatabaseClock, "start_shard_clock", start)
    plant(Arrivals, "record_earlier_items", lambda self, database, last_ms: None)


def clock_for_each_shard() -> None:
    """Items have the time of their own shard's clock, not one of all shards."""

    def arrival_ms(self: DatabaseClock) -> int:
        clocks = self._shard_clocks
        at = self._arrivals.last_sequence % len(clocks)
        return clocks[at].now_ms() + 20 * at

    plant(DatabaseClock, "arrival_ms", arrival_ms)


def epochs_compared() -> None:
    """Items of one moment are in the order of the epochs of their shards, not of their arrival."""
    plant(best_items, "arrival_rank", int)
    plant(best_items, "arrival_ranks", list)


BUGS: Final[Mapping[str, Bug]] = {
    "arrival-clock-behind-items": Bug(arrival_clock_behind_items, (14,), first_seed=1),
    "clock-for-each-shard": Bug(clock_for_each_shard, (14,)),
    "epochs-compared": Bug(epochs_compared, (14,), 40, first_seed=8),
}
