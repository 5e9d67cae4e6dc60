"""Bugs to plant in the timers: entries of the timer table, remembered lease ends, and walks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.writes import Writes
from foqs.core.items.item import TopicName
from foqs.core.timing.due_timers import timer_entry
from foqs.core.timing.lease_ends import LeaseEnds
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.timer_service import TimerService
from foqs.store.port import DueRow, Reads
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def direct_leases_forgotten() -> None:
    """The end of a lease of a new item is not remembered."""

    def lease_ends(self: FlushPlan) -> dict[int, list[int]]:
        self.direct_lease_ends.clear()
        return original(self)

    original = plant(FlushPlan, "lease_ends", lease_ends)


def extensions_forgotten() -> None:
    """The new end of a lease that is extended, or that begins when the item comes due, is not remembered."""

    def lease_ends(self: FlushPlan) -> dict[int, list[int]]:
        changed, self.changed = self.changed, []
        try:
            return original(self)
        finally:
            self.changed = changed

    original = plant(FlushPlan, "lease_ends", lease_ends)


def later_leases_forgotten() -> None:
    """A look forgets the leases of its slot that end later than now."""

    async def apply(self: TimerService, leases: list[DueRow], now_ms: int) -> None:
        await original(self, [lease for lease in leases if lease.due_ms <= now_ms], now_ms)

    original = plant(TimerService, "_apply_leases", apply)


def timers_undeleted() -> None:
    """The entry of a row that is deleted or changed stays in the timer table."""

    def writes(self: FlushPlan) -> Writes:
        return replace(original(self), timers_removed=[])

    original = plant(FlushPlan, "writes", writes)


def timers_unwritten() -> None:
    """A row that changes gets no new entry in the timer table."""
    plant(FlushPlan, "new_timers", lambda self: list(filter(None, map(timer_entry, self.timed))))


def new_timers_unwritten() -> None:
    """A new row gets no entry in the timer table."""
    plant(FlushPlan, "new_timers", lambda self: self.timers_added)


def walks_skip_a_topic() -> None:
    """A walk leaves out one topic."""

    def topics_with_leases(self: ShardMemory) -> Iterator[list[TopicName]]:
        for step in original(self):
            yield step[1:]

    original = plant(ShardMemory, "topics_with_leases", topics_with_leases)


def walks_end_early() -> None:
    """A walk reads only the first leases of a topic."""

    async def leased_rows(self: TimerService, reads: Reads) -> AsyncIterator[list[DueRow]]:
        async for leases in original(self, reads):
            yield leases[:1]

    original = plant(TimerService, "_leased_rows", leased_rows)


def no_walk_after_a_takeover() -> None:
    """A new owner believes that it knows all leases."""

    def init(self: LeaseEnds, ranges_max: int) -> None:
        original(self, ranges_max)
        self.begin_lease_walk()
        self.end_lease_walk(complete=True)

    original = plant(LeaseEnds, "__init__", init)


def forgotten_silently() -> None:
    """Leases for which there is no room are dropped, and no walk finds them."""

    def forget(self: LeaseEnds) -> None:
        unread_from_ms, forgotten_from_ms = self.unread_from_ms, self._forgotten_from_ms
        original(self)
        self.unread_from_ms, self._forgotten_from_ms = unread_from_ms, forgotten_from_ms

    original = plant(LeaseEnds, "_forget_last", forget)


def leases_written_during_a_walk_forgotten() -> None:
    """Leases that are written during a walk are left to it, though it may have passed their topic."""

    def add(self: LeaseEnds, *arguments: Any) -> None:
        if not self._is_lease_walk_running:
            original(self, *arguments)

    original = plant(LeaseEnds, "_add", add)


def neighbours_count_as_deleted() -> None:
    """No look reads the row after a deleted one."""

    def on_deleted(self: LeaseEnds, numbers: list[int]) -> None:
        original(self, sorted({*numbers, *[number + 1 for number in numbers]}))

    original = plant(LeaseEnds, "on_deleted", on_deleted)


def tasks_sleep_on() -> None:
    """The tasks of the timers wait as long as they meant to, though something is due earlier."""
    plant(TimerService, "_wake_if_earlier", lambda self: None)


BUGS: Final[Mapping[str, Bug]] = {
    "tasks-sleep-on": Bug(tasks_sleep_on, (10,)),
    "direct-leases-forgotten": Bug(direct_leases_forgotten, (10,)),
    "extensions-forgotten": Bug(extensions_forgotten, (10,)),
    "later-leases-forgotten": Bug(later_leases_forgotten, (10,)),
    "neighbours-count-as-deleted": Bug(neighbours_count_as_deleted, (10,)),
    "timers-undeleted": Bug(timers_undeleted, (10,)),
    "timers-unwritten": Bug(timers_unwritten, (10, 11)),
    "new-timers-unwritten": Bug(new_timers_unwritten, (10, 11)),
    "walks-skip-a-topic": Bug(walks_skip_a_topic, (10, 11)),
    "walks-end-early": Bug(walks_end_early, (10, 11)),
    "no-walk-after-a-takeover": Bug(no_walk_after_a_takeover, (10, 11)),
    "forgotten-silently": Bug(forgotten_silently, (10, 11)),
    "leases-written-during-a-walk-forgotten": Bug(leases_written_during_a_walk_forgotten, (10, 11)),
}
