"""The client's calls that move items to another topic, and restore exported items.

Holds `MovingCalls`, which `Client` inherits. Always true: both calls may be sent twice,
because the host remembers what it has moved and restored for the namespace's key window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foqs_client import conversion
from foqs_client.errors import InvalidArgument, KeyConflict, NotFound
from foqs_client.repeatable_calls import RepeatableCalls
from foqs_client.routing_table import Address
from foqs_client.types import Enqueued, RestoredItem
from foqs_contract.idl import ttypes
from foqs_contract.key_slots import restore_key
from foqs_contract.thrift_method import ThriftMethod

_MOVE: Final = ThriftMethod("moveItems")
_RESTORE: Final = ThriftMethod("restoreItems")
_NOT_WRITTEN: Final = (InvalidArgument, KeyConflict, NotFound)
"""Errors which prove that no attempt was written or will be."""


class MovingCalls(RepeatableCalls):
    """The calls that move and restore items. See `Client` for their common arguments."""

    async def move(
        self, ids: Sequence[str], topic: str, *, ttl_remaining_ms: int | None = None, timeout_ms: int | None = None
    ) -> list[Enqueued]:
        """Move ready, deferred and dead items to another topic. Return the id of each new item, or an error.

        A new item keeps its payload, priority and time; its attempts start again. A dead item is
        ready, with a new TTL. A leased item is `InvalidArgument`. The client retries the call
        until its time ends. `repeated` means that an earlier call had moved the item.

        Args:
            ttl_remaining_ms: the new items expire this long from now; the TTL that they had does not matter.
        """

        async def send(host: Address | None, part: Sequence[str], timeout_ms: int) -> list[Enqueued]:
            request = ttypes.MoveItemsRequest(self.namespace, part, topic, ttl_remaining_ms=ttl_remaining_ms)
            return _results((await self._call(_MOVE, request, timeout_ms, host)).outcomes)

        return await self._send_repeatable(list(ids), self.owner, send, Enqueued, _NOT_WRITTEN, timeout_ms)

    async def restore(self, items: Sequence[RestoredItem], *, timeout_ms: int | None = None) -> list[Enqueued]:
        """Add exported items with their history. Return an id or an error for each.

        The client retries the call until its time ends. `repeated` means that the key was in
        use, so that nothing was added: an earlier call had restored the item, or it was enqueued.
        """

        async def send(host: Address | None, part: Sequence[Any], timeout_ms: int) -> list[Enqueued]:
            request = ttypes.RestoreItemsRequest(self.namespace, part)
            return _results((await self._call(_RESTORE, request, timeout_ms, host)).results)

        def owner(item: Any) -> Address | None:
            table = self._router.routing_table
            if table is None:
                return None
            if item.group is not None:
                return table.group_owner(self.namespace, item.group)
            return table.key_owner(_slot_key(item))

        entries = list(map(conversion.restored_item, items))
        return await self._send_repeatable(entries, owner, send, Enqueued, _NOT_WRITTEN, timeout_ms)


def _results(structs: Sequence[Any] | None) -> list[Enqueued]:
    return [
        Enqueued(each.id, repeated=bool(each.repeated))
        if each.error is None and each.id is not None
        else Enqueued(error=conversion.error(each.error))
        for each in structs or ()
    ]


def _slot_key(item: Any) -> str:
    """Return the key that decides the slot of an item without a group."""
    if item.idempotency_key is not None:
        return str(item.idempotency_key)
    return restore_key((item.restore_key or "").encode(errors="surrogatepass")).decode(errors="surrogatepass")
