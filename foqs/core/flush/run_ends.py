"""Which leased items of runs follow when one of them ends early, in the same flush.

The items of a strict group that one flush has leased are a run. If the lease of one ends other than by an ack, a completion, a
cancel or a consumer that gives it up, those behind it are superseded: nobody may settle them before it. Always true: an item that has
another event, in this flush or after it, is superseded in this flush only if that event is the end of its own lease. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from foqs.core.flush.batch import Batch
from foqs.core.items.life import Event, EventKind


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
