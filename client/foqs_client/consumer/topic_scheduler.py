"""Which topics to take items of next, and how many: the pure core of pulling.

Holds `Turns`, what is known of each topic. Always true: whoever has had the least
for its weight comes next, and who comes anew begins where the others are, so none
starves; a quarter of what is asked for is the topic's with the best priority, and
of those with the same the one's whose items have waited longest, on account of
its own turns; what a call under way asks for counts until it is answered, so calls
beside each other ask for different topics where there are enough; what is told
changes one topic, and nothing ever looks at all of them. Knows nothing of calls; a
topic's figures are hints, and only what calls bring decides.

    quiet ──listed with ready items, or brought some──▶ hot ──an empty call, or three in vain──▶ quiet

A *quiet* topic is named in calls that wait; one that was named by the user also
in those that do not, so that it needs nobody to list it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import Final

from foqs_client.consumer.topic_selection import TopicSelection
from foqs_client.types import Delivery, Topic

TOPICS_PER_CALL: Final = 100
"""What a host allows unless it is configured otherwise."""
TOPICS_MAX: Final = 100_000
"""So many topics are known at a time; further ones are listed again when some of these are quiet."""
QUIET_LISTED_MAX: Final = 100
"""So many quiet topics that were found by listing are still waited for."""
URGENT_FRACTION: Final = 0.25
MISSES_MAX: Final = 3
"""A topic that brought nothing so often, while others did, is quiet: each host of a cluster was asked about once."""


class _Topic:
    """What is known of one topic.

    Attributes:
        passed: items taken, divided by the weight; whoever has the least, with `asked`, is next.
        asked: items that calls under way ask for, divided by the weight.
        rank: `virtual_time` and `asked` together, as of its place among the turns.
        order: of its place among the turns; 0: it has none.
        urgency: of its place among the urgent; 0: it has none.
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
    """The topics of a selection.

    Attributes:
        topics_per_call: no call names more.
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
        """What the topic had passed whose turn it was last: who comes anew begins here."""
        self._urgent_credit = 0.0
        """What the urgent are owed, in items."""
        self._quiet_named: dict[str, _Topic] = {}
        """The quiet ones that the user named, longest unasked first."""
        self._quiet_listed: dict[str, _Topic] = {}
        for name in selection.exact_topics:
            self._quiet_named[name] = self._topics[name] = _Topic(name, selection.weight(name), is_named=True)

    @property
    def hot_count(self) -> int:
        """How many topics are thought to have items."""
        return self._hot_count

    # ---------------------------------------------------------- what is asked for

    def fetch_wants(self, items: int) -> dict[str, int]:
        """What to ask for at once, first comes first: at most so many of each topic. Empty where none is hot.

        Together they may be more than `items`, which the call is to be limited to.
        """
        if not self._hot_count:
            return {}
        glanced = self._next_quiet_named()
        first = self._most_urgent() if min(self._hot_count, self.topics_per_call) > 1 else None
        places = max(1, self.topics_per_call - len(glanced) - (first is not None))
        turns = self._pop_turns(min(self._hot_count, 2 * items, places))
        every = len(turns) == self._hot_count
        weights = sum([topic.weight for topic in turns])
        counts = [max(1, ceil(2 * items * topic.weight / weights if every else topic.weight)) for topic in turns]
        wants: dict[str, int] = {}
        if first is not None and (urgent := self._urgent_item_count(min(items, sum(counts) / (1 - URGENT_FRACTION)))):
            wants[first.name] = urgent
        for name in glanced:
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
        """What to wait for while no topic is hot: those that were named, and those that had items lately."""
        names = self._rotate(self._quiet_named, self.topics_per_call)
        names += list(self._quiet_listed)[::-1][: self.topics_per_call - len(names)]
        wants = dict.fromkeys(names, items)
        self._add_requested(wants)
        return wants

    @property
    def can_poll_all(self) -> bool:
        """There is no topic but those that `poll_wants` names."""
        return not self._selection.prefixes and len(self._quiet_named) <= self.topics_per_call

    # ------------------------------------------------------------- what is told

    def on_topics_listed(self, rows: Iterable[Topic], now_s: float) -> None:
        """A page of the hosts' list."""
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
        """What a call brought that `fetch_wants` or `poll_wants` had asked for, in the order of its topics."""
        counts: dict[str, int] = {}
        last: dict[str, Delivery] = {}
        for delivery in deliveries:
            counts[delivery.topic] = counts.get(delivery.topic, 0) + 1
            last[delivery.topic] = delivery
        # Beyond the last topic that brought something, a full call says nothing.
        unknown = deliveries[-1].topic if len(deliveries) >= items_max else None
        judged = True
        for name, count in wants.items():
            topic = self._topics.get(name)
            if topic is None:
                continue
            topic.requested = max(0.0, topic.requested - count / topic.weight)
            if not judged:
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
            judged = judged and name != unknown

    def on_call_failed(self, wants: Mapping[str, int]) -> None:
        """The call for these came to nothing: they have their turns as if it had not been made."""
        for name, count in wants.items():
            topic = self._topics.get(name)
            if topic is not None:
                topic.requested = max(0.0, topic.requested - count / topic.weight)
                if topic.is_hot:
                    self._queue_turn(topic)

    # ---------------------------------------------------------------- the turns

    def _add_requested(self, wants: Mapping[str, int]) -> None:
        """A call for these is made, until it is told of by `on_deliveries` or `on_call_failed`."""
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
        """Gives it its place among the turns; the one that it had counts no more."""
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
        """The next so many; they have no turn until they are queued again."""
        found: list[_Topic] = []
        while self._turns and len(found) < count:
            _, order, topic = heappop(self._turns)
            if order == topic.turn_number:
                topic.turn_number = 0
                self._virtual_time = max(self._virtual_time, topic.virtual_time)
                found.append(topic)
        return found

    def _most_urgent(self) -> _Topic | None:
        while self._urgent:
            _, _, urgency, topic = self._urgent[0]
            if urgency == topic.urgent_number:
                return topic
            heappop(self._urgent)
        return None

    def _urgent_item_count(self, items: float) -> int:
        """How many of a call for so many are the most urgent topic's."""
        self._urgent_credit += items * URGENT_FRACTION
        whole = int(self._urgent_credit)
        self._urgent_credit -= whole
        return whole

    def _next_quiet_named(self) -> list[str]:
        return self._rotate(self._quiet_named, self.topics_per_call // 2)

    @staticmethod
    def _rotate(topics: dict[str, _Topic], count: int) -> list[str]:
        """The first so many, which are the last from now on."""
        names = (
            list(topics)[:count]
            if len(topics) <= count
            else [name for name, _ in zip(topics, range(count), strict=False)]
        )
        if len(topics) > count:
            for name in names:
                topics[name] = topics.pop(name)
        return names
