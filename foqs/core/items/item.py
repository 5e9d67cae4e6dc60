"""The item: its row, its name and its place in the order.

Always true: times are integer milliseconds on the shard's clock; `Row` holds
what is persisted and nothing else; an id's text has exactly one spelling.
Knows nothing of how a row changes (`life`) or where it is kept.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

from foqs.core.errors import InvalidArgument

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
"""The last millisecond of the year 9999: no stored time lies beyond it."""

TopicName: TypeAlias = tuple[str, str]
"""(namespace, topic)."""

OrderKey: TypeAlias = int
"""(priority, deliver_after_ms, id number) in one integer that sorts as they do: the order of delivery.

One small object where a tuple of three is four; see `pack_key`.
"""
_NUMBER_BITS: Final = EPOCH_BITS + SEQUENCE_BITS
_TIME_BITS: Final = 48
_PRIORITY_SHIFT: Final = _NUMBER_BITS + _TIME_BITS


class State(enum.IntEnum):
    """Where an item is in its life; the numbers are stored and on the wire."""

    DEFERRED = 1
    READY = 2
    LEASED = 3
    DEAD = 4


class DeliveryPolicy(enum.IntEnum):
    """Delivery policy; the numbers are stored and on the wire."""

    AT_LEAST_ONCE = 1
    AT_MOST_ONCE = 2


@dataclass(slots=True)
class Row:
    """One item as its shard's table holds it.

    `payload` is None where it was not read. `due_ms` is the next moment at
    which something must happen to the row, None when nothing is scheduled.
    `attempts_max` 0 means without limit.
    """

    id: int
    namespace: str
    topic: str
    priority: int
    deliver_after_ms: int
    enqueued_at_ms: int
    lease_ms: int
    ttl_ms: int | None
    expires_at_ms: int | None
    policy: DeliveryPolicy
    attempts_max: int
    payload_bytes: int
    payload: bytes | None
    metadata: bytes
    state: State
    due_ms: int | None
    token: int
    attempt: int

    @property
    def order_key(self) -> OrderKey:
        return self.priority - PRIORITY_MIN << _PRIORITY_SHIFT | self.deliver_after_ms << _NUMBER_BITS | self.id

    def with_lease(self, due_ms: int, token: int) -> Row:
        """This row, leased once more; spelled out, because it is made for every delivery."""
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
        )


@dataclass(slots=True)
class NewItem:
    """A validated item to enqueue, not to be changed. Times are relative to its flush, unless absolute.

    Exactly one of `delay_ms` and `deliver_after_ms` is set.
    """

    namespace: str
    topic: str
    priority: int
    payload: bytes
    metadata: bytes
    delay_ms: int | None
    deliver_after_ms: int | None
    lease_ms: int
    ttl_ms: int | None
    policy: DeliveryPolicy
    attempts_max: int


@dataclass(slots=True)
class KeyedItem(NewItem):
    """A new item with an idempotency key: its bytes, and the digest of the item as it was given (`core.items.idempotency_keys`)."""

    idempotency_key: bytes
    digest: bytes


@dataclass(slots=True)
class AbsoluteTimeItem(NewItem):
    """A new item with both an absolute time and a TTL: only its shard knows which of them comes first."""


@dataclass(slots=True)
class KeyedAbsoluteTimeItem(KeyedItem):
    """The same with an idempotency key."""


def pack_order_key(priority: int, deliver_after_ms: int, number: int) -> OrderKey:
    """The key of these; the time must not be negative."""
    return priority - PRIORITY_MIN << _PRIORITY_SHIFT | deliver_after_ms << _NUMBER_BITS | number


def unpack_order_key(order_key: OrderKey) -> tuple[int, int, int]:
    """(priority, deliver_after_ms, number) of a key."""
    after = order_key >> _NUMBER_BITS & (1 << _TIME_BITS) - 1
    return (order_key >> _PRIORITY_SHIFT) + PRIORITY_MIN, after, order_key & NUMBER_MAX


def order_key_number(order_key: OrderKey) -> int:
    """The item's number."""
    return order_key & NUMBER_MAX


def make_number(epoch: int, sequence: int) -> int:
    """The 63-bit number of the `sequence`-th thing of an ownership (from 1)."""
    if not 0 < epoch <= EPOCH_MAX:
        raise ValueError(f"epoch {epoch} is outside 1..{EPOCH_MAX}")
    if not 0 < sequence <= SEQUENCE_MAX:
        raise ValueError(f"sequence {sequence} is outside 1..{SEQUENCE_MAX}")
    return epoch << SEQUENCE_BITS | sequence


def split_number(number: int) -> tuple[int, int]:
    """(epoch, sequence) of a number."""
    return number >> SEQUENCE_BITS, number & SEQUENCE_MAX


def format_id(shard: int, number: int) -> str:
    """`<shard>-<number>`, decimal, so that it can be pasted into SQL."""
    return f"{shard}-{number}"


def parse_id(text: str, field: str) -> tuple[int, int]:
    """(shard, number) of an id's text.

    Raises:
        InvalidArgument: it is not the one spelling that `format_id` gives.
    """
    if len(text) <= _ID_LENGTH_MAX:
        head, _, tail = text.partition("-")
        try:
            shard, number = int(head), int(tail)
        except ValueError:
            pass
        else:
            # Comparing the spelling leaves out whatever else `int` reads: signs, spaces, other digits.
            known = 0 <= shard <= SHARD_MAX and 1 << SEQUENCE_BITS < number <= NUMBER_MAX and number & SEQUENCE_MAX
            if known and format_id(shard, number) == text:
                return shard, number
    raise InvalidArgument("this is not an item id; use one that enqueue or dequeue returned", field=field)
