"""The history behind the console's charts: points of the last hour, of the tier and of a few topics.

Always true: a series has at most one point for each `SLOT_S`, and `SLOTS_MAX` points, in
ascending time; the topics are the busiest ones and those that were looked at last, at most `TOPICS_MAX`. A
newer point of a slot replaces the older one. Times are seconds since 1970-01-01 UTC; if
the clock goes back, the points after the new time are dropped. Reads no clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from foqs.core.items.item import TopicName
from foqs.core.memory.topic_rates import NO_RATES, Rates

SLOT_S: Final = 10
SLOTS_MAX: Final = 360
"""The most points of a series: those of an hour."""
TOPICS_MAX: Final = 30
RATE_WINDOW_S: Final = 10.0
"""The rates of counters are those of this time."""


class Point(NamedTuple):
    """Figures of one moment. Ages are 0 if there is no ready item; rates are items per second."""

    at_s: float
    ready: int
    leased: int
    deferred: int
    dead: int
    oldest_ready_age_s: float
    ready_per_s: float
    acked_per_s: float

    def rounded(self) -> list[float]:
        """Return the figures as a page gets them: with two decimals."""
        return [round(value, 2) for value in self]


COLUMNS: Final[dict[str, int]] = {name: at for at, name in enumerate(Point._fields)}
"""The index of each figure in a `Point`."""


class Series:
    """The points of one topic, or of the tier."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=SLOTS_MAX)

    def add(self, point: Point) -> None:
        """Add the newest point."""
        points = self._points
        while points and (points[-1].at_s > point.at_s or _slot(points[-1]) == _slot(point)):
            points.pop()
        points.append(point)

    @property
    def points(self) -> Sequence[Point]:
        """The points, oldest first."""
        return tuple(self._points)

    @property
    def last(self) -> Point | None:
        return self._points[-1] if self._points else None


class History:
    """The points that the charts of one console show, in a series for each topic and one for the tier."""

    def __init__(self) -> None:
        self.tier = Series()
        self._topics: OrderedDict[TopicName, Series] = OrderedDict()

    def topic(self, topic: TopicName) -> Series:
        """Return the series of a topic, a new one if there is none. With too many, the one not asked for longest is dropped."""
        series = self._topics.get(topic)
        if series is None:
            series = self._topics[topic] = Series()
            if len(self._topics) > TOPICS_MAX:
                self._topics.popitem(last=False)
        else:
            self._topics.move_to_end(topic)
        return series

    def topics(self) -> list[tuple[TopicName, Series]]:
        """Return the topics with a history, and their series."""
        return list(self._topics.items())


class CountRates:
    """Items per second, from counters that only grow."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def rates(self, ready_count: int, acked_count: int, now_s: float) -> Rates:
        """Return the rates of the last `RATE_WINDOW_S`, or since the first call.

        Args:
            now_s: seconds of a clock that does not go back.
        """
        samples = self._samples
        samples.append((now_s, ready_count, acked_count))
        while len(samples) > 2 and now_s - samples[1][0] >= RATE_WINDOW_S:
            samples.popleft()
        before_s, ready_before, acked_before = samples[0]
        if now_s <= before_s:
            return NO_RATES
        passed_s = now_s - before_s
        return Rates((ready_count - ready_before) / passed_s, (acked_count - acked_before) / passed_s)


def time_to_empty_s(ready: int, rates: Rates) -> float | None:
    """Return the seconds in which no ready item is left, if the rates stay; None if the backlog does not shrink."""
    shrinking = rates.acked - rates.ready
    if not ready:
        return 0.0
    return ready / shrinking if shrinking > 0 and ready / shrinking <= _TIME_TO_EMPTY_S_MAX else None


_TIME_TO_EMPTY_S_MAX: Final = 3_650 * 86_400.0
"""The longest forecast: a backlog that needs ten years does not shrink."""


def _slot(point: Point) -> int:
    return int(point.at_s // SLOT_S)
