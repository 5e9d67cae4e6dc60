"""The rules of planning: a pure function from the layout, the plan and the members to the next plan.

Always true of a next plan: a shard's epoch never decreases, and each new assignment
has a higher epoch than all before; a shard leaves a running member only through
`leaving`; an owner that may keep a shard keeps it, unless a move makes the load more
even or brings the shard to its region. Equal input gives an equal plan, and members
that follow the plan bring it to rest. Knows neither the registry nor the time; the
caller says which handovers are overdue.

A database with an entry gives its shards the region and the term of its primary. While the
entry does not serve, its shards leave their owners, and none gets another one. While the entry cannot be read, its
shards stay with their owners, and none gets another one.

    unassigned ──▶ assigned(A, e) ──▶ leaving(A, e) ──handed over, A gone, overdue, or its term is over──▶ assigned(B, e+1)

A host fits a shard if it runs, is not leaving, is not drained, and is of the shard's
tier. The candidates for a shard are the host to which it is pinned, if that host
fits; else the fitting hosts of its region; else all fitting hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final, TypeAlias

from shardmgr.model import EPOCH_MAX, Assignment, Layout, Member, Plan, ShardSpec
from shardmgr.ownership import OwnershipState
from shardmgr.primary import Primaries, Primary, is_over, usable_term

_PlacementKey: TypeAlias = tuple[str, str, str | None, int]
"""A shard's tier, region, pinned host and weight."""
_NO_PRIMARIES: Final = Primaries()


def next_plan(
    layout: Layout,
    plan: Plan,
    members: Sequence[Member],
    overdue: frozenset[int],
    moves_max: int,
    primaries: Primaries = _NO_PRIMARIES,
) -> Plan:
    """Return the plan that should replace `plan`; an equal one if nothing changes.

    Args:
        members: the running members, in any order.
        overdue: the shards whose handover takes too long.
        moves_max: the number of shards that may leave at once for balance or region only.
        primaries: the entries of the databases that have one.
    """
    layout = _at_primaries(layout, primaries.entries)
    draft = PlanDraft(layout, plan, members, primaries)
    for number, assignment in sorted(plan.assignments.items()):
        owner = draft.member(assignment)
        entry = primaries.entries.get(assignment.database)
        if owner is None or _may_reassign(number, assignment, owner, overdue, entry):
            continue
        spec = layout.shards.get(number)
        if spec is not None and spec.database in primaries.malformed and not (assignment.leaving or owner.leaving):
            draft.keep_assignment(spec, assignment)
        elif spec is None or assignment.leaving or not draft.may_stay(spec, assignment):
            draft.mark_leaving(number, assignment)
        elif owner.taken_epochs.get(number, 0) >= assignment.epoch:
            draft.assign(spec, owner)
        else:
            draft.keep_assignment(spec, assignment)
    draft.place_shards()
    draft.rebalance(moves_max)
    return draft.plan()


def has_no_owner(plan: Plan, database: str) -> bool:
    """Return whether no member has a shard of a database any more: all were handed over, or their handover is overdue."""
    return all(assignment.database != database for assignment in plan.assignments.values())


def _at_primaries(layout: Layout, primaries: Mapping[str, Primary]) -> Layout:
    """Return the layout in which shards of a database with an entry are in the region of its primary."""
    if not primaries:
        return layout
    regions = {name: entry.servers[entry.server].region for name, entry in primaries.items()}
    shards = {
        number: replace(spec, region=regions.get(spec.database, spec.region)) for number, spec in layout.shards.items()
    }
    return replace(layout, shards=shards)


def _may_reassign(
    number: int, assignment: Assignment, owner: Member, overdue: frozenset[int], entry: Primary | None
) -> bool:
    """Return whether a leaving shard may be assigned to another member.

    Args:
        entry: of the assignment's database; None: it has none. If the term is over, the owner has nothing to hand over.
    """
    if not assignment.leaving:
        return False
    holding = owner.held_shards.get(number)
    free = holding is not None and holding.epoch == assignment.epoch and holding.state == OwnershipState.FREE.value
    # An owner that found its epoch in use writes nothing with it any more.
    is_taken = owner.taken_epochs.get(number, 0) >= assignment.epoch
    return free or is_taken or number in overdue or is_over(entry, assignment.term)


class PlanDraft:
    """A plan under construction."""

    def __init__(
        self, layout: Layout, plan: Plan, members: Sequence[Member], primaries: Primaries = _NO_PRIMARIES
    ) -> None:
        self._layout = layout
        self._primaries = primaries
        self._members = {member.nonce: member for member in members}
        self._hosts = _HostLoads(layout, self._members.values())
        self._assignments: dict[int, Assignment] = {}
        self._epochs = dict(plan.epochs)
        self._before = plan
        for number, assignment in plan.assignments.items():
            self._epochs[number] = max(self._epochs.get(number, 0), assignment.epoch)
        self._taken_epochs = _highest_epochs(member.taken_epochs for member in members)
        """By shard, the highest epoch that a member has found in a database."""
        self._movable: dict[int, tuple[ShardSpec, Member]] = {}
        """Shards that stay with their owners but could move."""

    def plan(self) -> Plan:
        return replace(self._before, assignments=self._assignments, epochs=self._epochs)

    def member(self, assignment: Assignment) -> Member | None:
        return self._members.get(assignment.nonce)

    def may_stay(self, spec: ShardSpec, assignment: Assignment) -> bool:
        """Return whether the owner fits, database and term are the same, and no other fitting host has the shard pinned."""
        owner = self._members[assignment.nonce]
        same = (assignment.database, assignment.term) == (spec.database, self._usable_term(spec.database))
        return same and self._hosts.fits(owner, spec) and self._hosts.pinned_host(spec) in (None, owner.name)

    def _usable_term(self, database: str) -> int | None:
        if database in self._primaries.malformed:
            return None
        return usable_term(self._primaries.entries.get(database))

    def keep_assignment(self, spec: ShardSpec, assignment: Assignment) -> None:
        owner = self._members[assignment.nonce]
        self._assignments[spec.number] = assignment
        self._hosts.add_load(owner, spec.weight)
        if self._epochs[spec.number] < EPOCH_MAX and spec.database not in self._primaries.malformed:
            self._movable[spec.number] = spec, owner

    def mark_leaving(self, number: int, assignment: Assignment) -> None:
        self._assignments[number] = assignment if assignment.leaving else replace(assignment, leaving=True)

    def assign(self, spec: ShardSpec, owner: Member) -> None:
        """Assign a shard, unless all its epochs are used up: then no host can own it."""
        term = self._usable_term(spec.database)
        assert term is not None
        epoch = max(self._epochs.get(spec.number, 0), self._taken_epochs.get(spec.number, 0)) + 1
        self._epochs[spec.number] = min(epoch, EPOCH_MAX)
        if epoch <= EPOCH_MAX:
            self._assignments[spec.number] = Assignment(owner.name, owner.nonce, epoch, spec.database, term=term)
            self._hosts.add_load(owner, spec.weight)

    def place_shards(self) -> None:
        """Assign the unassigned shards, the heaviest first, as light ones even out the rest.

        Leaving shards count at their next owner, so that no second shard moves to the same gap.
        """
        waiting = [
            spec
            for number, spec in self._layout.shards.items()
            if self._usable_term(spec.database) is not None
            and (number not in self._assignments or self._assignments[number].leaving)
        ]
        for spec in sorted(waiting, key=lambda spec: (-spec.weight, spec.number)):
            host = self._hosts.least_loaded(spec)
            if host is None:
                continue
            if spec.number in self._assignments:
                self._hosts.add_load(host, spec.weight)
            else:
                self.assign(spec, host)

    def rebalance(self, moves_max: int) -> None:
        """Mark shards as leaving that are better elsewhere, up to the limit of moves.

        Shards that leave for balance at the same time are of one kind, so they are interchangeable: in any order of
        their handovers each gap is filled as planned, and none returns to its former owner.
        """
        moves = [
            (spec, self._members[assignment.nonce])
            for number, assignment in self._assignments.items()
            if assignment.leaving and (spec := self._layout.shards.get(number)) and self.may_stay(spec, assignment)
        ]
        kinds = {self._hosts.placement_key(spec) for spec, owner in moves if self._hosts.is_candidate(owner, spec)}
        for _ in range(len(moves), moves_max):
            move = self._best_move(kinds)
            if move is None:
                return
            spec, owner, target = move
            if self._hosts.is_candidate(owner, spec):
                kinds.add(self._hosts.placement_key(spec))
            self._hosts.add_load(owner, -spec.weight)
            self._hosts.add_load(target, spec.weight)
            del self._movable[spec.number]
            self.mark_leaving(spec.number, self._assignments[spec.number])

    def _best_move(self, moving: set[_PlacementKey]) -> tuple[ShardSpec, Member, Member] | None:
        """Return the best move: a shard, its owner and its next owner.

        A shard outside its region comes first. Otherwise it is a shard of the host with the highest load ratio that
        leaves both hosts most even, and only if the next owner's ratio stays below that of the owner.

        Args:
            moving: the kinds of the moves for balance that are in progress.
        """
        best: tuple[tuple[float, float, int], tuple[ShardSpec, Member, Member]] | None = None
        hosts, targets = self._hosts, dict[_PlacementKey, Member | None]()
        for number, (spec, owner) in self._movable.items():
            kind = hosts.placement_key(spec)
            if kind not in targets:
                targets[kind] = hosts.least_loaded(spec)
            target = targets[kind]
            if target is None or target is owner:
                continue
            before, after = hosts.load_ratio(owner), hosts.load_ratio(target, spec.weight)
            at_home = hosts.is_candidate(owner, spec)
            if at_home and (after >= before or not moving <= {kind}):
                continue
            left = max(hosts.load_ratio(owner, -spec.weight), after)
            rank = (-before if at_home else -inf, left, number)
            if best is None or rank < best[0]:
                best = rank, (spec, owner, target)
        return None if best is None else best[1]


class _HostLoads:
    """The members that may own shards, and their loads once the draft is carried out."""

    def __init__(self, layout: Layout, members: Iterable[Member]) -> None:
        fitting = (member for member in members if not member.leaving and member.name not in layout.drained)
        self._hosts = sorted(fitting, key=lambda member: (member.name, member.nonce))
        self._weights = {host.nonce: 0 for host in self._hosts}
        self._pins = layout.pins
        self._tiers_of_name: dict[str, set[str]] = {}
        for host in self._hosts:
            self._tiers_of_name.setdefault(host.name, set()).add(host.tier)
        self._candidates: dict[_PlacementKey, dict[str, Member]] = {}
        """By kind of shard: the hosts by nonce, in the order of their names."""

    def fits(self, member: Member, spec: ShardSpec) -> bool:
        return member.nonce in self._weights and member.tier == spec.tier

    def pinned_host(self, spec: ShardSpec) -> str | None:
        """Return the name of the shard's pinned host, if a host of that name fits."""
        name = self._pins.get(spec.number)
        return name if name is not None and spec.tier in self._tiers_of_name.get(name, ()) else None

    def placement_key(self, spec: ShardSpec) -> _PlacementKey:
        """Return a key that is equal for interchangeable shards: the same weight and candidates."""
        return spec.tier, spec.region, self.pinned_host(spec), spec.weight

    def is_candidate(self, member: Member, spec: ShardSpec) -> bool:
        return member.nonce in self._candidates_for(spec)

    def least_loaded(self, spec: ShardSpec) -> Member | None:
        """Return the candidate with the lowest load ratio with this shard; of equals the first by name."""
        return min(
            self._candidates_for(spec).values(), key=lambda host: self.load_ratio(host, spec.weight), default=None
        )

    def _candidates_for(self, spec: ShardSpec) -> dict[str, Member]:
        kind = self.placement_key(spec)
        found = self._candidates.get(kind)
        if found is None:
            fitting = [host for host in self._hosts if host.tier == spec.tier]
            if (name := self.pinned_host(spec)) is not None:
                chosen = [host for host in fitting if host.name == name]
            else:
                chosen = [host for host in fitting if spec.region and host.region == spec.region] or fitting
            found = self._candidates[kind] = {host.nonce: host for host in chosen}
        return found

    def load_ratio(self, host: Member, added_weight: int = 0) -> float:
        """Return the host's weight by its capacity. Rounding keeps the order, so a lower ratio is truly lower."""
        return (self._weights[host.nonce] + added_weight) / host.capacity

    def add_load(self, host: Member, weight: int) -> None:
        self._weights[host.nonce] += weight


def _highest_epochs(epoch_maps: Iterable[Mapping[int, int]]) -> dict[int, int]:
    highest: dict[int, int] = {}
    for epochs in epoch_maps:
        for number, epoch in epochs.items():
            highest[number] = max(highest.get(number, 0), epoch)
    return highest
