"""The work that tells of repeats alone: items with keys that come while their namespace may have no more.

An enqueue that was made before costs nothing new, so no limit is in its way; but
which key is taken is known in the flush only. Always true: nothing is ever inserted for it, so it
may be withdrawn at any moment. Knows nothing of limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.core.errors import FoqsError
from foqs.core.flush.work import Lane, Work
from foqs.core.items.idempotency_keys import KeyName
from foqs.core.items.item import KeyedItem


class ReplayLookup(Work):
    """Items of which the repeats are told what they repeat.

    It waits among the inserts, so that one that was made before it is judged before it.

    Results: the number of the first item of its key, KeyConflict where that is another item, and where the
    key names none the entry's refusal.

    Args:
        items: only their keys and digests are kept.
        refusals: why they cannot be inserted, one for each.
    """

    __slots__ = ("digests", "keys", "refusals")

    def __init__(
        self, namespace: str, items: Sequence[KeyedItem], refusals: Sequence[FoqsError], on_finished: Callable[[], None]
    ) -> None:
        super().__init__(Lane.INSERT, namespace, range(len(items)), on_finished)
        self.keys = [item.idempotency_key for item in items]
        self.digests = [item.digest for item in items]
        self.refusals = refusals
        self.bytes = self.size(0, len(items))

    def size(self, start: int, stop: int) -> int:
        return sum(map(len, self.keys[start:stop]))

    def seal(self, start: int, stop: int) -> None:
        """Its entries write nothing: in a flush they are as open as before."""

    def key_names(self, start: int, stop: int) -> list[KeyName]:
        """The keys of these entries."""
        return [(self.namespace, key) for key in self.keys[start:stop]]
