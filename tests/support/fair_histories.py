"""Random histories of a fair topic on several shards of one host.

`play` returns the first difference between what its owners deliver and what the rows demand, or None: the bound of turns,
priorities, the order within a group, its limit, and nothing left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from foqs.core.groups.group import NO_LIMIT
from foqs.core.groups.places import UNGROUPED
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.items.item import OrderKey, State, order_key_number
from foqs.core.memory.best_items import reserve_best
from tests.support.core_groups import TOPIC, CheckedCoreGroupOwner, CoreGroupOwner
from tests.support.plain_groups import PlainItem, Table, line_of, offer_of
from tests.support.plain_turns import TurnAccount

STEPS: Final = 60
SHARDS: Final = 3
GROUPS: Final = "abcdefg"
WEIGHTS: Final[tuple[Mapping[str, int], ...]] = ({}, {}, {"a": 4, "b": 2, "e": 3})
UNLIMITED: Final = 1_000


class FairHistory:
    """One run. Reads end before each delivery, so that all that waits is known; the memory is large, and of each group small."""

    def __init__(
        self,
        seed: int,
        owner_type: type[CoreGroupOwner] = CheckedCoreGroupOwner,
        turns_type: type[TopicTurns] = TopicTurns,
        *,
        by_time: bool = False,
        has_own_turns: bool = False,
    ) -> None:
        self.random = Random(seed)
        self.limit = self.random.choice((NO_LIMIT, NO_LIMIT, 2, 1))
        self.weights: Mapping[str, int] = self.random.choice(WEIGHTS)
        self.now = 100
        self.by_time = by_time
        self.account = TurnAccount(self.weights)
        self.log: list[int] = []
        self.shards = [Table() for _ in range(SHARDS)]
        self.turns = [self.make_turns(turns_type) for _ in range(SHARDS if has_own_turns else 1)]
        self.owner_type = owner_type
        self.keys_max = self.random.choice((1, 3, 9, 100))
        self.owners = [self.make_owner(shard) for shard in range(SHARDS)]
        self.blocked: set[int] = set()
        self.next_number = 1
        self.reserved: set[int] = set()

    def make_turns(self, turns_type: type[TopicTurns]) -> TopicTurns:
        return turns_type(lambda: float(self.now), self.weights, by_time=self.by_time)

    def make_owner(self, shard: int) -> CoreGroupOwner:
        owner = self.owner_type(
            self.shards[shard], self.limit, 10_000, self.keys_max, self.turns[shard % len(self.turns)]
        )
        heads, log = owner.limited.heads, self.log

        class LoggingHeads(type(heads)):  # type: ignore[misc]
            def reserve_in_turn(
                self, heads: Sequence[OrderKey], count: int, last: OrderKey
            ) -> tuple[list[OrderKey], int, list[OrderKey]]:
                found: tuple[list[OrderKey], int, list[OrderKey]] = super().reserve_in_turn(heads, count, last)
                log.extend([order_key_number(key) for key in found[0]])
                return found

        heads.__class__ = LoggingHeads
        owner.page_rows = 4
        owner.pages.request_more()
        return owner

    # -------------------------------------------------------------------- steps

    def step(self) -> None:
        self.now += 1
        steps = (
            (8, self.enqueue),
            (10, self.deliver),
            (6, self.settle_some),
            (1, self.give_back),
            (2, self.change),
            (1, self.block),
            (1, self.replace_owner),
        )
        self.random.choices([each for _, each in steps], [weight for weight, _ in steps])[0]()

    def enqueue(self) -> None:
        group = self.random.choice((*GROUPS, *GROUPS, UNGROUPED))
        for _ in range(self.random.choice((1, 1, 2, 12))):
            number, self.next_number = self.next_number, self.next_number + 1
            shard = number % SHARDS if group == UNGROUPED else GROUPS.index(group) % SHARDS
            after = self.now + self.random.choice((-30, 0, 0))
            state = self.random.choice((State.READY, State.READY, State.READY, State.DEFERRED))
            item = PlainItem(number, group, self.random.choice((0, 0, 0, 0, -1)), after, state)
            self.owners[shard].commit({number: item})
        self.account.follow(self.waiting())

    def deliver(self) -> None:
        """Deliver up to some items at once, from all shards that can deliver."""
        for owner in self.owners:
            owner.read_all()
        served = [owner for shard, owner in enumerate(self.owners) if shard not in self.blocked]
        # Between the items of one dequeue nothing is read.
        count = self.random.choice((1, 1, 2, 7, 30)) if self.keys_max == 100 else 1
        self.log.clear()
        room = self.random.choice((count, count, 2))
        reserved = reserve_best([owner.index for owner in served], TOPIC, count, [room] * len(served))
        has_room = room >= count
        for number in [*self.log]:
            self.judge(number, has_room=has_room)
        left = self.waiting()
        if left and (not self.log or (has_room and len(self.log) < count and self.keys_max == 100)):
            raise Difference(f"{len(self.log)} of {count} items were delivered, and {left} wait")
        for owner, keys in zip(served, reserved, strict=True):
            numbers = [order_key_number(key) for key in keys]
            owner.reserved.update(numbers)
            if self.random.random() < 0.1:
                owner.give_back(numbers)
                self.reserved.difference_update(numbers)
            elif numbers and (self.keys_max < 100 or self.random.random() < 0.9):
                self.lease(owner, numbers)
        self.account.follow(self.waiting())

    def judge(self, number: int, *, has_room: bool) -> None:
        """Compare one reservation with what the rows allow at its moment."""
        waiting, firsts = self.waiting(), self.firsts()
        item = next((table[number] for table in self.shards if number in table), None)
        if item is None:
            raise Difference(f"{number} was reserved, and has no row")
        name = self.name_of(item)
        if firsts.get(name) != number:
            raise Difference(f"{number} of {name} was reserved, where the rows allow {firsts.get(name)}")
        if has_room and item.priority > min(waiting.values()):
            raise Difference(f"{number} of priority {item.priority} was reserved, where others wait: {waiting}")
        if has_room:
            self.account.deliver(name, item.priority, waiting)
        else:
            self.account.seen.clear()  # a shard that has no room is passed over
        self.reserved.add(number)
        if self.account.most > 1 and not self.by_time:
            raise Difference(
                f"{name} was delivered from {self.account.most} times more than it may, while others waited"
            )

    def lease(self, owner: CoreGroupOwner, numbers: Sequence[int]) -> None:
        rows = [owner.table[number] for number in numbers]
        owner.commit(
            {
                row.number: replace(row, state=State.LEASED, attempt=row.attempt + 1, token=self.now)
                for row in rows
                if row.state is State.READY
            },
            numbers,
        )
        self.reserved.difference_update(numbers)

    def settle_some(self) -> None:
        for owner in self.owners:
            for row in [row for row in owner.table.values() if row.state is State.LEASED]:
                if self.random.random() < 0.5:
                    state = self.random.choice((None, None, None, State.READY, State.DEFERRED, State.DEAD))
                    owner.commit({row.number: None if state is None else replace(row, state=state)})
        self.account.follow(self.waiting())

    def give_back(self) -> None:
        """End the reservations that still wait for a flush."""
        for owner in self.owners:
            numbers = [number for number in owner.reserved if number in self.reserved]
            owner.give_back(numbers)
            self.reserved.difference_update(numbers)
        self.account.follow(self.waiting())

    def change(self) -> None:
        """Cancel an item, change its priority, or let it become due."""
        owner = self.random.choice(self.owners)
        rows = [
            row for row in owner.table.values() if row.state is not State.LEASED and row.number not in self.reserved
        ]
        for row in self.random.sample(rows, min(2, len(rows))):
            changed = self.random.choice((None, replace(row, priority=self.random.choice((-1, 0, 1)))))
            owner.commit({row.number: replace(row, state=State.READY) if row.state is State.DEFERRED else changed})
        self.account.follow(self.waiting())

    def block(self) -> None:
        """The database of a shard is slow, or is quick again."""
        self.blocked ^= {self.random.randrange(SHARDS)}
        self.account.follow(self.waiting())

    def replace_owner(self) -> None:
        """A shard moves to this host from another one, or back: all its groups begin."""
        shard = self.random.randrange(SHARDS)
        self.reserved.difference_update(self.owners[shard].reserved)
        self.owners[shard] = self.make_owner(shard)
        self.account.seen.clear()
        self.account.follow(self.waiting())

    # ------------------------------------------------------------------- checks

    def name_of(self, item: PlainItem) -> str:
        return f"{item.group}{item.number}" if item.group == UNGROUPED else item.group

    def firsts(self) -> dict[str, int]:
        """Return the item of each group that may be delivered now, on shards that can deliver."""
        found: dict[str, int] = {}
        for shard, table in enumerate(self.shards):
            if shard in self.blocked:
                continue
            names: dict[str, list[PlainItem]] = {}
            for item in table.values():
                names.setdefault(self.name_of(item), []).append(item)
            for name, items in names.items():
                reserved = self.reserved.intersection([item.number for item in items])
                limit = UNLIMITED if self.limit == NO_LIMIT or name.startswith(UNGROUPED) else self.limit
                offer = offer_of(line_of(items), reserved, limit)
                if offer:
                    found[name] = offer[0]
        return found

    def waiting(self) -> dict[str, int]:
        """Return the groups that may be delivered from now, with the priority of their first item."""
        items = {number: item for table in self.shards for number, item in table.items()}
        return {name: items[number].priority for name, number in self.firsts().items()}


class Difference(Exception):
    """The owners break a rule."""


def play(
    seed: int,
    owner_type: type[CoreGroupOwner] = CheckedCoreGroupOwner,
    turns_type: type[TopicTurns] = TopicTurns,
    *,
    by_time: bool = False,
    has_own_turns: bool = False,
) -> str | None:
    """Play one history. Return what is wrong, or None."""
    history = FairHistory(seed, owner_type, turns_type, by_time=by_time, has_own_turns=has_own_turns)
    try:
        for _ in range(STEPS):
            history.step()
    except Difference as difference:
        return f"seed {seed}: {difference}"
    return None
