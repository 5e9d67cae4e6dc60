"""An item that an administrator restores, and the row that it gets.

Always true: a restored item keeps its delivery policy and its maximum of attempts, whatever
state it is given. It is DEAD if its attempts are used up, or if it may be delivered only
once and was delivered. Pure.
"""

from __future__ import annotations

from foqs.core.items.item import TIME_MS_MAX, DeliveryPolicy, KeyedItem, Row, State
from foqs.core.items.life import RetryPolicy


class ItemWithHistory(KeyedItem):
    """A new item with a history.

    `delay_ms` is None. A `deliver_after_ms` in the past is the item's place in the order; None means now. The TTL is
    the whole one.
    `idempotency_key` may be reserved for the restore; see `key_slots.restore_key`.
    """

    __slots__ = ("attempt", "state", "ttl_remaining_ms")

    # columns: begin item with history
    def __init__(
        self,
        namespace: str,
        topic: str,
        priority: int,
        deliver_after_ms: int | None,
        lease_ms: int,
        ttl_ms: int | None,
        policy: DeliveryPolicy,
        attempts_max: int,
        payload: bytes,
        metadata: bytes,
        idempotency_key: bytes,
        digest: bytes,
        state: State,
        attempt: int,
        ttl_remaining_ms: int | None,
        trace_context: bytes | None = None,
        item_group: bytes | None = None,
    ) -> None:
        KeyedItem.__init__(
            self,
            namespace,
            topic,
            priority,
            None,
            deliver_after_ms,
            lease_ms,
            ttl_ms,
            policy,
            attempts_max,
            payload,
            metadata,
            idempotency_key,
            digest,
            trace_context,
            item_group,
        )
        self.state = state
        self.attempt = attempt
        self.ttl_remaining_ms = ttl_remaining_ms

    # columns: end

    @property
    def is_dead(self) -> bool:
        """Whether it is DEAD when it is restored. A lease counts as ended."""
        if self.state is State.DEAD:
            return True
        if self.policy is DeliveryPolicy.AT_MOST_ONCE:
            return self.state is State.LEASED or self.attempt > 0
        return 0 < self.attempts_max <= self.attempt


def restored_row(item: ItemWithHistory, number: int, now_ms: int, policy: RetryPolicy) -> Row:
    """Return the row of an item that is restored now."""
    deliver_after_ms = now_ms
    if item.deliver_after_ms is not None:
        deliver_after_ms = min(max(item.deliver_after_ms, 0), TIME_MS_MAX)
    expires_at_ms = None if item.ttl_remaining_ms is None else min(now_ms + item.ttl_remaining_ms, TIME_MS_MAX)
    state, due_ms, attempt = State.READY, expires_at_ms, item.attempt
    if item.is_dead:
        state, due_ms = State.DEAD, min(now_ms + policy.dead_retention_ms, TIME_MS_MAX)
    elif deliver_after_ms > now_ms:
        state = State.DEFERRED
        due_ms = deliver_after_ms if expires_at_ms is None else min(deliver_after_ms, expires_at_ms)
    # columns: begin row of a new item
    return Row(
        number,
        item.namespace,
        item.topic,
        item.priority,
        deliver_after_ms,
        now_ms,
        item.lease_ms,
        item.ttl_ms,
        expires_at_ms,
        item.policy,
        item.attempts_max,
        len(item.payload),
        item.payload,
        item.metadata,
        state,
        due_ms,
        0,
        attempt,
        item.trace_context,
        None,
        item.item_group,
    )
    # columns: end
