"""Planted bugs of ownership and of forwarding, for the simulation of several hosts; see `planted`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foqs.core.timing.arrivals import Arrivals
from foqs.queue.placement import Placement
from foqs.shard.shard import OwnedShard
from foqs.shard.writer import Writer
from foqs_contract.errors import FoqsError
from shardmgr import plan as planning
from shardmgr import planner
from shardmgr.agent import Agent
from shardmgr.model import Assignment, Member, ShardSpec
from shardmgr.session_state import SessionEvent
from tests.simulation import planted_forwarding
from tests.simulation.planted import Bug, no_fence
from tests.simulation.planting import plant


def epochs_issued_again() -> None:
    """The next owner of a shard gets the epoch of the last one."""

    def assign(self: planning.PlanDraft, spec: ShardSpec, owner: Member) -> None:
        self._epochs[spec.number] = max(0, self._epochs.get(spec.number, 0) - 1)
        original(self, spec, owner)

    original = plant(planning.PlanDraft, "assign", assign)


def handed_over_early() -> None:
    """A shard that is leaving gets its next owner at once, with the same epoch."""

    def may_reassign(number: int, assignment: Assignment, *others: object) -> bool:
        return assignment.leaving

    def assign(self: planning.PlanDraft, spec: ShardSpec, owner: Member) -> None:
        before = self._epochs.get(spec.number, 0)
        original(self, spec, owner)
        if before and spec.number in leaving:
            self._assignments[spec.number] = replace(self._assignments[spec.number], epoch=before)
            self._epochs[spec.number] = before

    def init(self: planning.PlanDraft, layout: Any, plan: Any, *others: Any) -> None:
        original_init(self, layout, plan, *others)
        leaving.clear()
        leaving.update(number for number, each in plan.assignments.items() if each.leaving)

    leaving: set[int] = set()
    original, original_init = planning.PlanDraft.assign, planning.PlanDraft.__init__
    plant(planning.PlanDraft, "assign", assign)
    plant(planning.PlanDraft, "__init__", init)
    plant(planning, "_may_reassign", may_reassign)


def taken_epochs_ignored() -> None:
    """The planner ignores that a host needs a higher epoch."""

    def next_plan(layout: Any, plan: Any, members: Sequence[Member], overdue: Any, moves_max: int) -> Any:
        return decide(layout, plan, [replace(member, taken_epochs={}) for member in members], overdue, moves_max)

    decide = planning.next_plan
    plant(planner, "next_plan", next_plan)


def session_outlived() -> None:
    """A host still serves when its registry session has ended."""

    def advance(self: Agent, event: SessionEvent) -> None:
        if event is not SessionEvent.ENDED:
            original(self, event)

    original = plant(Agent, "_advance", advance)


def epoch_serves_twice() -> None:
    """A host that lost its registry session acquires its shards again with the same epochs, and starts its sequences again."""

    def drop(self: Agent, number: int) -> None:
        original(self, number)
        self._issued_epochs.pop(number, None)

    original = plant(Agent, "_drop_shard", drop)
    plant(Arrivals, "start_sequences", lambda self, now_ms: setattr(self, "last_sequence", 0))


def served_epochs_forgotten() -> None:
    """A host takes every epoch of an earlier supervisor for one with which no shard was served."""

    def report_state(self: Agent, shard: int, epoch: int, state: str) -> None:
        original(self, shard, epoch, state)
        self._served_epochs.clear()

    original = plant(Agent, "report_state", report_state)


def dropped_writes_reported_as_unwritten() -> None:
    """Operations that are being written when a shard is dropped or fenced are reported as not written."""

    def end(self: Writer, error: FoqsError, is_maybe_written: bool) -> None:
        original(self, error, False)

    original = plant(Writer, "_fail_all", end)


def any_shard_accepts_any_key() -> None:
    """A host accepts a key although none of its shards holds the key's slot."""

    def holders_of(self: Placement, keys: Sequence[bytes]) -> list[OwnedShard | None]:
        serving = self._answering_shards()
        return [holder or (serving[0] if serving else None) for holder in original(self, keys)]

    original = plant(Placement, "shards_for_idempotency_keys", holders_of)


BUGS: Final[Mapping[str, Bug]] = {
    "epochs-issued-again": Bug(epochs_issued_again, (12,)),
    "handed-over-early": Bug(handed_over_early, (12,)),
    "taken-epochs-ignored": Bug(taken_epochs_ignored, (11,)),
    "session-outlived": Bug(session_outlived, (12,)),
    "no-fence": Bug(no_fence, (12,)),
    "epoch-serves-twice": Bug(epoch_serves_twice, (2, 4, 6, 12)),
    "served-epochs-forgotten": Bug(served_epochs_forgotten, (12,)),
    "dropped-writes-reported-as-unwritten": Bug(
        dropped_writes_reported_as_unwritten, (2, 16), seed_count=32, first_seed=6
    ),
    "any-shard-accepts-any-key": Bug(any_shard_accepts_any_key, (3,)),
    "unanswered-forward-repeated": Bug(planted_forwarding.unanswered_forward_repeated, (2, 16)),
    "unanswered-forward-refused": Bug(planted_forwarding.unanswered_forward_refused, (16,), first_seed=6),
    "forwarded-twice": Bug(planted_forwarding.forwarded_twice, (2,)),
    "unnamed-items-refused": Bug(planted_forwarding.unnamed_items_refused, (2, 16)),
    "results-in-order-of-peer": Bug(planted_forwarding.results_in_order_of_peer, (2, 3)),
}
