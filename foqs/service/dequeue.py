"""One dequeue, from its call to its answer.

It looks for keys, has their shards lease them, and answers with what committed;
where there is nothing it waits in the queues of its topics until it is served,
claimed for items about to be inserted, or out of time. Always true: between
looking and reserving, and between finding nothing and standing in the queues,
lies nothing; it is in one of four states, and `done` is called once at most;
whatever is leased for it after it has ended is released.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Protocol

from foqs.core.batch import HandOut as HandOutWork
from foqs.core.item import Key, Row, TopicName
from foqs.deadlines import Deadlines
from foqs.service.api import HandOut, Seen
from foqs.shard.shard import Shard

Spans = list[tuple[TopicName, list[Key]]]


class Counter(Protocol):
    """What a dequeue needs of its host."""

    @property
    def deadlines(self) -> Deadlines: ...

    def now(self) -> float:
        """The loop's clock."""
        ...

    def take(
        self, topics: Mapping[TopicName, int], items_max: int, *, late: bool, beside: Collection[Shard] = ()
    ) -> list[tuple[Shard, Spans]]:
        """Reserves the best keys that are certain; if it is late, without those shards that still read.

        If there are shards `beside` which it looks, it takes only from others that commit quickly.
        """
        ...

    def may_come(self, topics: Collection[TopicName]) -> bool:
        """Some shard is reading for one of these topics, which it begins here where it must, or has too much to lease."""
        ...

    def join(self, dequeue: Dequeue) -> None: ...
    def leave(self, dequeue: Dequeue) -> None: ...

    @property
    def draining(self) -> bool: ...


class _State(enum.Enum):
    LOOKING = enum.auto()
    WAITING = enum.auto()
    LEASING = enum.auto()
    ENDED = enum.auto()


class Dequeue:
    """One call.

    Args:
        topics: each with how many items are wanted.
        until: when it stops waiting for items; at most `deadline`.
        handout_s_max: how long it waits for shards that read, and, once some items are
            committed, for shards that still lease.
    """

    __slots__ = (
        "_counter",
        "_deadline",
        "_done",
        "_exchanged",
        "_handout_s_max",
        "_patience",
        "_slot",
        "_state",
        "_until",
        "_wake",
        "_works",
        "item_bytes",
        "items_max",
        "lease_ms",
        "topics",
    )

    def __init__(
        self,
        counter: Counter,
        topics: Mapping[TopicName, int],
        lease_ms: int | None,
        item_bytes: int,
        items_max: int,
        until: float,
        deadline: float,
        handout_s_max: float,
        done: Callable[[HandOut], None],
    ) -> None:
        self.topics = topics
        self.lease_ms = lease_ms
        self.item_bytes = item_bytes
        self._counter = counter
        self.items_max = items_max
        self._until = until
        self._patience = inf
        """Until when it waits for a read that is under way; infinite when there is none."""
        self._wake = 0.0
        self._deadline = deadline
        self._handout_s_max = handout_s_max
        self._done: Callable[[HandOut], None] | None = done
        self._state = _State.LOOKING
        self._works: list[tuple[Shard, HandOutWork]] = []
        self._exchanged = False
        """It has given up leases for those of a quicker shard, which it does once."""
        self._slot = 0

    # ------------------------------------------------------------------ looking

    def look(self) -> bool:
        """Takes what there is; else stands in the queues of its topics, where it keeps its place, and returns False.

        While something is being read for it, it waits for that even if it has
        no other time to wait, but not for ever: shards that are late are left out.
        """
        return self._look(self._counter.now())

    def _look(self, now: float) -> bool:
        counter = self._counter
        taken = counter.take(self.topics, self.items_max, late=self._patience <= now)
        if taken:
            self._stop_waiting()
            self._lease(taken)
            return True
        if not counter.may_come(self.topics):
            self._patience = inf
        elif self._patience == inf:
            self._patience = min(self._deadline, now + self._handout_s_max)
        wake = self._patience if now < self._patience < inf else self._until
        if counter.draining or wake <= now:
            self._stop_waiting()
            self._end([])
            return True
        if self._state is not _State.WAITING:
            self._state = _State.WAITING
            counter.join(self)
        elif wake == self._wake:
            return False
        else:
            counter.deadlines.remove(self._slot, self)
        self._wake = wake
        self._slot = counter.deadlines.add(wake, self)
        return False

    def _stop_waiting(self) -> None:
        if self._state is _State.WAITING:
            self._counter.leave(self)
            self._counter.deadlines.remove(self._slot, self)
        self._state = _State.LOOKING

    # ------------------------------------------------------------------ leasing

    def _lease(self, taken: Sequence[tuple[Shard, Spans]]) -> None:
        self._state = _State.LEASING
        self._await_leases(self._counter.now())
        self._works = []
        for shard, spans in taken:
            namespace = spans[0][0][0]
            self._works.append((shard, shard.hand_out(namespace, spans, self.lease_ms, self.item_bytes, self._leased)))

    def claim(self, shard: Shard, topic: TopicName, keys: Sequence[Key]) -> HandOutWork:
        """It gets these, which the shard is about to insert, or finds due; it must be waiting."""
        self._stop_waiting()
        self._state = _State.LEASING
        self._await_leases(self._counter.now())
        work = HandOutWork(topic[0], [(topic, keys)], self.lease_ms, 0, self._leased)
        work.seal(0, len(keys))
        self._works = [(shard, work)]
        return work

    def _await_leases(self, now: float) -> None:
        self._wake = min(self._deadline, now + self._handout_s_max)
        self._slot = self._counter.deadlines.add(self._wake, self)

    def _leased(self) -> None:
        """One of the works has all its results, or one that was given up had them just before."""
        if self._state is _State.LEASING and not any(work.is_open for _, work in self._works):
            self._collect()

    def _collect(self, *, late: bool = False) -> None:
        """Answers with what committed; what commits later is given back by its shard."""
        found: list[Seen] = []
        for shard, work in self._works:
            if shard.dropped:
                continue
            now_ms, number, lasts = shard.now_ms(), shard.number, shard.lasts()
            found += [Seen(number, row, now_ms, lasts=lasts) for row in work.results if type(row) is Row]
        if not found and not late:
            self._counter.deadlines.remove(self._slot, self)
            self.look()
            return
        # What one shard hands out is in order.
        if len(self._works) > 1:
            if len(self.topics) > 1:
                order = {topic: place for place, topic in enumerate(self.topics)}
                found.sort(key=lambda seen: (order[seen.row.namespace, seen.row.topic], seen.row.key))
            else:
                found.sort(key=_key)
        self._end(found)

    # ------------------------------------------------------------------ the end

    def expire(self) -> None:
        """It is time to look for the last time, or to leave out the shards that are late."""
        # The loop may ring a hair's breadth too early, by its own clock.
        now = max(self._counter.now(), self._wake)
        if self._state is _State.WAITING:
            self._look(now)
        elif self._state is _State.LEASING:
            if now < self._deadline and not self._has_some():
                self._lease_elsewhere(now)
            else:
                self._give_up_open()
                self._collect(late=True)

    def _has_some(self) -> bool:
        """Some item is committed."""
        return any(type(row) is Row for shard, work in self._works if not shard.dropped for row in work.results)

    def _lease_elsewhere(self, now: float) -> None:
        """Nothing is committed yet: gives up its leases for items of a quicker shard, once, or waits on.

        What commits after it was given up is released. If a dequeue gave up again and
        again, or for nothing, slow databases would never deliver anything.
        """
        taken: Sequence[tuple[Shard, Spans]] = ()
        late = [shard for shard, work in self._works if work.is_open]
        if late and not self._exchanged:
            taken = self._counter.take(self.topics, self.items_max, late=True, beside=late)
        if taken:
            self._exchanged = True
            self._give_up_open()
            self._lease(taken)
        else:
            self._await_leases(now)

    def abandon(self) -> None:
        """Nobody waits any more: gives everything back."""
        self._done = None
        self._counter.deadlines.remove(self._slot, self)
        if self._state is _State.WAITING:
            self._counter.leave(self)
        elif self._state is _State.LEASING:
            self._give_up_open()
            self._release()
        self._state = _State.ENDED

    def _give_up_open(self) -> None:
        """The hand-outs that are not committed: their shards give them back, now or when they are."""
        self._state = _State.ENDED
        for shard, work in self._works:
            if work.is_open:
                shard.abandon(work)

    def _release(self) -> None:
        for shard, work in self._works:
            shard.release([row for row in work.results if type(row) is Row])

    def _end(self, items: list[Seen]) -> None:
        self._state = _State.ENDED
        self._counter.deadlines.remove(self._slot, self)
        done, self._done = self._done, None
        if done is not None:
            done(HandOut(items, self._release))


def _key(seen: Seen) -> Key:
    return seen.row.key
