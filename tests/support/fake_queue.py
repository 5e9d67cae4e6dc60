"""A queue for tests of the wire: remembers what it was asked, answers what it was told.

Holds items in a list without any of the real rules but the order of calls.
`gate` makes calls wait; `failure` makes them fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from foqs.core.errors import FoqsError, NamespaceNotFound, NotFound
from foqs.core.item import NewItem, Row, State, format_id, make_number
from foqs.core.life import Event, Kind, admit
from foqs.service.api import ALREADY_GONE, CallLimits, HandOut, NamespaceSettings, Outcome, Seen, TopicStats
from foqs.shard.status import ShardStatus

NOW_MS = 1_700_000_000_000

SETTINGS = NamespaceSettings(
    payload_bytes_max=10_240,
    metadata_bytes_max=1_024,
    lease_ms_default=30_000,
    lease_ms_max=3_600_000,
    attempts_max_default=0,
    backoff_ms_min=1_000,
    backoff_ms_max=60_000,
    dead_retention_ms=86_400_000,
)

LIMITS = CallLimits(
    items_per_call_max=1_000,
    topics_per_call_max=100,
    timeout_ms_default=10_000,
    timeout_ms_max=60_000,
    wait_ms_max=20_000,
)


class FakeQueue:
    """Answers the calls of `foqs.service.api.Queue` from one shard, number 3."""

    def __init__(self, limits: CallLimits = LIMITS) -> None:
        self.limits = limits
        self.rows: dict[int, Row] = {}
        self.calls: list[tuple[str, object]] = []
        self.given_back: list[str] = []
        self.cancelled: list[str] = []
        self.running = 0
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None
        self.stubborn = False
        self._next = 0
        self._token = 0

    def namespace(self, name: str) -> NamespaceSettings:
        if name != "default":
            raise NamespaceNotFound(f"there is no namespace {name!r}", field="namespace_name")
        return SETTINGS

    async def enqueue(self, namespace: str, items: Sequence[NewItem], deadline: float) -> list[str | FoqsError]:
        await self._begin("enqueue", list(items))
        ids: list[str | FoqsError] = []
        for item in items:
            self._next += 1
            number = make_number(1, self._next)
            self.rows[number] = admit(item, number, NOW_MS)
            ids.append(format_id(3, number))
        return ids

    async def dequeue(
        self, namespace: str, wants: Sequence[tuple[str, int]], wait_ms: int, lease_ms: int | None, deadline: float
    ) -> HandOut:
        await self._begin("dequeue", (list(wants), wait_ms, lease_ms))
        out: list[Seen] = []
        for topic, count in wants:
            ready = [row for row in self.rows.values() if row.topic == topic and row.state is State.READY]
            for row in sorted(ready, key=lambda row: row.key)[:count]:
                self._token += 1
                row.state, row.token, row.attempt = State.LEASED, self._token, row.attempt + 1
                row.due_ms = NOW_MS + (lease_ms or row.lease_ms)
                out.append(Seen(3, row, NOW_MS))
        return HandOut(out, lambda: self.given_back.extend(format_id(3, seen.row.id) for seen in out))

    async def apply(self, namespace: str, events: Sequence[tuple[int, Event]], deadline: float) -> list[Outcome]:
        await self._begin("apply", list(events))
        outcomes: list[Outcome] = []
        for _, event in events:
            if event.kind in (Kind.ACK, Kind.CANCEL):
                gone = self.rows.pop(event.id, None) is None
                outcomes.append(ALREADY_GONE if gone else None)
            else:
                outcomes.append(None if event.id in self.rows else NotFound("no such item"))
        return outcomes

    async def topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        await self._begin("topics", (prefix, states, cursor, limit))
        names = sorted({row.topic for row in self.rows.values() if row.topic.startswith(prefix)})
        page = [name for name in names if cursor is None or name > cursor]
        stats = [self._stats(name) for name in page[:limit]]
        return stats, page[limit - 1] if len(page) > limit else None

    def _stats(self, topic: str) -> TopicStats:
        rows = [row for row in self.rows.values() if row.topic == topic]
        counts = [sum(row.state is state for row in rows) for state in State]
        return TopicStats(
            topic=topic,
            deferred=counts[0],
            ready=counts[1],
            leased=counts[2],
            dead=counts[3],
            best_priority=min(row.priority for row in rows),
            oldest_ready_age_ms=None,
            next_due_in_ms=None,
            paused=False,
            counts_lag=False,
        )

    async def peek(
        self, namespace: str, topic: str, state: State, cursor: str | None, limit: int, deadline: float
    ) -> tuple[list[Seen], str | None]:
        await self._begin("peek", (topic, state, cursor, limit))
        rows = [row for row in self.rows.values() if row.topic == topic and row.state is state]
        return [Seen(3, row, NOW_MS) for row in sorted(rows, key=lambda row: row.key)[:limit]], None

    async def item(self, namespace: str, shard: int, number: int, deadline: float) -> Seen:
        await self._begin("item", (shard, number))
        if number not in self.rows:
            raise NotFound("no such item in this namespace")
        return Seen(3, self.rows[number], NOW_MS)

    def shards(self) -> list[ShardStatus]:
        return [ShardStatus(4, "acquiring", 0, 0, "waits"), ShardStatus(3, "owned", 1, 7, None)]

    async def _begin(self, name: str, details: object) -> None:
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
