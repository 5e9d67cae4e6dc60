"""Limits of a namespace's enqueues: rate, backlog and topics, over the shards of this host.

In a cluster, rate and backlog are limits of all hosts together, and this host
checks its allocation of them: `Quota` asks `LimitParts`, which is `TierLimits` there,
and that keeps a `RateAllocation` for each namespace.

Always true: only what this host knows for certain counts, so nothing is refused
without cause. While counts lag, more is accepted than the limits allow. Settings
are arguments, so a change applies from the next call. Knows nothing of calls or
of how shards work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import Final

from foqs.core.items.item import NewItem
from foqs.core.limits.in_flight import total_payload_bytes
from foqs.core.limits.token_bucket import MinuteCount
from foqs.options.options import NamespaceOptions
from foqs.queue.backlogs import Backlogs
from foqs.queue.tier import LimitPart, LimitParts
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import FoqsError, LimitExceeded, RateLimited
from foqs_contract.plurals import counted

_BACKLOG_RETRY_MS: Final = 1_000
"""A backlog shrinks as fast as its consumers work, so this is a guess."""

_NAMESPACES_MAX: Final = 10_000
"""With more namespaces than this, entries that are not needed are dropped."""


class Quota:
    """The limits of all namespaces on one host.

    Args:
        shards: the shards that this host serves, by number; changes over time.
        parts: this host's parts of the limits.
    """

    def __init__(
        self,
        shards: Mapping[int, OwnedShard],
        backlogs: Backlogs,
        parts: LimitParts,
        stopwatch_s: Callable[[], float],
    ) -> None:
        self.limited_items: Counter[str] = Counter()
        """Items over a limit, by limit: rate, items, bytes, topics."""
        self._shards = shards
        self._backlogs = backlogs
        self._parts = parts
        self._stopwatch_s = stopwatch_s
        self._minute_counts: dict[str, MinuteCount] = {}
        self._topic_totals = TopicTotals()

    def check_limits(
        self,
        namespace: str,
        settings: NamespaceOptions,
        items: Sequence[NewItem],
        removed_items: int = 0,
        removed_bytes: int = 0,
    ) -> None:
        """Check rate and backlog for a call. Nothing is charged.

        Args:
            removed_items: how many items leave when these are written. A backlog that does not grow is not checked.
            removed_bytes: their payload bytes, as far as they are known.

        Raises:
            RateLimited: the rate does not allow it now.
            LimitExceeded: the backlog is full, or the call is larger than a minute's rate.
        """
        part = self._parts.of(namespace)
        part.record_request(len(items), self._stopwatch_s())
        if settings.backlog_items_max or settings.backlog_bytes_max:
            self._check_backlog(namespace, settings, items, part, removed_items, removed_bytes)
        if settings.enqueues_per_minute:
            self._check_rate(namespace, settings.enqueues_per_minute, len(items), part)

    def enqueued_last_minute(self, namespace: str) -> int:
        """Return about how many items were accepted in the last minute."""
        count = self._minute_counts.get(namespace)
        return 0 if count is None else count.last_minute(self._stopwatch_s())

    def charge(self, namespace: str, settings: NamespaceOptions | None, items: int) -> None:
        """Count items of a call that were accepted. If the namespace has limits, the call passed `check_limits`."""
        count = self._minute_counts.get(namespace)
        if count is None:
            if len(self._minute_counts) >= _NAMESPACES_MAX:
                now_s = self._stopwatch_s()
                self._minute_counts = {
                    name: minute for name, minute in self._minute_counts.items() if minute.last_minute(now_s)
                }
            count = self._minute_counts[namespace] = MinuteCount()
        count.add(items, self._stopwatch_s())
        if settings is not None and settings.enqueues_per_minute and items:
            self._parts.of(namespace).consume(items, settings.enqueues_per_minute, self._stopwatch_s())

    def forget(self, namespaces: Iterable[str]) -> None:
        """Forget the use of namespaces that were deleted: a new one of the same name starts from zero."""
        names = list(namespaces)
        self._parts.forget(names)
        for name in names:
            self._minute_counts.pop(name, None)

    def refund_callback(self, namespace: str, settings: NamespaceOptions) -> Callable[[int], None] | None:
        """Return a callback that refunds the charge for repeats; None if the rate is not limited."""
        if not settings.enqueues_per_minute:
            return None
        return lambda items: self._parts.of(namespace).refund(items)

    def rate_wait_ms(self, namespace: str, settings: NamespaceOptions) -> int:
        """Return the time until the rate allows another item."""
        per_minute = settings.enqueues_per_minute
        return ceil(self._parts.of(namespace).wait_s(1, per_minute, self._stopwatch_s()) * 1000) if per_minute else 0

    def topic_limit_errors(
        self, namespace: str, settings: NamespaceOptions, topics: Sequence[str]
    ) -> dict[int, FoqsError]:
        """Return an error for each of the items' topics that is new and over the limit, by position."""
        shards = list(self._shards.values())
        names = dict.fromkeys(topics)
        if not settings.topics_max or any(shard.counts.is_lagging for shard in shards):
            return {}
        new = [name for name in names if not any((namespace, name) in shard.counts for shard in shards)]
        if not new:
            return {}
        room = max(0, settings.topics_max - self._topic_totals.total(shards, namespace, len(new), settings.topics_max))
        refused = set(new[room:])
        errors: dict[int, FoqsError] = {
            position: LimitExceeded(
                f"namespace {namespace!r} may have at most {counted(settings.topics_max, 'topic')}; "
                "use an existing one, or raise its topics_max",
                field="topic",
            )
            for position, topic in enumerate(topics)
            if topic in refused
        }
        self.limited_items["topics"] += len(errors)
        return errors

    # -------------------------------------------------------------------- helpers

    def _check_backlog(
        self,
        namespace: str,
        settings: NamespaceOptions,
        items: Sequence[NewItem],
        part: LimitPart,
        removed_items: int,
        removed_bytes: int,
    ) -> None:
        held_items, held_bytes = self._backlogs.backlog(namespace)
        items_max, bytes_max = settings.backlog_items_max, settings.backlog_bytes_max
        count = len(items) - removed_items
        if items_max and (count > 0 or not removed_items) and held_items + count > part.items_max(items_max):
            held_items += part.elsewhere_items
            raise self._backlog_error(namespace, "items", held_items, count, items_max, len(items), part.scope)
        if bytes_max:
            size = total_payload_bytes(items) - removed_bytes
            if (size > 0 or not removed_items) and held_bytes + size > part.bytes_max(bytes_max):
                held_bytes += part.elsewhere_bytes
                raise self._backlog_error(namespace, "bytes", held_bytes, size, bytes_max, len(items), part.scope)

    def _backlog_error(
        self, namespace: str, unit: str, held: int, added: int, limit: int, items: int, scope: str
    ) -> LimitExceeded:
        self.limited_items[unit] += items
        if held + added > limit:
            text = (
                f"namespace {namespace!r} holds {counted(held, unit[:-1])}, and {added} more would exceed its limit of {limit}{scope}; "
                f"consume, cancel or purge some (dead items count) and try again, or raise its backlog_{unit}_max"
            )
        else:
            text = (
                f"namespace {namespace!r} has room for {counted(limit - held, unit[:-1])} on all hosts together, but this host may not "
                f"accept {added} now; try again, or split the call"
            )
        return LimitExceeded(text, field="items", retry_after_ms=_BACKLOG_RETRY_MS)

    def _check_rate(self, namespace: str, per_minute: int, items: int, part: LimitPart) -> None:
        if items > per_minute:
            self.limited_items["rate"] += items
            raise LimitExceeded(
                f"the call has {counted(items, 'item')}, but namespace {namespace!r} may enqueue {per_minute} a minute; "
                "split the call, or raise its enqueues_per_minute",
                field="items",
            )
        wait_s = part.wait_s(items, per_minute, self._stopwatch_s())
        if wait_s > 0:
            self.limited_items["rate"] += items
            raise RateLimited(
                f"namespace {namespace!r} has used up its {per_minute} enqueues a minute{part.scope}; try again later, or raise its enqueues_per_minute",
                field="items",
                retry_after_ms=int(wait_s * 1000) + 1,
            )


class TopicTotals:
    """The number of a namespace's topics over several shards, which may share topics.

    An exact count looks at every name. So it is repeated only if the topics that
    began and ended since then may matter.
    """

    def __init__(self) -> None:
        self._shards: list[OwnedShard] = []
        self._last_counts: dict[str, tuple[int, int, int]] = {}
        """(topics, begun, ended) of each namespace at its last exact count."""

    def total(self, shards: list[OwnedShard], namespace: str, new_topics: int, topics_max: int) -> int:
        """Return the number of topics, exact enough to decide whether `new_topics` more exceed the limit."""
        counts = [shard.counts.topic_count(namespace) for shard in shards]
        if sum(counts) + new_topics <= topics_max:
            return sum(counts)
        if max(counts, default=0) >= topics_max:
            return max(counts)
        begun = sum([shard.counts.begun_count for shard in shards])
        ended = sum([shard.counts.ended_count for shard in shards])
        if shards != self._shards or len(self._last_counts) >= _NAMESPACES_MAX:
            self._shards, self._last_counts = shards, {}
        elif namespace in self._last_counts:
            topics, begun_before, ended_before = self._last_counts[namespace]
            upper, lower = topics + begun - begun_before, topics - ended + ended_before
            if upper + new_topics <= topics_max or upper == lower:
                return upper
            if lower >= topics_max:
                return lower
        topics = len(set().union(*[shard.counts.topic_names(namespace) for shard in shards]))
        self._last_counts[namespace] = topics, begun, ended
        return topics
