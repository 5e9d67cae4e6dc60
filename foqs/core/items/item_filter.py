"""Which items of a namespace somebody means: a filter, and whether a row matches it.

Always true: the same filter says the same of the same row, whenever it is
asked, because its ages count up to a moment of its own; an item that is enqueued
later does not match, so that work by filter has an end. Knows nothing of where
rows are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX, Row, State

ALL_STATES = tuple(State)


@dataclass(slots=True, frozen=True)
class ItemFilter:
    """Items of one topic, or of all (None), in some states, within bounds that are themselves included.

    `age_min_ms` and `age_max_ms` are times since the enqueue, at the moment `at_ms` on the shard's clock.
    """

    topic: str | None = None
    states: tuple[State, ...] = ALL_STATES
    priority_min: int = PRIORITY_MIN
    priority_max: int = PRIORITY_MAX
    age_min_ms: int = 0
    age_max_ms: int = TIME_MS_MAX
    at_ms: int = TIME_MS_MAX

    def matches(self, row: Row) -> bool:
        """Of a row of the namespace."""
        return (
            row.state in self.states
            and self.priority_min <= row.priority <= self.priority_max
            and self.age_min_ms <= self.at_ms - row.enqueued_at_ms <= self.age_max_ms
            and (self.topic is None or row.topic == self.topic)
        )

    @property
    def is_by_topic_and_state(self) -> bool:
        """Counts by topic and state say how many match."""
        return self == ItemFilter(self.topic, self.states, at_ms=self.at_ms)
