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
from foqs.core.items.item import KeyedItem, NewItem
from foqs.queue.pending_calls import EnqueueCall
from foqs.shard.shard import Shard


class ReplayLookups:
    """Those under way, of all namespaces.

    Args:
        items_max: of one namespace.
        shards_for_keys: the shard of each key; None where none that answers holds its slot.
    """

    def __init__(self, items_max: int, shards_for_keys: Callable[[Sequence[bytes]], Sequence[Shard | None]]) -> None:
        self._items_max = items_max
        self._shards_for_keys = shards_for_keys
        self._items_in_flight: Counter[str] = Counter()

    def can_start(self, namespace: str, items: Sequence[NewItem]) -> bool:
        """Some of these have keys, and there is room to look all of those up."""
        keyed = sum([isinstance(item, KeyedItem) for item in items])
        return 0 < keyed <= self._items_max - self._items_in_flight[namespace]

    def start(
        self, call: EnqueueCall, namespace: str, items: Sequence[NewItem], limit_errors: Mapping[int, FoqsError]
    ) -> None:
        """Refuses the items of a call that are `limit_errors` a limit, by place, but for those that turn out to be repeats."""
        for place, error in limit_errors.items():
            call.refuse((place,), error)
        if not self.can_start(namespace, [items[place] for place in limit_errors]):
            return
        keyed = {place: item for place in limit_errors if isinstance(item := items[place], KeyedItem)}
        groups: dict[Shard | None, list[int]] = {}
        for place, holder in zip(
            keyed, self._shards_for_keys([item.idempotency_key for item in keyed.values()]), strict=True
        ):
            groups.setdefault(holder, []).append(place)
        for shard, places in groups.items():
            if shard is None:
                continue
            own, refusals = [keyed[place] for place in places], [limit_errors[place] for place in places]
            try:
                work = shard.submit_replay_lookup(
                    namespace, own, refusals, partial(self._on_lookup_finished, call, namespace, len(own))
                )
            except (Overloaded, Unavailable):
                continue  # the limit's error stands
            call.add_work(work, places, shard.number)
            self._items_in_flight[namespace] += len(own)

    def _on_lookup_finished(self, call: EnqueueCall, namespace: str, items: int) -> None:
        self._items_in_flight[namespace] -= items
        if not self._items_in_flight[namespace]:
            del self._items_in_flight[namespace]
        call.on_work_finished()
