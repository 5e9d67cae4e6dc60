"""The callers of a random history of a shard with a journal: what they want of each flush, and what is true then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from foqs.core.items.item import State
from tests.support.plain_journal import Wanted
from tests.support.plain_journal_tables import Value

TOPICS: Final = ("a", "b")
_GIVE_UP_AFTER: Final = 2
"""An item whose row was refused more often is dead."""


@dataclass(slots=True)
class Truth:
    """What a table would hold that is written through."""

    items: dict[int, Value] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)

    def after(self, wanted: Wanted) -> Truth:
        items = dict(self.items)
        changes = dict(wanted.changes)
        for number, (new_number, moved) in wanted.moves.items():
            changes |= {number: None, new_number: moved}
        for number, value in changes.items():
            if value is None:
                items.pop(number, None)
            else:
                items[number] = value
        items = {number: value for number, value in items.items() if value.topic not in wanted.purges}
        return Truth(items, {**self.keys, **wanted.keys})


class Callers:
    """All callers of one history.

    Attributes:
        refused: numbers of items whose rows the database refuses to write. Nobody else knows them.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.next_number = 1
        self.now_ms = 0
        self.refused: set[int] = set()

    def wanted(self, truth: Truth, due: Sequence[int], refused: Mapping[int, int]) -> Wanted:
        """Return what the next flush is asked to do.

        Args:
            due: items that are due; the flush applies that.
            refused: how often the rows of these items were refused. The owner gives them up at last.
        """
        random, items = self.random, truth.items
        wanted = Wanted(purge_page=random.randint(0, 2))
        for number in due:
            wanted.changes[number] = _when_due(items[number])
        for number, times in refused.items():
            value = items.get(number)
            if times > _GIVE_UP_AFTER and value is not None and value.state is State.READY and number not in due:
                wanted.changes[number] = value._replace(state=State.DEAD, due_ms=self.now_ms + 20)
        for number in random.sample(sorted(items), min(len(items), random.randint(0, 4))):
            if number not in wanted.changes:
                self._want_event(number, items[number], wanted)
        for _ in range(random.randint(0, 3)):
            self._want_new_item(truth, wanted)
        if random.random() < 0.06:
            wanted.purges = {random.choice(TOPICS): self.next_number - 1}
        if items and random.random() < 0.05:
            self.refused.add(random.choice(sorted(items)))  # an item that may have a row
        wanted.write_back_early = {number for number in items if random.random() < 0.05}
        return wanted

    def _want_new_item(self, truth: Truth, wanted: Wanted) -> None:
        random = self.random
        number = self._new_number()
        if random.random() < 0.04:
            self.refused.add(number)
        state = random.choice((State.READY, State.READY, State.LEASED, State.DEFERRED))
        token = number if state is State.LEASED else 0
        value = Value(random.choice(TOPICS), number, state, self._due_ms(state), token, f"p{number}")
        if random.random() < 0.3:
            key = f"k{random.randrange(20)}"
            if key in truth.keys or key in wanted.keys:
                return  # a repeat: nothing is inserted
            wanted.keys[key] = number
        wanted.changes[number] = value

    def _want_event(self, number: int, value: Value, wanted: Wanted) -> None:
        random = self.random
        luck = random.random()
        if luck < 0.04:
            new_number = self._new_number()
            wanted.moves[number] = (new_number, value._replace(topic=random.choice(TOPICS), order_key=new_number))
        elif luck < 0.1 or value.state is State.DEAD:
            wanted.changes[number] = None
        elif value.state is State.READY and luck < 0.85:
            lease = value._replace(state=State.LEASED, due_ms=self._due_ms(State.LEASED), token=self.next_number)
            wanted.changes[number] = lease
        elif value.state is State.LEASED and luck < 0.65:
            wanted.changes[number] = None
        elif value.state is State.LEASED:
            state = random.choice((State.READY, State.LEASED, State.DEFERRED, State.DEAD))
            wanted.changes[number] = value._replace(state=state, due_ms=self._due_ms(state))
        else:  # another priority
            wanted.changes[number] = value._replace(order_key=random.randrange(2 * number) * 1000 + number)

    def _new_number(self) -> int:
        number, self.next_number = self.next_number, self.next_number + 1
        return number

    def _due_ms(self, state: State) -> int | None:
        if state is State.READY:  # some have a TTL
            return self.now_ms + self.random.randint(5, 60) if self.random.random() < 0.3 else None
        return self.now_ms + self.random.randint(1, 30)


def _when_due(value: Value) -> Value | None:
    """Return the item after its due: a delay ends, a lease ends for good, and others are over."""
    return value._replace(state=State.READY, due_ms=None) if value.state is State.DEFERRED else None
