"""Enqueues with idempotency keys: made up where the caller gave none, and tried again.

Holds `AutomaticKeys`, and the attempts at one enqueue. Always true: an item is
tried again only while it has a key, and with the same key as long as it may have
been written; an item that may have been written is never said not to be. The
caller's items stay as they are. Sends nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

from foqs_client.errors import FoqsError, KeyConflict, UnknownOutcome
from foqs_client.retried_calls import RetriedCall
from foqs_client.routing_table import KEY_SLOT_COUNT
from foqs_client.types import Enqueued, Item

_UNIQUE_BITS: Final = 64
_MISSING_RESULT: Final = Enqueued(
    error=UnknownOutcome("the host's reply does not name this item; it may have been written")
)


class AutomaticKeys:
    """Makes keys nobody else makes.

    The keys of one call share one slot, so that they meet one shard. Calls take the
    slots in turn, from one drawn by lot: neighbouring slots are of different shards.

    Args:
        next_slot: the slot for a call, where somebody knows better.

    Attributes:
        was_chosen: the last call's slot was, so the next one's is another host's where there is one.
    """

    def __init__(self, rng: Random, next_slot: Callable[[], int | None] = lambda: None) -> None:
        self._rng = rng
        self._next_slot = next_slot
        self.was_slot_chosen = False
        self._slot = rng.randrange(KEY_SLOT_COUNT)

    def with_keys(self, items: Iterable[Item]) -> list[Item]:
        """The items, each with a key: slot, time, chance, place."""
        chosen = self._next_slot()
        self.was_slot_chosen = chosen is not None
        self._slot = (self._slot + 1) % KEY_SLOT_COUNT if chosen is None else chosen
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


class RetriedEnqueue(RetriedCall[Item, Enqueued]):
    """One enqueue, attempt by attempt.

    Args:
        items: as the caller gave them.
        first_sent: as the first attempt sent them: with the keys that were made for it.
        automatic_keys: makes those that are missing; None: items without a key stay without, and are tried once.
    """

    not_written_errors = (KeyConflict,)
    """Its key is another item's, so it was never written, and never will be."""

    def __init__(self, items: Sequence[Item], first_sent: Sequence[Item], automatic_keys: AutomaticKeys | None) -> None:
        super().__init__(first_sent, _MISSING_RESULT)
        self._original_items = items
        self._automatic_keys = automatic_keys

    def record_results(self, results: Sequence[Enqueued]) -> bool:
        again = super().record_results(results)
        if self._automatic_keys is not None and not self._unknown_outcomes:
            # Another slot, perhaps of a shard that is better off.
            self.unfinished_entries = self._automatic_keys.with_keys(
                [self._original_items[place] for place in self._indexes]
            )
            if self._automatic_keys.was_slot_chosen:
                self._retry_after_ms = 0  # it was another shard that asked for time
        return again

    def failure_result(self, error: FoqsError) -> Enqueued:
        return Enqueued(error=error)

    def success_result(self, index: int, result: Enqueued) -> Enqueued:
        ours = self._original_items[index].idempotency_key is None
        return Enqueued(result.id) if ours else result

    def is_repeatable(self, entry: Item) -> bool:
        return entry.idempotency_key is not None
