"""Chooses the shards that may take a new item, best first. One function decides for all fields of the item.

A field *binds* an item to the shards that may hold it, as an idempotency key does to
the shard of its key slot. A group binds in place of the key: `foqs.queue.placement` makes
the bindings. A further field adds a `Binding`, and no other place decides.
Always true: each binding of the item allows the chosen shard; bindings that no shard can
satisfy together are an INVALID_ARGUMENT that names their fields, whatever is served
now; a removed shard gets no item, and a drained one only an item that can be nowhere
else. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

from foqs_contract.errors import InvalidArgument

EFFICIENT_FLUSH_ITEMS: Final = 64
"""With this many entries, the fixed cost of a flush no longer matters. Queues that differ by less count as equal."""


class OfferedShard(Protocol):
    """A shard of this host as the choice sees it."""

    @property
    def is_answering(self) -> bool:
        """Whether it accepts requests and its store writes them."""
        ...

    @property
    def queued_items(self) -> int:
        """The items that wait for a flush."""
        ...


@dataclass(slots=True, frozen=True, eq=False)
class Binding:
    """The shards in which a field lets its item be, on this host or another.

    `field` is the path of the field for its caller. Without shards, no shard is known that may hold the item. Bindings
    are compared by identity, so that the items of a call are grouped quickly.
    """

    field: str
    shards: frozenset[int]


Bindings: TypeAlias = tuple[Binding, ...]
UNBOUND: Final[Bindings] = ()
NO_SHARDS: Final[frozenset[int]] = frozenset()

_S = TypeVar("_S", bound=OfferedShard)


def choose_shards(
    bindings: Sequence[Binding],
    shards: Mapping[int, _S],
    drained_shards: Collection[int],
    removed_shards: Collection[int],
    turn: int,
) -> Iterable[_S]:
    """Return the shards that may take an item, the shortest queue first; none if no shard may take it now.

    Args:
        bindings: the bindings of the item, its call and its topic. For items that must be in one shard: the bindings of all of them.
        shards: the shards of this host, by number.
        drained_shards: the shards that take only items which can be nowhere else.
        removed_shards: the shards that take no items.
        turn: a number that rises with time. Of the shards with equally short queues each one is first for a turn, so that few calls
            share one flush instead of using one for each shard.

    Raises:
        InvalidArgument: no shard can satisfy all bindings.
    """
    allowed = allowed_shards(bindings) if bindings else None
    if allowed is not None and len(allowed) == 1:
        (number,) = allowed
        only = None if number in removed_shards else shards.get(number)
        return () if only is None or not only.is_answering else (only,)
    taking = [
        shard
        for number, shard in shards.items()
        if (allowed is None or number in allowed)
        and number not in removed_shards
        and number not in drained_shards
        and shard.is_answering
    ]
    return taking if len(taking) < 2 else _shortest_first(taking, turn % len(taking))


def joint_bindings(bindings_by_item: Sequence[Bindings], first_place: int = 0) -> Bindings:
    """Return the bindings of items that must be in one shard, named with their places in the call, from `first_place` on.

    Of items with the same bindings, which are one object, only the first is named.
    """
    first: dict[int, int] = {}
    for place, bindings in enumerate(bindings_by_item):
        first.setdefault(id(bindings), place)
    return tuple(
        Binding(f"items[{first_place + place}].{binding.field}", binding.shards)
        for place in first.values()
        for binding in bindings_by_item[place]
    )


def allowed_shards(bindings: Sequence[Binding]) -> frozenset[int] | None:
    """Return the shards that all bindings allow; None: any shard. Empty if a binding knows no shard.

    Raises:
        InvalidArgument: each binding allows some shard, and all together none.
    """
    if len(bindings) < 2:
        return bindings[0].shards if bindings else None
    known = [binding for binding in bindings if binding.shards]
    allowed = known[0].shards if known else NO_SHARDS
    for place, binding in enumerate(known):
        if allowed.isdisjoint(binding.shards):
            raise _exclusion_error(known[:place], binding)
        allowed &= binding.shards
    return allowed if len(known) == len(bindings) else NO_SHARDS


def _exclusion_error(earlier: Sequence[Binding], binding: Binding) -> InvalidArgument:
    """Return the error for a binding that allows no shard which all earlier ones allow."""
    disjoint = [other for other in earlier if other.shards.isdisjoint(binding.shards)]
    others = " and ".join(other.field for other in disjoint[:1] or earlier)
    return InvalidArgument(
        f"{others} and {binding.field} belong to different shards, and must be in one; leave one of them out",
        field=binding.field,
    )


def _shortest_first(shards: Sequence[_S], first: int) -> Iterator[_S]:
    """Yield the shards with the fewest queued flushes first; equal ones in their order, from the place `first` on."""
    # The first one usually accepts the items: do not sort before it refuses.
    if shards[first].queued_items < EFFICIENT_FLUSH_ITEMS:
        yield shards[first]
        others = [*shards[first + 1 :], *shards[:first]]
    else:
        others = [*shards[first:], *shards[:first]]
    yield from sorted(others, key=lambda shard: shard.queued_items // EFFICIENT_FLUSH_ITEMS)
