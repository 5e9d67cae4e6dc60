"""A filter of the items of one namespace.

Always true: a filter gives the same result for the same row at any time, because
it counts ages at a fixed moment. An item enqueued after that moment does not
match, so work by filter ends. Knows nothing of where rows are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX, Row, State

ALL_STATES = tuple(State)


@dataclass(slots=True, frozen=True)
class RowFilter:
    """Selects items by topic or topics (None: all), group (None: all), state, priority and age. The bounds are inclusive.

    `age_min_ms` and `age_max_ms` are the time since the enqueue, at the moment `at_ms` on the shard's clock.
    """

    topic: str | None = None
    states: tuple[State, ...] = ALL_STATES
    priority_min: int = PRIORITY_MIN
    priority_max: int = PRIORITY_MAX
    age_min_ms: int = 0
    age_max_ms: int = TIME_MS_MAX
    at_ms: int = TIME_MS_MAX
    topics: tuple[str, ...] | None = None
    group: bytes | None = None

    def matches(self, row: Row) -> bool:
        """Return whether the filter selects this row of the namespace."""
        return (
            row.state in self.states
            and self.priority_min <= row.priority <= self.priority_max
            and self.age_min_ms <= self.at_ms - row.enqueued_at_ms <= self.age_max_ms
            and (self.topic is None or row.topic == self.topic)
            and (self.topics is None or row.topic in self.topics)
            and (self.group is None or row.item_group == self.group)
        )

    @property
    def enqueued_between_ms(self) -> tuple[int, int]:
        """The first and the last moment at which a matching item may be enqueued."""
        return self.at_ms - self.age_max_ms, self.at_ms - self.age_min_ms

    @property
    def is_by_topic_and_state(self) -> bool:
        """Whether counts by topic and state suffice to count the matching items."""
        return self == RowFilter(self.topic, self.states, at_ms=self.at_ms, topics=self.topics)

    @property
    def topic_names(self) -> tuple[str, ...] | None:
        """The topics that it selects; None: all."""
        return self.topics if self.topic is None else (self.topic,)
