"""What fairness is between the tenants of a queue, from the records of a trial.

Holds `Served`, `spread` and `percentiles`. The measures are those of FaQueue, a published
trial of strategies: how far the tenants are apart in what their first items waited.
Knows nothing of a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final

from perf.lib.report import percentile

_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True, slots=True)
class Served:
    """One item: its tenant, when it was sent and when it was delivered, in seconds of one clock."""

    tenant: str
    sent_s: float
    delivered_s: float

    @property
    def wait_s(self) -> float:
        return self.delivered_s - self.sent_s


def waits(served: Sequence[Served]) -> dict[str, list[float]]:
    """Return by tenant what its items waited, in the order in which they were delivered."""
    found: dict[str, list[float]] = {}
    for item in sorted(served, key=lambda each: each.delivered_s):
        found.setdefault(item.tenant, []).append(item.wait_s)
    return found


def spread(served: Sequence[Served]) -> dict[str, float]:
    """Return how far the tenants are apart: the standard deviation over them of means and of 90th percentiles, in seconds.

    The *head* of a tenant is its first K items; K is what the smallest tenant has.
    """
    whole = list(waits(served).values())
    head = min(map(len, whole))
    heads = [each[:head] for each in whole]
    return {
        "head_mean_sd_s": pstdev(map(fmean, heads)),
        "head_p90_sd_s": pstdev(map(_p90, heads)),
        "mean_sd_s": pstdev(map(fmean, whole)),
        "p90_sd_s": pstdev(map(_p90, whole)),
    }


def percentiles(name: str, values_s: Sequence[float]) -> dict[str, float | None]:
    """Return percentiles in milliseconds, as figures of a report; None without values."""
    ordered = sorted(1_000 * value for value in values_s)
    return {f"{name}_{word}_ms": percentile(ordered, share) for word, share in _SHARES.items()}


def _p90(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.9) or 0.0
