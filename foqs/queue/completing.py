"""Completes items: sends each to the writer of its shard together with the items that follow from it.

Always true: nothing of an entry is submitted before all of it is checked; an entry whose new items must be in another
shard is refused, with both fields named; a bad entry fails alone. The rate, the backlog and the circuit breaker hold for
it as for an enqueue, because it adds items. Knows nothing of how a flush decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.catalog.namespaces import Namespaces
from foqs.core.flush.completions import CompletionEntry
from foqs.core.items.atomic_items import error_of_item
from foqs.core.limits.in_flight import InFlight
from foqs.options.options import NamespaceOptions
from foqs.queue.backlogs import Backlogs
from foqs.queue.owned_shards import OwnedShards
from foqs.queue.pending_calls import FanOutCall
from foqs.queue.placement import Placement, values_at
from foqs.queue.port import CompletionOutcome, PendingCall, ShardCompletion
from foqs.queue.quota import Quota
from foqs.runtime.deadlines import Deadlines
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import FoqsError, NotFound


class Completing:
    """The completions of one host."""

    def __init__(
        self,
        owned: OwnedShards,
        placement: Placement,
        namespaces: Namespaces,
        quota: Quota,
        backlogs: Backlogs,
        deadlines: Deadlines,
    ) -> None:
        self._owned = owned
        self._placement = placement
        self._namespaces = namespaces
        self._quota = quota
        self._backlogs = backlogs
        self._deadlines = deadlines

    def complete(
        self,
        namespace: str,
        entries: Sequence[ShardCompletion],
        deadline: float,
        on_done: Callable[[list[CompletionOutcome]], None],
    ) -> PendingCall:
        """See `port.Queue`."""
        if self._namespaces.foreign_tiers:
            self._namespaces.check_tier(namespace)
        limits = self._namespaces.limited_settings.get(namespace)
        call = FanOutCall(self._deadlines, len(entries), on_done)
        in_flight = None
        if limits is not None:
            in_flight = self._backlogs.in_flight(namespace, limits)
            call.on_repeats = self._quota.refund_callback(namespace, limits)
        groups: dict[OwnedShard, list[int]] = {}
        for position, (number, completion, place) in enumerate(entries):
            try:
                shard = self._owned.get(number)
                self._check(shard, completion, place)
            except FoqsError as error:
                call.refuse((position,), error)
            else:
                groups.setdefault(shard, []).append(position)
        for shard, positions in groups.items():
            # Entries of a namespace with limits are submitted one by one, so that each counts for the next one.
            for part in [positions] if limits is None else [[position] for position in positions]:
                completions = [entry.completion for entry in values_at(entries, part)]
                try:
                    self._submit(call, shard, namespace, completions, part, limits, in_flight)
                except FoqsError as error:
                    call.refuse(part, error)
        call.start(deadline)
        return call

    def _check(self, shard: OwnedShard, completion: CompletionEntry, place: int) -> None:
        """Check what needs no flush. Raises FoqsError."""
        if shard.numbers.unresolved([completion.number]):
            raise NotFound("no item has this id yet; use one that dequeue returned")
        first = completion.first_place
        self._placement.check_bound_to(shard.number, f"completions[{place}].id", completion.items, first)
        for item_place, error in self._placement.expiry_errors(completion.items, shard.now_ms()).items():
            raise error_of_item(first + item_place, error)

    def _submit(
        self,
        call: FanOutCall,
        shard: OwnedShard,
        namespace: str,
        completions: Sequence[CompletionEntry],
        positions: Sequence[int],
        limits: NamespaceOptions | None,
        in_flight: InFlight | None,
    ) -> None:
        """Submit completions of one shard; if there are limits, a single one. Raises FoqsError: nothing was submitted."""
        items = [item for completion in completions for item in completion.items]
        if limits is not None:
            removed_bytes = sum([shard.cached_payload_bytes(namespace, entry.number) for entry in completions])
            self._quota.check_limits(namespace, limits, items, len(completions), removed_bytes)
            errors = self._quota.topic_limit_errors(namespace, limits, [item.topic for item in items])
            for place, error in errors.items():
                raise error_of_item(completions[0].first_place + place, error)
        operation = shard.submit_completions(namespace, completions, call, in_flight)
        call.add_operation(operation, positions, shard.number)
        self._quota.charge(namespace, limits, len(items))
