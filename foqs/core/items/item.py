"""The item: its row, its id and its order key.

Always true: times are integer milliseconds on the shard's clock; `Row` holds
the persisted fields and nothing else; an id has exactly one spelling.
Knows nothing of how a row changes (`life`) or where it is stored.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from foqs_contract.errors import InvalidArgument

EPOCH_BITS: Final = 20
SEQUENCE_BITS: Final = 43
EPOCH_MAX: Final = (1 << EPOCH_BITS) - 1
SEQUENCE_MAX: Final = (1 << SEQUENCE_BITS) - 1
NUMBER_MAX: Final = (1 << EPOCH_BITS + SEQUENCE_BITS) - 1
SHARD_MAX: Final = 65_535

PRIORITY_MIN: Final = -(1 << 31)
PRIORITY_MAX: Final = (1 << 31) - 1
_ID_LENGTH_MAX: Final = 25
"""Five digits, a dash, nineteen digits."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. No stored time is later."""
GIVEN_UP_MS: Final = TIME_MS_MAX
"""The `deliver_after_ms` of a DEAD item that the database does not hold. Another item with it was never delivered."""

TRACE_CONTEXT_BYTES_MAX: Final = 512
"""The maximum length of an item's trace context, in bytes."""
GROUP_BYTES_MAX: Final = 255
"""The maximum length of the name of an item's group, in bytes."""

TopicName: TypeAlias = tuple[str, str]
"""(namespace, topic)."""

OrderKey: TypeAlias = int
"""(priority, deliver_after_ms, number) in one integer that sorts like the tuple: the order of delivery in one shard.

It takes one small object instead of four; see `pack_order_key`.
"""
_NUMBER_BITS: Final = EPOCH_BITS + SEQUENCE_BITS
_TIME_BITS: Final = 55
"""Times take 48 bits. Turns, which stand in their place in the keys of fair topics, may take more."""
_PRIORITY_SHIFT: Final = _NUMBER_BITS + _TIME_BITS
ORDER_KEY_BITS: Final = _PRIORITY_SHIFT + (PRIORITY_MAX - PRIORITY_MIN).bit_length()
TURN_MAX: Final = (1 << _TIME_BITS) - 1
"""The highest turn that a key holds."""
_TIME_MASK: Final = TURN_MAX << _NUMBER_BITS
_WITHOUT_EPOCH: Final = ~(EPOCH_MAX << SEQUENCE_BITS)


class State(enum.IntEnum):
    """The states of an item; the numbers are stored and on the wire."""

    DEFERRED = 1
    READY = 2
    LEASED = 3
    DEAD = 4


class DeliveryPolicy(enum.IntEnum):
    """The delivery policies; the numbers are stored and on the wire."""

    AT_LEAST_ONCE = 1
    AT_MOST_ONCE = 2


@dataclass(slots=True)
class Row:
    """One item as the table of its shard holds it. `foqs.store.row_columns` lists the columns."""

    # columns: begin row
    id: int
    """The number: epoch and sequence."""
    namespace: str
    """The tenant; never changes."""
    topic: str
    """The topic, which a move changes."""
    priority: int
    """The lowest is delivered first."""
    deliver_after_ms: int
    """No delivery before this; then the place among items of one priority."""
    enqueued_at_ms: int
    """The time of the insert."""
    lease_ms: int
    """The length of a lease."""
    ttl_ms: int | None
    """The whole TTL; a redrive gives it again."""
    expires_at_ms: int | None
    """The end of the TTL."""
    policy: DeliveryPolicy
    """The delivery policy."""
    attempts_max: int
    """The maximum of `attempt`; 0 means no limit."""
    payload_bytes: int
    """The size of the payload."""
    payload: bytes | None
    """The caller's bytes; None in a row that was read without them."""
    metadata: bytes
    """Bytes that a nack or an update replaces."""
    state: State
    """The state of the item's life."""
    due_ms: int | None
    """The moment at which the owner must change the row; none if nothing is due."""
    token: int
    """The token of the last lease, 0 if there was none; a negative one can only ack: the lease ended early, or the item was redriven."""
    attempt: int
    """The deliveries that count."""
    trace_context: bytes | None
    """The trace to which the item belongs."""
    first_delivered_at_ms: int | None
    """The time of the first lease, which never changes; none before it, or if it was before the table had this column."""
    item_group: bytes | None
    """The group of the item; none: it has none; never changes."""

    # Written out, because mypyc compiles this constructor and not that of a dataclass.
    def __init__(
        self,
        id: int,
        namespace: str,
        topic: str,
        priority: int,
        deliver_after_ms: int,
        enqueued_at_ms: int,
        lease_ms: int,
        ttl_ms: int | None,
        expires_at_ms: int | None,
        policy: DeliveryPolicy,
        attempts_max: int,
        payload_bytes: int,
        payload: bytes | None,
        metadata: bytes,
        state: State,
        due_ms: int | None,
        token: int,
        attempt: int,
        trace_context: bytes | None = None,
        first_delivered_at_ms: int | None = None,
        item_group: bytes | None = None,
    ) -> None:
        self.id = id
        self.namespace = namespace
        self.topic = topic
        self.priority = priority
        self.deliver_after_ms = deliver_after_ms
        self.enqueued_at_ms = enqueued_at_ms
        self.lease_ms = lease_ms
        self.ttl_ms = ttl_ms
        self.expires_at_ms = expires_at_ms
        self.policy = policy
        self.attempts_max = attempts_max
        self.payload_bytes = payload_bytes
        self.payload = payload
        self.metadata = metadata
        self.state = state
        self.due_ms = due_ms
        self.token = token
        self.attempt = attempt
        self.trace_context = trace_context
        self.first_delivered_at_ms = first_delivered_at_ms
        self.item_group = item_group

    def copy(self) -> Row:
        """Return a row of the same values. Not `replace`, which is slow."""
        return Row(
            self.id,
            self.namespace,
            self.topic,
            self.priority,
            self.deliver_after_ms,
            self.enqueued_at_ms,
            self.lease_ms,
            self.ttl_ms,
            self.expires_at_ms,
            self.policy,
            self.attempts_max,
            self.payload_bytes,
            self.payload,
            self.metadata,
            self.state,
            self.due_ms,
            self.token,
            self.attempt,
            self.trace_context,
            self.first_delivered_at_ms,
            self.item_group,
        )

    def with_lease(self, due_ms: int, token: int, now_ms: int) -> Row:
        """Return this row with a new lease, given at `now_ms`. Not a changed copy: this runs for every delivery."""
        return Row(
            self.id,
            self.namespace,
            self.topic,
            self.priority,
            self.deliver_after_ms,
            self.enqueued_at_ms,
            self.lease_ms,
            self.ttl_ms,
            self.expires_at_ms,
            self.policy,
            self.attempts_max,
            self.payload_bytes,
            self.payload,
            self.metadata,
            State.LEASED,
            due_ms,
            token,
            self.attempt + 1,
            self.trace_context,
            now_ms if self.first_delivered_at_ms is None else self.first_delivered_at_ms,
            self.item_group,
        )

    # columns: end

    @property
    def order_key(self) -> OrderKey:
        return self.priority - PRIORITY_MIN << _PRIORITY_SHIFT | self.deliver_after_ms << _NUMBER_BITS | self.id

    @property
    def ready_at_ms(self) -> int:
        """When a DEFERRED item becomes READY, unless its TTL ends before.

        The place of one that backs off in a strict group, `deliver_after_ms`, is that of its first delivery: before its due as
        a rule, and after it if the arrival clock was ahead.
        """
        due_ms, expires_ms = self.due_ms, self.expires_at_ms
        if due_ms is None or not self.attempt or self.item_group is None:
            return self.deliver_after_ms
        return due_ms if expires_ms is None or due_ms < expires_ms else max(self.deliver_after_ms, due_ms)


@dataclass(slots=True)
class NewItem:
    """A validated item to enqueue. Must not be changed.

    Exactly one of `delay_ms` and `deliver_after_ms` is set. Relative times count from the flush.
    """

    # columns: begin new item
    namespace: str
    topic: str
    priority: int
    delay_ms: int | None
    deliver_after_ms: int | None
    lease_ms: int
    ttl_ms: int | None
    policy: DeliveryPolicy
    attempts_max: int
    payload: bytes
    metadata: bytes
    trace_context: bytes | None
    item_group: bytes | None

    def __init__(
        self,
        namespace: str,
        topic: str,
        priority: int,
        delay_ms: int | None,
        deliver_after_ms: int | None,
        lease_ms: int,
        ttl_ms: int | None,
        policy: DeliveryPolicy,
        attempts_max: int,
        payload: bytes,
        metadata: bytes,
        trace_context: bytes | None = None,
        item_group: bytes | None = None,
    ) -> None:
        self.namespace = namespace
        self.topic = topic
        self.priority = priority
        self.delay_ms = delay_ms
        self.deliver_after_ms = deliver_after_ms
        self.lease_ms = lease_ms
        self.ttl_ms = ttl_ms
        self.policy = policy
        self.attempts_max = attempts_max
        self.payload = payload
        self.metadata = metadata
        self.trace_context = trace_context
        self.item_group = item_group

    # columns: end


@dataclass(slots=True)
class KeyedItem(NewItem):
    """A new item with an idempotency key, and with the digest of the item as the caller gave it.

    `key_until_ms`: the end of the key, by the clock of its shard; None: it has none.
    """

    idempotency_key: bytes
    digest: bytes
    key_until_ms: int | None

    # columns: begin keyed item
    def __init__(
        self,
        namespace: str,
        topic: str,
        priority: int,
        delay_ms: int | None,
        deliver_after_ms: int | None,
        lease_ms: int,
        ttl_ms: int | None,
        policy: DeliveryPolicy,
        attempts_max: int,
        payload: bytes,
        metadata: bytes,
        idempotency_key: bytes,
        digest: bytes,
        trace_context: bytes | None = None,
        item_group: bytes | None = None,
        key_until_ms: int | None = None,
    ) -> None:
        NewItem.__init__(
            self,
            namespace,
            topic,
            priority,
            delay_ms,
            deliver_after_ms,
            lease_ms,
            ttl_ms,
            policy,
            attempts_max,
            payload,
            metadata,
            trace_context,
            item_group,
        )
        self.idempotency_key = idempotency_key
        self.digest = digest
        self.key_until_ms = key_until_ms

    # columns: end


class AbsoluteTimeItem(NewItem):
    """A new item with both an absolute time and a TTL. Only its shard's clock can say which of them comes first."""

    __slots__ = ()


class KeyedAbsoluteTimeItem(KeyedItem):
    """An `AbsoluteTimeItem` with an idempotency key."""

    __slots__ = ()


class GroupedItem(NewItem):
    """A new item with a group and without an idempotency key."""

    __slots__ = ()


class GroupedAbsoluteTimeItem(AbsoluteTimeItem):
    """An `AbsoluteTimeItem` with a group and without an idempotency key."""

    __slots__ = ()


def pack_order_key(priority: int, deliver_after_ms: int, number: int) -> OrderKey:
    """Return the order key; the time must not be negative."""
    return priority - PRIORITY_MIN << _PRIORITY_SHIFT | deliver_after_ms << _NUMBER_BITS | number


def unpack_order_key(order_key: OrderKey) -> tuple[int, int, int]:
    """Return the (priority, deliver_after_ms, number) of an order key."""
    after = order_key >> _NUMBER_BITS & (1 << _TIME_BITS) - 1
    return (order_key >> _PRIORITY_SHIFT) + PRIORITY_MIN, after, order_key & NUMBER_MAX


def with_turn(order_key: OrderKey, turn: int) -> OrderKey:
    """Return the key of the same item and priority with the turn of its group, at most `TURN_MAX`, in place of its time."""
    return order_key & ~_TIME_MASK | turn << _NUMBER_BITS


def arrival_rank(order_key: OrderKey) -> int:
    """Return a number that sorts the keys of several shards by (priority, deliver_after_ms, sequence).

    The epochs of two shards say nothing about which item came first. The sequences do, if one host accepted both.
    """
    return order_key & _WITHOUT_EPOCH


def arrival_ranks(order_keys: Iterable[OrderKey]) -> list[int]:
    """Return ascending ranks of the ascending keys of one shard.

    In one millisecond an item of another host may have a higher sequence than the items after it. Then they get its rank.
    """
    ranks = [key & _WITHOUT_EPOCH for key in order_keys]
    # They nearly always ascend, and to find that out takes less time than a running maximum.
    return ranks if ranks == sorted(ranks) else list(accumulate(ranks, max))


def order_key_number(order_key: OrderKey) -> int:
    """Return the number of the key's item."""
    return order_key & NUMBER_MAX


def make_number(epoch: int, sequence: int) -> int:
    """Return the 63-bit number for a sequence (from 1) of the ownership with this epoch."""
    if not 0 < epoch <= EPOCH_MAX:
        raise ValueError(f"epoch {epoch} is outside 1..{EPOCH_MAX}")
    if not 0 < sequence <= SEQUENCE_MAX:
        raise ValueError(f"sequence {sequence} is outside 1..{SEQUENCE_MAX}")
    return epoch << SEQUENCE_BITS | sequence


def split_number(number: int) -> tuple[int, int]:
    """Return the (epoch, sequence) of a number."""
    return number >> SEQUENCE_BITS, number & SEQUENCE_MAX


def format_id(shard: int, number: int) -> str:
    """Return `<shard>-<number>`, in decimal so that the number can be pasted into SQL."""
    return f"{shard}-{number}"


def parse_id(text: str, field: str) -> tuple[int, int]:
    """Return the (shard, number) of an id.

    Raises:
        InvalidArgument: the text is not exactly what `format_id` returns.
    """
    if len(text) <= _ID_LENGTH_MAX:
        shard_text, _, number_text = text.partition("-")
        try:
            shard, number = int(shard_text), int(number_text)
        except ValueError:
            pass
        else:
            in_range = 0 <= shard <= SHARD_MAX and 1 << SEQUENCE_BITS < number <= NUMBER_MAX and number & SEQUENCE_MAX
            # `int` also accepts signs, spaces and other digits, so the spelling is compared.
            if in_range and format_id(shard, number) == text:
                return shard, number
    raise InvalidArgument("this is not an item id; use one that enqueue or dequeue returned", field=field)
