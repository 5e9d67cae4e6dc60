"""Which shard of this host gets which new items.

Always true: an item with a key goes to the shard that holds the key's slot, and
to no other; the others go to the shard with the shortest queue. A shard that is
refused an item has not taken it. Knows nothing of limits and of who calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from foqs.core.errors import HANDOVER_RETRY_MS, FoqsError, NotOwner, Overloaded, Unavailable
from foqs.core.items.idempotency_keys import KEY_SLOT_COUNT, key_slot, key_slots
from foqs.core.items.item import KeyedAbsoluteTimeItem, KeyedItem, NewItem
from foqs.queue.absolute_time import ABSOLUTE_TIME_TYPES, expiry_errors
from foqs.queue.pending_calls import EnqueueCall
from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus

_T = TypeVar("_T")

_KEYED_TYPES: Final = frozenset((KeyedItem, KeyedAbsoluteTimeItem))

_EFFICIENT_FLUSH_ITEMS: Final = 64
"""So many entries of a flush pay for what it costs without any."""

ROTATION_S: Final = 0.25
"""How long a shard is the first among those with equally short queues."""


def _shortest_first(shards: Sequence[Shard]) -> Iterator[Shard]:
    """By flushes queued, else as they are. The first one mostly has none, and takes the items: no other is looked at."""
    if shards[0].queued_items < _EFFICIENT_FLUSH_ITEMS:
        yield shards[0]
        shards = shards[1:]
    yield from sorted(shards, key=lambda shard: shard.queued_items // _EFFICIENT_FLUSH_ITEMS)


class Placement:
    """The way of new items to shards.

    Args:
        shards: the shards of this host, by number; changes as they come and go.
        statuses: how each shard that should be here is doing.
        loop_time: the event loop's clock.
    """

    def __init__(
        self, shards: Mapping[int, Shard], statuses: Mapping[int, ShardStatus], loop_time: Callable[[], float]
    ) -> None:
        self.owner_of: Callable[[int], tuple[str, int] | None] = _unknown
        """The address of a shard's owner, where the plan as it was read last knows one."""
        self.shard_of_slot: Callable[[int], int | None] = _unknown
        """The shard that shall hold a slot, here or elsewhere."""
        self.drained_shards: Collection[int] = frozenset()
        """Shards that take no new items without a key; those with a key can go nowhere else."""
        self.removed_shards: Collection[int] = frozenset()
        """Shards that take no new items at all, for nobody would read what came."""
        self._shards = shards
        self._statuses = statuses
        self._loop_time = loop_time
        self._shard_by_slot: list[Shard | None] = [None] * KEY_SLOT_COUNT
        """Who holds each slot of keys, of those that were seen when it was looked."""
        self._slots_seen: list[tuple[Shard, frozenset[int]]] = []

    def place(self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], positions: Sequence[int]) -> None:
        """Gives items, which are those at these places of a call, to shards. Raises `Overloaded`, `Unavailable`: none took any."""
        kinds = set(map(type, items))
        call.has_absolute_times = not kinds.isdisjoint(ABSOLUTE_TIME_TYPES)
        if kinds.isdisjoint(_KEYED_TYPES):
            self._place_unkeyed(call, namespace, items, positions)
        else:
            self._place_keyed(call, namespace, items, positions)

    @property
    def accepts_items(self) -> bool:
        """Some shard of this host takes new items, as far as is known."""
        return any(shard.accepts_items and self._accepts_unkeyed_items(shard) for shard in self._answering_shards())

    def not_owner_error(self, shard_number: int) -> NotOwner:
        """What is told of a shard that should not be here."""
        return NotOwner(
            f"this host does not own shard {shard_number}; ask for the routing", owner=self.owner_of(shard_number)
        )

    def _place_unkeyed(
        self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], positions: Sequence[int]
    ) -> None:
        """Gives items to the shard with the shortest queue. Raises `Overloaded`, `Unavailable`.

        Queues that differ by less than makes a good flush are equally short, and of those each is
        the first for a while: few calls make one fuller flush rather than one in every shard.
        """
        serving = self._answering_shards()
        if not serving:
            raise Unavailable(
                f"no shard of this host is being served now{self._first_unavailable_reason()}; try again",
                retry_after_ms=500,
            )
        if self.drained_shards or self.removed_shards:
            serving = [shard for shard in serving if self._accepts_unkeyed_items(shard)]
            if not serving:
                raise Unavailable(
                    f"every shard that this host serves now is drained or removed, and takes no new items{self._first_unavailable_reason()}",
                    retry_after_ms=500,
                )
        if len(serving) > 1:
            offset = int(self._loop_time() / ROTATION_S) % len(serving)
            serving = serving[offset:] + serving[:offset]
        refusal: FoqsError | None = None
        for shard in _shortest_first(serving):
            try:
                self._submit(call, shard, namespace, items, positions)
            except (Overloaded, Unavailable) as error:
                refusal = refusal or error
            else:
                return
        assert refusal is not None
        raise refusal

    def _accepts_unkeyed_items(self, shard: Shard) -> bool:
        """It may take items without keys."""
        return shard.number not in self.drained_shards and shard.number not in self.removed_shards

    def _first_unavailable_reason(self) -> str:
        """The first trouble of a shard that is here and does not answer."""
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
        """Gives items to this shard, but for those that would expire, on its time, before they could be delivered.

        Raises `Overloaded`, `Unavailable`: it has taken none.
        """
        if call.has_absolute_times:
            beyond = expiry_errors(items, positions, shard.now_ms())
            for place, error in beyond.items():
                call.refuse((place,), error)
            items = [item for place, item in zip(positions, items, strict=True) if place not in beyond]
            positions = [place for place in positions if place not in beyond]
            if not items:
                return
        work = shard.submit_inserts(namespace, items, call.on_work_finished, keyed=keyed, in_flight=call.in_flight)
        call.add_work(work, positions, shard.number)

    def _place_keyed(
        self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], positions: Sequence[int]
    ) -> None:
        """Gives items with keys to those who hold the keys' slots, and to nobody else; the others go anywhere."""
        keyed = [i for i, item in enumerate(items) if isinstance(item, KeyedItem)]
        rest = [i for i, item in enumerate(items) if not isinstance(item, KeyedItem)]
        groups: dict[Shard | None, list[int]] = {}
        holders = self.shards_for_keys([items[i].idempotency_key for i in keyed])  # type: ignore[attr-defined]
        for i, holder in zip(keyed, holders, strict=True):
            groups.setdefault(holder, []).append(i)
        for shard, group in groups.items():
            own, own_places = values_at(items, group), values_at(positions, group)
            if shard is None:
                for place, item in zip(own_places, own, strict=True):
                    call.refuse([place], self._slot_not_held_error(item.idempotency_key))  # type: ignore[attr-defined]
                continue
            if shard.number in self.removed_shards:
                # It was removed, or is in another database: its owner has only not been told to give it back.
                call.refuse(own_places, _slot_unavailable_error())
                continue
            try:
                self._submit(call, shard, namespace, own, own_places, keyed=True)
            except (Overloaded, Unavailable) as error:
                call.refuse(own_places, error)
        if rest:
            own, own_places = values_at(items, rest), values_at(positions, rest)
            try:
                self._place_unkeyed(call, namespace, own, own_places)
            except (Overloaded, Unavailable) as error:
                call.refuse(own_places, error)

    def _slot_not_held_error(self, key: bytes) -> FoqsError:
        """Why no shard here takes an item with this key."""
        number = self.shard_of_slot(key_slot(key))
        if number is not None and number not in self._statuses and self.owner_of(number) is not None:
            return self.not_owner_error(number)
        shard = None if number is None else self._shards.get(number)
        if shard is not None and shard.unavailable_reason is not None:
            return shard.unavailable_error()
        return _slot_unavailable_error()

    def on_slots_moved(self) -> None:
        """Who holds which slot is looked up anew."""
        self._slots_seen = []
        self._shard_by_slot = [None] * KEY_SLOT_COUNT

    def shards_for_keys(self, keys: Sequence[bytes]) -> list[Shard | None]:
        """The shard for each key; None where none that answers holds its slot."""
        slots = key_slots(keys)
        if any(holder is None or not holder.is_answering for holder in {self._shard_by_slot[slot] for slot in slots}):
            seen = [(shard, shard.key_slots) for shard in self._answering_shards()]
            if seen != self._slots_seen:  # else many would look in vain, while a shard is away
                self.on_slots_moved()
                self._slots_seen = seen
                for shard, held in seen:
                    for slot in held:
                        self._shard_by_slot[slot] = shard
        holders = self._shard_by_slot
        return [holders[slot] for slot in slots]

    def _answering_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.is_answering]

    def _serving_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.is_serving]


def _unknown(number: int) -> None:
    """What a host alone knows of others."""
    return


def _slot_unavailable_error() -> Unavailable:
    return Unavailable("the shard of this key is not being served now", retry_after_ms=HANDOVER_RETRY_MS)


def values_at(values: Sequence[_T], positions: Sequence[int]) -> Sequence[_T]:
    """The values at these places, which are in order, each once."""
    return values if len(positions) == len(values) else [values[place] for place in positions]
