"""Chooses the shard of this host for each new item.

Always true: an item with an idempotency key is sent only to the shard that
holds the key's slot; other items are sent to the shard with the shortest queue.
A call is sent to another shard only after one refused it. An item with an
absolute time and a TTL is accepted only if it is due before it expires, by the
clock of its shard. Knows nothing of limits and callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from foqs.catalog.slot_table import SlotTable
from foqs.core.items import validation
from foqs.core.items.item import AbsoluteTimeItem, KeyedAbsoluteTimeItem, KeyedItem, NewItem
from foqs.core.items.restored_item import RestoredItem
from foqs.queue.pending_calls import EnqueueCall
from foqs.queue.tier import Tier
from foqs.shard.host_shards import ShardStatus
from foqs.shard.shard import Shard
from foqs_contract.errors import (
    HANDOVER_RETRY_MS,
    FoqsError,
    InvalidArgument,
    NotOwner,
    TemporaryRefusal,
    Unavailable,
)
from foqs_contract.key_slots import KEY_SLOT_COUNT, key_slot_of, key_slots_of

_T = TypeVar("_T")

_KEYED_TYPES: Final = frozenset((KeyedItem, KeyedAbsoluteTimeItem, RestoredItem))
_ABSOLUTE_TIME_TYPES: Final = frozenset((AbsoluteTimeItem, KeyedAbsoluteTimeItem))

_EFFICIENT_FLUSH_ITEMS: Final = 64
"""With this many entries, the fixed cost of a flush no longer matters."""

ROTATION_S: Final = 0.25
"""How long a shard is the first among those with equally short queues."""


def _shortest_first(shards: Sequence[Shard]) -> Iterator[Shard]:
    """Yield the shards by the number of queued flushes, else in the given order."""
    # The first one usually accepts the items: do not sort before it refuses.
    if shards[0].queued_items < _EFFICIENT_FLUSH_ITEMS:
        yield shards[0]
        shards = shards[1:]
    yield from sorted(shards, key=lambda shard: shard.queued_items // _EFFICIENT_FLUSH_ITEMS)


class Placement:
    """Distributes new items to the shards of this host.

    Args:
        shards: the shards that this host serves, by number; changes over time.
        statuses: the status of each shard that this host should own.
        slots: which shard holds a key slot, here or elsewhere.
        tier: says who owns other shards, and which shards of this host accept no new items.
        loop_time: the event loop's clock.
    """

    def __init__(
        self,
        shards: Mapping[int, Shard],
        statuses: Mapping[int, ShardStatus],
        slots: SlotTable,
        tier: Tier,
        loop_time: Callable[[], float],
    ) -> None:
        self._tier = tier
        self._slots = slots
        self._shards = shards
        self._statuses = statuses
        self._loop_time = loop_time
        self._shard_by_slot: list[Shard | None] = [None] * KEY_SLOT_COUNT
        """The shard that holds each key slot, according to `_slots_seen`."""
        self._slots_seen: list[tuple[Shard, frozenset[int]]] = []
        """The available shards and their key slots when `_shard_by_slot` was built."""

    def place(self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], positions: Sequence[int]) -> None:
        """Submit items to shards. `positions` are their places in the call.

        Raises `TemporaryRefusal`: no shard accepted any.
        """
        types = set(map(type, items))
        call.has_absolute_times = not types.isdisjoint(_ABSOLUTE_TIME_TYPES)
        if types.isdisjoint(_KEYED_TYPES):
            self._place_unkeyed(call, namespace, items, positions)
        else:
            self._place_keyed(call, namespace, items, positions)

    def not_owner_error(self, shard_number: int) -> NotOwner:
        """Return the error for a shard that this host should not own."""
        return NotOwner(
            f"this host does not own shard {shard_number}; ask for the routing", owner=self._tier.owner_of(shard_number)
        )

    def _place_unkeyed(
        self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], positions: Sequence[int]
    ) -> None:
        """Submit items to the shard with the shortest queue. Raises `TemporaryRefusal`.

        Queues whose lengths differ by less than an efficient flush count as equal. Each of their
        shards is the first for a while, so that few calls share one flush instead of using one per shard.
        """
        shards = self._answering_shards()
        if not shards:
            raise Unavailable(
                f"no shard of this host is served now{self._first_unavailable_reason()}; try again",
                retry_after_ms=500,
            )
        if self._tier.drained_shards or self._tier.removed_shards:
            shards = [shard for shard in shards if _is_open(shard, self._tier)]
            if not shards:
                raise Unavailable(
                    "every shard that this host serves now is drained or removed, and accepts no new items"
                    + self._first_unavailable_reason(),
                    retry_after_ms=500,
                )
        if len(shards) == 1:
            self._submit(call, shards[0], namespace, items, positions)
            return
        offset = int(self._loop_time() / ROTATION_S) % len(shards)
        shards = shards[offset:] + shards[:offset]
        refusal: FoqsError | None = None
        for shard in _shortest_first(shards):
            try:
                self._submit(call, shard, namespace, items, positions)
            except TemporaryRefusal as error:
                refusal = refusal or error
            else:
                return
        assert refusal is not None
        raise refusal

    def _first_unavailable_reason(self) -> str:
        """Return the reason of the first shard that is served but not available, as the end of a sentence."""
        reasons = [
            f": shard {shard.number}: {shard.unavailable_reason}"
            for shard in self._serving_shards()
            if shard.unavailable_reason
        ]
        return reasons[0] if reasons else ""

    def _submit(
        self,
        call: EnqueueCall,
        shard: Shard,
        namespace: str,
        items: Sequence[NewItem],
        positions: Sequence[int],
        *,
        keyed: bool = False,
    ) -> None:
        """Submit items to this shard. Refuses those that would expire, by its clock, before they can be delivered.

        Raises `TemporaryRefusal`: the shard accepted none.
        """
        if call.has_absolute_times:
            errors = _expiry_errors(items, positions, shard.now_ms())
            for position, error in errors.items():
                call.refuse((position,), error)
            items = [item for position, item in zip(positions, items, strict=True) if position not in errors]
            positions = [position for position in positions if position not in errors]
            if not items:
                return
        operation = shard.submit_inserts(namespace, items, call, keyed=keyed, in_flight=call.in_flight)
        call.add_operation(operation, positions, shard.number)

    def _place_keyed(
        self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], positions: Sequence[int]
    ) -> None:
        """Submit items with keys to the shards that hold the keys' slots, and the other items to any shard."""
        keyed = [i for i, item in enumerate(items) if isinstance(item, KeyedItem)]
        unkeyed = [i for i, item in enumerate(items) if not isinstance(item, KeyedItem)]
        groups: dict[Shard | None, list[int]] = {}
        shards = self.shards_for_keys([items[i].idempotency_key for i in keyed])  # type: ignore[attr-defined]
        for i, shard in zip(keyed, shards, strict=True):
            groups.setdefault(shard, []).append(i)
        for shard, group in groups.items():
            own, own_positions = values_at(items, group), values_at(positions, group)
            if shard is None:
                for position, item in zip(own_positions, own, strict=True):
                    call.refuse([position], self._slot_not_held_error(item.idempotency_key))  # type: ignore[attr-defined]
                continue
            if shard.number in self._tier.removed_shards:
                # The shard was removed or moved to another database, and its release has not been requested yet.
                call.refuse(own_positions, _slot_unavailable_error())
                continue
            try:
                self._submit(call, shard, namespace, own, own_positions, keyed=True)
            except TemporaryRefusal as error:
                call.refuse(own_positions, error)
        if unkeyed:
            own, own_positions = values_at(items, unkeyed), values_at(positions, unkeyed)
            try:
                self._place_unkeyed(call, namespace, own, own_positions)
            except TemporaryRefusal as error:
                call.refuse(own_positions, error)

    def _slot_not_held_error(self, key: bytes) -> FoqsError:
        """Return why no shard here accepts an item with this key."""
        number = self._slots.shard_of_slot(key_slot_of(key))
        if number is not None and number not in self._statuses and self._tier.owner_of(number) is not None:
            return self.not_owner_error(number)
        shard = None if number is None else self._shards.get(number)
        if shard is not None and shard.unavailable_reason is not None:
            return shard.unavailable_error()
        return _slot_unavailable_error()

    def on_slots_moved(self) -> None:
        """Forget which shard holds which slot."""
        self._slots_seen = []
        self._shard_by_slot = [None] * KEY_SLOT_COUNT

    def shards_for_keys(self, keys: Sequence[bytes]) -> list[Shard | None]:
        """Return the shard for each key; None if no available shard holds its slot."""
        slots = key_slots_of(keys)
        if any(shard is None or not shard.is_answering for shard in {self._shard_by_slot[slot] for slot in slots}):
            seen = [(shard, shard.key_slots) for shard in self._answering_shards()]
            if seen != self._slots_seen:  # else every call would rebuild the list while a shard is missing
                self.on_slots_moved()
                self._slots_seen = seen
                for shard, held in seen:
                    for slot in held:
                        self._shard_by_slot[slot] = shard
        shard_by_slot = self._shard_by_slot
        return [shard_by_slot[slot] for slot in slots]

    def check(self) -> None:
        """Assert that each slot is sent to the shard that holds it. For tests and the simulation."""
        seen = dict(self._slots_seen)
        for shard in set(self._shard_by_slot):
            assert shard is None or not shard.is_answering or seen[shard] == shard.key_slots, (
                f"invariant 3: keys are sent to shard {shard.number} by slots that it had before"
            )

    def _answering_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.is_answering]

    def _serving_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.is_serving]


def accepts_items(shards: Mapping[int, Shard], tier: Tier) -> bool:
    """Return whether one of a host's shards accepts new items, as far as is known."""
    return any(shard.is_answering and shard.accepts_items and _is_open(shard, tier) for shard in shards.values())


def _is_open(shard: Shard, tier: Tier) -> bool:
    """Return whether a shard accepts items without a key."""
    return shard.number not in tier.drained_shards and shard.number not in tier.removed_shards


def _slot_unavailable_error() -> Unavailable:
    return Unavailable("the shard of this key is not served now; try again", retry_after_ms=HANDOVER_RETRY_MS)


def _expiry_errors(items: Sequence[NewItem], positions: Sequence[int], now_ms: int) -> dict[int, FoqsError]:
    """Return an error, by position in the call, for each item that would expire before it is due."""
    errors: dict[int, FoqsError] = {}
    for position, item in zip(positions, items, strict=True):
        if type(item) in _ABSOLUTE_TIME_TYPES:
            assert item.ttl_ms is not None
            assert item.deliver_after_ms is not None
            try:
                validation.check_ttl_outlasts_delivery(item.ttl_ms, item.deliver_after_ms, now_ms)
            except InvalidArgument as error:
                errors[position] = error
    return errors


def values_at(values: Sequence[_T], positions: Sequence[int]) -> Sequence[_T]:
    """Return the values at these positions, which are in order and distinct."""
    return values if len(positions) == len(values) else [values[position] for position in positions]
