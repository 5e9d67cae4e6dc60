"""Collects the facts that explain why an item is not delivered. `core.items.explanation` puts them in words.

Always true: it changes nothing, and it replies before the call's deadline even
if a database does not respond, because that is a reason too. The facts are
hints: the item may be delivered before its explanation arrives. Knows no Thrift.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from foqs.core.items.explanation import HOLDERS_SHOWN_MAX, ItemSnapshot, explain
from foqs.core.items.item import OrderKey, Row, State, TopicName, format_id, unpack_order_key
from foqs.core.memory.demand import Demand
from foqs.queue.host_state import HostState
from foqs.queue.owned_shards import OwnedShards
from foqs.queue.port import ItemDetails, ItemExplanation
from foqs.queue.quota import Quota
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import Unavailable

_READ_TIME_FRACTION: Final = 0.5
"""The part of a call's time for its reads. The rest is for the reply if they do not end."""


class Explainer:
    """Explains the items of one host.

    Args:
        better_items_max: limit of the count of better items.
        is_stopping: returns whether this host is stopping.
    """

    def __init__(
        self,
        state: HostState,
        shards: OwnedShards,
        demand: Demand,
        quota: Quota,
        better_items_max: int,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._shards = shards
        self._namespaces = state.namespaces
        self._waiters = state.waiters
        self._suspension = state.suspension
        self._stopwatch_s = state.stopwatch_s
        self._demand = demand
        self._quota = quota
        self._better_items_max = better_items_max
        self._is_stopping = is_stopping

    async def explain(self, namespace: str, shard_number: int, number: int, deadline: float) -> ItemExplanation:
        """See `QueueReads.explain`. Raises `NamespaceNotFound` if there is no such namespace."""
        settings = self._namespaces.settings_of(namespace)
        item_id = format_id(shard_number, number)
        shard = self._shards.served.get(shard_number)
        if shard is None:
            return _item_explanation(
                ItemSnapshot(id=item_id, namespace=namespace, row=None, read_error=self._why_not_served(shard_number)),
                None,
            )
        idempotency_keys: dict[int, bytes] = {}
        now = asyncio.get_running_loop().time()
        read_deadline = now + (deadline - now) * _READ_TIME_FRACTION
        is_written = not shard.numbers.unresolved([number])
        try:
            async with asyncio.timeout_at(read_deadline):
                rows = await shard.queries.by_number(namespace, [number]) if is_written else []
                row = rows[0] if rows and rows[0].namespace == namespace else None
                if row is not None:
                    idempotency_keys = await shard.queries.idempotency_keys(namespace, [row])
        except (TimeoutError, Unavailable) as error:
            reason = _read_failure(error, shard)
            return _item_explanation(ItemSnapshot(id=item_id, namespace=namespace, row=None, read_error=reason), None)
        is_ready = row is not None and row.state is State.READY
        topic = (namespace, row.topic if row is not None else "")
        is_fair = self._namespaces.fairness(topic) is not None
        better: int | None = 0
        if row is not None and is_ready:
            better = None if is_fair else await self._count_better_items(row, read_deadline)
        last_dequeue_s = self._demand.last_dequeue_s_ago(topic, self._stopwatch_s())
        hold = shard.memory.group_hold(row) if row is not None and is_ready else None
        head, items_before = (None, 0)
        if row is not None and is_ready and is_fair:
            head, items_before = shard.memory.place_in_turn(row)
        snapshot = ItemSnapshot(
            id=item_id,
            namespace=namespace,
            row=row,
            is_fair=is_fair,
            groups_before=None if head is None else self._groups_before(topic, head),
            items_before=items_before,
            group_items_before=shard.memory.group_items_before(row) if row is not None and is_ready else None,
            group_limit=None if hold is None else hold[0],
            group_holders=() if hold is None else [format_id(shard_number, each) for each in hold[1]],
            now_ms=shard.now_ms(),
            is_written=is_written,
            store_error=shard.unavailable_reason or shard.write_refusal,
            is_stopping=self._is_stopping(),
            suspension=self._suspension.explanation,
            is_paused=topic in self._namespaces.paused_topics,
            is_reserved=shard.index.is_reserved(number),
            is_in_memory=row is None or is_fair or shard.index.rank(topic, row.order_key)[1] is None,
            better_count=None if better is None else min(better, self._better_items_max),
            is_better_count_exact=better is None or better <= self._better_items_max,
            best_priority=self._best_priority(topic),
            waiter_count=self._waiters.waiter_count(topic),
            last_dequeue_ms_ago=None if last_dequeue_s is None else int(last_dequeue_s * 1000),
            payload_bytes_max=settings.payload_bytes_max,
            breaker=shard.breaker_state,
            rate_wait_ms=self._quota.rate_wait_ms(namespace, settings),
        )
        item = None if row is None else ItemDetails(shard_number, row, snapshot.now_ms, idempotency_keys.get(number))
        return _item_explanation(snapshot, item)

    async def _count_better_items(self, row: Row, read_deadline: float) -> int | None:
        """Count the READY items of all shards that come before this row, up to one over the limit; None if unknown."""
        better = 0
        shards = self._shards
        if len(shards.served) < len(shards.statuses):
            return None
        try:
            async with asyncio.timeout_at(read_deadline):
                for shard in list(shards.served.values()):
                    better += await shard.queries.count_ready_before(
                        (row.namespace, row.topic), row.order_key, self._better_items_max - better
                    )
                    if better > self._better_items_max:
                        break
        except (TimeoutError, Unavailable):
            return None
        return better

    def _groups_before(self, topic: TopicName, head: OrderKey) -> int:
        """Return how many groups of a fair topic have their turn before this head, as far as they are known here."""
        return sum([shard.index.rank(topic, head)[0] for shard in self._shards.served.values()])

    def _best_priority(self, topic: TopicName) -> int | None:
        known = [shard.index.first_known_key(topic) for shard in self._shards.served.values()]
        order_keys = [key for key in known if key is not None]
        return unpack_order_key(min(order_keys))[0] if order_keys else None

    def _why_not_served(self, shard_number: int) -> str:
        status = self._shards.statuses.get(shard_number)
        if status is None:
            raise self._shards.not_owner_error(shard_number)
        reason = f": {status.reason}" if status.reason else ""
        return f"shard {shard_number} is not served here; it is {status.state}{reason}"


def _read_failure(error: Exception, shard: OwnedShard) -> str:
    if shard.unavailable_reason is not None:
        return f"shard {shard.number}: {shard.unavailable_reason}"
    return error.message if isinstance(error, Unavailable) else f"shard {shard.number} did not answer in time"


def _item_explanation(snapshot: ItemSnapshot, item: ItemDetails | None) -> ItemExplanation:
    explanation = explain(snapshot)
    reasons: Sequence[str] = explanation.reasons
    is_ready = snapshot.row is not None and snapshot.row.state is State.READY
    better, is_more = (snapshot.better_count, not snapshot.is_better_count_exact) if is_ready else (None, False)
    is_absent = item is None and snapshot.read_error is None
    return ItemExplanation(
        item,
        reasons,
        explanation.remedies,
        better,
        is_more,
        is_absent,
        snapshot.group_holders[:HOLDERS_SHOWN_MAX],
        snapshot.group_items_before,
        snapshot.groups_before,
    )
