"""A queue for tests of what stands before a queue: it records calls and returns prepared results.

Holds items in a list, with the order of calls as its only rule. `gate` delays
calls; `failure` lets them fail; a `stubborn` queue continues with abandoned calls,
which the real one never does. What a queue does is tested with the real one in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.topic_keys import NO_TOPIC_KEYS, TopicKeys
from foqs.core.items.item import KeyedItem, NewItem, Row, State, format_id, make_number
from foqs.core.items.life import Event, EventKind, new_row
from foqs.core.items.row_filter import RowFilter
from foqs.queue.call_limits import CallLimits
from foqs.queue.port import (
    ALREADY_GONE,
    CompletedIds,
    CompletionOutcome,
    EnqueueOutcome,
    GroupList,
    ItemDetails,
    ItemExplanation,
    ItemTotals,
    LeasedItems,
    Outcome,
    PageResult,
    PendingCall,
    Repeated,
    RowView,
    ShardCompletion,
    ShardListing,
    ShardPage,
    TopicStats,
    WantedGroups,
)
from foqs.shard.host_shards import ShardStatus
from foqs_contract.errors import NamespaceNotFound, NotFound, StaleLease
from tests.support.builders import CALLS, changed

_T = TypeVar("_T")

NOW_MS = 1_700_000_000_000

SETTINGS = changed(NamespaceSettings(), lease_ms_max=3_600_000, backoff_ms_max=60_000, dead_retention_ms=86_400_000)

LIMITS = replace(CALLS, wait_ms_max=20_000)


class HeldCall:
    """A call that waits for the gate; without a task, one that was answered."""

    def __init__(self, queue: FakeQueue, name: str) -> None:
        self._queue = queue
        self._name = name
        self.task: asyncio.Task[None] | None = None

    def abandon(self) -> None:
        if self.task is not None:
            self._queue.cancelled.append(self._name)
            if not self._queue.stubborn:
                self.task.cancel()


class FakeQueue:
    """Answers the calls of the ports `Queue`, `QueueReads` and `BulkChanges` from one shard, number 3."""

    def __init__(self, limits: CallLimits = LIMITS) -> None:
        self.limits = limits
        self.rows: dict[int, Row] = {}
        self.keys: dict[bytes | None, str] = {}
        self.calls: list[tuple[str, object]] = []
        self.released: list[str] = []
        self.cancelled: list[str] = []
        self.running = 0
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None
        self.stubborn = False
        self.atomic_calls = 0
        self._next = 0
        self._token = 0

    @property
    def reads(self) -> FakeQueue:
        return self

    @property
    def bulk(self) -> FakeQueue:
        return self

    def namespace_settings(self, name: str) -> NamespaceSettings:
        if name != "default":
            raise NamespaceNotFound(f"there is no namespace {name!r}", field="namespace_name")
        return SETTINGS

    def topic_keys(self, name: str) -> TopicKeys:
        return NO_TOPIC_KEYS

    def enqueue(
        self,
        namespace: str,
        items: Sequence[NewItem],
        deadline: float,
        on_done: Callable[[list[EnqueueOutcome]], None],
        *,
        is_atomic: bool = False,
    ) -> PendingCall:
        self.atomic_calls += is_atomic

        def work() -> list[EnqueueOutcome]:
            ids: list[EnqueueOutcome] = []
            for item in items:
                key = item.idempotency_key if isinstance(item, KeyedItem) else None
                if key in self.keys:
                    ids.append(Repeated(self.keys[key]))
                    continue
                self._next += 1
                number = make_number(1, self._next)
                self.rows[number] = new_row(item, number, NOW_MS, NOW_MS)
                ids.append(format_id(3, number))
                if key is not None:
                    self.keys[key] = format_id(3, number)
            return ids

        return self._start("enqueue", list(items), work, on_done)

    def dequeue(
        self,
        namespace: str,
        topic_limits: Sequence[tuple[str, int]],
        wait_ms: int,
        lease_ms: int | None,
        deadline: float,
        on_done: Callable[[LeasedItems], None],
        items_max: int | None = None,
        run_max: int = 1,
    ) -> PendingCall:
        def work() -> LeasedItems:
            out: list[RowView] = []
            for topic, count in topic_limits:
                ready = [row for row in self.rows.values() if row.topic == topic and row.state is State.READY]
                for row in sorted(ready, key=lambda row: row.order_key)[:count]:
                    self._token += 1
                    row.state, row.token, row.attempt = State.LEASED, self._token, row.attempt + 1
                    row.due_ms = NOW_MS + (lease_ms or row.lease_ms)
                    row.first_delivered_at_ms = row.first_delivered_at_ms or NOW_MS
                    out.append(RowView(3, row, NOW_MS))
            return LeasedItems(out[:items_max], lambda: self.released.extend(format_id(3, seen.row.id) for seen in out))

        return self._start("dequeue", (list(topic_limits), wait_ms, lease_ms), work, on_done)

    def ack(
        self,
        namespace: str,
        ids: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        def work() -> list[Outcome]:
            return [self._end(number) for _, number in ids]

        return self._start("ack", list(zip(ids, tokens, strict=True)), work, on_done)

    def complete(
        self,
        namespace: str,
        entries: Sequence[ShardCompletion],
        deadline: float,
        on_done: Callable[[list[CompletionOutcome]], None],
    ) -> PendingCall:
        def outcome(entry: ShardCompletion) -> CompletionOutcome:
            if self.rows.pop(entry.completion.number, None) is None:
                return StaleLease("this item is gone")
            ids = []
            for item in entry.completion.items:
                self._next += 1
                number = make_number(1, self._next)
                self.rows[number] = new_row(item, number, NOW_MS, NOW_MS)
                ids.append(format_id(3, number))
            return CompletedIds(ids, False)

        return self._start("complete", list(entries), lambda: [outcome(entry) for entry in entries], on_done)

    def apply(
        self,
        namespace: str,
        events: Sequence[tuple[int, Event]],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        def outcome(shard: int, event: Event) -> Outcome:
            if event.kind is EventKind.CANCEL:
                return self._end(event.id)
            if event.id not in self.rows:
                return NotFound("no such item")
            return format_id(shard, event.id) if event.kind is EventKind.MOVE else None

        return self._start("apply", list(events), lambda: [outcome(*event) for event in events], on_done)

    def _end(self, number: int) -> Outcome:
        return ALREADY_GONE if self.rows.pop(number, None) is None else None

    def _start(self, name: str, details: object, work: Callable[[], _T], on_done: Callable[[_T], None]) -> PendingCall:
        """Calls `on_done` before it returns, or when the gate opens."""
        self.calls.append((name, details))
        if self.failure is not None:
            raise self.failure
        call = HeldCall(self, name)
        if self.gate is None or self.gate.is_set():
            on_done(work())
        else:
            call.task = asyncio.get_running_loop().create_task(self._later(call, self.gate, work, on_done))
        return call

    async def _later(
        self, call: HeldCall, gate: asyncio.Event, work: Callable[[], _T], on_done: Callable[[_T], None]
    ) -> None:
        self.running += 1
        try:
            await gate.wait()
            call.task = None
            on_done(work())
        finally:
            self.running -= 1

    def unavailable_shards(self) -> int:
        return 0

    def is_partial(self) -> bool:
        return False

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        await self._record_call("topics", (prefix, states, cursor, limit))
        return [], None

    async def list_groups(self, wanted: WantedGroups, shards: Collection[int] | None = None) -> GroupList:
        await self._record_call("groups", wanted)
        return GroupList([], {}, 0, is_partial=False, is_full=False, is_paused=False, rules=None)

    async def peek(
        self,
        namespace: str,
        topic: str,
        state: State,
        cursor: str | None,
        limit: int,
        with_payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[RowView], str | None]:
        await self._record_call("peek", (topic, state, cursor, limit))
        rows = [row for row in self.rows.values() if row.topic == topic and row.state is state]
        return [RowView(3, row, NOW_MS) for row in sorted(rows, key=lambda row: row.order_key)[:limit]], None

    async def list_matching(
        self,
        namespace: str,
        item_filter: RowFilter,
        cursor: str | None,
        limit: int,
        with_payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[RowView], str | None]:
        await self._record_call("matching", (item_filter, cursor, limit, with_payload))
        rows = [row for row in self.rows.values() if item_filter.matches(row)]
        return [RowView(3, row, NOW_MS) for row in rows[:limit]], "more" if len(rows) > limit else None

    async def list_shard(self, listing: ShardListing, deadline: float) -> ShardPage:
        await self._record_call("list", listing)
        return ShardPage([], None, NOW_MS)

    async def count_matching(
        self, namespace: str, item_filter: RowFilter, deadline: float, shards: Collection[int] | None = None
    ) -> ItemTotals:
        await self._record_call("count", item_filter)
        return ItemTotals(0, 0)

    async def count_page(
        self,
        namespace: str,
        item_filter: RowFilter,
        cursor: str | None,
        limit: int,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> PageResult:
        await self._record_call("count_page", (item_filter, cursor, limit))
        return PageResult(0, 0, None, None)

    async def change_matching(
        self,
        namespace: str,
        change: Event,
        item_filter: RowFilter,
        cursor: str | None,
        limit: int,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> PageResult:
        await self._record_call("bulk", (change, item_filter, cursor, limit))
        return PageResult(0, 0, None, None)

    async def purge_topic(
        self, namespace: str, topic: str, deadline: float, shards: Collection[int] | None = None
    ) -> int:
        await self._record_call("purge", topic)
        return 0

    async def get_item(self, namespace: str, shard: int, number: int, deadline: float) -> ItemDetails:
        await self._record_call("item", (shard, number))
        if number not in self.rows:
            raise NotFound("no such item in this namespace")
        return ItemDetails(3, self.rows[number], NOW_MS, b"k\xc3\xa9y")

    async def explain(self, namespace: str, shard: int, number: int, deadline: float) -> ItemExplanation:
        await self._record_call("explain", (shard, number))
        if number not in self.rows:
            return ItemExplanation(None, ["It is gone."], [], None, False, True)
        return ItemExplanation(
            ItemDetails(3, self.rows[number], NOW_MS, None), ["First.", "Then."], ["Wait."], 7, True, False
        )

    def shard_statuses(self) -> list[ShardStatus]:
        return [ShardStatus(4, "acquiring", 0, 0, "waits"), ShardStatus(3, "owned", 1, 7, None)]

    async def _record_call(self, name: str, details: object) -> None:
        self.calls.append((name, details))
        self.running += 1
        try:
            while self.gate is not None and not self.gate.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    self.cancelled.append(name)
                    if not self.stubborn:
                        raise
        finally:
            self.running -= 1
        if self.failure is not None:
            raise self.failure
