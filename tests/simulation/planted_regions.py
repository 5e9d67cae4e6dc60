"""Planted bugs of the promotion of primaries, for the simulation of several regions; see `planted`.

`tests/unit/shardmgr/test_promotion_rules.py` plants more of them in the pure core. These show that a whole fleet, with the
plan, sessions, stores and clients, would find them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shardmgr import promoter
from shardmgr.positions import LostRange, ShardPosition
from shardmgr.primary import LossPolicy, Primary, PrimaryState
from shardmgr.primary_document import read_last_primary
from shardmgr.promotion import Promotion, PromotionStep, ReplaceEntry, SendCommand, ServerCommand
from shardmgr.registry.port import Registry, RegistryConflict
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def promoted_without_proof() -> None:
    """An acker that says what it has received counts, although its reception may have been started again.

    What owners published is not compared either: that alone finds most of it.
    """

    def is_proven(self: Promotion, server: str) -> bool:
        report = self._reports.get(server)
        return self._entry.policy is LossPolicy.SEMI_SYNC and report is not None and report.received is not None

    plant(Promotion, "is_proven", is_proven)
    plant(promoter.Promoter, "_needs_published", staticmethod(lambda entry, after: False))


def ackers_not_revoked() -> None:
    """A primary that may be lost is replaced while its ackers go on to acknowledge."""
    plant(Promotion, "_stop_ackers", lambda self: None)


def drained_without_read_only() -> None:
    """A drain takes the position of a primary that still accepts commits."""

    def drain(self: Promotion) -> PromotionStep:
        step = original(self)
        if not isinstance(step, SendCommand) or step.command is not ServerCommand.MAKE_READ_ONLY:
            return step
        position = self._reports[self._entry.server].applied
        return ReplaceEntry(replace(self._entry, state=PrimaryState.FENCED, position=position))

    original = plant(Promotion, "_drain", drain)


def opened_without_comparing() -> None:
    """A primary that was restarted is opened, whatever its start has cut off its log."""
    plant(Promotion, "may_be_opened", lambda self, primary: True)


def loss_counted_to_the_last_publication() -> None:
    """The report of a loss takes what owners published last for all that they inserted."""

    def lost_range(
        published: ShardPosition | None, epoch: int, flush: int, *, is_complete: bool = True
    ) -> LostRange | None:
        if published is not None:
            published = replace(published, most=published.points[-1][1])
        return original(published, epoch, flush, is_complete=is_complete)

    original = plant(promoter, "lost_range", lost_range)


def entry_replaced_blindly() -> None:
    """A promoter replaces the entry whatever has become of the one that it has read."""

    async def replace_primary(registry: Registry, database: str, entry: Primary, version: int | None) -> int:
        while True:
            try:
                return await original(registry, database, entry, version)
            except RegistryConflict:
                found = await read_last_primary(registry, database)
                assert found is not None
                version = found.version

    original = plant(promoter, "replace_primary", replace_primary)


BUGS: Final[Mapping[str, Bug]] = {
    "ackers-not-revoked": Bug(ackers_not_revoked, (1,), first_seed=4),
    "entry-replaced-blindly": Bug(entry_replaced_blindly, (12,), first_seed=1),
    "drained-without-read-only": Bug(drained_without_read_only, (1,)),
    "promoted-without-proof": Bug(promoted_without_proof, (1,), first_seed=5),
    "opened-without-comparing": Bug(opened_without_comparing, (1,), first_seed=8),
    "loss-counted-to-the-last-publication": Bug(loss_counted_to_the_last_publication, (1,), first_seed=8),
}
