"""Lookups for enqueues over a limit that may be repeats.

A repeat gets the id of its item even if its namespace is over a limit. Always
true: a limited number of items of one namespace is looked up at once, so that
a flood over its limits costs other namespaces little; an item that is not
looked up is refused as if it were new. Knows nothing of the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from foqs.core.flush.operation import Operation
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.items.item import KeyedItem, NewItem
from foqs.queue.pending_calls import EnqueueCall
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import FoqsError, TemporaryRefusal


class ReplayLookups:
    """Looks up whether enqueues over a limit are repeats: the lookups in flight, of all namespaces.

    Args:
        items_max: limit for each namespace.
        shards_for_idempotency_keys: returns the shard of each key; None if no available shard holds its slot.
    """

    def __init__(
        self, items_max: int, shards_for_idempotency_keys: Callable[[Sequence[bytes]], Sequence[OwnedShard | None]]
    ) -> None:
        self._items_max = items_max
        self._shards_for_idempotency_keys = shards_for_idempotency_keys
        self._items_in_flight: Counter[str] = Counter()

    def can_start(self, namespace: str, items: Sequence[NewItem]) -> bool:
        """Return whether some items have keys and all of these can be looked up now."""
        keyed = sum([isinstance(item, KeyedItem) for item in items])
        return 0 < keyed <= self._items_max - self._items_in_flight[namespace]

    def start(
        self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], limit_errors: Mapping[int, FoqsError]
    ) -> None:
        """Refuse the items with `limit_errors` (by position in the call), except those that turn out to be repeats.

        All items of an atomic call have the same error, and are looked up together.
        """
        for position, error in limit_errors.items():
            call.refuse((position,), error)
        if not self.can_start(namespace, [items[position] for position in limit_errors]):
            return
        keyed = {position: item for position in limit_errors if isinstance(item := items[position], KeyedItem)}
        groups: dict[OwnedShard | None, list[int]] = {}
        shards = self._shards_for_idempotency_keys([item.idempotency_key for item in keyed.values()])
        for position, shard in zip(keyed, shards, strict=True):
            groups.setdefault(shard, []).append(position)
        if call.is_atomic and len(groups) > 1:
            return  # no earlier call has written all of them, so this is no repeat
        for shard, positions in groups.items():
            if shard is None:
                continue
            own = [keyed[position] for position in positions]
            refusals = [limit_errors[position] for position in positions]
            try:
                caller = _CountedCaller(self._items_in_flight, call)
                operation = ReplayLookup(namespace, own, refusals, caller, is_whole=call.is_atomic)
                shard.submit(operation)
            except TemporaryRefusal:
                continue  # the limit's error stands
            call.add_operation(operation, positions, shard.number)
            self._items_in_flight[namespace] += len(own)


class _CountedCaller:
    """The caller of a lookup: counts its items off, and passes its end on to the call."""

    __slots__ = ("_call", "_items_in_flight")

    def __init__(self, items_in_flight: Counter[str], call: EnqueueCall) -> None:
        self._items_in_flight = items_in_flight
        self._call = call

    def on_operation_finished(self, operation: Operation) -> None:
        namespace = operation.namespace
        self._items_in_flight[namespace] -= len(operation)
        if not self._items_in_flight[namespace]:
            del self._items_in_flight[namespace]
        self._call.on_operation_finished(operation)
