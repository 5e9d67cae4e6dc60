"""Idempotency keys: the record of a key, and the division of slots among shards.

The record of a key names the first item of the key, and holds the digest of that item.
Always true: a record counts only until `until_ms`, although its row is deleted later;
`divide_key_slots` gives each slot to one shard.
Pure; knows no tables and no calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from foqs_contract.key_slots import KEY_SLOT_COUNT, without_group_prefix

KEY_BYTES_MAX: Final = 255
DIGEST_BYTES: Final = 16
INCARNATION_BYTES: Final = 8
INCARNATION_MAX: Final = (1 << 63) - 1

_NO_NUMERIC_FIELDS: Final = b",,,,,"
"""The digest's text for an item that gives no numeric field."""

_RESERVED: Final = b"\0"
"""The first byte of the keys that FOQS itself creates: a caller's key has no NUL."""

KeyName: TypeAlias = tuple[str, bytes]
"""(namespace, key), which is unique. The key is the caller's bytes, behind the `group_prefix` if its item has a group."""


class IdempotencyKey(NamedTuple):
    """The record of a key in its shard.

    Attributes:
        item_id: the number of the key's first item.
        digest: the `item_digest` of that item.
        until_ms: the end of the key window. From then on the key is free, even if the record still exists.
    """

    namespace: str
    key: bytes
    item_id: int
    digest: bytes
    until_ms: int


def item_digest(
    topic: bytes,
    priority: int,
    payload: bytes,
    metadata: bytes,
    numeric_fields: Sequence[int | None] | None,
    incarnation: bytes = b"",
) -> bytes:
    """Return the digest of an item: `DIGEST_BYTES` bytes. Two enqueues of one key are the same if their digests are.

    The digest begins with the namespace's incarnation, if it has one; see `is_of_incarnation`.

    Args:
        numeric_fields: delay_ms, deliver_after_ms, lease_ms, ttl_ms, policy and attempts_max
            as the caller gave them; None if the caller gave none.
    """
    numbers = (
        _NO_NUMERIC_FIELDS
        if numeric_fields is None
        else b",".join([b"" if n is None else b"%d" % n for n in numeric_fields])
    )
    # Unambiguous: parsed from the end, the text gives exactly one item.
    text = b"%b%b%b|%d|%d|%d|%b" % (payload, metadata, topic, len(payload), len(metadata), priority, numbers)
    return incarnation + blake2b(text, digest_size=DIGEST_BYTES - len(incarnation)).digest()


def key_alone_digest(topic: bytes, incarnation: bytes) -> bytes:
    """Return the digest of any item of a topic in which the key alone makes a repeat."""
    return item_digest(topic, 0, b"", b"", None, incarnation)


def move_key(number: int) -> bytes:
    """Return the key that records the move of an item. No caller's key contains NUL."""
    return b"%bmove %d" % (_RESERVED, number)


def move_digest(topic: str, incarnation: bytes) -> bytes:
    """Return the digest of a move to a topic: a repeated move has the same."""
    return item_digest(topic.encode(), 0, b"", b"", None, incarnation)


def completion_key(number: int) -> bytes:
    """Return the key that records the completion of an item. Its record names the number before that of the first new item."""
    return b"%bdone %d" % (_RESERVED, number)


def completed_item_key(number: int, place: int) -> bytes:
    """Return the key that records the item which a completion did not insert, because its own key was in use.

    `place`: of the item in the completion of the item with this `number`.
    """
    return b"%bdone %d %d" % (_RESERVED, number, place)


def completion_digest(token: int, items: Sequence[tuple[bytes, bytes]], incarnation: bytes) -> bytes:
    """Return the digest of a completion: a repeat with the same token and the same items has the same.

    Args:
        items: for each item its `item_digest`, without an incarnation, and its idempotency key; empty if it has none.
    """
    parts = [b"%b%d|%b" % (digest, len(key), key) for digest, key in items]
    text = b"%d|%b" % (token, b"".join(parts))
    return incarnation + blake2b(text, digest_size=DIGEST_BYTES - len(incarnation)).digest()


def own_key(key: bytes) -> bytes | None:
    """Return the key of a record as its caller gave it; None if it records a move, a completion or a restore, so that no item has it."""
    given = without_group_prefix(key)
    return None if given.startswith(_RESERVED) else given


def incarnation_prefix(incarnation: int) -> bytes:
    """Return the bytes with which digests of this incarnation begin; empty for 0, which older catalogs have."""
    return incarnation.to_bytes(INCARNATION_BYTES) if incarnation else b""


def is_of_incarnation(key: IdempotencyKey, incarnation: bytes) -> bool:
    """Return whether this incarnation of the namespace wrote the record, and not a deleted namespace of the same name.

    A namespace without an incarnation was never created again, so all records are its own.
    """
    return key.digest.startswith(incarnation)


def divide_key_slots(shards: Sequence[int]) -> dict[int, range]:
    """Return the slots of each shard: all slots divided evenly. Neighbouring slots go to different shards."""
    return {shard: range(place, KEY_SLOT_COUNT, len(shards)) for place, shard in enumerate(shards)}
