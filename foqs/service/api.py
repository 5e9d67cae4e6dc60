"""What the wire asks of the queue: the calls of one host, in the core's own types.

The wire turns Thrift structs into these and back; `service.queue` answers
them; tests may put anything else here. Deadlines are moments of the event
loop's clock, in seconds. Every call ends by its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from foqs.core.errors import FoqsError
from foqs.core.item import NewItem, Row, State
from foqs.core.life import Event
from foqs.shard.status import ShardStatus


@dataclass(slots=True, frozen=True)
class NamespaceSettings:
    """What holds for the items of one namespace; see `[namespace]` in configs/foqs.toml."""

    payload_bytes_max: int
    metadata_bytes_max: int
    lease_ms_default: int
    lease_ms_max: int
    attempts_max_default: int
    backoff_ms_min: int
    backoff_ms_max: int
    dead_retention_ms: int


@dataclass(slots=True, frozen=True)
class CallLimits:
    """What one call may ask for."""

    items_per_call_max: int
    topics_per_call_max: int
    timeout_ms_default: int
    timeout_ms_max: int
    wait_ms_max: int


@dataclass(slots=True, frozen=True)
class Seen:
    """An item as it was at `now_ms` on its shard's clock."""

    shard: int
    row: Row
    now_ms: int


@dataclass(slots=True, frozen=True)
class HandOut:
    """Items whose leases are committed, for one caller.

    `give_back` releases them without counting the attempt. Call it when the
    reply cannot be written at all, and never after its first byte was given to
    the transport.
    """

    items: list[Seen]
    give_back: Callable[[], None]


@dataclass(slots=True, frozen=True)
class TopicStats:
    """What this host holds of one topic."""

    topic: str
    ready: int
    deferred: int
    leased: int
    dead: int
    best_priority: int | None
    oldest_ready_age_ms: int | None
    next_due_in_ms: int | None
    paused: bool
    counts_lag: bool


class AlreadyGone:
    """The outcome of an ack or cancel that found nothing to do: a success."""


ALREADY_GONE = AlreadyGone()

Outcome: TypeAlias = "AlreadyGone | FoqsError | None"
"""None: done and committed."""


class Queue(Protocol):
    """One host's queue.

    Every method may raise `FoqsError` for the call as a whole.
    """

    limits: CallLimits

    def namespace(self, name: str) -> NamespaceSettings:
        """Raises `NamespaceNotFound`."""
        ...

    async def enqueue(self, namespace: str, items: Sequence[NewItem], deadline: float) -> list[str | FoqsError]:
        """An id (committed) or an error for each item, in order."""
        ...

    async def dequeue(
        self, namespace: str, wants: Sequence[tuple[str, int]], wait_ms: int, lease_ms: int | None, deadline: float
    ) -> HandOut:
        """The best ready items of (topic, count) pairs; empty when none came within `wait_ms`."""
        ...

    async def apply(self, namespace: str, events: Sequence[tuple[int, Event]], deadline: float) -> list[Outcome]:
        """Runs each (shard, event); an outcome for each, in order."""
        ...

    async def topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        """A page of topics by name, and the cursor of the next page. `states` None: READY or LEASED."""
        ...

    async def peek(
        self, namespace: str, topic: str, state: State, cursor: str | None, limit: int, deadline: float
    ) -> tuple[list[Seen], str | None]:
        """A page of a topic's items in one state, best first."""
        ...

    async def item(self, namespace: str, shard: int, number: int, deadline: float) -> Seen:
        """One item. Raises `NotFound`, `NotOwner`, `Unavailable`."""
        ...

    def shards(self) -> list[ShardStatus]:
        """The shards of this host."""
        ...
