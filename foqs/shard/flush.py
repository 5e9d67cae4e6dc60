"""One flush of a shard: what was decided, what it writes, and what the shard's memory is asked and told of it.

Always true: what it writes follows from its batch and from what was decided, and from
nothing else. No input or output of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from foqs.core.batch import Batch, HandOut, Part
from foqs.core.cuts import Cuts
from foqs.core.flush import Decision
from foqs.core.item import Row, State, TopicName
from foqs.core.keys import KeyRow
from foqs.core.life import Kind
from foqs.store.port import Lease, Writes

ALIKE_MIN: Final = 4
"""Fewer rows that change alike are no statement of their own."""


@dataclass(slots=True)
class Flush:
    """A batch and what was decided."""

    batch: Batch
    decision: Decision
    topics_added: list[TopicName]
    topics_removed: list[TopicName]

    def writes(self) -> Writes:
        """What it changes in the tables."""
        decision = self.decision
        alike, updates = _alike(decision.changed)
        return Writes(
            deletes=[row.id for rows in (*decision.gone.values(), decision.purged) for row in rows],
            updates=updates,
            inserts=decision.inserted,
            leases=[*(Lease(*values, ids) for values, ids in decision.leases.items()), *alike],
            topics_added=self.topics_added,
            topics_removed=self.topics_removed,
            keys=_rows(decision.keys),
            keys_replaced=_rows(decision.keys_replaced),
            slots_added=self.batch.slots,
            cuts=decision.cuts,
            cuts_over=decision.cuts_over,
        )

    @property
    def may_be_told_first(self) -> bool:
        """Before the memory follows: no reply tells what is left, or looks for more, of what the memory does not know."""
        batch, decision = self.batch, self.decision
        if batch.hand_outs:
            return False
        if not batch.claims:
            return True
        return not decision.changed and State.READY not in {row.state for row in decision.inserted}


class Memory(Protocol):
    """What the shard's memory tells the writer, and is told by it. Called between two flushes only."""

    def claims(self, batch: Batch) -> list[HandOut]:
        """Hand-outs, for waiters, of items that this batch is about to insert, or finds due."""
        ...

    @property
    def cuts(self) -> Cuts:
        """What is purged."""
        ...

    def place_cuts(self, batch: Batch) -> None:
        """Says up to which number the cuts of this batch reach: it was just sealed."""
        ...

    def topics_new(self, topics: Mapping[str, set[str]]) -> list[TopicName]:
        """Those that are not in the topics table yet. Pure: may be asked in another thread, and again."""
        ...

    def topics_over(self, topics: Mapping[str, set[str]], now_ms: int) -> list[TopicName]:
        """Those in the topics table that have no item, nor will have with these. Pure, likewise."""
        ...

    def committed(self, flush: Flush, tells: MutableSequence[Callable[[], None]]) -> None:
        """A flush is known to be committed. What tells its callers is added to `tells`, and to be called soon; `applied` follows."""
        ...

    def told(self) -> None:
        """Callers were told, before `applied`."""
        ...

    def applied(self, flush: Flush, tells: MutableSequence[Callable[[], None]]) -> None:
        """Brings the memory up to the flush. Who else is to hear of it is added to `tells`, likewise, whatever this raises."""
        ...

    def refused(self, part: Part[Any]) -> None:
        """The database refused this one event for good; its caller has been told."""
        ...

    def answers_again(self) -> None:
        """The store answers after it had not."""
        ...

    def makes_room(self) -> None:
        """Less waits to be leased: a flush was sealed."""
        ...


def _alike(changed: Sequence[tuple[Kind, Row, Row]]) -> tuple[list[Lease], list[Row]]:
    """(due rows that change alike, many at once; the other changed rows).

    What has come due changes in nothing but what a lease changes, and what was
    delayed or leased together changes alike: a statement for all costs the
    database a fifth of what a value for each does.
    """
    groups: dict[tuple[int | None, int, int, State], list[Row]] = {}
    updates: list[Row] = []
    for kind, _, row in changed:
        if kind is Kind.DUE:
            groups.setdefault((row.due_ms, row.token, row.attempt, row.state), []).append(row)
        else:
            updates.append(row)
    leases: list[Lease] = []
    for (due_ms, token, attempt, state), rows in groups.items():
        if len(rows) < ALIKE_MIN:
            updates += rows
        else:
            leases.append(Lease(due_ms, token, attempt, [row.id for row in rows], state))
    return leases, updates


def _rows(keys: Mapping[str, Mapping[bytes, KeyRow]]) -> list[KeyRow]:
    return [row for found in keys.values() for row in found.values()]
