"""The shard of each key slot of a tier, as the catalog records it."""

from __future__ import annotations

from typing import Final

from foqs.catalog.key_slot_assignment import SlotAssignment, shard_by_slot
from foqs.catalog.namespaces import Namespaces

_NO_ASSIGNMENT: Final[SlotAssignment] = {}


class SlotTable:
    """The key slots of the shards of one tier."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._cached_assignment: SlotAssignment = _NO_ASSIGNMENT
        self._shard_by_slot = shard_by_slot(_NO_ASSIGNMENT)
        """The shard of each slot in `_cached_assignment`."""

    @property
    def assignment(self) -> SlotAssignment:
        """The recorded slots of each shard of the tier; the same object until they change."""
        return self._namespaces.document.slots.get(self._namespaces.tier, _NO_ASSIGNMENT)

    def shard_of_slot(self, slot: int) -> int | None:
        """Return the shard to which a slot is assigned, here or elsewhere; None if there is none."""
        recorded = self.assignment
        if recorded is not self._cached_assignment:
            self._cached_assignment, self._shard_by_slot = recorded, shard_by_slot(recorded)
        return self._shard_by_slot[slot]

    def prefix_of(self, namespace: str, topic: str, group: bytes) -> bytes:
        """Return what stands before the key of an item with a group. Its slot is that of the item, also of one without a key."""
        return self._namespaces.topic_keys_of(namespace).prefix_of(namespace, topic, group)
