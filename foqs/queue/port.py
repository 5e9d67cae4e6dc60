"""What the wire asks of the queue: the calls of one host, in the core's own types.

The wire turns Thrift structs into these and back; `queue.queue_service` answers
them; tests may put anything else here. Deadlines are moments of the event
loop's clock, in seconds. Every call ends by its deadline.

The calls that carry items take a `done` callback instead of being coroutines:
their way is short and hot, and a task for each would cost more than the rest.
`done` is called once, in the event loop, perhaps before the method returns; a
call that is refused as a whole raises `FoqsError` at once and never calls it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.core.errors import FoqsError
from foqs.core.flush.work import ALREADY_GONE as ALREADY_GONE
from foqs.core.flush.work import AlreadyGone as AlreadyGone
from foqs.core.items.item import NewItem, Row, State
from foqs.core.items.item_filter import ItemFilter
from foqs.core.items.life import Event
from foqs.options.rpc_options import CallOptions
from foqs.shard.status import ShardStatus


@dataclass(slots=True)
class ItemView:
    """An item as it was at `now_ms` on its shard's clock. Not to be changed.

    `real_wait_ms`: how long it really is until a moment of that clock; None while the clock passes no faster than real time.
    """

    shard: int
    row: Row
    now_ms: int
    real_wait_ms: Callable[[int], int] | None = field(default=None, kw_only=True)

    @property
    def lease_left_ms(self) -> int:
        """The time for which its lease is kept."""
        due_ms = self.row.due_ms
        if due_ms is None:
            return 0
        left_ms = due_ms - self.now_ms
        if self.real_wait_ms is not None:
            left_ms = min(left_ms, self.real_wait_ms(due_ms))
        return left_ms if left_ms > 0 else 0


@dataclass(slots=True)
class ItemDetails(ItemView):
    """An item that somebody looked at alone. `key`: the idempotency key that names it; None where none does."""

    idempotency_key: bytes | None


@dataclass(slots=True, frozen=True)
class Deliveries:
    """Items whose leases are committed, for one caller.

    `give_back` releases them without counting the attempt. Call it when the
    reply cannot be written at all, and never after its first byte was given to
    the transport.
    """

    items: list[ItemView]
    release: Callable[[], None]


@dataclass(slots=True, frozen=True)
class Repeated:
    """An enqueue whose key named an item already, and the same one: its id."""

    id: str


EnqueueOutcome: TypeAlias = str | Repeated | FoqsError
"""The id of an item that is committed, new or named before, or why there is none."""


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


ListTopics: TypeAlias = Callable[
    [str, str, Sequence[State] | None, str | None, int], Awaitable[tuple[list[TopicStats], str | None]]
]
"""See `Queue.list_topics`."""


@dataclass(slots=True, frozen=True)
class ItemCount:
    """How many items, and their payloads' bytes; None where they were counted without being read."""

    items: int
    payload_bytes: int | None


@dataclass(slots=True, frozen=True)
class BulkPage:
    """What became of a page: items changed, and items that match and cannot be changed so, with the first one's error."""

    changed: int
    refused: int
    refusal: FoqsError | None
    next_cursor: str | None


@dataclass(slots=True, frozen=True)
class ItemExplanation:
    """Why an item is not delivered and what would change it, one sentence each, the weightiest first.

    `item` is None where the item is not there (`absent`) or its shard cannot be asked.
    `better_items`: READY items that come before a READY one; None where they were not counted. Counting stops at
    `better_items_max`: then `better_items_more`.
    """

    item: ItemDetails | None
    reasons: Sequence[str]
    remedies: Sequence[str]
    better_items: int | None
    better_items_more: bool
    absent: bool


Outcome: TypeAlias = AlreadyGone | FoqsError | None
"""None: done and committed."""


class PendingCall(Protocol):
    """A call under way."""

    def abandon(self) -> None:
        """Nobody waits any more: `done` will not be called, and what was leased for the call is released.

        Does nothing once `done` was called.
        """
        ...


class Queue(Protocol):
    """One host's queue.

    Every method may raise `FoqsError` for the call as a whole.
    """

    limits: CallOptions

    def namespace_settings(self, name: str) -> NamespaceSettings:
        """Raises `NamespaceNotFound`."""
        ...

    def enqueue(
        self, namespace: str, items: Sequence[NewItem], deadline: float, on_done: Callable[[list[EnqueueOutcome]], None]
    ) -> PendingCall:
        """An id (committed) or an error for each item, in order; those with a key are `KeyedItem`s."""
        ...

    def dequeue(
        self,
        namespace: str,
        topic_limits: Sequence[tuple[str, int]],
        wait_ms: int,
        lease_ms: int | None,
        deadline: float,
        on_done: Callable[[Deliveries], None],
        items_max: int | None = None,
    ) -> PendingCall:
        """The best ready items of (topic, count) pairs; empty when none came within `wait_ms`.

        Args:
            items_max: of all topics together; those that come first are served first.
        """
        ...

    def ack(
        self,
        namespace: str,
        ids: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        """Acks the (shard, number) with their tokens; an outcome for each, in order. No id twice."""
        ...

    def apply(
        self,
        namespace: str,
        events: Sequence[tuple[int, Event]],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        """Runs each (shard, event); an outcome for each, in order. No id twice."""
        ...

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        """A page of topics by name, and the cursor of the next page. `states` None: READY or LEASED."""
        ...

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
    ) -> tuple[list[ItemView], str | None]:
        """A page of a topic's items in one state, best first, with or without payload.

        `shards`, here and below: of these alone, which must all be served here; None: of all that should be here.
        """
        ...

    async def list_matching(
        self,
        namespace: str,
        item_filter: ItemFilter,
        cursor: str | None,
        limit: int,
        with_payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[ItemView], str | None]:
        """A page of the items that match, with or without payload, and the cursor of the next.

        The ages of `item_filter` count up to the beginning of the first page, here and below.
        """
        ...

    async def count_matching(
        self, namespace: str, item_filter: ItemFilter, deadline: float, shards: Collection[int] | None = None
    ) -> ItemCount:
        """How many items match."""
        ...

    async def change_matching(
        self,
        namespace: str,
        change: Event,
        item_filter: ItemFilter,
        cursor: str | None,
        limit: int,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> BulkPage:
        """Runs `change` on a page of the items that match and are not as it would make them; its id is not used.

        A page of none tells where it would begin.

        Raises:
            UnknownOutcome: some of the page may be changed; the same cursor again does no harm.
        """
        ...

    async def purge_topic(
        self, namespace: str, topic: str, deadline: float, shards: Collection[int] | None = None
    ) -> int:
        """Ends all items that the topic has now, in every state; how many those were, as far as they are counted.

        Raises:
            UnknownOutcome: some may be ended; calling again ends the others, and what has come meanwhile.
        """
        ...

    async def get_item(self, namespace: str, shard: int, number: int, deadline: float) -> ItemDetails:
        """One item. Raises `NotFound`, `NotOwner`, `Unavailable`."""
        ...

    async def explain(self, namespace: str, shard: int, number: int, deadline: float) -> ItemExplanation:
        """Why an item is not delivered; an answer too where there is no such item. Raises `NotOwner`."""
        ...

    def shard_statuses(self) -> list[ShardStatus]:
        """The shards of this host."""
        ...
