"""Which shard of this host gets which new items.

Always true: an item with a key goes to the shard that holds the key's slot, and
to no other; the others go to the shard with the shortest queue. A shard that is
refused an item has not taken it. Knows nothing of limits and of who calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from foqs.core.errors import HANDOVER_MS, FoqsError, NotOwner, Overloaded, Unavailable
from foqs.core.item import KeyedDatedItem, KeyedItem, NewItem
from foqs.core.keys import SLOTS, slot_of, slots_of
from foqs.service.calls import Enqueue
from foqs.service.dated import DATED, expire_before
from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus

_T = TypeVar("_T")

_KEYED: Final = frozenset((KeyedItem, KeyedDatedItem))

_GOOD_FLUSH: Final = 64
"""So many entries of a flush pay for what it costs without any."""

TURN_S: Final = 0.25
"""How long a shard is the first among those with equally short queues."""


def _shortest_first(shards: Sequence[Shard]) -> Iterator[Shard]:
    """By flushes queued, else as they are. The first one mostly has none, and takes the items: no other is looked at."""
    if shards[0].queued_items < _GOOD_FLUSH:
        yield shards[0]
        shards = shards[1:]
    yield from sorted(shards, key=lambda shard: shard.queued_items // _GOOD_FLUSH)


class Placement:
    """The way of new items to shards.

    Args:
        shards: the shards of this host, by number; changes as they come and go.
        statuses: how each shard that should be here is doing.
        now: the event loop's clock.
    """

    def __init__(
        self, shards: Mapping[int, Shard], statuses: Mapping[int, ShardStatus], now: Callable[[], float]
    ) -> None:
        self.owner_of: Callable[[int], tuple[str, int] | None] = _nobody_known
        """The address of a shard's owner, where the plan as it was read last knows one."""
        self.recorded_holder: Callable[[int], int | None] = _nobody_known
        """The shard that shall hold a slot, here or elsewhere."""
        self.drained: Collection[int] = frozenset()
        """Shards that take no new items without a key; those with a key can go nowhere else."""
        self.gone: Collection[int] = frozenset()
        """Shards that take no new items at all, for nobody would read what came."""
        self._shards = shards
        self._statuses = statuses
        self._now = now
        self._holders: list[Shard | None] = [None] * SLOTS
        """Who holds each slot of keys, of those that were seen when it was looked."""
        self._seen: list[tuple[Shard, frozenset[int]]] = []

    def place(self, call: Enqueue, namespace: str, items: Sequence[NewItem], places: Sequence[int]) -> None:
        """Gives items, which are those at these places of a call, to shards. Raises `Overloaded`, `Unavailable`: none took any."""
        kinds = set(map(type, items))
        call.dated = not kinds.isdisjoint(DATED)
        if kinds.isdisjoint(_KEYED):
            self._anywhere(call, namespace, items, places)
        else:
            self._by_slots(call, namespace, items, places)

    @property
    def takes_items(self) -> bool:
        """Some shard of this host takes new items, as far as is known."""
        return any(shard.takes_items and self._is_open(shard) for shard in self._answering())

    def not_owner(self, number: int) -> NotOwner:
        """What is told of a shard that should not be here."""
        return NotOwner(f"this host does not own shard {number}; ask for the routing", owner=self.owner_of(number))

    def _anywhere(self, call: Enqueue, namespace: str, items: Sequence[NewItem], places: Sequence[int]) -> None:
        """Gives items to the shard with the shortest queue. Raises `Overloaded`, `Unavailable`.

        Queues that differ by less than makes a good flush are equally short, and of those each is
        the first for a while: few calls make one fuller flush rather than one in every shard.
        """
        serving = self._answering()
        if not serving:
            raise Unavailable(f"no shard of this host is being served now{self._why()}; try again", retry_after_ms=500)
        if self.drained or self.gone:
            serving = [shard for shard in serving if self._is_open(shard)]
            if not serving:
                raise Unavailable(
                    f"every shard that this host serves now is drained or removed, and takes no new items{self._why()}",
                    retry_after_ms=500,
                )
        if len(serving) > 1:
            offset = int(self._now() / TURN_S) % len(serving)
            serving = serving[offset:] + serving[:offset]
        refusal: FoqsError | None = None
        for shard in _shortest_first(serving):
            try:
                self._give(call, shard, namespace, items, places)
            except (Overloaded, Unavailable) as error:
                refusal = refusal or error
            else:
                return
        assert refusal is not None
        raise refusal

    def _is_open(self, shard: Shard) -> bool:
        """It may take items without keys."""
        return shard.number not in self.drained and shard.number not in self.gone

    def _why(self) -> str:
        """The first trouble of a shard that is here and does not answer."""
        reasons = [f": shard {shard.number}: {shard.trouble}" for shard in self._serving() if shard.trouble]
        return reasons[0] if reasons else ""

    def _give(
        self,
        call: Enqueue,
        shard: Shard,
        namespace: str,
        items: Sequence[NewItem],
        places: Sequence[int],
        *,
        keyed: bool = False,
    ) -> None:
        """Gives items to this shard, but for those that would expire, on its time, before they could be delivered.

        Raises `Overloaded`, `Unavailable`: it has taken none.
        """
        if call.dated:
            beyond = expire_before(items, places, shard.now_ms())
            for place, error in beyond.items():
                call.refuse((place,), error)
            items = [item for place, item in zip(places, items, strict=True) if place not in beyond]
            places = [place for place in places if place not in beyond]
            if not items:
                return
        work = shard.insert(namespace, items, call.finished, keyed=keyed, under_way=call.under_way)
        call.add(work, places, shard.number)

    def _by_slots(self, call: Enqueue, namespace: str, items: Sequence[NewItem], places: Sequence[int]) -> None:
        """Gives items with keys to those who hold the keys' slots, and to nobody else; the others go anywhere."""
        keyed = [i for i, item in enumerate(items) if isinstance(item, KeyedItem)]
        rest = [i for i, item in enumerate(items) if not isinstance(item, KeyedItem)]
        groups: dict[Shard | None, list[int]] = {}
        holders = self.holders_of([items[i].key for i in keyed])  # type: ignore[attr-defined]
        for i, holder in zip(keyed, holders, strict=True):
            groups.setdefault(holder, []).append(i)
        for shard, group in groups.items():
            own, own_places = at(items, group), at(places, group)
            if shard is None:
                for place, item in zip(own_places, own, strict=True):
                    call.refuse([place], self._not_held(item.key))  # type: ignore[attr-defined]
                continue
            if shard.number in self.gone:
                # It was removed, or is in another database: its owner has only not been told to give it back.
                call.refuse(own_places, _away())
                continue
            try:
                self._give(call, shard, namespace, own, own_places, keyed=True)
            except (Overloaded, Unavailable) as error:
                call.refuse(own_places, error)
        if rest:
            own, own_places = at(items, rest), at(places, rest)
            try:
                self._anywhere(call, namespace, own, own_places)
            except (Overloaded, Unavailable) as error:
                call.refuse(own_places, error)

    def _not_held(self, key: bytes) -> FoqsError:
        """Why no shard here takes an item with this key."""
        number = self.recorded_holder(slot_of(key))
        if number is not None and number not in self._statuses and self.owner_of(number) is not None:
            return self.not_owner(number)
        shard = None if number is None else self._shards.get(number)
        if shard is not None and shard.trouble is not None:
            return shard.refusal()
        return _away()

    def slots_moved(self) -> None:
        """Who holds which slot is looked up anew."""
        self._seen = []
        self._holders = [None] * SLOTS

    def holders_of(self, keys: Sequence[bytes]) -> list[Shard | None]:
        """The shard for each key; None where none that answers holds its slot."""
        slots = slots_of(keys)
        if any(holder is None or not holder.answering for holder in {self._holders[slot] for slot in slots}):
            seen = [(shard, shard.slots) for shard in self._answering()]
            if seen != self._seen:  # else many would look in vain, while a shard is away
                self.slots_moved()
                self._seen = seen
                for shard, held in seen:
                    for slot in held:
                        self._holders[slot] = shard
        holders = self._holders
        return [holders[slot] for slot in slots]

    def _answering(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.answering]

    def _serving(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.serving]


def _nobody_known(number: int) -> None:
    """What a host alone knows of others."""
    return


def _away() -> Unavailable:
    return Unavailable("the shard of this key is not being served now", retry_after_ms=HANDOVER_MS)


def at(values: Sequence[_T], places: Sequence[int]) -> Sequence[_T]:
    """The values at these places, which are in order, each once."""
    return values if len(places) == len(values) else [values[place] for place in places]
