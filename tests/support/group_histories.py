"""Random histories of groups: calls, the time, reads that take long, refused flushes, and owners that are replaced.

`play` returns the first difference between what an owner does and what the rows demand, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final, TypeAlias

from foqs.core.groups.places import UNGROUPED
from foqs.core.items.item import State
from tests.support.core_groups import CoreGroupOwner
from tests.support.plain_groups import Place, PlainItem, Table, behind_of, line_of, offer_of

OwnerFactory: TypeAlias = Callable[[Table, int, int, int], CoreGroupOwner]

GROUPS: Final = ("a", "b", "c", "d")
STEPS: Final = 60
LIMITS: Final = (1, 1, 1, 2, 3)
NO_LIMIT: Final = 1_000
"""For items without a group."""


class Difference(Exception):
    """The owner breaks a rule."""


class History:
    """One run of an owner type. `now` only orders items: time passes by events."""

    extends_ended_leases = False
    limits: Sequence[int] = LIMITS
    groups: Sequence[str] = (*GROUPS, *GROUPS, UNGROUPED)
    runs_max = (1, 1, 3)
    weights: tuple[float, ...] = (6, 8, 7, 1, 5, 2, 2, 2, 9, 2, 1, 1)
    wants_more = 0.3
    after = (-30, 0, 0, 20)

    def __init__(self, seed: int, make_owner: OwnerFactory) -> None:
        self.random = Random(seed)
        self.make_owner = make_owner
        self.table: Table = {}
        self.limit = self.random.choice(self.limits)
        self.bounds = self.random.choice(((9, 9), (3, 9), (2, 9), (9, 1), (3, 1), (2, 1)))
        self.owner = make_owner(self.table, self.limit, *self.bounds)
        self.now = 100
        self.next_number = 1
        self.pending: list[list[int]] = []
        """Reservations whose leases wait for a flush."""
        self.has_moved: set[int] = set()
        """Items whose priority was changed, perhaps while they were leased."""
        self.excess: dict[str, int] = {}
        """Leases of a group that a former, higher limit allowed."""

    # -------------------------------------------------------------------- steps

    def step(self) -> None:
        self.now += 1
        steps: tuple[Callable[[], None], ...] = (
            self.enqueue,
            self.reserve,
            self.flush_leases,
            self.give_back,
            self.settle_some,
            self.extend_some,
            self.pass_time,
            self.administer,
            self.read,
            self.set_limit,
            self.purge,
            self.replace_owner,
        )
        self.random.choices(steps, self.weights)[0]()
        self.check_limit()

    def enqueue(self) -> None:
        state = self.random.choice((State.READY, State.READY, State.DEFERRED))
        after = self.now + self.random.choice(self.after)
        priority = self.random.choice((0, 0, 0, -1))
        group = self.random.choice(self.groups)
        self.commit({self.next_number: PlainItem(self.next_number, group, priority, after, state)})
        self.next_number += 1

    def reserve(self) -> None:
        run_max = self.random.choice(self.runs_max)
        taken = self.owner.reserve_best(run_max)
        if not taken:
            return
        if taken[0] not in self.table:
            raise Difference(f"reserved {taken}, which have no row")
        group = self.table[taken[0]].group
        others = [n for numbers in self.pending for n in numbers if n in self.table and self.table[n].group == group]
        limit = self.limit_of(group)
        allowed = offer_of(line_of(self.rows_of(group)), others, limit, run_max if limit == 1 else 1)
        if taken != allowed[: len(taken)]:
            raise Difference(f"reserved {taken} of {group}, where the rows allow {allowed}")
        self.pending.append(taken)

    def flush_leases(self) -> None:
        if self.pending:
            numbers = self.pending.pop(self.random.randrange(len(self.pending)))
            rows = [self.table.get(number) for number in numbers]
            self.commit(
                {
                    row.number: replace(row, state=State.LEASED, attempt=row.attempt + 1, token=self.now)
                    for row in rows
                    if row is not None and row.state is State.READY
                },
                numbers,
            )

    def give_back(self) -> None:
        if self.pending:
            self.owner.give_back(self.pending.pop())

    def settle_some(self) -> None:
        for row in self.some(State.LEASED):
            kind = self.random.choice(("ack", "ack", "ack", "nack", "back off", "release", "dead", "end"))
            if kind == "ack":
                self.commit({row.number: None})
            elif kind == "release":
                self.end_early(replace(row, state=State.READY, attempt=row.attempt - 1))
            else:
                state = {"back off": State.DEFERRED, "dead": State.DEAD}.get(kind, State.READY)
                self.end_early(replace(row, state=state))

    def end_early(self, row: PlainItem) -> None:
        """End a lease other than by an ack, and in a strict group the leases behind it, which count no attempt."""
        superseded: list[int] = []
        if self.limit == 1 and row.group != UNGROUPED:
            superseded = self.owner.behind(row.number)
            behind = behind_of(self.rows_of(row.group), row.number)
            if superseded != behind and self.owner.groups.is_read:
                raise Difference(f"supersedes {superseded} behind {row.number}, where the rows say {behind}")
        self.commit({row.number: row} | {number: self.without_lease(number) for number in superseded})

    def without_lease(self, number: int) -> PlainItem:
        row = self.table[number]
        return replace(row, state=State.READY, attempt=row.attempt - 1, token=0)

    def end_superseded(self) -> None:
        """Write what the first read of an owner has found: leases behind items that had ended early before."""
        numbers, self.owner.superseded = self.owner.superseded, []
        leased = [n for n in numbers if n in self.table and self.table[n].state is State.LEASED]
        self.commit({number: self.without_lease(number) for number in leased})

    def check_superseded(self) -> None:
        """When all is known, no first lease is left behind an item of its own run that was returned or backs off."""
        for group in GROUPS if self.limit == 1 and self.owner.groups.is_read else ():
            line = line_of(self.rows_of(group))
            ended = [n for n, (place, _) in line.items() if place in (Place.RETURNED, Place.BACKING_OFF)]
            for number in ended:
                token = self.table[number].token
                behind = [
                    n
                    for n, (place, key) in line.items()
                    if place is Place.LEASED
                    and key > line[number][1]
                    and self.table[n].token == token
                    and self.table[n].attempt == 1
                ]
                if behind and not self.has_moved.intersection((number, *behind)):
                    raise Difference(f"{behind} of {group} are leased behind {number}, which has ended")

    def extend_some(self) -> None:
        """An extension of a lease that has ended. It is refused."""
        ended = [row for row in self.table.values() if row.state is State.READY and row.token]
        for row in self.random.sample(ended, 1) if ended else ():
            if row.number not in self.owner.reserved and self.extends_ended_leases:
                self.commit({row.number: replace(row, state=State.LEASED)})

    def pass_time(self) -> None:
        for row in self.some(State.DEFERRED):
            self.commit({row.number: replace(row, state=State.READY)})

    def administer(self) -> None:
        for row in self.some(*State):
            kind = self.random.choice(("cancel", "priority", "redrive", "defer"))
            if kind == "cancel":
                self.commit({row.number: None})
            elif kind == "priority":
                self.has_moved.add(row.number)
                self.commit({row.number: replace(row, priority=self.random.choice((-2, 0, 1)))})
            elif kind == "redrive" and row.state is State.DEAD:
                self.commit({row.number: replace(row, state=State.READY, attempt=0, after=self.now)})
            elif kind == "defer" and row.state is State.READY and not row.attempt:
                self.commit({row.number: replace(row, state=State.DEFERRED, after=self.now + 9)})

    def read(self) -> None:
        """Begin a read, or end one that may have begun long ago."""
        if self.random.random() < self.wants_more:
            self.owner.pages.request_more()
        if self.owner.read is None:
            self.owner.start_read()
        elif self.random.random() < 0.6:
            self.owner.finish_read()
            if self.owner.superseded:
                self.end_superseded()

    def set_limit(self) -> None:
        self.limit = self.random.choice(self.limits)
        self.owner.set_limit(self.limit)
        self.excess = {group: self.busy(group) for group in GROUPS}

    def purge(self) -> None:
        if self.random.random() < 0.4:
            self.commit(dict.fromkeys(self.table))

    def replace_owner(self) -> None:
        """Another host takes over. What the former owner had reserved was never written, or its fence matches nothing."""
        if self.random.random() < 0.5:
            return
        self.owner = self.make_owner(self.table, self.limit, *self.bounds)
        self.pending = []

    # ------------------------------------------------------------------- checks

    def commit(self, changes: Mapping[int, PlainItem | None], leased: list[int] | None = None) -> None:
        self.owner.commit(changes, leased or ())

    def some(self, *states: State) -> list[PlainItem]:
        rows = [row for row in self.table.values() if row.state in states]
        return self.random.sample(rows, 1) if rows else []

    def rows_of(self, group: str) -> list[PlainItem]:
        return [row for row in self.table.values() if row.group == group]

    def busy(self, group: str) -> int:
        """Return the leases of a group, and the reservations that may become leases."""
        leased = {row.number for row in self.rows_of(group) if row.state is State.LEASED}
        pending = {number for numbers in self.pending for number in numbers if number in self.table}
        return len(leased | {number for number in pending if self.table[number].group == group})

    def limit_of(self, group: str) -> int:
        return NO_LIMIT if group == UNGROUPED else self.limit

    def check_limit(self) -> None:
        """A group has at most its limit of leases; a run of a strict group, which one flush leased, counts as one."""
        for group in GROUPS:
            tokens = [row.token for row in self.rows_of(group) if row.state is State.LEASED]
            leases = len(set(tokens)) if self.limit == 1 else len(tokens)
            if leases > max(self.limit, self.excess.get(group, 0)):
                raise Difference(f"{group} has {leases} leases, and its limit is {self.limit}")

    def check_rest(self) -> None:
        """When all reads have ended and all reservations are settled, the best item that the rows allow is offered.

        If the memory is full of groups that were delivered from, it is one of these, or none is.
        """
        for numbers in self.pending:
            self.owner.give_back(numbers)
        self.pending = []
        owner = self.owner
        owner.read_all()
        self.end_superseded()
        self.check_superseded()
        owner.read_all()
        best = sorted(
            (self.table[offer[0]].key, name)
            for name in (*GROUPS, UNGROUPED)
            if (offer := offer_of(line_of(self.rows_of(name)), (), self.limit_of(name)))
        )
        heads = owner.heads()
        if owner.room.is_full:
            held = {row.group for row in self.table.values() if self.is_held(row)}
            if not heads and len(held) < owner.room.units_max - 1:
                raise Difference(f"is full and offers nothing, and only {held} were delivered from")
            best = [head for head in best if head in heads]
        if best[:1] != heads[:1]:
            raise Difference(f"offers {heads[:1]}, where the rows allow {best[:1]}")

    def is_held(self, row: PlainItem) -> bool:
        """Return whether a row keeps its group in memory. In groups that are not strict, returned items wait like others."""
        if row.group == UNGROUPED or row.state is State.DEAD:
            return False
        return row.state is State.LEASED or (self.limit == 1 and row.attempt > 0)


class RunHistory(History):
    """A history of strict groups with long runs. The limit is another one for a short time at most."""

    limits = (1, 1, 1, 1, 1, 1, 2)
    groups = ("a", "a", "b")
    runs_max = (1, 3, 5)
    weights = (7, 8, 8, 1, 10, 1, 3, 1, 12, 0.3, 0.2, 0.7)
    wants_more = 0.7

    def enqueue(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 4))):
            super().enqueue()

    def read(self) -> None:
        for _ in range(self.random.choice((1, 8))):
            super().read()


def play(seed: int, make_owner: OwnerFactory, history_type: type[History] = History) -> str | None:
    """Play one history. Return what is wrong, or None."""
    history = history_type(seed, make_owner)
    try:
        for _ in range(STEPS):
            history.step()
        history.check_rest()
    except Difference as difference:
        return f"seed {seed}: {difference}"
    return None
