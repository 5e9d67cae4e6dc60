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
SLOTS: Final = 1_024
"""Keys are spread over so many slots; slots, not keys, belong to shards."""
DIGEST_BYTES: Final = 16
INCARNATION_BYTES: Final = 8
INCARNATION_MAX: Final = (1 << 63) - 1

_SLOT_MARK: Final = ord("~")
_SLOT_END: Final = 4
_HEX: Final = frozenset(b"0123456789abcdef")
_AS_DEFAULT: Final = b",,,,,"
"""The numbers of an item that names none."""

KeyName: TypeAlias = tuple[str, bytes]
"""(namespace, key): what must be unique. The key as its caller's bytes."""


class KeyRow(NamedTuple):
    """What a shard keeps of a key.

    Attributes:
        id: the item that it names.
        digest: of that item, see `digest_of`.
        until_ms: from this moment on the key is free again, whether or not the row is still there.
    """

    namespace: str
    key: bytes
    id: int
    digest: bytes
    until_ms: int


def slot_of(key: bytes) -> int:
    """The slot of a key: named by the key itself as `~` and three hex digits, else by its checksum."""
    slot = _named(key[:_SLOT_END])
    return crc32(key) % SLOTS if slot is None else slot


def slots_of(keys: Sequence[bytes]) -> Sequence[int]:
    """The slot of each key; quick where one call's keys all name the same."""
    heads = {key[:_SLOT_END] for key in keys}
    slot = _named(heads.pop()) if len(heads) == 1 else None
    return list(map(slot_of, keys)) if slot is None else [slot] * len(keys)


def _named(head: bytes) -> int | None:
    """The slot that a key's first bytes name, if they do."""
    if len(head) == _SLOT_END and head[0] == _SLOT_MARK and _HEX.issuperset(head[1:]):
        slot = int(head[1:], 16)
        return slot if slot < SLOTS else None
    return None


def digest_of(
    topic: bytes,
    priority: int,
    payload: bytes,
    metadata: bytes,
    numbers: Sequence[int | None] | None,
    incarnation: bytes = b"",
) -> bytes:
    """What two items of one key must have in common to be the same: `DIGEST_BYTES` bytes.

    It begins with the namespace's incarnation, if that has one; see `of_this_life`.

    Args:
        numbers: delay_ms, deliver_after_ms, lease_ms, ttl_ms, policy and attempts_max
            as the caller gave them; None where all are left out.
    """
    # Read from its end it can be taken apart in one way only.
    rest = _AS_DEFAULT if numbers is None else b",".join([b"" if n is None else b"%d" % n for n in numbers])
    whole = b"%b%b%b|%d|%d|%d|%b" % (payload, metadata, topic, len(payload), len(metadata), priority, rest)
    return incarnation + blake2b(whole, digest_size=DIGEST_BYTES - len(incarnation)).digest()


def incarnation_mark(incarnation: int) -> bytes:
    """An incarnation of a namespace as digests begin with it; nothing for 0, that of older catalogs."""
    return incarnation.to_bytes(INCARNATION_BYTES) if incarnation else b""


def of_this_life(row: KeyRow, incarnation: bytes) -> bool:
    """The row was written by the namespace as it is now, not by a deleted one of the same name.

    A namespace without an incarnation was never created again, so all rows are its own.
    """
    return row.digest.startswith(incarnation)


def even_parts(shards: Sequence[int]) -> dict[int, range]:
    """All slots, divided evenly: to each shard its part by its place. Neighbouring slots lie on different shards."""
    return {shard: range(place, SLOTS, len(shards)) for place, shard in enumerate(shards)}
