"""Automatic idempotency keys, and the retries of an enqueue.

Holds `AutomaticKeys`, `RetriedEnqueue` and `RetriedAtomicEnqueue`. Always true: an item is retried only if it
has a key, and with the same key as long as it may have been written. An item that may
have been written is never reported as not written. The caller's items are not
changed. Sends nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

from foqs_client.errors import FoqsError, KeyConflict, UnknownOutcome
from foqs_client.retried_calls import RetriedCall
from foqs_client.types import Enqueued, Item
from foqs_contract.key_slots import KEY_SLOT_COUNT, group_slot_of

_UNIQUE_BITS: Final = 64
MISSING_RESULT: Final = Enqueued(
    error=UnknownOutcome(
        "the host's reply does not name this item; it may have been written, so check before you repeat it"
    )
)


class AutomaticKeys:
    """Makes unique keys.

    The keys of one call share one slot, and so one shard. Calls take the slots in turn,
    starting with a random one: neighbouring slots belong to different shards.

    Args:
        rng: makes the keys unique.
        next_slot: chooses the slot of a call; returns None if it has no preference.
        namespace: the namespace of the items.

    Attributes:
        was_slot_chosen: `next_slot` chose the slot of the last call. The next slot it
            chooses is another host's, if there is one.
    """

    def __init__(
        self, rng: Random, next_slot: Callable[[], int | None] = lambda: None, namespace: str = "default"
    ) -> None:
        self._rng = rng
        self._namespace = namespace
        self._next_slot = next_slot
        self.was_slot_chosen = False
        self._slot = rng.randrange(KEY_SLOT_COUNT)

    def with_keys(self, items: Iterable[Item], slot: int | None = None) -> list[Item]:
        """Return the items with keys. A key consists of slot, time, random bits and index.

        Args:
            slot: the slot of the keys; None: that of the next call.
        """
        chosen = self._next_slot() if slot is None else None
        self.was_slot_chosen = chosen is not None
        if slot is None:
            slot = self._slot = (self._slot + 1) % KEY_SLOT_COUNT if chosen is None else chosen
        call = f"~{slot:03x}{time.time_ns() // 1_000_000:012x}{self._rng.getrandbits(_UNIQUE_BITS):016x}-"
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
                item.trace_context,
                item.key_until_ms,
                item.group,
            )
            if item.idempotency_key is None
            else item
            for place, item in enumerate(items)
        ]

    def with_joint_keys(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items of an atomic call with keys, or as they are if the caller gave one.

        A key beside the caller's would be another one when the caller repeats the call, which would then be a conflict.
        The keys are in the slot of the first group, if there is one.
        """
        if any(item.idempotency_key is not None for item in items):
            return items
        group = next((item.group for item in items if isinstance(item.group, str)), None)
        return self.with_keys(items, None if group is None else self._group_slot(group))

    def _group_slot(self, group: str) -> int:
        return group_slot_of(self._namespace.encode(errors="surrogatepass"), group.encode(errors="surrogatepass"))


class RetriedEnqueue(RetriedCall[Item, Enqueued]):
    """The attempts of one enqueue.

    Args:
        items: the caller's items.
        first_sent: the items of the first attempt, with its automatic keys.
        automatic_keys: makes missing keys; None: items without a key are sent once.
    """

    not_written_errors = (KeyConflict,)
    """The errors after which an item was not written and never will be: another item has its key."""

    def __init__(self, items: Sequence[Item], first_sent: Sequence[Item], automatic_keys: AutomaticKeys | None) -> None:
        super().__init__(first_sent, MISSING_RESULT)
        self._original_items = items
        self._automatic_keys = automatic_keys

    def record_results(self, results: Sequence[Enqueued]) -> bool:
        has_unfinished = super().record_results(results)
        if self._automatic_keys is not None and not self._unknown_outcomes:
            # Another slot may belong to a shard that has room.
            self.unfinished_entries = self.new_keys(
                self._automatic_keys, [self._original_items[place] for place in self._indexes]
            )
            if self._automatic_keys.was_slot_chosen:
                self._retry_after_ms = 0  # another shard asked for this time
        return has_unfinished

    def new_keys(self, keys: AutomaticKeys, items: Sequence[Item]) -> Sequence[Item]:
        """Return items that were not written with keys for the next attempt."""
        return keys.with_keys(items)

    def failure_result(self, error: FoqsError) -> Enqueued:
        return Enqueued(error=error)

    def success_result(self, index: int, result: Enqueued) -> Enqueued:
        has_automatic_key = self._original_items[index].idempotency_key is None
        return Enqueued(result.id) if has_automatic_key else result

    def is_repeatable(self, entry: Item) -> bool:
        return entry.idempotency_key is not None


class RetriedAtomicEnqueue(RetriedEnqueue):
    """The attempts of one atomic enqueue: each one holds all items."""

    def record_results(self, results: Sequence[Enqueued]) -> bool:
        has_unfinished = super().record_results(results)
        if len(self.unfinished_entries) < len(self._original_items):
            self.unfinished_entries, self._indexes = (), ()
            return False
        return has_unfinished

    def new_keys(self, keys: AutomaticKeys, items: Sequence[Item]) -> Sequence[Item]:
        return keys.with_joint_keys(items)
