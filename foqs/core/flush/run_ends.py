"""Which leased items of runs follow when one of them ends early, in the same flush.

The items of a strict group that one flush has leased are a run. If the lease of one ends other than by an ack, a completion, a
cancel or a consumer that gives it up, those behind it are superseded: nobody may settle them before it. Always true: an item that has
another event, in this flush or after it, is superseded in this flush only if that event is the end of its own lease. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.flush_plan import FindRow, FlushPlan
from foqs.core.flush.operation import Dues
from foqs.core.groups.places import run_key
from foqs.core.items.item import Row, State, TopicName
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition, apply_event
from foqs.core.timing.due_timers import DueTimers


@dataclass(slots=True, frozen=True)
class RunEnds:
    """The items of runs that may end early in one flush.

    Attributes:
        events: their events, by number, in the order of their runs.
        ahead: for each of them, the leased items before it.
        behind: for each of them, the items behind it that this flush may supersede, in order.
        later: those that have another event, which comes first.
    """

    events: dict[int, Event] = field(default_factory=dict)
    ahead: dict[int, Sequence[int]] = field(default_factory=dict)
    behind: dict[int, list[int]] = field(default_factory=dict)
    later: dict[int, list[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.events)

    def __bool__(self) -> bool:
        return len(self) > 0

    def numbers_behind(self) -> list[int]:
        """Return the numbers of the rows that the flush needs beside those of its events."""
        return [number for numbers in self.behind.values() for number in numbers]


NO_RUN_ENDS = RunEnds()
"""No run ends early. It stays empty."""


def find_run_ends(
    batch: Batch, runs: Iterable[Mapping[int, tuple[int, ...]]], is_free: Callable[[int], bool]
) -> RunEnds:
    """Return which items of these runs may end early in a flush of the batch.

    Args:
        runs: of each topic, the run of each leased item, by its number.
        is_free: returns whether no event of an item waits, or is in this flush.
    """
    events = {event.id: event for part in batch.events for event in part.operation.events[part.start : part.stop]}
    early = {number for number, event in events.items() if _may_end_early(event)}
    found = RunEnds()
    if not early:
        return found
    for by_number in runs:
        for run in dict.fromkeys([by_number[number] for number in by_number.keys() & early]):
            _add(found, run, events, early, is_free)
    return found


def decide_run_ends(
    run_ends: RunEnds, find_row: FindRow, context: FlushContext, timers: DueTimers, plan: FlushPlan
) -> dict[int, Transition]:
    """Decide the events of items of runs that may end early, and supersede those behind one that does. Return all by number."""
    decided: dict[int, Transition] = {}
    settled = set(plan.deleted_numbers())

    def decide(event: Event, row: Row | None) -> Transition:
        decided[event.id] = transition = plan.apply(event, row, context, timers)
        if transition.effect is Effect.DELETED:
            settled.add(event.id)
        return transition

    for number, event in run_ends.events.items():
        if number in decided:
            continue
        row = find_row(number)
        was_not_begun = not settled.issuperset(run_ends.ahead[number])
        if event.kind is EventKind.DUE and was_not_begun:
            if not _ends_lease(apply_event(event, row, context)):
                continue
            event = Event(EventKind.SUPERSEDE, number)
        transition = decide(event, row)
        if row is None or row.state is not State.LEASED or not _ends_lease(transition):
            continue
        is_unbegun = event.kind is EventKind.RELEASE
        for behind in run_ends.behind[number]:
            if behind not in decided:
                decide(Event(EventKind.SUPERSEDE, behind, is_unbegun=is_unbegun), find_row(behind))
        for behind in run_ends.later.get(number, ()):
            plan.superseded_later[behind] = Event(EventKind.SUPERSEDE, behind, token=row.token, is_unbegun=is_unbegun)
    return decided


def decide_ends_together(
    parts: Sequence[Part[Dues]],
    find_row: FindRow,
    context: FlushContext,
    timers: DueTimers,
    plan: FlushPlan,
    decided: dict[int, Transition],
) -> None:
    """Decide the events of leases of one run that end together by their time: those behind the first one are superseded.

    Their rows alone say this, so it holds also after a takeover, before the owner knows the groups.
    """
    runs: dict[tuple[TopicName, bytes, int], list[Row]] = {}
    for part in parts:
        for number in part.numbers:
            row = None if number in decided else find_row(number)
            if row is None or row.state is not State.LEASED or row.item_group is None:
                continue
            topic = (row.namespace, row.topic)
            if topic in context.strict_topics and row.due_ms is not None and row.due_ms <= context.now_ms:
                runs.setdefault((topic, row.item_group, row.token), []).append(row)
    for run in runs.values():
        if len(run) > 1:
            run.sort(key=run_key)
            for place, row in enumerate(run):
                event = Event(EventKind.SUPERSEDE if place else EventKind.DUE, row.id)
                decided[row.id] = plan.apply(event, row, context, timers)


def _add(
    found: RunEnds, run: Sequence[int], events: Mapping[int, Event], early: set[int], is_free: Callable[[int], bool]
) -> None:
    for place, number in enumerate(run):
        if number in early:
            found.events[number] = events[number]
            found.ahead[number] = run[:place]
            free: list[int] = []
            found.behind[number] = free
            for follower in run[place + 1 :]:
                if follower in events:
                    if events[follower].kind is EventKind.DUE:
                        free.append(follower)
                    elif not _settles(events[follower]):
                        found.later.setdefault(number, []).append(follower)
                elif is_free(follower):
                    free.append(follower)
                else:
                    found.later.setdefault(number, []).append(follower)


def _may_end_early(event: Event) -> bool:
    """Return whether an event may end a lease so that the item is to be delivered again."""
    if event.kind is EventKind.EXTEND:
        return event.lease_ms == 0
    return event.kind in (EventKind.DUE, EventKind.RELEASE) or (event.kind is EventKind.NACK and not event.dead)


def _settles(event: Event) -> bool:
    """Return whether an event of the caller says itself what becomes of the item."""
    return event.kind in (EventKind.NACK, EventKind.RELEASE, EventKind.CANCEL) or event.lease_ms == 0


def _ends_lease(transition: Transition) -> bool:
    if transition.row is None:
        return transition.effect is Effect.DELETED
    return transition.row.state is not State.LEASED
