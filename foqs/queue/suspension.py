"""Whether a host delivers nothing for now, because its shards may soon belong to another host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Suspension:
    """One value, which the engine sets and everything that delivers reads. All calls but deliveries are served."""

    is_on: bool = False
