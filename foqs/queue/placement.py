"""Sends each new item to a shard of this host that `core.items.shard_choice` chooses.

Finds out what binds an item to its shard: its group, else its idempotency key. Always true: an item with
one of them is sent only to the shard that holds its slot; a call is sent to another
shard only after one refused it; an atomic call is sent to one shard as a whole; an item with an absolute time and a TTL is accepted
only if it is due before it expires, by the clock of its shard. Knows nothing of limits
and callers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from foqs.catalog.slot_table import SlotTable
from foqs.core.items import validation
from foqs.core.items.atomic_items import KEY_FIELD, error_of_item
from foqs.core.items.item import (
    AbsoluteTimeItem,
    GroupedAbsoluteTimeItem,
    GroupedItem,
    KeyedAbsoluteTimeItem,
    KeyedItem,
    NewItem,
)
from foqs.core.items.item_with_history import ItemWithHistory
from foqs.core.items.shard_choice import (
    NO_SHARDS,
    UNBOUND,
    Binding,
    Bindings,
    allowed_shards,
    choose_shards,
    joint_bindings,
)
from foqs.queue.owned_shards import OwnedShards
from foqs.queue.pending_calls import EnqueueCall
from foqs.queue.tier import Tier
from foqs.shard.shard import OwnedShard
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

_BOUND_TYPES: Final = frozenset(
    (KeyedItem, KeyedAbsoluteTimeItem, ItemWithHistory, GroupedItem, GroupedAbsoluteTimeItem)
)
"""The types of items that belong to one shard: those with a key or a group."""
_ABSOLUTE_TIME_TYPES: Final = frozenset((AbsoluteTimeItem, KeyedAbsoluteTimeItem, GroupedAbsoluteTimeItem))
_GROUP_FIELD: Final = "group"

ROTATION_S: Final = 0.25
"""How long a shard is the first among those with equally short queues."""


class Placement:
    """Distributes new items to the shards of this host.

    Args:
        owned: the shards of this host, and the errors that name the owners of others.
        slots: the shard of each key slot, here or elsewhere.
        tier: says which shards of this host accept no new items.
        loop_time: the event loop's clock.
    """

    def __init__(
        self,
        owned: OwnedShards,
        slots: SlotTable,
        tier: Tier,
        loop_time: Callable[[], float],
    ) -> None:
        self._owned = owned
        self._tier = tier
        self._slots = slots
        self._shards = owned.served
        self._loop_time = loop_time
        self._shard_by_slot: list[OwnedShard | None] = [None] * KEY_SLOT_COUNT
        """The shard that holds each key slot, according to `_slots_seen`."""
        self._slots_seen: list[tuple[OwnedShard, frozenset[int]]] = []
        """The available shards and their key slots when `_shard_by_slot` was built."""
        # Apart by whether they have keys, because items that are bound alike are submitted together.
        self._key_bindings = _SlotBindings(KEY_FIELD)
        self._group_bindings = _SlotBindings(_GROUP_FIELD)
        self._keyless_group_bindings = _SlotBindings(_GROUP_FIELD)

    def place(self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], positions: Sequence[int]) -> None:
        """Submit items to shards. `positions` are their places in the call.

        Raises:
            TemporaryRefusal: no shard accepted any.
            NotOwner, InvalidArgument: they cannot be in one shard of this host; only of an atomic call.
        """
        types = set(map(type, items))
        call.has_absolute_times = not types.isdisjoint(_ABSOLUTE_TIME_TYPES)
        if types.isdisjoint(_BOUND_TYPES):
            self._submit_to_best(call, UNBOUND, namespace, items, positions)
        elif call.is_atomic:
            self._submit_to_best(call, joint_bindings(self._bindings_of(items)), namespace, items, positions)
        else:
            self._place_by_bindings(call, namespace, items, positions)

    def _place_by_bindings(
        self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], positions: Sequence[int]
    ) -> None:
        """Submit the items that are bound alike together. Items that no shard accepts are refused."""
        groups: dict[Bindings, list[int]] = {}
        for i, bindings in enumerate(self._bindings_of(items)):
            groups.setdefault(bindings, []).append(i)
        for bindings, group in groups.items():
            own_positions = values_at(positions, group)
            try:
                self._submit_to_best(call, bindings, namespace, values_at(items, group), own_positions)
            except (TemporaryRefusal, NotOwner, InvalidArgument) as error:
                call.refuse(own_positions, error)

    def check_bound_to(self, shard: int, field: str, items: Sequence[NewItem], first_place: int) -> None:
        """Check that items may be in the shard of an item, which `field` names; their places count from `first_place` on.

        Raises:
            InvalidArgument: some must be in another shard; both fields are named.
            Unavailable: no shard is known that may hold some of them.
        """
        if _BOUND_TYPES.isdisjoint(map(type, items)):
            return
        bindings = (
            Binding(field, frozenset((shard,))),
            *joint_bindings(self._bindings_of(items), first_place),
        )
        if not allowed_shards(bindings):
            unknown = [binding.field for binding in bindings if not binding.shards]
            raise self._bound_error(NO_SHARDS, unknown[0])

    def expiry_errors(self, items: Sequence[NewItem], now_ms: int) -> dict[int, FoqsError]:
        """Return an error, by place, for each item that would expire before it is due, by the clock of its shard."""
        return _expiry_errors(items, range(len(items)), now_ms)

    def _bindings_of(self, items: Sequence[NewItem]) -> Sequence[Bindings]:
        """Return what binds each item to its shard. Items that are bound alike get the same object."""
        slot_keys: dict[int, bytes] = {}
        kinds: list[_SlotBindings] = []
        for i, item in enumerate(items):
            group = item.item_group
            if isinstance(item, KeyedItem):
                slot_keys[i] = item.idempotency_key
                kinds.append(self._key_bindings if group is None else self._group_bindings)
            elif group is not None:
                slot_keys[i] = self._slots.prefix_of(item.namespace, item.topic, group)
                kinds.append(self._keyless_group_bindings)
        found: list[Bindings] = [UNBOUND] * len(items)
        shards = self.shards_for_idempotency_keys([*slot_keys.values()])
        for (i, key), kind, shard in zip(slot_keys.items(), kinds, shards, strict=True):
            found[i] = kind[self._assigned_number(key) if shard is None else shard.number]
        return found

    def _assigned_number(self, key: bytes) -> int | None:
        """Return the shard to which the slot of a key is assigned; None if it is available here and lacks the slot."""
        number = self._slots.shard_of_slot(key_slot_of(key))
        shard = None if number is None else self._shards.get(number)
        return None if shard is not None and shard.is_answering else number

    def _submit_to_best(
        self,
        call: EnqueueCall,
        bindings: Bindings,
        namespace: str,
        items: Sequence[NewItem],
        positions: Sequence[int],
    ) -> None:
        """Submit items that are bound alike to the best shard that accepts them.

        Raises:
            InvalidArgument: their bindings exclude each other.
            NotOwner: their shard belongs to another host.
            TemporaryRefusal: no shard accepted any.
        """
        refusal: FoqsError | None = None
        turn = int(self._loop_time() / ROTATION_S)
        for shard in _choose(bindings, self._shards, self._tier, turn):
            try:
                self._submit(call, shard, namespace, items, positions)
            except TemporaryRefusal as error:
                refusal = refusal or error
            else:
                return
        raise refusal or self._no_shard_error(bindings)

    def _no_shard_error(self, bindings: Bindings) -> FoqsError:
        """Return why no shard of this host may take items with these bindings now."""
        allowed = allowed_shards(bindings)
        if allowed is not None:
            return self._bound_error(allowed, bindings[0].field)
        if self._answering_shards():
            return Unavailable(
                "every shard that this host serves now is drained or removed, and accepts no new items"
                + self._first_unavailable_reason(),
                retry_after_ms=500,
            )
        return Unavailable(
            f"no shard of this host is served now{self._first_unavailable_reason()}; try again", retry_after_ms=500
        )

    def _bound_error(self, allowed: Collection[int], field: str) -> FoqsError:
        """Return why none of the shards that may hold an item accepts it. `field` binds it."""
        for number in allowed:
            if number not in self._owned.statuses:
                error = self._owned.not_owner_error(number)
                if error.owner is not None:
                    return error
            shard = self._shards.get(number)
            if shard is not None and shard.unavailable_reason is not None:
                return shard.unavailable_error()
        return Unavailable(
            f"the shard with the slot of this {'group' if field.endswith(_GROUP_FIELD) else 'idempotency key'} is not served "
            "now; try again",
            retry_after_ms=HANDOVER_RETRY_MS,
        )

    def _first_unavailable_reason(self) -> str:
        """Return the reason of the first shard that is served but not available, as the end of a sentence."""
        reasons = [
            f": shard {shard.number}: {shard.unavailable_reason}"
            for shard in self._owned.serving()
            if shard.unavailable_reason
        ]
        return reasons[0] if reasons else ""

    def _submit(
        self,
        call: EnqueueCall,
        shard: OwnedShard,
        namespace: str,
        items: Sequence[NewItem],
        positions: Sequence[int],
    ) -> None:
        """Submit items to this shard. Refuses those that would expire, by its clock, before they can be delivered.

        Either all of them have keys or none.

        Raises:
            TemporaryRefusal: the shard accepted none.
            InvalidArgument: an item of an atomic call would expire.
        """
        if call.has_absolute_times:
            errors = _expiry_errors(items, positions, shard.now_ms())
            for position, error in errors.items():
                if call.is_atomic:
                    raise error_of_item(position, error)
                call.refuse((position,), error)
            items = [item for position, item in zip(positions, items, strict=True) if position not in errors]
            positions = [position for position in positions if position not in errors]
            if not items:
                return
        keyed = isinstance(items[0], KeyedItem)
        operation = shard.submit_inserts(
            namespace, items, call, keyed=keyed, is_whole=call.is_atomic, in_flight=call.in_flight
        )
        call.add_operation(operation, positions, shard.number)

    def on_slots_moved(self) -> None:
        """Forget which shard holds which slot."""
        self._slots_seen = []
        self._shard_by_slot = [None] * KEY_SLOT_COUNT

    def shards_for_idempotency_keys(self, idempotency_keys: Sequence[bytes]) -> list[OwnedShard | None]:
        """Return the shard for each key; None if no available shard holds its slot."""
        slots = key_slots_of(idempotency_keys)
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

    def _answering_shards(self) -> list[OwnedShard]:
        return [shard for shard in self._shards.values() if shard.is_answering]


class _SlotBindings(dict[int | None, Bindings]):
    """The bindings by a field with a key slot, by the number of the slot's shard; None: no shard is known."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self._field = field

    def __missing__(self, number: int | None) -> Bindings:
        allowed = NO_SHARDS if number is None else frozenset((number,))
        bindings = self[number] = (Binding(self._field, allowed),)
        return bindings


def accepts_items(shards: Mapping[int, OwnedShard], tier: Tier) -> bool:
    """Return whether one of a host's shards accepts new items, as far as is known."""
    return any(shard.accepts_items for shard in _choose(UNBOUND, shards, tier, 0))


def _choose(bindings: Bindings, shards: Mapping[int, OwnedShard], tier: Tier, turn: int) -> Iterable[OwnedShard]:
    return choose_shards(bindings, shards, tier.drained_shards, tier.removed_shards, turn)


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
