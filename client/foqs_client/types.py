"""The client's arguments and results, as plain dataclasses.

Always true: times are integer milliseconds and relative, except
`deliver_after_ms`. States are "deferred", "ready", "leased" and "dead". None means
that a value was not given or is not known. Fields have the names of the contract,
so that the codec reads and writes `Item`, `Enqueued` and `Delivery` without a
conversion. Knows nothing of Thrift.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, dataclass_transform

from foqs_client.errors import FoqsError

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def _value_class(kind: type[T]) -> type[T]:
    """Make a dataclass whose objects are created by the hundred thousand.

    Only the type checker treats it as frozen. A guard of each field at run time
    would cost more than all other work on an item.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)


@_value_class
class Item:
    """An item to enqueue. A field that is None gets the default of the namespace.

    Example: `Item("mail", b"hello", priority=-5, delay_ms=60_000, idempotency_key="order-17")`

    Attributes:
        topic: 1 to 255 bytes of UTF-8 without NUL, kept exactly.
        payload: at most the limit of the namespace, 10,240 bytes by default. It never changes.
        priority: signed 32-bit integer. The lowest is delivered first.
        metadata: at most 1,024 bytes. A nack or an update may replace it.
        delay_ms: the item is not delivered before this time has passed.
        deliver_after_ms: the item is not delivered before this moment, in milliseconds
            since 1970-01-01 UTC. Set at most one of `delay_ms` and `deliver_after_ms`.
        lease_ms: the time in which a consumer must settle the item or extend its lease.
        ttl_ms: the item expires this long after its enqueue: it is deleted, unless it is leased
            then. None: never.
        at_most_once: a nack, or the end of a lease, deletes the item.
        attempts_max: the item is dead after this number of deliveries; 0 means no limit.
        idempotency_key: 1 to 255 bytes of UTF-8 without NUL. The same key and item again
            return the first id; the same key with another item is a `KeyConflict`.
        trace_context: the trace to which the item belongs, at most 512 bytes; a host returns
            it as it is. It never changes, and a repeat of the idempotency key may have another.
        key_until_ms: the end of the idempotency key by the clock of its shard, in milliseconds
            since 1970-01-01 UTC, at most the namespace's key window ahead. If the key is not
            remembered then, the result is `KeyEnded`, and nothing is written.
        group: the group of the item, such as a customer: 1 to 255 bytes of UTF-8 without NUL. All
            items of a group of the namespace are in one shard, and an idempotency key is unique
            within its group. The policy of the topic may limit how many items of a group are leased at
            once.
    """

    topic: str
    payload: bytes = b""
    priority: int = 0
    metadata: bytes = b""
    delay_ms: int | None = None
    deliver_after_ms: int | None = None
    lease_ms: int | None = None
    ttl_ms: int | None = None
    at_most_once: bool = False
    attempts_max: int | None = None
    idempotency_key: str | None = None
    trace_context: bytes | None = None
    key_until_ms: int | None = None
    group: str | None = None

    @property
    def delivery_policy(self) -> int | None:
        """The number of the delivery policy in the contract; None means at least once."""
        return 2 if self.at_most_once else None


class EntryResult(Protocol):
    """The result of one entry of a call. `error` is None if the entry was done."""

    @property
    def error(self) -> FoqsError | None: ...


@_value_class
class Enqueued:
    """The result of one enqueued item: an id, or an error.

    Attributes:
        id: the item's id. The item is durable.
        error: why the item was not enqueued.
        repeated: an earlier enqueue with the same idempotency key created the item.
    """

    id: str | None = None
    error: FoqsError | None = None
    repeated: bool = False

    def require(self) -> str:
        """Return the id, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.id is not None
        return self.id


@dataclass(slots=True, frozen=True)
class RestoredItem:
    """An item of an export, to be added with its history. Times are in milliseconds.

    Attributes:
        topic: the topic.
        restore_key: makes the call repeatable, for an item without an idempotency key: 1 to 200
            bytes of UTF-8 without NUL, such as the name of the export and the former id.
        idempotency_key: the item's own key. If it is in use, nothing is added.
        deliver_after_ms: not delivered before this moment, since 1970-01-01 UTC. One in the past
            is the item's place in the order. None: now.
        ttl_ms: the whole TTL. A redrive gives it again.
        ttl_remaining_ms: the rest of the TTL. None: the whole one.
        attempt: the deliveries that the item had.
        state: `ready`, `deferred`, `leased` or `dead`. A leased item becomes ready. An item that
            may not be delivered again becomes dead.
        group: the group of the item. With it, the key is unique within the group.
    """

    topic: str
    payload: bytes = b""
    priority: int = 0
    metadata: bytes = b""
    restore_key: str | None = None
    idempotency_key: str | None = None
    deliver_after_ms: int | None = None
    lease_ms: int | None = None
    ttl_ms: int | None = None
    ttl_remaining_ms: int | None = None
    at_most_once: bool = False
    attempts_max: int | None = None
    attempt: int = 0
    state: str = "ready"
    trace_context: bytes | None = None
    group: str | None = None


@_value_class
class Delivery:
    """A delivered item. `id` and `token` name its lease.

    Attributes:
        id: the item's id.
        token: the number of this lease. A later lease of the item makes it stale.
        attempt: 1 for the first delivery. A released delivery does not count.
        attempts_max: the number of deliveries after which the item is dead; 0 means no limit.
        lease_remaining_ms: the time left of the lease when the host wrote its reply.
        age_ms: the time since the enqueue.
        first_delivery_age_ms: the time since the first delivery of the item; 0 with the first one.
        trace_context: the trace context of the enqueue.
        incarnation: the number of the namespace's incarnation. With it, the id is unique among all
            installations. 0 if the host is too old to give it.
        group: the group of the item, if it has one.
    """

    id: str = ""
    token: int = 0
    topic: str = ""
    priority: int = 0
    payload: bytes = b""
    metadata: bytes = b""
    attempt: int = 0
    attempts_max: int = 0
    lease_remaining_ms: int = 0
    age_ms: int = 0
    first_delivery_age_ms: int | None = None
    trace_context: bytes | None = None
    incarnation: int = 0
    group: str | None = None


class Deliveries(list[Delivery]):
    """The items of a dequeue.

    Attributes:
        unavailable_shards: without items, how many shards may hold items of the topics and could not deliver them; 0 if
            the topics had nothing ready. A program that empties a queue is done only at 0.
    """

    __slots__ = ("unavailable_shards",)

    def __init__(self, deliveries: Iterable[Delivery] = (), unavailable_shards: int = 0) -> None:
        super().__init__(deliveries)
        self.unavailable_shards = unavailable_shards


@_value_class
class Completion:
    """A delivery that is done, and the items that follow from it, for `Client.complete`.

    Attributes:
        delivery: the delivery, or its (id, token).
        items: at least one.
    """

    delivery: Delivery | tuple[str, int]
    items: Sequence[Item]


@_value_class
class Completed:
    """The result of one completion: the ids of its items, or an error. With an error nothing was changed.

    Attributes:
        ids: the ids in the order of the items. The id of an item that repeats the item of its own key is the first one.
        error: why the completion was not written.
        repeated: an earlier attempt wrote it.
    """

    ids: Sequence[str] | None = None
    error: FoqsError | None = None
    repeated: bool = False

    def require(self) -> Sequence[str]:
        """Return the ids, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.ids is not None
        return self.ids


@_value_class
class Nack:
    """A delivery to nack, for `Client.nack`.

    Attributes:
        id: the id of the delivery.
        token: the token of the delivery.
        delay_ms: deliver the item again after this time.
        deliver_after_ms: deliver the item again after this moment, in milliseconds since
            1970-01-01 UTC. If neither is set, the namespace's backoff decides.
        metadata: replaces the item's metadata; None keeps it.
        dead: give the item up.
    """

    id: str
    token: int
    delay_ms: int | None = None
    deliver_after_ms: int | None = None
    metadata: bytes | None = None
    dead: bool = False


@dataclass(slots=True, frozen=True)
class Change:
    """A change of items, for `update` and `update_matching`. None leaves a value as it is.

    Attributes:
        priority: the new priority.
        delay_ms: the items are not delivered before this time has passed; 0 means now.
            Only ready and deferred items can be delayed, and for less than their TTL.
        deliver_after_ms: the items are not delivered before this moment, in milliseconds
            since 1970-01-01 UTC. Set at most one of `delay_ms` and `deliver_after_ms`.
        metadata: replaces the metadata.
    """

    priority: int | None = None
    delay_ms: int | None = None
    deliver_after_ms: int | None = None
    metadata: bytes | None = None


@dataclass(slots=True, frozen=True)
class ItemFilter:
    """A filter of items: an item must meet all conditions that are not None. Bounds are inclusive.

    Attributes:
        topic: the topic of the items.
        states: any of "deferred", "ready", "leased" and "dead".
        priority_min: the lowest priority that matches.
        priority_max: the highest priority that matches.
        age_min_ms: the shortest time since the enqueue.
        age_max_ms: the longest time since the enqueue. Items that are enqueued after the
            call of the first page never match.
        topics: any of these topics, 1 to 1,000; without `topic`.
        group: the group of the items.
    """

    topic: str | None = None
    states: Sequence[str] | None = None
    priority_min: int | None = None
    priority_max: int | None = None
    age_min_ms: int | None = None
    age_max_ms: int | None = None
    topics: Sequence[str] | None = None
    group: str | None = None


@dataclass(slots=True, frozen=True)
class ItemCount:
    """The number of items that match a filter.

    Attributes:
        items: the number of items.
        payload_bytes: the size of their payloads; None if the host did not read them.
    """

    items: int
    payload_bytes: int | None


@dataclass(slots=True, frozen=True)
class BulkPage:
    """The result of one page of a bulk call.

    Attributes:
        changed: the number of items that were changed.
        refused: the number of items that match but cannot be changed in this way.
        refusal: why the first of them was refused.
        next_cursor: pass it to the next call; None on the last page.
    """

    changed: int
    refused: int
    refusal: FoqsError | None
    next_cursor: str | None


@dataclass(slots=True, frozen=True)
class Outcome:
    """The result of one entry of a call.

    Attributes:
        error: why the entry failed; None: it is done and durable.
        already_gone: an ack or a cancel succeeded because the item was gone before it.
    """

    error: FoqsError | None = None
    already_gone: bool = False

    def require(self) -> None:
        """Raise the error if there is one."""
        if self.error is not None:
            raise self.error


DONE: Final = Outcome()
"""The outcome of nearly all entries."""


@dataclass(slots=True, frozen=True)
class Topic:
    """A topic and its counts of items.

    Attributes:
        best_priority: the best priority among its ready items; None if there are none.
        oldest_ready_age_ms: the time since the enqueue of its oldest ready item.
        next_due_in_ms: the time until its next deferred item is due.
        paused: it is not delivered until it is resumed.
        counts_lag: its owner changed, and its items are still being counted.
        group_leases_max: how many items of one group may be leased at once, by the topic's policy; None: any number. Then
            some ready items may have to wait for their group.
        fair: what its groups share by taking turns, "items" or "time"; None: they take no turns.
    """

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
    fair: str | None = None


@dataclass(slots=True, frozen=True)
class TopicPage:
    """A page of topics.

    Attributes:
        topics: the topics by name.
        next_cursor: pass it to the next call; None on the last page.
        unavailable_shards: how many shards are not served, so that topics may be missing, or cannot deliver their items.
    """

    topics: list[Topic]
    next_cursor: str | None
    unavailable_shards: int = 0


@dataclass(slots=True, frozen=True)
class ItemView:
    """An item as it is stored, for people and tools. A value that does not apply is None.

    Attributes:
        payload: None unless the call asked for it.
        age_ms: the time since the enqueue.
        due_in_ms: the time until a deferred item is due.
        lease_remaining_ms: the time until the lease ends.
        ttl_remaining_ms: the time until the TTL ends.
        payload_bytes: the size of the payload.
        idempotency_key: the key of the enqueue, while it is remembered; only from `item`, `explain`, and `list_items`
            with `with_key`.
        dead_reason: one sentence: why the item was given up.
        first_delivery_age_ms: the time since the first delivery; None if there was none.
        trace_context: the trace context of the enqueue.
        group: the group of the item.
    """

    id: str
    topic: str
    state: str
    priority: int
    payload: bytes | None
    metadata: bytes | None
    at_most_once: bool
    attempt: int
    attempts_max: int | None
    lease_ms: int | None
    age_ms: int | None
    due_in_ms: int | None
    lease_remaining_ms: int | None
    ttl_remaining_ms: int | None
    payload_bytes: int | None
    idempotency_key: str | None
    dead_reason: str | None
    first_delivery_age_ms: int | None = None
    trace_context: bytes | None = None
    group: str | None = None


@dataclass(slots=True, frozen=True)
class Explanation:
    """The reasons why an item is not delivered, and the remedies.

    Attributes:
        item: the item; None if it is `absent` or its shard cannot be asked.
        reasons: sentences for people, the most important first.
        remedies: sentences for people, the most important first.
        better_items: the number of items of the topic that come before a ready item; None
            if they were not counted.
        better_items_more: there are more such items than `better_items`.
        absent: there is no such item.
        blockers: of a ready item of a topic with a policy for groups: the ids of at most 10 items of its group that must be
            settled, or delivered, before it.
        group_items_before: of such an item: the ready items of its group that are known to come before it; None if they are
            not known.
        groups_before: of a ready item of a fair topic: how many groups of its host have their turn before its own; None if
            its group has no turn now.
    """

    item: ItemView | None
    reasons: tuple[str, ...]
    remedies: tuple[str, ...]
    better_items: int | None
    better_items_more: bool
    absent: bool
    blockers: tuple[str, ...] = ()
    group_items_before: int | None = None
    groups_before: int | None = None


@dataclass(slots=True, frozen=True)
class ItemPage:
    """A page of items.

    Attributes:
        items: the items, in the order that the call defines.
        next_cursor: pass it to the next call; None on the last page.
        now_ms: only from `list_items`: the shard's time from which the ages and remaining times
            count, in milliseconds since 1970-01-01 UTC.
    """

    items: list[ItemView]
    next_cursor: str | None
    now_ms: int | None = None


@dataclass(slots=True, frozen=True)
class Host:
    """A host that is running.

    Attributes:
        shards: the number of shards that it should own.
        draining: it must own no shard.
        load: the number of items that wait for a flush there, as it reported last.
        name: its name, which is the same after a restart.
        nonce: the name of this run of the host.
        capacity: how much work it can do, relative to other hosts.
        leaving: it is stopping and hands its shards over.
    """

    host: str
    port: int
    region: str | None
    tier: str | None
    shards: int | None
    draining: bool
    load: float | None
    version: str | None
    name: str | None = None
    nonce: str | None = None
    capacity: int | None = None
    leaving: bool = False

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) to connect to."""
        return self.host, self.port


@dataclass(slots=True, frozen=True)
class Shard:
    """A shard, the host that should own it, and its state.

    Attributes:
        owner: (host, port) of its owner; None if no host should own it now.
        epoch: the number of this ownership.
        state: free, acquiring, recovering, owned, draining or lost.
        queued_items: the number of items that wait for a flush; None if the host that
            answered does not know.
        region: the region of its database; hosts of this region are preferred.
        reason: why it is not served, if it is not.
        owner_name: the name of its owner.
        database: the name of its database in the configurations of the hosts.
        weight: the work that it causes, relative to other shards.
        draining: it accepts no new items.
        pinned_to: the name of the host that it was moved to.
        key_slots: the slots of idempotency keys that are assigned to it.
    """

    shard: int
    tier: str | None
    owner: tuple[str, int] | None
    epoch: int | None
    state: str | None
    queued_items: int | None
    region: str | None
    reason: str | None
    owner_name: str | None = None
    database: str | None = None
    weight: int | None = None
    draining: bool = False
    pinned_to: str | None = None
    key_slots: Sequence[int] = ()


@dataclass(slots=True, frozen=True)
class Routing:
    """The hosts and the shards of a tier.

    Attributes:
        version: equal versions are equal tables, from any host. Loads are not part of the table.
        hosts: the hosts that are running.
        shards: the shards with their owners.
        tier: the tier of the host that answered.
    """

    version: int
    hosts: list[Host]
    shards: list[Shard]
    tier: str | None = None
