"""What a namespace may enqueue: its rate, its backlog and its topics, over the shards of this host.

In a tier rate and backlog are this host's shares of limits that all hosts have together.

Always true: what is asked here is known to this host for certain, so nothing is
refused that should not be: where counts lag it knows less than there is, and
lets more through. Settings are arguments, so a change of them holds from the
next call on. Knows nothing of calls or shards' insides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Final

from foqs.core.errors import FoqsError, LimitExceeded, RateLimited
from foqs.core.items.item import NewItem
from foqs.core.limits.in_flight import InFlight, total_payload_bytes
from foqs.core.limits.rate_allocation import RateAllocation
from foqs.core.limits.token_bucket import MinuteCount, TokenBucket
from foqs.options.options import NamespaceOptions
from foqs.shard.shard import Shard

_BACKLOG_RETRY_MS: Final = 1_000
"""A backlog shrinks as fast as its consumers work: nobody knows when there is room."""

_BUCKETS_MAX: Final = 10_000
"""So many namespaces have a bucket, or something under way, before those that need none are forgotten."""


class Quota:
    """The limits of all namespaces on one host.

    Args:
        shards: the shards of this host, by number; changes as they come and go.
        stopwatch_s: a stop watch.
    """

    def __init__(self, shards: Mapping[int, Shard], stopwatch_s: Callable[[], float]) -> None:
        self.limited_items: Counter[str] = Counter()
        """Items that came beyond a limit, by which: rate, items, bytes, topics."""
        self.allocation_of: Callable[[str], RateAllocation[Any]] | None = None
        """This host's share of a namespace's limits; None for a host that is alone."""
        self._shards = shards
        self._stopwatch_s = stopwatch_s
        self._buckets: dict[str, TokenBucket] = {}
        self._minute_counts: dict[str, MinuteCount] = {}
        self._in_flight: dict[str, InFlight] = {}
        """Of namespaces with a backlog that is limited."""
        self._topic_totals = TopicTotals()

    def usage(self, namespace: str) -> tuple[int, int]:
        """(items, bytes of payload) of a namespace; less than there is while counts lag."""
        held = [shard.memory.usage.lower_bound(namespace) for shard in self._shards.values()]
        return sum(items for items, _ in held), sum(size for _, size in held)

    def backlog(self, namespace: str) -> tuple[int, int]:
        """(items, bytes of payload) that count against a backlog: those under way too."""
        items, size = self.usage(namespace)
        under_way = self._in_flight.get(namespace)
        return (items, size) if under_way is None else (items + under_way.items, size + under_way.bytes)

    def check_limits(self, namespace: str, settings: NamespaceOptions, items: Sequence[NewItem]) -> None:
        """The call as a whole may be taken.

        Raises:
            RateLimited: not now; `charge` was not asked for anything.
            LimitExceeded: the backlog is full, or the call larger than a minute's worth.
        """
        share = None
        if self.allocation_of is not None:
            share = self.allocation_of(namespace)
            share.record_request(len(items), self._stopwatch_s())
        if settings.backlog_items_max or settings.backlog_bytes_max:
            self._check_backlog(namespace, settings, items, share)
        if settings.enqueues_per_minute:
            self._check_rate(namespace, settings.enqueues_per_minute, len(items), share)

    def in_flight(self, namespace: str, settings: NamespaceOptions) -> InFlight | None:
        """Counts what a call is about to bring; None where no limit asks for it."""
        if not settings.backlog_items_max and not settings.backlog_bytes_max:
            return None
        under_way = self._in_flight.get(namespace)
        if under_way is None:
            if len(self._in_flight) >= _BUCKETS_MAX:
                self._in_flight = {name: each for name, each in self._in_flight.items() if each.items}
            under_way = self._in_flight[namespace] = InFlight()
        return under_way

    def enqueued_last_minute(self, namespace: str) -> int:
        """About how many items were taken in the last minute."""
        count = self._minute_counts.get(namespace)
        return 0 if count is None else count.last_minute(self._stopwatch_s())

    def charge(self, namespace: str, settings: NamespaceOptions | None, items: int) -> None:
        """So many items of a call were taken; with limits it had passed `check`."""
        count = self._minute_counts.get(namespace)
        if count is None:
            if len(self._minute_counts) >= _BUCKETS_MAX:
                now_s = self._stopwatch_s()
                self._minute_counts = {
                    name: each for name, each in self._minute_counts.items() if each.last_minute(now_s)
                }
            count = self._minute_counts[namespace] = MinuteCount()
        count.add(items, self._stopwatch_s())
        if settings is not None and settings.enqueues_per_minute and items:
            bucket = self._buckets[namespace] if self.allocation_of is None else self.allocation_of(namespace)
            bucket.consume(items, settings.enqueues_per_minute, self._stopwatch_s())

    def forget(self, namespaces: Iterable[str]) -> None:
        """What these have used up: they were deleted, and one of the same name begins anew."""
        for name in namespaces:
            self._buckets.pop(name, None)
            self._minute_counts.pop(name, None)

    def refund_callback(self, namespace: str, settings: NamespaceOptions) -> Callable[[int], None] | None:
        """Gives back what some of a call were charged for that turned out to be repeats; None without a rate."""
        if not settings.enqueues_per_minute:
            return None

        def repeated(items: int) -> None:
            bucket = self._bucket(namespace)
            if bucket is not None:
                bucket.refund(items)

        return repeated

    def rate_wait_ms(self, namespace: str, settings: NamespaceOptions) -> int:
        """Until its rate allows another item: 0 now."""
        bucket = self._bucket(namespace) if settings.enqueues_per_minute else None
        if bucket is None:
            return 0
        return ceil(bucket.wait_s(1, settings.enqueues_per_minute, self._stopwatch_s()) * 1000)

    def topic_limit_errors(
        self, namespace: str, settings: NamespaceOptions, items: Sequence[NewItem]
    ) -> dict[int, FoqsError]:
        """Why items cannot be taken, by place: each would begin a topic that is one too many."""
        shards = list(self._shards.values())
        names = dict.fromkeys([item.topic for item in items])
        if not settings.topics_max or any(shard.counts.is_lagging for shard in shards):
            return {}
        new = [name for name in names if not any((namespace, name) in shard.counts for shard in shards)]
        if not new:
            return {}
        room = max(0, settings.topics_max - self._topic_totals.total(shards, namespace, len(new), settings.topics_max))
        beyond = set(new[room:])
        told: dict[int, FoqsError] = {
            place: LimitExceeded(
                f"namespace {namespace!r} may have {settings.topics_max} topics, and this would be one more; "
                "use one that it has, or raise its topics_max",
                field="topic",
            )
            for place, item in enumerate(items)
            if item.topic in beyond
        }
        self.limited_items["topics"] += len(told)
        return told

    # --------------------------------------------------------------------- inside

    def _bucket(self, namespace: str) -> TokenBucket | RateAllocation[Any] | None:
        return self._buckets.get(namespace) if self.allocation_of is None else self.allocation_of(namespace)

    def _check_backlog(
        self,
        namespace: str,
        settings: NamespaceOptions,
        items: Sequence[NewItem],
        allocation: RateAllocation[Any] | None,
    ) -> None:
        held_items, held_bytes = self.backlog(namespace)
        most_items, most_bytes = settings.backlog_items_max, settings.backlog_bytes_max
        if most_items:
            here, elsewhere = (
                (most_items, 0)
                if allocation is None
                else (allocation.items_max(most_items), allocation.elsewhere_items)
            )
            if held_items + len(items) > here:
                raise self._backlog_error(namespace, "items", held_items, elsewhere, len(items), most_items, len(items))
        if most_bytes:
            size = total_payload_bytes(items)
            here, elsewhere = (
                (most_bytes, 0)
                if allocation is None
                else (allocation.bytes_max(most_bytes), allocation.elsewhere_bytes)
            )
            if held_bytes + size > here:
                raise self._backlog_error(namespace, "bytes", held_bytes, elsewhere, size, most_bytes, len(items))

    def _backlog_error(
        self, namespace: str, unit: str, held: int, held_elsewhere: int, added: int, limit: int, items: int
    ) -> LimitExceeded:
        self.limited_items[unit] += items
        held += held_elsewhere
        together = "" if self.allocation_of is None else " for all hosts together"
        if held + added > limit:
            text = (
                f"namespace {namespace!r} holds {held} {unit}, and {added} more would be above its {limit}{together}; "
                f"have some consumed, cancel or purge some (dead ones count), or raise its backlog_{unit}_max"
            )
        else:
            text = (
                f"of the {limit - held} {unit} that namespace {namespace!r} may still hold on all hosts together, {added} "
                "are more than this host may take now; try again, or split the call"
            )
        return LimitExceeded(text, field="items", retry_after_ms=_BACKLOG_RETRY_MS)

    def _check_rate(self, namespace: str, per_minute: int, items: int, allocation: RateAllocation[Any] | None) -> None:
        if items > per_minute:
            self.limited_items["rate"] += items
            raise LimitExceeded(
                f"{items} items are more than namespace {namespace!r} may enqueue in a minute, {per_minute}; "
                "split the call, or raise its enqueues_per_minute",
                field="items",
            )
        now_s = self._stopwatch_s()
        bucket = allocation or self._buckets.get(namespace)
        if bucket is None:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._buckets = {name: each for name, each in self._buckets.items() if not each.is_full(now_s)}
            bucket = self._buckets[namespace] = TokenBucket()
        wait_s = bucket.wait_s(items, per_minute, now_s)
        if wait_s > 0:
            self.limited_items["rate"] += items
            raise RateLimited(
                f"namespace {namespace!r} has used up its {per_minute} enqueues a minute"
                + ("" if allocation is None else ", which are for all hosts together"),
                field="items",
                retry_after_ms=int(wait_s * 1000) + 1,
            )


class TopicTotals:
    """How many topics a namespace has over shards of which some may share topics.

    Counting exactly looks at every name. So it is done again only where what has
    begun and ended since may matter.
    """

    def __init__(self) -> None:
        self._shards: list[Shard] = []
        self._last_counts: dict[str, tuple[int, int, int]] = {}
        """(topics, begun, ended) of a namespace, as of when it was counted exactly."""

    def total(self, shards: list[Shard], namespace: str, new_topics: int, topics_max: int) -> int:
        """As exactly as it matters to whether so many more are too many."""
        each = [shard.counts.topic_count(namespace) for shard in shards]
        if sum(each) + new_topics <= topics_max:
            return sum(each)
        if max(each, default=0) >= topics_max:
            return max(each)
        begun = sum([shard.counts.begun_count for shard in shards])
        ended = sum([shard.counts.ended_count for shard in shards])
        if shards != self._shards or len(self._last_counts) >= _BUCKETS_MAX:
            self._shards, self._last_counts = shards, {}
        elif namespace in self._last_counts:
            topics, begun_before, ended_before = self._last_counts[namespace]
            highest, least = topics + begun - begun_before, topics - ended + ended_before
            if highest + new_topics <= topics_max or highest == least:
                return highest
            if least >= topics_max:
                return least
        topics = len(set().union(*[shard.counts.topic_names(namespace) for shard in shards]))
        self._last_counts[namespace] = topics, begun, ended
        return topics
