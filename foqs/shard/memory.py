"""What a shard remembers: its ready index, rows, counts, topics, and the slots of keys that it holds.

Always true between two flushes: index and counts show exactly the committed
rows, less what is reserved for hand-outs that wait; a remembered row is the row
in the table. Everything that happens to the memory because of a flush happens
in `applied`, after the commit (but for what metrics count, which is told with
callers); what a read brings comes in between two flushes.
Knows nothing of connections, tasks or time's passing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, Protocol

from foqs.core.batch import Batch, HandOut, Part
from foqs.core.counts import TopicCounts
from foqs.core.cuts import Cut, Cuts, MakeCut
from foqs.core.flush import Decision, find_in
from foqs.core.item import Key, Row, State, TopicName, key_number, pack_key
from foqs.core.life import Kind, wakes
from foqs.core.ready import ReadyIndex
from foqs.core.rows import RowCache
from foqs.core.usage import Usage
from foqs.shard.facts import Facts
from foqs.shard.flush import Flush
from foqs.store.port import TopicCount

_TOPICS_OVER_PER_FLUSH: Final = 100
_TOPICS_PER_STEP: Final = 1_000
"""Topics taken in, or looked at, in one go: a millisecond or two."""
_FAR_MS: Final = 60_000
"""A row that nobody can want for so long is not remembered."""
_ENDED: Final = {State.DEFERRED: "delay", State.LEASED: "lease"}
_ENDED_FOR_GOOD: Final = {State.DEFERRED: "ttl", State.READY: "ttl", State.LEASED: "lease", State.DEAD: "retention"}
"""What ended when a row of this state was due, and stayed, or is gone."""
_SPOT: Final = attrgetter("namespace", "topic", "state")


class Consumers(Protocol):
    """Those who wait for items of this host, as its shards see them."""

    def waits(self, namespace: str) -> bool:
        """Somebody waits for some topic of this namespace."""
        ...

    def claim(self, shard: Any, topic: TopicName, keys: Sequence[Key]) -> list[HandOut]:
        """Hand-outs, of these keys in order, that waiters get as soon as they are inserted, or due."""
        ...

    def ready(self, topics: Iterable[TopicName]) -> None:
        """These topics have items: somebody may be waiting."""
        ...

    def look_again(self, shard: Any, namespace: str) -> None:
        """The shard may have room for hand-outs of this namespace, where it had none."""
        ...

    def told(self) -> None:
        """Callers have their answers, and there is other work to do: what they are sent should leave before it."""
        ...


class ShardMemory:
    """One shard's memory; see `Memory` in `foqs/shard/flush.py`.

    Args:
        timed: told the least due that a flush has written.
        linger_ms: how long a topic without items keeps its row in the topics table.
        claim_bytes_max: payloads of due items that one flush may read for those who wait.
        release: gives back items whose lease nobody has received.
        refused: told the keys of a hand-out that the database refused.
        cut: told that a cut was made.
    """

    def __init__(
        self,
        shard: Any,
        index: ReadyIndex,
        cache: RowCache,
        timed: Callable[[int], None],
        consumers: Consumers,
        facts: Facts,
        linger_ms: int,
        claim_bytes_max: int,
        now_ms: Callable[[], int],
        release: Callable[[Sequence[Row]], None],
        refused: Callable[[list[tuple[TopicName, list[Key]]]], None],
        cut: Callable[[], None],
    ) -> None:
        self.index = index
        self.cache = cache
        self.counts = TopicCounts()
        self.usage = Usage()
        self._shard = shard
        self._timed = timed
        self._consumers = consumers
        self._facts = facts
        self._linger_ms = linger_ms
        self._claim_bytes_max = claim_bytes_max
        self._now_ms = now_ms
        self._release = release
        self._hand_out_refused = refused
        self._cut_made = cut
        self.slots: frozenset[int] = frozenset()
        """In the slots table."""
        self.cuts = Cuts()
        """In the table of cuts."""
        self._cut_uncounted: set[TopicName] = set()
        """Topics that were purged before what they held was counted."""
        self.purged = 0
        """Rows that cuts have ended."""
        self.due: Counter[str] = Counter()
        """Items whose moment came, by what ended."""
        self.keys_repeated = 0
        self.keys_in_conflict = 0
        self._turned_away: set[str] = set()
        self._topics: dict[str, set[str]] = {}
        """The topics table, by namespace."""
        self._over: dict[TopicName, int] = {}
        """Topics in the table without items, and since when."""

    # ----------------------------------------------------------------- reads

    def recovered(self, topics: Iterable[TopicName], slots: Iterable[int], cuts: Iterable[Cut]) -> Iterator[None]:
        """Takes in the tables of topics, each of which may have READY items, of slots and of cuts, as a takeover finds them; in steps."""
        self.slots = frozenset(slots)
        for cut in cuts:
            self.cuts.make(cut)
        for place, topic in enumerate(topics, 1):
            self._topics.setdefault(topic[0], set()).add(topic[1])
            self.index.discover(topic)
            if not place % _TOPICS_PER_STEP:
                yield

    def count_anew(self) -> None:
        """`counted` will bring what is in the table now."""
        self.counts.begin_anew()
        self.usage.begin_anew()
        self._cut_uncounted.clear()

    def counted(self, found: Sequence[TopicCount]) -> Iterator[None]:
        """Takes in what was in the table at the takeover, or when it was counted anew; in steps, each between two flushes.

        Of a topic that was purged since, none of it is an item any more.
        """
        for start in range(0, len(found), _TOPICS_PER_STEP):
            if start:
                yield
            part = found[start : start + _TOPICS_PER_STEP]
            items = [((count.namespace, count.topic), count.state, count.rows - count.purged_rows) for count in part]
            self.counts.found_some([each for each in items if each[0] not in self._cut_uncounted])
            self.usage.found([(count.namespace, count.rows, count.payload_bytes) for count in part])
        self.counts.found(())
        self._cut_uncounted.clear()
        looked = 0
        for namespace in list(self._topics):
            for name in list(self._topics.get(namespace, ())):
                if looked == _TOPICS_PER_STEP:
                    looked = 0
                    yield
                looked += 1
                topic = (namespace, name)
                if topic not in self.counts and name in self._topics.get(namespace, ()):
                    self._over.setdefault(topic, self._now_ms())
                if not self.counts.of(topic, State.READY):
                    self.index.forget(topic)

    def topics(self, namespace: str) -> list[str]:
        """Names of topics that have items, or may have while the counts lag."""
        if self.counts.lag:
            return list(self._topics.get(namespace, ()))
        return self.counts.topics(namespace)

    def has(self, topic: TopicName) -> bool:
        """The topic has items, or may have while the counts lag."""
        if self.counts.lag:
            return topic[1] in self._topics.get(topic[0], ())
        return topic in self.counts

    def every_topic(self) -> list[tuple[str, list[str]]]:
        """All for which `has` may be true: the names of each namespace, in no particular order."""
        return [(namespace, list(names)) for namespace, names in self._topics.items()]

    # ---------------------------------------------------------- before a flush

    def claims(self, batch: Batch) -> list[HandOut]:
        """Hand-outs, for waiters, of items that this batch is about to insert, or finds due.

        The payloads of those that are due may have to be read: they are at most `claim_bytes_max`.
        """
        now_ms = self._now_ms()
        found: dict[TopicName, list[Key]] = {}
        for part in batch.inserts:
            namespace = part.work.namespace
            if not self._consumers.waits(namespace):
                continue
            items = part.work.items[part.start : part.stop]
            for number, item in zip(part.numbers, items, strict=True):
                if not item.delay_ms and (item.deliver_after_ms is None or item.deliver_after_ms <= now_ms):
                    key = pack_key(item.priority, now_ms, number)
                    found.setdefault((namespace, item.topic), []).append(key)
        due_bytes = self._due_keys(batch, now_ms, found) if batch.dues else {}
        claims: list[HandOut] = []
        bytes_left = self._claim_bytes_max
        for topic, keys in found.items():
            keys.sort()
            made = self._consumers.claim(self._shard, topic, _within(keys, due_bytes, bytes_left))
            if due_bytes:
                bytes_left -= sum([due_bytes.get(number, 0) for claim in made for number in claim.numbers])
            claims += made
        return claims

    def _due_keys(self, batch: Batch, now_ms: int, found: dict[TopicName, list[Key]]) -> dict[int, int]:
        """Adds the keys of due items that become READY. Returns their payloads' bytes by number.

        Those whose row is not known are left out: they were touched since the timers read them.
        """
        find = find_in(self.cache.get, *batch.due_rows())
        due_bytes: dict[int, int] = {}
        for part in batch.dues:
            for number in part.numbers:
                row = find(number)
                if row is None or not self._consumers.waits(row.namespace) or self.cuts.covers(row):
                    continue
                if wakes(row, now_ms):
                    found.setdefault((row.namespace, row.topic), []).append(row.key)
                    due_bytes[number] = row.payload_bytes
        return due_bytes

    def place_cuts(self, batch: Batch) -> None:
        """The cuts of this batch reach up to the last number given: so to all that is in the table after it."""
        last = self._shard.numbers.next - 1
        for part in batch.purging:
            if isinstance(part.work, MakeCut):
                part.work.cut = part.work.cut._replace(last=last)

    def topics_new(self, topics: Mapping[str, set[str]]) -> list[TopicName]:
        """Those that are not in the topics table yet."""
        return [
            (namespace, name)
            for namespace, names in topics.items()
            for name in sorted(names.difference(self._topics.get(namespace, ())))
        ]

    def topics_over(self, topics: Mapping[str, set[str]], now_ms: int) -> list[TopicName]:
        """Those in the topics table that have had no item for a while, nor will have with these."""
        if self.counts.lag or not self._over:
            return []
        long_ago = now_ms - self._linger_ms
        return [
            (namespace, name)
            for (namespace, name), since_ms in islice(self._over.items(), _TOPICS_OVER_PER_FLUSH)
            if since_ms <= long_ago and name not in topics.get(namespace, ())
        ]

    # ----------------------------------------------------------- after a flush

    def committed(self, flush: Flush, tells: MutableSequence[Callable[[], None]]) -> None:
        """A flush is committed: its works have their results; adds what tells their callers."""
        batch, decision = flush.batch, flush.decision
        orphans: list[Row] = []
        # Who waits for work is told of it before those who brought it.
        for claim, rows in zip(batch.claims, decision.claimed, strict=True):
            if claim.abandoned:
                orphans += [row for row in rows if row is not None]
            claim.record(0, rows, tells)
        for part, results in decision.results:
            work = part.work
            if work.abandoned and isinstance(work, HandOut):
                orphans += [row for row in results if row is not None]
            work.record(part.start, results, tells)
        if orphans:
            self._release(orphans)

    def applied(self, flush: Flush, tells: MutableSequence[Callable[[], None]]) -> None:
        """Brings the memory up to a flush that is committed; adds what tells the metrics, and who made a cut."""
        batch, decision = flush.batch, flush.decision
        tells.append(partial(self._report, decision))
        self._remember_topics(flush)
        if batch.slots:
            self.slots = self.slots.union(batch.slots)
        ready = self._entered(decision)
        self._left(decision)
        self._leased(batch, decision)
        self._moved(decision, ready)
        if batch.purging:
            self._purged(batch, decision, tells)
        if ready:
            self._consumers.ready(ready)
        self._tell_due(decision)
        for part, place, row in decision.unread:
            self.cache.longest.saw(row.namespace, row.payload_bytes)
            self._shard.give_back(part.work.keys_at(range(place, part.stop)))

    def _remember_topics(self, flush: Flush) -> None:
        for namespace, name in flush.topics_added:
            self._topics.setdefault(namespace, set()).add(name)
        for topic in flush.topics_removed:
            del self._over[topic]
            names = self._topics[topic[0]]
            names.discard(topic[1])
            if not names:
                del self._topics[topic[0]]
        if self._over:
            for namespace, names in flush.decision.topics.items():
                for name in names:
                    self._over.pop((namespace, name), None)

    def _entered(self, decision: Decision) -> dict[TopicName, None]:
        """New rows. Returns the topics that have READY ones."""
        rows = decision.inserted
        if not rows:
            return {}
        self.counts.change_all(_spots(rows), 1)
        self.usage.entered(rows)
        keys: dict[TopicName, list[Key]] = {}
        for row in rows:
            if row.state is State.READY:
                topic = (row.namespace, row.topic)
                found = keys.get(topic)
                if found is None:
                    keys[topic] = [row.key]
                else:
                    found.append(row.key)
        for topic, found in keys.items():
            found.sort()
            self.index.add_many(topic, found)
        self._remember(rows)
        return dict.fromkeys(keys)

    def _remember(self, rows: Sequence[Row]) -> None:
        """Rows as they were just written, but for those that would only keep others from being remembered."""
        far_ms = self._now_ms() + _FAR_MS
        parked = {row.id for row in rows if _waits_beyond(row, far_ms)}
        if parked:
            self.cache.drop(parked)
            rows = [row for row in rows if row.id not in parked]
        self.cache.keep_written(rows)

    def _left(self, decision: Decision) -> None:
        """Rows that are gone."""
        for rows in filter(None, decision.gone.values()):
            spots = _spots(rows)
            self.counts.change_all(spots, -1)
            self.usage.left(rows)
            for row in rows:
                if row.state is State.READY:
                    self.index.discard((row.namespace, row.topic), row.key)
            self._check_over(spots)
            self.cache.drop([row.id for row in rows])

    def _leased(self, batch: Batch, decision: Decision) -> None:
        """Rows that were handed out, and reservations that came to nothing."""
        olds, news = decision.leased
        leased = batch.leased
        if decision.unread:
            unread = {each for part, place, _ in decision.unread for each in part.work.numbers[place : part.stop]}
            leased = [number for number in leased if number not in unread]
        if leased and self.index.settle(leased) < len(leased):
            # Some were re-keyed since they were taken: their new keys may stand in a window.
            for row in olds:
                self.index.discard((row.namespace, row.topic), row.key)
        if news:
            spots = _spots(olds)
            self.counts.move_all(spots, State.LEASED)
            self._check_over(spots)
            self.cache.keep_written(news)

    def _moved(self, decision: Decision, ready: dict[TopicName, None]) -> None:
        """Rows that changed in another way; topics that have READY ones enter `ready`."""
        for _, old, new in decision.changed:
            topic = (old.namespace, old.topic)
            self.counts.change(topic, new.state, 1)
            self.counts.change(topic, old.state, -1)
            if old.state is State.READY:
                self.index.discard(topic, old.key)
                self._check_over([(*topic, State.READY)])
            if new.state is State.READY:
                self.index.add(topic, new.key)
                ready[topic] = None
        if decision.changed:
            self._remember([new for _, _, new in decision.changed])

    def _purged(self, batch: Batch, decision: Decision, tells: MutableSequence[Callable[[], None]]) -> None:
        """Rows of cuts that are gone, cuts that are over, and cuts that were made, after all else in their flush."""
        rows = decision.purged
        if rows:
            # They were counted as gone when their cut was made.
            self.usage.left(rows)
            self.purged += len(rows)
            for row in rows:
                if row.state is State.READY:
                    self.index.discard((row.namespace, row.topic), row.key)
            self.cache.drop([row.id for row in rows])
        for cut in decision.cuts_over:
            self.cuts.end(cut)
        for part in batch.purging:
            if isinstance(part.work, MakeCut):
                part.work.record(part.start, [self._cut(part.work.cut)], tells)

    def _cut(self, cut: Cut) -> int:
        """Everything that the topic has in the table is an item no more. Returns how many they were."""
        topic = (cut.namespace, cut.topic)
        self.cuts.make(cut)
        self.index.forget(topic)
        if self.counts.lag:
            self._cut_uncounted.add(topic)
        elif topic in self.counts:
            self._over.setdefault(topic, self._now_ms())
        self._cut_made()
        return max(0, self.counts.forget(topic))

    def _check_over(self, spots: Iterable[tuple[str, str, State]]) -> None:
        """Some items of these topics have left these states: perhaps they were the last."""
        if self.counts.lag:
            return
        gone, unready = self.counts.without(spots, State.READY)
        self.index.forget_all(unready)
        if gone:
            self.index.forget_all(gone)
            now_ms = self._now_ms()
            for topic in gone:
                self._over.setdefault(topic, now_ms)

    def _tell_due(self, decision: Decision) -> None:
        dues = [due_ms for due_ms, _, _ in decision.leases]
        dues += [row.due_ms for row in decision.inserted if row.due_ms is not None]
        dues += [row.due_ms for _, _, row in decision.changed if row.due_ms is not None]
        if dues:
            self._timed(min(dues))

    def _report(self, decision: Decision) -> None:
        facts = self._facts
        self.keys_repeated += decision.keys_repeated
        self.keys_in_conflict += decision.keys_in_conflict
        if decision.inserted:
            facts.enqueued(len(decision.inserted))
        leased = len(decision.leased[1]) + sum([len(list(filter(None, rows))) for rows in decision.claimed])
        if leased:
            facts.handed_out(leased)
        if not decision.changed and not decision.gone:
            return
        self.due.update([_ENDED[old.state] for kind, old, _ in decision.changed if kind is Kind.DUE])
        self.due.update([_ENDED_FOR_GOOD[row.state] for row in decision.gone.get(Kind.DUE, ())])
        tally = {kind: len(rows) for kind, rows in decision.gone.items()}
        dead = 0
        for kind, old, new in decision.changed:
            if kind is not Kind.DUE or old.state is not State.DEFERRED:
                tally[kind] = tally.get(kind, 0) + 1
            dead += new.state is State.DEAD and old.state is not State.DEAD
        tells = {
            Kind.ACK: facts.acked,
            Kind.NACK: facts.nacked,
            Kind.RELEASE: facts.released,
            Kind.DUE: facts.expired,
        }
        for kind, items in tally.items():
            if items and kind in tells:
                tells[kind](items)
        if dead:
            facts.dead(dead)

    # ------------------------------------------------------------- what fails

    def refused(self, part: Part[Any]) -> None:
        """The database refused a single event; its caller has been told.

        An item that cannot be leased stays reserved for a while: nobody tries it
        again at full speed, and it does not stand before the others.
        """
        if isinstance(part.work, HandOut):
            self._hand_out_refused(part.work.keys_at([part.start]))

    def told(self) -> None:
        """Callers were told what is committed, before the memory is brought up to it."""
        self._consumers.told()

    def answers_again(self) -> None:
        """The store answers after it had not."""
        self._consumers.ready(self.index.topics())

    # ----------------------------------------------------- more than is soon leased

    def turn_away(self, namespace: str) -> None:
        """Somebody found no room for a hand-out of this namespace, and waits until there is."""
        self._turned_away.add(namespace)

    def makes_room(self) -> None:
        """A flush was sealed: those who were turned away look again."""
        if self._turned_away:
            namespaces, self._turned_away = self._turned_away, set()
            for namespace in namespaces:
                self._consumers.look_again(self._shard, namespace)


def _within(keys: list[Key], sizes: Mapping[int, int], bytes_max: int) -> list[Key]:
    """The first of these keys, as long as their items' sizes, as far as they have one, are not more than that."""
    if not sizes:
        return keys
    for place, key in enumerate(keys):
        bytes_max -= sizes.get(key_number(key), 0)
        if bytes_max < 0:
            return keys[:place]
    return keys


def _waits_beyond(row: Row, moment_ms: int) -> bool:
    """Nobody can be handed this row by then, as far as is known."""
    if row.state is State.DEFERRED:
        return row.due_ms is not None and row.due_ms > moment_ms
    return row.state is State.DEAD


def _spots(rows: Sequence[Row]) -> Mapping[tuple[str, str, State], int]:
    """How many of these rows, of which there is one at least, are where."""
    spots = set(map(_SPOT, rows))
    return {spots.pop(): len(rows)} if len(spots) == 1 else Counter(map(_SPOT, rows))
