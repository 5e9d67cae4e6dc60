"""Enqueues with idempotency keys: made up where the caller gave none, and tried again.

Holds `AutomaticKeys`, and `Attempts` at one enqueue. Always true: an item is
tried again only while it has a key, and with the same key as long as it may have
been written; an item that may have been written is never said not to be. The
caller's items stay as they are. Sends nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from foqs_client.errors import KeyConflict, NotOwner, Overloaded, Unavailable, UnknownOutcome
from foqs_client.types import Enqueued, Item

SLOTS: Final = 1_024
"""The slots of a tier: what the contract's keys hash to, or name."""
AGAIN_S_MAX: Final = 60.0
"""Nothing is tried again later than this: a namespace keeps its keys for two minutes at least."""
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 1.0

_LATER: Final = (Unavailable, Overloaded, NotOwner)
"""Nothing was written, and it may work later or elsewhere."""
_UNIQUE_BITS: Final = 64
_UNTOLD: Final = Enqueued(error=UnknownOutcome("the host's reply does not name this item; it may have been written"))


class AutomaticKeys:
    """Makes keys nobody else makes.

    The keys of one call share one slot, so that they meet one shard. Calls take the
    slots in turn, from one drawn by lot: neighbouring slots are of different shards.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._slot = rng.randrange(SLOTS)

    def give(self, items: Iterable[Item]) -> list[Item]:
        """The items, each with a key: slot, time, chance, place."""
        self._slot = (self._slot + 1) % SLOTS
        call = f"~{self._slot:03x}{time.time_ns() // 1_000_000:012x}{self._rng.getrandbits(_UNIQUE_BITS):016x}-"
        return [
            Item(
                item.topic,
                item.payload,
                item.priority,
                item.metadata,
                item.delay_ms,
                item.deliver_after_ms,
                item.lease_ms,
                item.ttl_ms,
                item.at_most_once,
                item.attempts_max,
                f"{call}{place}",
            )
            if item.idempotency_key is None
            else item
            for place, item in enumerate(items)
        ]


class Attempts:
    """One enqueue, attempt by attempt.

    Args:
        items: as the caller gave them.
        keys: makes those that are missing; None: items without a key stay without, and are tried once.

    Attributes:
        sent: what the next attempt sends.
        results: what is known of each item so far.
    """

    def __init__(self, items: Sequence[Item], keys: AutomaticKeys | None) -> None:
        self.sent: Sequence[Item] = items if keys is None else keys.give(items)
        self.results: list[Enqueued] = [_UNTOLD] * len(items)
        self._items = items
        self._keys = keys
        self._places: Sequence[int] = range(len(items))
        """Whose the sent items are."""
        self._unknown: dict[int, UnknownOutcome] = {}
        """Places that may have been written, and why that is not known."""
        self._pause_s = PAUSE_S_MIN
        self._asked_ms = 0

    def take(self, told: Sequence[Enqueued]) -> bool:
        """Takes what an attempt came to, for each of the sent; True when something is to be tried again."""
        again: list[tuple[int, Item]] = []
        self._asked_ms = 0
        for place, item, result in zip(self._places, self.sent, told, strict=False):
            error = result.error
            later = isinstance(error, _LATER)
            if isinstance(error, UnknownOutcome):
                self._unknown[place] = error
            elif isinstance(error, KeyConflict):
                # Its key is another item's, so it was never written, and never will be.
                self._unknown.pop(place, None)
            if error is None:
                ours = self._items[place].idempotency_key is None
                self.results[place] = Enqueued(result.id) if ours else result
                continue
            self.results[place] = Enqueued(error=self._unknown.get(place, error))
            if item.idempotency_key is not None and (later or isinstance(error, UnknownOutcome)):
                again.append((place, item))
                self._asked_ms = max(self._asked_ms, error.retry_after_ms or 0)
        self._places = [place for place, _ in again]
        self.sent = [item for _, item in again]
        if self._keys is not None and not self._unknown:
            # Another slot, perhaps of a shard that is better off.
            self.sent = self._keys.give([self._items[place] for place in self._places])
        return bool(again)

    def pause_s(self) -> float:
        """How long to wait before the next attempt."""
        pause_s = max(self._pause_s, self._asked_ms / 1_000)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return pause_s

    @property
    def unknown(self) -> UnknownOutcome | None:
        """Why it is not known of some item whether it was written; None where it is known of all."""
        return next((error for place, error in self._unknown.items() if self.results[place].error is error), None)
