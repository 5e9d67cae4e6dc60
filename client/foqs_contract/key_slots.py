"""Key slots: the parts of the space of idempotency keys that are assigned to shards.

Holds `key_slot_of`, and the key of a restored item without one. Always true: a key never changes its slot, and clients and hosts
agree on it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

KEY_SLOT_COUNT: Final = 1_024
"""The number of key slots. Slots, not keys, are assigned to shards."""

_PREFIX_BYTES: Final = 4
_SLOT_BY_PREFIX: Final = {b"~%03x" % slot: slot for slot in range(KEY_SLOT_COUNT)}
"""The slot that a key names, by the first bytes of the key."""


def key_slot_of(key: bytes) -> int:
    """Return the slot of a key: the one that it names as `~` and three hex digits, else one from its checksum."""
    slot = _SLOT_BY_PREFIX.get(key[:_PREFIX_BYTES])
    return crc32(key) % KEY_SLOT_COUNT if slot is None else slot


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
