"""What goes into the client and comes out of it, as plain frozen dataclasses.

Always true: times are integer milliseconds and relative, but for
`deliver_after_ms`; states are "deferred", "ready", "leased" and "dead"; None
means that a value was not given or is not known. Fields have the names of the
contract, so that `Item`, `Enqueued` and `Delivery` are written and read as they
are. Knows nothing of Thrift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, dataclass_transform

from foqs_client.errors import FoqsError

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def _value_class(kind: type[T]) -> type[T]:
    """A frozen dataclass for what is made by the hundred thousand.

    Frozen for the type checker alone: at run time, guarding each field costs
    more than everything else that is done with an item.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)


@_value_class
class Item:
    """An item to enqueue. What is None takes the namespace's default.

    Attributes:
        priority: signed 32-bit, lower is delivered first.
        delay_ms: not delivered before this much time has passed.
        deliver_after_ms: not delivered before this moment, milliseconds since
            1970-01-01 UTC. At most one of the two.
        lease_ms: how long a consumer has to ack or nack.
        ttl_ms: deleted when not delivered within this time.
        attempts_max: dead after so many deliveries; 0 means without limit.
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

    @property
    def policy(self) -> int | None:
        """`at_most_once` as the contract spells it."""
        return 2 if self.at_most_once else None


@_value_class
class Enqueued:
    """What became of one item: an id (it is durable) or an error."""

    id: str | None = None
    error: FoqsError | None = None
    repeated: bool = False
    """The id is that of an earlier enqueue with the same idempotency key."""

    def require(self) -> str:
        """The id. Raises the error where there is one."""
        if self.error is not None:
            raise self.error
        assert self.id is not None
        return self.id


@_value_class
class Delivery:
    """A delivered item. `id` and `token` together are its lease."""

    id: str = ""
    token: int = 0
    topic: str = ""
    priority: int = 0
    payload: bytes = b""
    metadata: bytes = b""
    attempt: int = 0
    """1 with the first delivery."""
    attempts_max: int = 0
    """0 means without limit."""
    lease_remaining_ms: int = 0
    """What was left when the host wrote its reply."""
    age_ms: int = 0
    """Time since the enqueue."""


@_value_class
class Nack:
    """A lease given back. Without a time the namespace's backoff decides; `dead` gives the item up."""

    id: str
    token: int
    delay_ms: int | None = None
    deliver_after_ms: int | None = None
    metadata: bytes | None = None
    dead: bool = False


@dataclass(slots=True, frozen=True)
class Change:
    """What to change of items; None leaves it as it is.

    Attributes:
        delay_ms: not delivered before this much time has passed; 0 means now. Of
            ready and deferred items only, and never as long as their TTL.
        deliver_after_ms: not delivered before this moment, milliseconds since
            1970-01-01 UTC. At most one of the two.
        metadata: replaces the metadata.
    """

    priority: int | None = None
    delay_ms: int | None = None
    deliver_after_ms: int | None = None
    metadata: bytes | None = None


@dataclass(slots=True, frozen=True)
class ItemFilter:
    """Items that match all of it; None matches every item. Bounds are included.

    Attributes:
        states: "deferred", "ready", "leased" and "dead".
        age_min_ms, age_max_ms: time since the enqueue. Items that are enqueued
            after the first page was asked for never match.
    """

    topic: str | None = None
    states: Sequence[str] | None = None
    priority_min: int | None = None
    priority_max: int | None = None
    age_min_ms: int | None = None
    age_max_ms: int | None = None


@dataclass(slots=True, frozen=True)
class ItemCount:
    """How many items match a filter; `payload_bytes` None where they were not read for it."""

    items: int
    payload_bytes: int | None


@dataclass(slots=True, frozen=True)
class BulkPage:
    """What became of one page of a bulk call; `next_cursor` None with the last page.

    Attributes:
        refused: items that match and cannot be changed so; `refusal` says why of the first.
    """

    changed: int
    refused: int
    refusal: FoqsError | None
    next_cursor: str | None


@dataclass(slots=True, frozen=True)
class Outcome:
    """What became of one entry of a call."""

    error: FoqsError | None = None
    already_gone: bool = False
    """With ack and cancel: a success that found nothing to do."""

    def require(self) -> None:
        """Raises the error where there is one."""
        if self.error is not None:
            raise self.error


DONE: Final = Outcome()
"""The outcome of nearly all entries."""


@dataclass(slots=True, frozen=True)
class Topic:
    """What a topic holds."""

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
    """The counts are being recounted after a change of owner."""


@dataclass(slots=True, frozen=True)
class TopicPage:
    """Topics by name; `next_cursor` None with the last page."""

    topics: list[Topic]
    next_cursor: str | None


@dataclass(slots=True, frozen=True)
class ItemView:
    """An item as it is, for people and tools; what does not apply is None."""

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


@dataclass(slots=True, frozen=True)
class Explanation:
    """Why an item is not delivered, and what would change it: sentences for people, the weightiest first.

    Attributes:
        item: None where it is not there (`absent`), or its shard cannot be asked.
        better_items: of a ready item, how many of its topic come before it; None where they were not counted.
        better_items_more: there are more of them than that.
    """

    item: ItemView | None
    reasons: tuple[str, ...]
    remedies: tuple[str, ...]
    better_items: int | None
    better_items_more: bool
    absent: bool


@dataclass(slots=True, frozen=True)
class ItemPage:
    """Items in the order of the call; `next_cursor` None with the last page."""

    items: list[ItemView]
    next_cursor: str | None


@dataclass(slots=True, frozen=True)
class Host:
    """A host that is there.

    Attributes:
        shards: how many it should own.
        draining: it shall own nothing.
        load: what waits there to be written, in items, as it told last.
        name: stays over restarts; `nonce` is of this run.
        capacity: how much it can take, relative to other hosts.
        leaving: it is stopping, and gives its shards back.
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
        """Where it is reached."""
        return self.host, self.port


@dataclass(slots=True, frozen=True)
class Shard:
    """A shard, who should own it, and how far that is.

    Attributes:
        owner: its address; None where nobody should own it now. `owner_name` is its name.
        epoch: the number of that ownership.
        state: free, acquiring, recovering, owned, draining or lost.
        queued_items: what waits to be written; None where the host that was asked does not know.
        reason: why it is not served, when it is not.
        database: its name in the hosts' configurations.
        weight: the work it makes, relative to other shards.
        draining: it takes no new items.
        pinned_to: the name of the host that it was moved to.
        slots: of idempotency keys, those that it holds.
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
    slots: Sequence[int] = ()


@dataclass(slots=True, frozen=True)
class Routing:
    """Who serves what. `tier` is that of the host that was asked."""

    version: int
    hosts: list[Host]
    shards: list[Shard]
    tier: str | None = None
