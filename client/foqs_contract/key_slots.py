"""Key slots: the parts of the space of idempotency keys that are assigned to shards.

Holds `key_slot_of` and `group_slot_of`, the key of a restored item without one, and the keys of items with a group. Always true: a
key or a group never changes its slot, and clients and hosts agree on it; of topics whose keys are unique among all groups
only hosts know. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final
from zlib import crc32

KEY_SLOT_COUNT: Final = 1_024
"""The number of key slots. Slots, not keys, are assigned to shards."""

_PREFIX_BYTES: Final = 4
_SLOT_BY_PREFIX: Final = {b"~%03x" % slot: slot for slot in range(KEY_SLOT_COUNT)}
"""The slot that a key names, by the first bytes of the key."""

GROUP_TAG: Final = b"\0g"
"""The first bytes of a key that belongs to a group. No caller's key contains NUL."""
_GROUP_SLOT_BYTES: Final = 2
_GROUP_DIGEST_BYTES: Final = 14
GROUP_PREFIX_BYTES: Final = len(GROUP_TAG) + _GROUP_SLOT_BYTES + _GROUP_DIGEST_BYTES
"""The length of what stands before the caller's key if its item has a group."""


def key_slot_of(key: bytes) -> int:
    """Return the slot of a key.

    It is the one that the key names as `~` and three hex digits; for a key behind a `group_prefix` or a `topic_prefix` that of it;
    else one from the checksum of the key.
    """
    slot = _SLOT_BY_PREFIX.get(key[:_PREFIX_BYTES])
    if slot is not None:
        return slot
    if key.startswith(GROUP_TAG):
        return int.from_bytes(key[len(GROUP_TAG) : len(GROUP_TAG) + _GROUP_SLOT_BYTES])
    return crc32(key) % KEY_SLOT_COUNT


def group_slot_of(namespace: bytes, group: bytes) -> int:
    """Return the slot of a group, whatever the topic: moves and dead letters stay in its shard."""
    return crc32(b"%b\0%b" % (namespace, group)) % KEY_SLOT_COUNT


def group_prefix(namespace: bytes, group: bytes) -> bytes:
    """Return what stands before the keys of a group's items, so that they are unique within the group, in its slot."""
    slot = group_slot_of(namespace, group).to_bytes(_GROUP_SLOT_BYTES)
    return GROUP_TAG + slot + blake2b(group, digest_size=_GROUP_DIGEST_BYTES).digest()


def topic_prefix(namespace: bytes, topic: bytes) -> bytes:
    """Return what stands before the keys of a topic whose keys are unique among its groups, as long as a `group_prefix`.

    All such topics of a namespace are in one slot, so that an item which moves between them stays with its group.
    """
    slot = group_slot_of(namespace, b"").to_bytes(_GROUP_SLOT_BYTES)  # no group is empty
    return GROUP_TAG + slot + blake2b(b"\0" + topic, digest_size=_GROUP_DIGEST_BYTES).digest()


def without_group_prefix(key: bytes) -> bytes:
    """Return a key as the caller gave it."""
    return key[GROUP_PREFIX_BYTES:] if key.startswith(GROUP_TAG) else key


def restore_key(name: bytes) -> bytes:
    """Return the key of a restored item that has none of its own, by its `restore_key`. It decides the item's slot.

    No caller's key contains NUL.
    """
    return b"\0restore " + name


def key_slots_of(keys: Sequence[bytes]) -> Sequence[int]:
    """Return the slot of each key. Fast if all keys name the same slot."""
    prefixes = {key[:_PREFIX_BYTES] for key in keys}
    slot = _SLOT_BY_PREFIX.get(prefixes.pop()) if len(prefixes) == 1 else None
    return list(map(key_slot_of, keys)) if slot is None else [slot] * len(keys)
