"""The limits of a relay: what one ownership holds in memory, and what one crash can leave in doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, frozen=True)
class RelayLimits:
    """Limits of one relay. A row counts once for each place that it takes, so rows with long payloads are fewer.

    Attributes:
        stamp_rows_max: rows that one round stamps.
        in_flight_rows_max: rows that are stamped.
        waiting_rows_max: rows in memory that wait: with a group, and again without one. Further ones are left to a sweep.
        run_rows_max: rows of one group in one atomic call.
        gaps_max: gaps that are read.
        gap_keep_s: how long a gap is read.
        held_groups_max: row groups that are held one by one.
        parked_rows_max: with this number of parked rows, only resent ones are stamped.
    """

    stamp_rows_max: int = 500
    in_flight_rows_max: int = 4_000
    waiting_rows_max: int = 2_000
    run_rows_max: int = 100
    gaps_max: int = 1_000
    gap_keep_s: float = 60.0
    held_groups_max: int = 10_000
    parked_rows_max: int = 10_000


DEFAULT_LIMITS: Final = RelayLimits()
