"""Brings the slots that this host's shards hold and those that the catalog gives them together.

Always true: what a shard's table holds, or is being given, is recorded before
the shard is given anything; a shard is given only what is recorded as its own,
by the document that this host has now. Slots that are recorded as another
shard's are left alone: nothing is recorded of such a shard, and their keys are
the other's. What a process that dies leaves undone, the next owner does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from foqs.catalog import changes
from foqs.catalog.administration import Administration
from foqs.catalog.document import Document
from foqs.catalog.key_slot_assignment import SlotAssignment, SlotConflict, shard_by_slot, with_slots
from foqs.catalog.namespaces import Namespaces
from foqs.core.errors import FoqsError
from foqs.shard.shard import Shard

log = logging.getLogger(__name__)

_STORE_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 1.0
_NO_ASSIGNMENT: Final[SlotAssignment] = {}


class KeySlotSync:
    """The slots of this host's shards.

    Args:
        tier: of this host.
        tier_shards: all shards of the tier, here or elsewhere; none while that is not known.
        on_slots_moved: told that other shards than before may answer for some slots.
        on_settled: told when `is_settled` may have become true.
    """

    def __init__(
        self,
        admin: Administration,
        namespaces: Namespaces,
        shards: Mapping[int, Shard],
        tier: str,
        tier_shards: Callable[[], Collection[int]],
        on_slots_moved: Callable[[], None],
        on_settled: Callable[[], None],
    ) -> None:
        self._admin = admin
        self._namespaces = namespaces
        self._shards = shards
        self._tier = tier
        self._tier_shards = tier_shards
        self._on_slots_moved = on_slots_moved
        self._on_settled = on_settled
        self._wake_event = asyncio.Event()
        self._disputes: dict[int, str] = {}
        self._cached_assignment: SlotAssignment = _NO_ASSIGNMENT
        self._shard_by_slot = shard_by_slot(_NO_ASSIGNMENT)
        """Of each slot, as `_known` says it."""
        self._trouble = ""
        self._has_untried_work = False
        """Something is to be recorded or given, and was not tried yet."""
        admin.add_change_listener(self.on_change)

    @property
    def is_settled(self) -> bool:
        """Every shard that is here has what it shall have, as far as that can be done now."""
        return not self._has_untried_work and not any(shard.has_pending_key_slots for shard in self._shards.values())

    def on_change(self) -> None:
        """A shard is here that was not, or the document or the tier's shards have changed."""
        self._update_disputes()
        if self._has_work():
            self._has_untried_work = True
            self._wake_event.set()

    async def run(self) -> None:
        """Does what is to be done, until it is cancelled; also what it broke off when it failed."""
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

    @property
    def assignment(self) -> SlotAssignment:
        """The slots that each shard of the tier shall hold; the same object as long as they are the same."""
        return self._namespaces.document.slots.get(self._tier, _NO_ASSIGNMENT)

    def shard_of_slot(self, slot: int) -> int | None:
        """The shard that shall hold a slot."""
        recorded = self.assignment
        if recorded is not self._cached_assignment:
            self._cached_assignment, self._shard_by_slot = recorded, shard_by_slot(recorded)
        return self._shard_by_slot[slot]

    # ----------------------------------------------------------------- inside

    def _with_held_slots(self, before: Document) -> Document:
        claimed = {number: shard.assigned_key_slots for number, shard in self._shards.items()}
        return changes.record_slots(before, self._tier, claimed, self._tier_shards())

    def _missing_slots(self) -> dict[Shard, frozenset[int]]:
        """What is recorded as a shard's and has not reached its writer."""
        recorded = self.assignment
        lacks = {
            shard: recorded.get(number, frozenset()) - shard.assigned_key_slots
            for number, shard in self._shards.items()
        }
        return {shard: slots for shard, slots in lacks.items() if slots}

    def _has_work(self) -> bool:
        document = self._namespaces.document
        return self._with_held_slots(document) is not document or bool(self._missing_slots())

    async def _sync(self) -> None:
        document = self._namespaces.document
        if self._with_held_slots(document) is not document:
            try:
                await self._admin.change(self._with_held_slots, asyncio.get_running_loop().time() + _STORE_TIMEOUT_S)
                self._trouble = ""
            except FoqsError as error:
                if error.message != self._trouble:
                    self._trouble = error.message
                    log.error("slots of keys cannot be recorded: %s", error.message)  # noqa: TRY400 - the text says all
        for shard, slots in self._missing_slots().items():
            # One gift after the other: the writer knows of one.
            if not shard.has_pending_key_slots:
                shard.assign_key_slots(sorted(slots), self._on_slots_held)

    def _on_slots_held(self) -> None:
        """Slots that were given are committed."""
        self.on_change()
        self._on_settled()

    def _update_disputes(self) -> None:
        """Takes from each shard what is recorded as another's."""
        recorded = self.assignment
        disputes: dict[int, str] = {}
        for number, shard in self._shards.items():
            try:
                with_slots(recorded, number, shard.assigned_key_slots)
                shard.dispute_key_slots(frozenset(), None)
            except SlotConflict as error:
                disputes[number] = f"{error}; its keys there are not served (docs/runbook.md, Slots of keys)"
                others = frozenset().union(*(slots for other, slots in recorded.items() if other != number))
                shard.dispute_key_slots(others, disputes[number])
        for number, text in disputes.items():
            if self._disputes.get(number) != text:
                log.error("shard %d: %s", number, text)
        self._disputes = disputes
        self._on_slots_moved()
