"""The client's call that completes items: it acks each and adds the items that follow from it, or does neither.

Holds `CompletingCalls`, which `Client` inherits. Always true: the call may be sent twice, because the host remembers what
it has completed for the namespace's key window.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from foqs_client import conversion
from foqs_client.errors import NotFound, StaleLease
from foqs_client.repeatable_calls import RepeatableCalls
from foqs_client.routing_table import Address
from foqs_client.types import Completed, Completion, Item
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

_COMPLETE: Final = ThriftMethod("complete")
_PLACE: Final = re.compile(r"\b(completions|items)\[([0-9]+)\]")


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
        entries = [_entry(each, place) for place, each in enumerate(completions)]
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
            results = conversion.completed((await self._call(_COMPLETE, request, timeout_ms, host)).outcomes)
            return _with_callers_places(results, part)

        return await self._send_repeatable(
            entries, lambda each: self.owner(each.id), send, Completed, (StaleLease, NotFound), timeout_ms
        )


class _Entry(NamedTuple):
    """A completion as it is sent. `place`: its place in the caller's list."""

    id: str
    token: int
    items: Sequence[Item]
    place: int


def _entry(given: Completion, place: int) -> _Entry:
    """Return the entry of a completion. Raises InvalidArgument."""
    delivery = given.delivery
    id, token = delivery if isinstance(delivery, tuple) else (delivery.id, delivery.token)
    return _Entry(id, token, conversion.items(given.items), place)


def _with_callers_places(results: Sequence[Completed], part: Sequence[_Entry]) -> list[Completed]:
    """Return the results with errors that name `completions[2].items[0]` of the caller's list.

    A host names an item by its place among the items of all entries that were sent to it.
    """
    found = list(results)
    first = 0
    for sent_place, (entry, result) in enumerate(zip(part, results, strict=False)):
        if result.error is not None:
            found[sent_place] = replace(
                result, error=result.error.with_renamed_places(_renaming(entry, sent_place, first))
            )
        first += len(entry.items)
    return found


def _renaming(entry: _Entry, sent_place: int, first: int) -> Callable[[str], str]:
    """Return a function that renames the places of an entry in a text. `first`: the place of its first item in the call."""

    def name(found: re.Match[str]) -> str:
        place = int(found[2])
        if found[1] == "completions":
            return f"completions[{entry.place}]" if place == sent_place else found[0]
        own = place - first
        return f"completions[{entry.place}].items[{own}]" if 0 <= own < len(entry.items) else found[0]

    return lambda text: _PLACE.sub(name, text)
