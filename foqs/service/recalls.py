"""Enqueues beyond a limit that may repeat earlier ones, and are told so.

Always true: of one namespace no more than a limited number of items is looked
up at once, so that a flood beyond its limits costs the others little; what is
not looked up is refused as if it were new. Knows nothing of the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from foqs.core.errors import FoqsError, Overloaded, Unavailable
from foqs.core.item import KeyedItem, NewItem
from foqs.service.calls import Enqueue
from foqs.shard.shard import Shard


class Recalls:
    """Those under way, of all namespaces.

    Args:
        items_max: of one namespace.
        holders_of: the shard of each key; None where none that answers holds its slot.
    """

    def __init__(self, items_max: int, holders_of: Callable[[Sequence[bytes]], Sequence[Shard | None]]) -> None:
        self._items_max = items_max
        self._holders_of = holders_of
        self._items: Counter[str] = Counter()

    def may_begin(self, namespace: str, items: Sequence[NewItem]) -> bool:
        """Some of these have keys, and there is room to look all of those up."""
        keyed = sum([isinstance(item, KeyedItem) for item in items])
        return 0 < keyed <= self._items_max - self._items[namespace]

    def begin(self, call: Enqueue, namespace: str, items: Sequence[NewItem], beyond: Mapping[int, FoqsError]) -> None:
        """Refuses the items of a call that are `beyond` a limit, by place, but for those that turn out to be repeats."""
        for place, error in beyond.items():
            call.refuse((place,), error)
        if not self.may_begin(namespace, [items[place] for place in beyond]):
            return
        keyed = {place: item for place in beyond if isinstance(item := items[place], KeyedItem)}
        groups: dict[Shard | None, list[int]] = {}
        for place, holder in zip(keyed, self._holders_of([item.key for item in keyed.values()]), strict=True):
            groups.setdefault(holder, []).append(place)
        for shard, places in groups.items():
            if shard is None:
                continue
            own, refusals = [keyed[place] for place in places], [beyond[place] for place in places]
            try:
                work = shard.recall(namespace, own, refusals, partial(self._ended, call, namespace, len(own)))
            except (Overloaded, Unavailable):
                continue  # the limit's error stands
            call.add(work, places, shard.number)
            self._items[namespace] += len(own)

    def _ended(self, call: Enqueue, namespace: str, items: int) -> None:
        self._items[namespace] -= items
        if not self._items[namespace]:
            del self._items[namespace]
        call.finished()
