"""Idempotency keys: what is kept of one, which slot it is in, and who holds the slots.

A key's row says which item it named first, and what that item was. Always true:
a row is judged by its time and not by being there; a key has one slot for ever;
`even_parts` gives each slot to one shard. Pure; knows no tables and no calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

KEY_BYTES_MAX: Final = 255
KEY_SLOT_COUNT: Final = 1_024
"""Keys are spread over so many slots; slots, not keys, belong to shards."""
DIGEST_BYTES: Final = 16
INCARNATION_BYTES: Final = 8
INCARNATION_MAX: Final = (1 << 63) - 1

_SLOT_PREFIX: Final = ord("~")
_SLOT_PREFIX_BYTES: Final = 4
_HEX: Final = frozenset(b"0123456789abcdef")
_NO_NUMERIC_FIELDS: Final = b",,,,,"
"""The numbers of an item that names none."""

KeyName: TypeAlias = tuple[str, bytes]
"""(namespace, key): what must be unique. The key as its caller's bytes."""


class IdempotencyKey(NamedTuple):
    """What a shard keeps of a key.

    Attributes:
        id: the item that it names.
        digest: of that item, see `digest_of`.
        until_ms: from this moment on the key is free again, whether or not the row is still there.
    """

    namespace: str
    key: bytes
    item_id: int
    digest: bytes
    until_ms: int


def key_slot(key: bytes) -> int:
    """The slot of a key: named by the key itself as `~` and three hex digits, else by its checksum."""
    slot = _slot_named_by(key[:_SLOT_PREFIX_BYTES])
    return crc32(key) % KEY_SLOT_COUNT if slot is None else slot


def key_slots(keys: Sequence[bytes]) -> Sequence[int]:
    """The slot of each key; quick where one call's keys all name the same."""
    heads = {key[:_SLOT_PREFIX_BYTES] for key in keys}
    slot = _slot_named_by(heads.pop()) if len(heads) == 1 else None
    return list(map(key_slot, keys)) if slot is None else [slot] * len(keys)


def _slot_named_by(prefix: bytes) -> int | None:
    """The slot that a key's first bytes name, if they do."""
    if len(prefix) == _SLOT_PREFIX_BYTES and prefix[0] == _SLOT_PREFIX and _HEX.issuperset(prefix[1:]):
        slot = int(prefix[1:], 16)
        return slot if slot < KEY_SLOT_COUNT else None
    return None


def item_digest(
    topic: bytes,
    priority: int,
    payload: bytes,
    metadata: bytes,
    numeric_fields: Sequence[int | None] | None,
    incarnation: bytes = b"",
) -> bytes:
    """What two items of one key must have in common to be the same: `DIGEST_BYTES` bytes.

    It begins with the namespace's incarnation, if that has one; see `of_this_life`.

    Args:
        numeric_fields: delay_ms, deliver_after_ms, lease_ms, ttl_ms, policy and attempts_max
            as the caller gave them; None where all are left out.
    """
    # Read from its end it can be taken apart in one way only.
    rest = (
        _NO_NUMERIC_FIELDS
        if numeric_fields is None
        else b",".join([b"" if n is None else b"%d" % n for n in numeric_fields])
    )
    whole = b"%b%b%b|%d|%d|%d|%b" % (payload, metadata, topic, len(payload), len(metadata), priority, rest)
    return incarnation + blake2b(whole, digest_size=DIGEST_BYTES - len(incarnation)).digest()


def incarnation_prefix(incarnation: int) -> bytes:
    """An incarnation of a namespace as digests begin with it; nothing for 0, that of older catalogs."""
    return incarnation.to_bytes(INCARNATION_BYTES) if incarnation else b""


def is_of_incarnation(key: IdempotencyKey, incarnation: bytes) -> bool:
    """The row was written by the namespace as it is now, not by a deleted one of the same name.

    A namespace without an incarnation was never created again, so all rows are its own.
    """
    return key.digest.startswith(incarnation)


def divide_key_slots(shards: Sequence[int]) -> dict[int, range]:
    """All slots, divided evenly: to each shard its part by its place. Neighbouring slots lie on different shards."""
    return {shard: range(place, KEY_SLOT_COUNT, len(shards)) for place, shard in enumerate(shards)}
