"""The client's calls that move items to another topic, and restore exported items.

Holds `MovingCalls`, which `Client` inherits. Always true: both calls may be sent twice,
because the host remembers what it has moved and restored for the namespace's key window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from foqs_client import conversion
from foqs_client.errors import FoqsError, InvalidArgument, KeyConflict, NotFound, UnknownOutcome
from foqs_client.retried_calls import RetriedCall
from foqs_client.routed_calls import RoutedCalls
from foqs_client.routing_table import Address, call_by_host
from foqs_client.types import Enqueued, RestoredItem
from foqs_contract.idl import ttypes
from foqs_contract.key_slots import restore_key
from foqs_contract.thrift_method import ThriftMethod

_E = TypeVar("_E")
_MOVE: Final = ThriftMethod("moveItems")
_RESTORE: Final = ThriftMethod("restoreItems")
_MISSING_RESULT: Final = Enqueued(
    error=UnknownOutcome(
        "the host's reply does not name this entry; it may have taken effect, so check before you repeat it"
    )
)


class MovingCalls(RoutedCalls):
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

        return await self._send_repeatable(list(ids), self.owner, send, timeout_ms)

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
            return None if table is None else table.key_owner(_slot_key(item))

        return await self._send_repeatable(list(map(conversion.restored_item, items)), owner, send, timeout_ms)

    async def _send_repeatable(
        self,
        entries: list[_E],
        owner: Callable[[_E], Address | None],
        send: Callable[[Address | None, Sequence[_E], int], Awaitable[list[Enqueued]]],
        timeout_ms: int | None,
    ) -> list[Enqueued]:
        """Send entries to the hosts of their shards, and again those that may have failed."""
        if not entries:
            return []
        self._router.refresh_if_due()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        begun_s = asyncio.get_running_loop().time()

        async def attempt(entries: Sequence[_E], timeout_ms: int) -> list[Enqueued]:
            results = await call_by_host(
                entries, owner, lambda at, part: send(at, part, timeout_ms), lambda error: Enqueued(error=error)
            )
            self._router.on_call_errors(result.error for result in results)
            return results

        async def retry(entries: Sequence[_E], timeout_ms: int) -> list[Enqueued]:
            return await attempt(entries, await self._router.refresh_for_retry(timeout_ms))

        first: list[Enqueued] | FoqsError
        try:
            first = await attempt(entries, timeout_ms)
        except FoqsError as error:
            self._router.on_call_errors([error])
            first = error
        return await _Repeatable(entries, _MISSING_RESULT).retry_until_done(
            first, retry, begun_s, timeout_ms, self._pool.sleep_unless_closed, self._rng
        )


class _Repeatable(RetriedCall[_E, Enqueued]):
    """Repeats a move or a restore until each of its entries has a final result.

    That is safe: if an attempt was written, the next one finds its record, and gets the same ids.
    """

    not_written_errors = (InvalidArgument, KeyConflict, NotFound)

    def failure_result(self, error: FoqsError) -> Enqueued:
        return Enqueued(error=error)

    def success_result(self, index: int, result: Enqueued) -> Enqueued:
        # A repeat of this call's own attempt is no repeat to its caller.
        return Enqueued(result.id) if index in self._unknown_outcomes else result


def _results(structs: Sequence[Any] | None) -> list[Enqueued]:
    return [
        Enqueued(each.id, repeated=bool(each.repeated))
        if each.error is None and each.id is not None
        else Enqueued(error=conversion.error(each.error))
        for each in structs or ()
    ]


def _slot_key(item: Any) -> str:
    """Return the key that decides the item's slot."""
    if item.idempotency_key is not None:
        return str(item.idempotency_key)
    return restore_key((item.restore_key or "").encode(errors="surrogatepass")).decode(errors="surrogatepass")
