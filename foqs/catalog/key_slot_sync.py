"""Keeps the key slots in the tables of this host's shards and in the catalog the same.

It records in the catalog the slots that a shard holds, and assigns to a shard the
slots that the catalog records as its own. Always true: slots of a shard are
recorded before it is assigned others; a shard is assigned only slots that the
current document records as its own. A shard that holds slots recorded as
another's is in dispute: nothing is recorded for it, and keys in these slots
belong to the other shard. If a host dies, the next owner continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from foqs.catalog import changes
from foqs.catalog.administration import Administration
from foqs.catalog.document import Document
from foqs.catalog.key_slot_assignment import SlotConflict, with_slots
from foqs.catalog.namespaces import Namespaces
from foqs.catalog.slot_table import SlotTable
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import FoqsError

log = logging.getLogger(__name__)

_STORE_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 1.0


class KeySlotSync:
    """Synchronizes the key slots of this host's shards.

    Args:
        tier_shards: returns all shards of the tier; none while they are not known.
        on_slots_moved: called when another shard than before may hold a slot.
        on_settled: called when `is_settled` may have become true.
    """

    def __init__(
        self,
        admin: Administration,
        namespaces: Namespaces,
        slots: SlotTable,
        shards: Mapping[int, OwnedShard],
        tier_shards: Callable[[], Collection[int]],
        on_slots_moved: Callable[[], None],
        on_settled: Callable[[], None],
    ) -> None:
        self._admin = admin
        self._namespaces = namespaces
        self._shards = shards
        self._slots = slots
        self._tier_shards = tier_shards
        self._on_slots_moved = on_slots_moved
        self._on_settled = on_settled
        self._wake_event = asyncio.Event()
        self._disputes: dict[int, str] = {}
        self._last_error = ""
        self._has_untried_work = False
        """Whether there are slots to record or assign for which that was not tried yet."""
        admin.add_change_listener(lambda changed: self.on_change())

    @property
    def is_settled(self) -> bool:
        """Whether each shard here has its slots, as far as that can be done now."""
        return not self._has_untried_work and not any(shard.has_pending_key_slots for shard in self._shards.values())

    def on_change(self) -> None:
        """Check for work, because a shard was acquired, or the document or the tier's shards changed."""
        self._update_disputes()
        if self._has_work():
            self._has_untried_work = True
            self._wake_event.set()

    async def run(self) -> None:
        """Record and assign slots, until cancelled. After a failure, continues with the work that is left."""
        if self._has_untried_work:
            self._wake_event.set()
        while True:
            await self._wake_event.wait()
            self._wake_event.clear()
            await self._sync()
            if not self._wake_event.is_set():
                self._has_untried_work = False
                self._on_settled()
                if self._has_work():
                    await asyncio.sleep(_RETRY_S)
                    self._wake_event.set()

    # ----------------------------------------------------------------- inside

    def _with_held_slots(self, before: Document) -> Document:
        held = {number: shard.assigned_key_slots for number, shard in self._shards.items()}
        return changes.record_slots(before, self._namespaces.tier, held, self._tier_shards())

    def _missing_slots(self) -> dict[OwnedShard, frozenset[int]]:
        """Return the recorded slots that have not been passed to the writer of their shard."""
        recorded = self._slots.assignment
        missing = {
            shard: recorded.get(number, frozenset()) - shard.assigned_key_slots
            for number, shard in self._shards.items()
        }
        return {shard: slots for shard, slots in missing.items() if slots}

    def _has_work(self) -> bool:
        document = self._namespaces.document
        return self._with_held_slots(document) is not document or bool(self._missing_slots())

    async def _sync(self) -> None:
        document = self._namespaces.document
        if self._with_held_slots(document) is not document:
            try:
                await self._admin.change(self._with_held_slots, asyncio.get_running_loop().time() + _STORE_TIMEOUT_S)
                self._last_error = ""
            except FoqsError as error:
                if error.message != self._last_error:
                    self._last_error = error.message
                    log.error(  # noqa: TRY400 - the text says all
                        "key slots of this host's shards cannot be recorded in the catalog; trying again: %s",
                        error.message,
                    )
        for shard, slots in self._missing_slots().items():
            # The writer accepts one assignment at a time.
            if not shard.has_pending_key_slots:
                shard.assign_key_slots(sorted(slots), self._on_slots_held)

    def _on_slots_held(self) -> None:
        """Check for more work, because assigned slots are committed."""
        self.on_change()
        self._on_settled()

    def _update_disputes(self) -> None:
        """Make each shard refuse keys in slots that the catalog assigns to another shard."""
        recorded = self._slots.assignment
        disputes: dict[int, str] = {}
        for number, shard in self._shards.items():
            try:
                with_slots(recorded, number, shard.assigned_key_slots)
                shard.dispute_key_slots(frozenset(), None)
            except SlotConflict as error:
                disputes[number] = f"{error}; shard {number} refuses keys in them (docs/runbook.md, Key slots)"
                others = frozenset().union(*(slots for other, slots in recorded.items() if other != number))
                shard.dispute_key_slots(others, disputes[number])
        for number, reason in disputes.items():
            if self._disputes.get(number) != reason:
                log.error("shard %d: %s", number, reason)
        self._disputes = disputes
        self._on_slots_moved()
