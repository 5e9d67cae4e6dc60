"""The queue's port: the calls of one host, in the core's own types.

`rpc` converts Thrift structs to these types and back. `queue.queue_service`
implements the port; tests may implement it differently. A deadline is a moment
of the event loop's clock, in seconds. Every call ends by its deadline.

Calls that carry items take an `on_done` callback instead of being coroutines:
this path is hot, and a task per call would cost more than all the rest.
`on_done` is called once, in the event loop, perhaps before the method returns.
A call that is refused as a whole raises `FoqsError` and never calls `on_done`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.topic_keys import TopicKeys
from foqs.core.flush.completions import CompletedIds as CompletedIds
from foqs.core.flush.completions import CompletionEntry
from foqs.core.flush.operation import ALREADY_GONE as ALREADY_GONE
from foqs.core.flush.operation import AlreadyGone as AlreadyGone
from foqs.core.flush.operation import Repeated as Repeated
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.groups.group_stats import GroupOrder, GroupState
from foqs.core.items.item import NewItem, Row, State
from foqs.core.items.life import Event
from foqs.core.items.row_filter import RowFilter
from foqs.queue.call_limits import CallLimits
from foqs.queue.outage import Outage
from foqs.shard.host_shards import ShardStatus
from foqs_contract.errors import FoqsError

ITEM_OVERHEAD_BYTES: Final = 1_024
"""The most bytes that an item's names and numbers take in a reply."""


@dataclass(slots=True)
class RowView:
    """An item as it was at `now_ms` on its shard's clock. Must not be changed.

    `real_wait_ms` returns the real time until a moment of that clock. It is None unless the clock runs faster than real
    time.
    """

    shard: int
    row: Row
    now_ms: int
    real_wait_ms: Callable[[int], int] | None = field(default=None, kw_only=True)

    @property
    def lease_left_ms(self) -> int:
        """The time until the lease ends, at least 0."""
        due_ms = self.row.due_ms
        if due_ms is None:
            return 0
        left_ms = due_ms - self.now_ms
        if self.real_wait_ms is not None:
            left_ms = min(left_ms, self.real_wait_ms(due_ms))
        return left_ms if left_ms > 0 else 0


@dataclass(slots=True)
class ItemDetails(RowView):
    """One item with its idempotency key; None if it has none, or if the key is no longer remembered."""

    idempotency_key: bytes | None


@dataclass(slots=True, frozen=True)
class ShardListing:
    """A request for a page of the items of one shard that match, after a cursor (None: the first page)."""

    namespace: str
    only: RowFilter
    shard: int
    cursor: str | None
    limit: int
    with_payload: bool
    with_key: bool


@dataclass(slots=True, frozen=True)
class ShardPage:
    """A page of the items of a shard, as they were at `now_ms` on its clock, and the cursor of the next page."""

    items: Sequence[RowView]
    next_cursor: str | None
    now_ms: int


@dataclass(slots=True, frozen=True)
class LeasedItems:
    """Items whose leases are committed, for one caller.

    `give_back` releases them, so that the attempt does not count. Call it if the reply
    cannot be written at all. Never call it after the first byte of the reply
    was passed to the transport.

    `outage`: without items, the shards that may hold some and could not deliver.
    """

    items: list[RowView]
    give_back: Callable[[], None]
    outage: Outage | None = None


NOTHING_LEASED: Final = LeasedItems([], lambda: None)


EnqueueOutcome: TypeAlias = str | Repeated | FoqsError
"""The outcome of one item: the id of the new item, the `Repeated` id of an earlier one, or the error."""


@dataclass(slots=True, frozen=True)
class TopicStats:
    """The items of one topic on this host."""

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
    group_leases_max: int | None = None
    """The topic's limit on the leases of a group."""
    fair: Fairness | None = None
    """What the topic's groups share by taking turns."""
    deliverable: int | None = None
    """The READY items that no group holds back, as far as they are known; see `ShardMemory.deliverable_count`. None: all."""


@dataclass(slots=True, frozen=True)
class WantedGroups:
    """A request for the first groups of a topic in an order: only those in some states (None: any), or only one by name."""

    namespace: str
    topic: str
    order: GroupOrder
    states: frozenset[GroupState] | None
    group: str | None
    limit: int


@dataclass(slots=True, frozen=True)
class GroupStats:
    """A group of a topic, as its shard has it in memory. None: it does not apply, or is not known.

    `groups_before` counts those of this host whose turn comes before. See `GroupFigures` for the others.
    """

    shard: int
    group: str
    state: GroupState
    ready: int
    ready_more: bool
    leased: int | None
    backing_off: int | None
    priority: int | None
    oldest_ready_age_ms: int | None
    blockers: Sequence[str]
    resumes_in_ms: int | None
    groups_before: int | None
    weight: int | None


@dataclass(slots=True, frozen=True)
class GroupList:
    """Groups of a topic on some shards of this host, in order.

    Attributes:
        counts: the groups of all states by state, also beyond the limit.
        ungrouped: the known READY items without a group; None if one group was wanted.
        is_partial: groups or items may be missing, because not all are in memory, or were not counted.
        is_full: the memory of a shard is full of groups under delivery.
        rules: None if the topic has no rules for groups.
    """

    groups: Sequence[GroupStats]
    counts: Mapping[GroupState, int]
    ungrouped: int | None
    is_partial: bool
    is_full: bool
    is_paused: bool
    rules: GroupRules | None


ListTopics: TypeAlias = Callable[
    [str, str, Sequence[State] | None, str | None, int], Awaitable[tuple[list[TopicStats], str | None]]
]
"""See `QueueReads.list_topics`."""


@dataclass(slots=True, frozen=True)
class ItemTotals:
    """A number of items, and the bytes of their payloads: None if they were counted without being read."""

    items: int
    payload_bytes: int | None


@dataclass(slots=True, frozen=True)
class PageResult:
    """The result of a page: items changed, and matching items that refuse the change, with the first one's error.

    `matched` counts the items that the page is done with: changed, refused, or gone meanwhile.
    """

    changed: int
    refused: int
    refusal: FoqsError | None
    next_cursor: str | None
    matched: int = 0


@dataclass(slots=True, frozen=True)
class ItemExplanation:
    """The reasons why an item is not delivered, and the remedies: one sentence each, the most important first.

    `item` is None if there is no such item (`absent`) or its shard cannot be read.
    `better_items` counts the READY items that come before this READY one; None if they were not counted.
    `better_items_more` is set if the count stopped at `better_items_max`.

    Of a READY item of a topic with rules for groups: `blockers` are the ids that must be settled or delivered before it,
    `group_items_before` counts the known READY items of its group before it, and `groups_before` the groups of a fair topic
    whose turn comes before its own; None if they are not known.
    """

    item: ItemDetails | None
    reasons: Sequence[str]
    remedies: Sequence[str]
    better_items: int | None
    better_items_more: bool
    absent: bool
    blockers: Sequence[str] = ()
    group_items_before: int | None = None
    groups_before: int | None = None


CompletionOutcome: TypeAlias = CompletedIds | FoqsError
"""The outcome of one completion: the ids of its items, or the error."""


class ShardCompletion(NamedTuple):
    """A completion of an item of a shard. `place`: its place in the call."""

    shard: int
    completion: CompletionEntry
    place: int = 0


Outcome: TypeAlias = AlreadyGone | FoqsError | str | Repeated | None
"""The outcome of one event. None: done and committed. Of a MOVE: the id of the new item; `Repeated`: of an earlier call."""


class PendingCall(Protocol):
    """A call in flight."""

    def abandon(self) -> None:
        """Give the call up: `on_done` will not be called, and items that were leased for the call are released.

        Does nothing after `on_done` was called.
        """
        ...


class QueueReads(Protocol):
    """The calls of one host's queue that only read.

    Every method may raise `FoqsError`. `shards` limits a call to these shards, which must all be served here. None
    means all shards that this host should own.
    """

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        """Return a page of topics by name, and the cursor of the next page. `states` None means READY or LEASED."""
        ...

    def unavailable_shards(self) -> int:
        """Return how many shards of this host are not served, or cannot deliver."""
        ...

    def is_partial(self) -> bool:
        """Return whether a list of topics lacks those of some shards, because they are not served now."""
        ...

    async def list_groups(self, wanted: WantedGroups, shards: Collection[int] | None = None) -> GroupList:
        """Return groups of a topic that are in memory. Reads no row, and ends after a bounded time."""
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
    ) -> tuple[list[RowView], str | None]:
        """Return a page of a topic's items in one state, best first, with or without payload."""
        ...

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
        """Return a page of the items that match, with or without payload, and the cursor of the next page.

        Ages in `item_filter` are measured at the start of the first page, here and below.
        """
        ...

    async def list_shard(self, listing: ShardListing, deadline: float) -> ShardPage:
        """Return a page of the items of one shard, by id. With keys, the items are `ItemDetails`.

        Raises:
            NotOwner, Unavailable: this host does not serve the shard now.
        """
        ...

    async def count_matching(
        self, namespace: str, item_filter: RowFilter, deadline: float, shards: Collection[int] | None = None
    ) -> ItemTotals:
        """Count the items that match."""
        ...

    async def count_page(
        self,
        namespace: str,
        item_filter: RowFilter,
        cursor: str | None,
        limit: int,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> PageResult:
        """Count a page of the items that match, as `matched`. It ends after a bounded time; a limit of 0 only starts the filter walk."""
        ...

    async def get_item(self, namespace: str, shard: int, number: int, deadline: float) -> ItemDetails:
        """Return one item. Raises `NotFound`, `NotOwner`, `Unavailable`."""
        ...

    async def explain(self, namespace: str, shard: int, number: int, deadline: float) -> ItemExplanation:
        """Explain why an item is not delivered, or that there is no such item. Raises `NotOwner`."""
        ...


class BulkChanges(Protocol):
    """The calls of one host's queue that change all items of a filter or a topic. See `QueueReads` for `shards`."""

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
        """Apply `change` to a page of the items that match. The id of `change` is not used.

        Items that have the result already, and those that this filter walk has redriven before, are skipped.

        An empty page holds the cursor at which the next one starts.

        Raises:
            UnknownOutcome: some of the page may be changed; a call with the same cursor is safe.
        """
        ...

    async def purge_topic(
        self, namespace: str, topic: str, deadline: float, shards: Collection[int] | None = None
    ) -> int:
        """Delete all items that the topic has now, in every state. Returns how many, as far as they are counted.

        Raises:
            UnknownOutcome: some may be deleted; another call deletes the others, and those that came since.
        """
        ...


class Queue(Protocol):
    """One host's queue.

    Every method may raise `FoqsError` for the call as a whole.
    """

    limits: CallLimits

    @property
    def reads(self) -> QueueReads:
        """The calls that only read."""
        ...

    @property
    def bulk(self) -> BulkChanges:
        """The calls that change many items."""
        ...

    def namespace_settings(self, name: str) -> NamespaceSettings:
        """Return the settings of a namespace. Raises `NamespaceNotFound`."""
        ...

    def topic_keys(self, name: str) -> TopicKeys:
        """Return what the queues of a namespace say of the idempotency keys of their topics."""
        ...

    def enqueue(
        self,
        namespace: str,
        items: Sequence[NewItem],
        deadline: float,
        on_done: Callable[[list[EnqueueOutcome]], None],
        *,
        is_atomic: bool = False,
    ) -> PendingCall:
        """Enqueue the items. Replies with a committed id or an error for each, in order.

        Items with an idempotency key are `KeyedItem`s. An atomic call passed `check_atomic_items`; either all its outcomes
        are ids, or all are one error.
        """
        ...

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
        """Deliver the best READY items of (topic, count) pairs; none if none came within `wait_ms`.

        Without items the reply has the outage of the shards, if there is one.

        Args:
            items_max: limit for all topics together; earlier topics are served first.
            run_max: how many items of a strict group are delivered together. They follow each other in the reply.
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
        """Ack the (shard, number) ids with their tokens. Replies with an outcome for each, in order. Ids must be distinct."""
        ...

    def complete(
        self,
        namespace: str,
        entries: Sequence[ShardCompletion],
        deadline: float,
        on_done: Callable[[list[CompletionOutcome]], None],
    ) -> PendingCall:
        """Ack each item and enqueue those that follow from it, or do neither. Replies with an outcome for each, in order.

        Ids must be distinct. The items of each passed `check_completion_items`.
        """
        ...

    def apply(
        self,
        namespace: str,
        events: Sequence[tuple[int, Event]],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        """Apply each (shard, event). Replies with an outcome for each, in order. Ids must be distinct."""
        ...

    def shard_statuses(self) -> list[ShardStatus]:
        """Return the status of each shard of this host."""
        ...
