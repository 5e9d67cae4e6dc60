"""The operation that looks up repeats: enqueues with idempotency keys whose namespace is at a limit.

A repeat adds no item, so no limit may refuse it. But only a flush knows which keys
are in use. Always true: this operation never inserts anything, so it can be withdrawn at
any time. Knows nothing of limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.core.flush.operation import Lane, Operation, OperationCaller, Repeated
from foqs.core.items.idempotency_keys import KeyName
from foqs.core.items.item import KeyedItem
from foqs_contract.errors import FoqsError


class ReplayLookup(Operation):
    """Looks up the idempotency keys of items that a limit refuses. A repeat gets the id of its key's first item.

    It waits in the lane of the inserts, so that earlier inserts are decided first.

    Results: the number of the key's first item; KeyConflict if that is a different item; the entry's refusal if
    the key is not in use.

    Args:
        items: only their keys and digests are kept.
        refusals: for each item, the error that it gets if its key is not in use.
        is_whole: the items are of an atomic call: all are repeats, or all get one error; see `Operation`.
    """

    __slots__ = ("digests", "idempotency_keys", "refusals")

    def __init__(
        self,
        namespace: str,
        items: Sequence[KeyedItem],
        refusals: Sequence[FoqsError],
        caller: OperationCaller | None,
        *,
        is_whole: bool = False,
    ) -> None:
        super().__init__(Lane.INSERT, namespace, range(len(items)), caller)
        self.is_whole = is_whole
        self.idempotency_keys = [item.idempotency_key for item in items]
        self.digests = [item.digest for item in items]
        self.refusals = refusals
        self.bytes = self.size(0, len(items))

    def size(self, start: int, stop: int) -> int:
        return sum(map(len, self.idempotency_keys[start:stop]))

    def seal(self, start: int, stop: int) -> None:
        """Leave the entries open: they write nothing, so their outcome is never unknown."""

    def outcomes(self, shard: int) -> list[Any]:
        """Return `Repeated` for each repeat, or an error."""
        return [Repeated(f"{shard}-{result}") if type(result) is int else result for result in self.results]

    def key_names(self, start: int, stop: int) -> list[KeyName]:
        """Return the keys of these entries, with the namespace."""
        return [(self.namespace, key) for key in self.idempotency_keys[start:stop]]
