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
from foqs.catalog.document import Document
from foqs.catalog.slots import Holdings, SlotsTaken, holders, joined
from foqs.core.errors import FoqsError
from foqs.service.admin import Administration
from foqs.service.namespaces import Namespaces
from foqs.shard.shard import Shard

log = logging.getLogger(__name__)

_STORED_WITHIN_S: Final = 10.0
_RETRY_S: Final = 1.0
_NONE: Final[Holdings] = {}


class Slots:
    """The slots of this host's shards.

    Args:
        tier: of this host.
        sharing: all shards of the tier, here or elsewhere; none while that is not known.
        moved: told that other shards than before may answer for some slots.
        settled: told when `is_settled` may have become true.
    """

    def __init__(
        self,
        admin: Administration,
        namespaces: Namespaces,
        shards: Mapping[int, Shard],
        tier: str,
        sharing: Callable[[], Collection[int]],
        moved: Callable[[], None],
        settled: Callable[[], None],
    ) -> None:
        self._admin = admin
        self._namespaces = namespaces
        self._shards = shards
        self._tier = tier
        self._sharing = sharing
        self._moved = moved
        self._settled = settled
        self._wake = asyncio.Event()
        self._disputes: dict[int, str] = {}
        self._known: Holdings = _NONE
        self._holders = holders(_NONE)
        """Of each slot, as `_known` says it."""
        self._trouble = ""
        self._untried = False
        """Something is to be recorded or given, and was not tried yet."""
        admin.on_change(self.look)

    @property
    def is_settled(self) -> bool:
        """Every shard that is here has what it shall have, as far as that can be done now."""
        return not self._untried and not any(shard.is_taking_slots for shard in self._shards.values())

    def look(self) -> None:
        """A shard is here that was not, or the document or the tier's shards have changed."""
        self._dispute()
        if self._undone():
            self._untried = True
            self._wake.set()

    async def run(self) -> None:
        """Does what is to be done, until it is cancelled; also what it broke off when it failed."""
        if self._untried:
            self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._settle()
            if not self._wake.is_set():
                self._untried = False
                self._settled()
                if self._undone():
                    await asyncio.sleep(_RETRY_S)
                    self._wake.set()

    @property
    def recorded(self) -> Holdings:
        """The slots that each shard of the tier shall hold; the same object as long as they are the same."""
        return self._namespaces.document.slots.get(self._tier, _NONE)

    def holder(self, slot: int) -> int | None:
        """The shard that shall hold a slot."""
        recorded = self.recorded
        if recorded is not self._known:
            self._known, self._holders = recorded, holders(recorded)
        return self._holders[slot]

    # ----------------------------------------------------------------- inside

    def _record(self, before: Document) -> Document:
        claimed = {number: shard.slots_claimed for number, shard in self._shards.items()}
        return changes.record_slots(before, self._tier, claimed, self._sharing())

    def _lacking(self) -> dict[Shard, frozenset[int]]:
        """What is recorded as a shard's and has not reached its writer."""
        recorded = self.recorded
        lacks = {
            shard: recorded.get(number, frozenset()) - shard.slots_claimed for number, shard in self._shards.items()
        }
        return {shard: slots for shard, slots in lacks.items() if slots}

    def _undone(self) -> bool:
        document = self._namespaces.document
        return self._record(document) is not document or bool(self._lacking())

    async def _settle(self) -> None:
        document = self._namespaces.document
        if self._record(document) is not document:
            try:
                await self._admin.change(self._record, asyncio.get_running_loop().time() + _STORED_WITHIN_S)
                self._trouble = ""
            except FoqsError as error:
                if error.message != self._trouble:
                    self._trouble = error.message
                    log.error("slots of keys cannot be recorded: %s", error.message)  # noqa: TRY400 - the text says all
        for shard, slots in self._lacking().items():
            # One gift after the other: the writer knows of one.
            if not shard.is_taking_slots:
                shard.hold(sorted(slots), self._held)

    def _held(self) -> None:
        """Slots that were given are committed."""
        self.look()
        self._settled()

    def _dispute(self) -> None:
        """Takes from each shard what is recorded as another's."""
        recorded = self.recorded
        disputes: dict[int, str] = {}
        for number, shard in self._shards.items():
            try:
                joined(recorded, number, shard.slots_claimed)
                shard.dispute(frozenset(), None)
            except SlotsTaken as error:
                disputes[number] = f"{error}; its keys there are not served (docs/runbook.md, Slots of keys)"
                others = frozenset().union(*(slots for other, slots in recorded.items() if other != number))
                shard.dispute(others, disputes[number])
        for number, text in disputes.items():
            if self._disputes.get(number) != text:
                log.error("shard %d: %s", number, text)
        self._disputes = disputes
        self._moved()
