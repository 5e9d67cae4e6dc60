"""The client's call that completes items: it acks each and adds the items that follow from it, or does neither.

Holds `CompletingCalls`, which `Client` inherits. Always true: the call may be sent twice, because the host remembers what
it has completed for the namespace's key window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from foqs_client import conversion
from foqs_client.errors import NotFound, StaleLease
from foqs_client.repeatable_calls import RepeatableCalls
from foqs_client.routing_table import Address
from foqs_client.types import Completed, Completion, Item
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

_COMPLETE: Final = ThriftMethod("complete")


class CompletingCalls(RepeatableCalls):
    """The call that completes items. See `Client` for its common arguments."""

    async def complete(self, completions: Sequence[Completion], *, timeout_ms: int | None = None) -> list[Completed]:
        """Ack items, and add the items that follow from each, in one transaction of its shard. Return a result for each.

        For each entry the item is deleted and the new items are durable, or nothing is changed. A lease that was replaced,
        or whose item is gone, is `StaleLease`. The client retries the call until its time ends; a second attempt never adds
        a second item. The new items are in the shard of the acked one, so a group or an idempotency key that belongs to
        another shard is `InvalidArgument`. Items with neither, and items of the acked item's group, belong to it: enqueue
        others before the ack. Automatic keys are not needed, and not given.

        Example: `await client.complete([Completion(delivery, [Item("mail", b"thanks")])])`
        """
        entries = [_entry(each) for each in completions]
        if self._spans is None or not entries:
            return await self._complete(entries, timeout_ms)
        with self._spans.settle(_COMPLETE.name, [each.delivery for each in completions]) as call:
            traced = [each._replace(items=call.with_context(each.items)) for each in entries]
            results = await self._complete(traced, timeout_ms)
            call.on_results(results)
            return results

    async def _complete(self, entries: Sequence[_Entry], timeout_ms: int | None) -> list[Completed]:
        async def send(host: Address | None, part: Sequence[_Entry], timeout_ms: int) -> list[Completed]:
            leases = [ttypes.Completion(each.id, each.token, len(each.items)) for each in part]
            items: Any = [item for each in part for item in each.items]  # the encoder reads their fields by name
            request = ttypes.CompleteRequest(self.namespace, leases, items=items)
            return conversion.completed((await self._call(_COMPLETE, request, timeout_ms, host)).outcomes)

        return await self._send_repeatable(
            entries, lambda each: self.owner(each.id), send, Completed, (StaleLease, NotFound), timeout_ms
        )


class _Entry(NamedTuple):
    """A completion as it is sent."""

    id: str
    token: int
    items: Sequence[Item]


def _entry(given: Completion) -> _Entry:
    """Return the entry of a completion. Raises InvalidArgument."""
    delivery = given.delivery
    id, token = delivery if isinstance(delivery, tuple) else (delivery.id, delivery.token)
    return _Entry(id, token, conversion.items(given.items))
