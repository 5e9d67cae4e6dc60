"""What became of a consumer's items, as people and programs are shown it.

Holds `Counts`. Frozen; sums over several consumers with `+`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True, frozen=True)
class Counts:
    """What became of items so far, and how many are in hand.

    Attributes:
        retried: nacked, to be delivered again.
        dead: given up by their handlers.
        released: given back untried, or interrupted by a stop.
        lost: whose lease ended before their handler did, or before a host could be told.
        running, waiting: in hand, with a handler and without.
    """

    done: int = 0
    retried: int = 0
    dead: int = 0
    discarded: int = 0
    released: int = 0
    lost: int = 0
    running: int = 0
    waiting: int = 0

    def __add__(self, other: Counts) -> Counts:
        more = asdict(other)
        return Counts(**{name: value + more[name] for name, value in asdict(self).items()})
