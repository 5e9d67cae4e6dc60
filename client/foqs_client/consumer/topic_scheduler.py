"""Chooses the topics of the next dequeue, and how many items of each: a pure fair scheduler.

Holds `TopicScheduler`. Always true:

- The topic with the fewest items for its weight is next. A topic that becomes hot
  starts at the virtual time of the others, so no topic starves.
- A quarter of each call is for the topic with the best priority; if several have it,
  for the one whose oldest item waits longest. It is charged to that topic.
- Items that a call in flight asks for count as delivered until its reply. So parallel
  calls ask for different topics if there are enough.
- Each event changes one topic. Nothing ever walks all of them.
- The counts in listings are hints; only deliveries decide.

Knows nothing of calls.

    quiet ──listed with ready items, or delivered some──▶ hot ──an empty call, or three misses──▶ quiet

Long polls name *quiet* topics. Dequeues without a wait also name quiet topics that the
user named, so that these need no listing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import Final

from foqs_client.consumer.topic_selection import TopicSelection
from foqs_client.types import Delivery, Topic

TOPICS_PER_CALL: Final = 100
"""The default limit of a host."""
TOPICS_MAX: Final = 100_000
"""Limit of the topics that are remembered. Further ones are found again when some of these are quiet."""
QUIET_LISTED_MAX: Final = 100
"""Limit of the quiet topics, of those found by listing, that long polls name."""
URGENT_FRACTION: Final = 0.25
MISSES_MAX: Final = 3
"""A topic is quiet after this number of calls that delivered none of its items, but items of others."""


class _Topic:
    """A topic, with what was delivered of it and what calls in flight ask for.

    Attributes:
        virtual_time: delivered items divided by the weight. The least sum of this and
            `requested` is next.
        requested: items that calls in flight ask for, divided by the weight.
        rank: the sum of both in its current entry of the turns.
        turn_number: the number of its current entry in the turns; 0: none.
        urgent_number: the number of its current entry in the urgent heap; 0: none.
    """

    __slots__ = (
        "best_priority",
        "is_hot",
        "is_named",
        "miss_count",
        "name",
        "oldest_ready_s",
        "rank",
        "requested",
        "turn_number",
        "urgent_number",
        "virtual_time",
        "weight",
    )

    def __init__(self, name: str, weight: float, *, is_named: bool) -> None:
        self.name = name
        self.weight = weight
        self.is_named = is_named
        self.virtual_time = self.requested = self.rank = 0.0
        self.is_hot = False
        self.miss_count = 0
        self.best_priority = 0
        self.oldest_ready_s = float("inf")
        self.turn_number = self.urgent_number = 0


class TopicScheduler:
    """Schedules the topics of a selection.

    Attributes:
        topics_per_call: limit of the topics that a call names.
    """

    def __init__(self, selection: TopicSelection) -> None:
        self.topics_per_call = TOPICS_PER_CALL
        self._selection = selection
        self._topics: dict[str, _Topic] = {}
        self._hot_count = 0
        self._turns: list[tuple[float, int, _Topic]] = []
        self._urgent: list[tuple[int, float, int, _Topic]] = []
        self._sequence = 0
        self._virtual_time = 0.0
        """The virtual time of the last topic that had a turn. A topic that becomes hot starts with it."""
        self._urgent_credit = 0.0
        """The number of items that the most urgent topic may still get, with a fraction."""
        self._quiet_named: dict[str, _Topic] = {}
        """The quiet topics that the user named, in the order in which calls named them last."""
        self._quiet_listed: dict[str, _Topic] = {}
        for name in selection.exact_topics:
            self._quiet_named[name] = self._topics[name] = _Topic(name, selection.weight(name), is_named=True)

    @property
    def hot_count(self) -> int:
        """The number of topics that seem to have items."""
        return self._hot_count

    # ----------------------------------------------------------------- requests

    def fetch_wants(self, items: int) -> dict[str, int]:
        """Return the wants of a dequeue without a wait, the first topic first. Empty if no topic is hot.

        Their sum may be more than `items`, so the call needs this limit too.
        """
        if not self._hot_count:
            return {}
        quiet = self._next_quiet_named()
        first = self._most_urgent() if min(self._hot_count, self.topics_per_call) > 1 else None
        turns_max = max(1, self.topics_per_call - len(quiet) - (first is not None))
        turns = self._pop_turns(min(self._hot_count, 2 * items, turns_max))
        has_all = len(turns) == self._hot_count
        weights = sum([topic.weight for topic in turns])
        counts = [max(1, ceil(2 * items * topic.weight / weights if has_all else topic.weight)) for topic in turns]
        wants: dict[str, int] = {}
        if first is not None and (urgent := self._urgent_item_count(min(items, sum(counts) / (1 - URGENT_FRACTION)))):
            wants[first.name] = urgent
        for name in quiet:
            wants[name] = 1
        for topic, count in zip(turns, counts, strict=True):
            if topic.name not in wants:
                wants[topic.name] = count
            elif topic is turns[0]:
                wants[topic.name] += count
        self._add_requested(wants)
        for topic in turns:
            self._queue_turn(topic)
        return wants

    def poll_wants(self, items: int) -> dict[str, int]:
        """Return the wants of a long poll, while no topic is hot: named topics, and those that had items lately."""
        names = self._rotate(self._quiet_named, self.topics_per_call)
        names += list(self._quiet_listed)[::-1][: self.topics_per_call - len(names)]
        wants = dict.fromkeys(names, items)
        self._add_requested(wants)
        return wants

    @property
    def can_poll_all(self) -> bool:
        """Whether `poll_wants` names all topics of the selection."""
        return not self._selection.prefixes and len(self._quiet_named) <= self.topics_per_call

    # ------------------------------------------------------------------- events

    def on_topics_listed(self, rows: Iterable[Topic], now_s: float) -> None:
        """Record a page of the listing."""
        for row in rows:
            topic = self._topics.get(row.topic)
            if row.paused or not (row.ready > 0 or row.counts_lag):
                continue
            if topic is None:
                if len(self._topics) >= TOPICS_MAX or not self._selection.covers(row.topic):
                    continue
                topic = self._topics[row.topic] = _Topic(row.topic, self._selection.weight(row.topic), is_named=False)
            if row.best_priority is not None:
                topic.best_priority = row.best_priority
            if row.oldest_ready_age_ms is not None:
                topic.oldest_ready_s = now_s - row.oldest_ready_age_ms / 1_000
            self._mark_hot(topic)

    def on_deliveries(
        self, wants: Mapping[str, int], deliveries: Sequence[Delivery], items_max: int, now_s: float
    ) -> None:
        """Record the reply to a call whose wants came from `fetch_wants` or `poll_wants`, in the order of its topics."""
        counts: dict[str, int] = {}
        last: dict[str, Delivery] = {}
        for delivery in deliveries:
            counts[delivery.topic] = counts.get(delivery.topic, 0) + 1
            last[delivery.topic] = delivery
        # A full call did not reach the topics after the last one that delivered.
        last_reached = deliveries[-1].topic if len(deliveries) >= items_max else None
        was_reached = True
        for name, count in wants.items():
            topic = self._topics.get(name)
            if topic is None:
                continue
            topic.requested = max(0.0, topic.requested - count / topic.weight)
            if not was_reached:
                pass
            elif name in counts:
                topic.miss_count = 0
                topic.virtual_time += counts[name] / topic.weight
                topic.best_priority = last[name].priority
                topic.oldest_ready_s = now_s - last[name].age_ms / 1_000
                self._mark_hot(topic)
            elif topic.is_hot:
                topic.miss_count += 1
                topic.virtual_time += 1 / topic.weight
                if not deliveries or topic.miss_count >= MISSES_MAX:
                    self._mark_quiet(topic)
            if topic.is_hot:
                self._queue_turn(topic)
            was_reached = was_reached and name != last_reached

    def on_call_failed(self, wants: Mapping[str, int]) -> None:
        """Give the topics of a failed call their turns back."""
        for name, count in wants.items():
            topic = self._topics.get(name)
            if topic is not None:
                topic.requested = max(0.0, topic.requested - count / topic.weight)
                if topic.is_hot:
                    self._queue_turn(topic)

    # ---------------------------------------------------------------- the turns

    def _add_requested(self, wants: Mapping[str, int]) -> None:
        """Count what a call asks for, until `on_deliveries` or `on_call_failed`."""
        for name, count in wants.items():
            topic = self._topics[name]
            topic.requested += count / topic.weight

    def _mark_hot(self, topic: _Topic) -> None:
        if not topic.is_hot:
            topic.is_hot = True
            topic.miss_count = 0
            self._hot_count += 1
            self._quiet_named.pop(topic.name, None)
            self._quiet_listed.pop(topic.name, None)
            topic.virtual_time = max(topic.virtual_time, self._virtual_time)
            self._queue_turn(topic)
        self._queue_urgent(topic)

    def _mark_quiet(self, topic: _Topic) -> None:
        topic.is_hot = False
        topic.turn_number = topic.urgent_number = 0
        self._hot_count -= 1
        if topic.is_named:
            self._quiet_named[topic.name] = topic
            return
        self._quiet_listed[topic.name] = topic
        if len(self._quiet_listed) > QUIET_LISTED_MAX:
            name = next(iter(self._quiet_listed))
            del self._quiet_listed[name], self._topics[name]

    def _queue_turn(self, topic: _Topic) -> None:
        """Add the topic's entry to the turns. It replaces the earlier entry."""
        rank = topic.virtual_time + topic.requested
        if topic.turn_number and rank == topic.rank:
            return
        self._sequence += 1
        topic.turn_number, topic.rank = self._sequence, rank
        heappush(self._turns, (rank, topic.turn_number, topic))
        if len(self._turns) > 64 + 4 * self._hot_count:
            self._turns = sorted(entry for entry in self._turns if entry[1] == entry[2].turn_number)

    def _queue_urgent(self, topic: _Topic) -> None:
        self._sequence += 1
        topic.urgent_number = self._sequence
        heappush(self._urgent, (topic.best_priority, topic.oldest_ready_s, topic.urgent_number, topic))
        if len(self._urgent) > 64 + 4 * self._hot_count:
            self._urgent = sorted(entry for entry in self._urgent if entry[2] == entry[3].urgent_number)

    def _pop_turns(self, count: int) -> list[_Topic]:
        """Remove and return the next `count` topics. They have no turn until they are queued again."""
        found: list[_Topic] = []
        while self._turns and len(found) < count:
            _, turn_number, topic = heappop(self._turns)
            if turn_number == topic.turn_number:
                topic.turn_number = 0
                self._virtual_time = max(self._virtual_time, topic.virtual_time)
                found.append(topic)
        return found

    def _most_urgent(self) -> _Topic | None:
        while self._urgent:
            _, _, urgent_number, topic = self._urgent[0]
            if urgent_number == topic.urgent_number:
                return topic
            heappop(self._urgent)
        return None

    def _urgent_item_count(self, items: float) -> int:
        """Return how many items of a call for `items` the most urgent topic gets."""
        self._urgent_credit += items * URGENT_FRACTION
        count = int(self._urgent_credit)
        self._urgent_credit -= count
        return count

    def _next_quiet_named(self) -> list[str]:
        return self._rotate(self._quiet_named, self.topics_per_call // 2)

    @staticmethod
    def _rotate(topics: dict[str, _Topic], count: int) -> list[str]:
        """Return the first `count` names, and move them to the end."""
        names = (
            list(topics)[:count]
            if len(topics) <= count
            else [name for name, _ in zip(topics, range(count), strict=False)]
        )
        if len(topics) > count:
            for name in names:
                topics[name] = topics.pop(name)
        return names
