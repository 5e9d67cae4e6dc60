"""What a shard remembers: its ready index, rows, counts, topics, and the slots of keys that it holds.

Always true between two flushes: index and counts show exactly the committed
rows, less what is reserved for hand-outs that wait; a remembered row is the row
in the table. Everything that happens to the memory because of a flush happens
in `apply`, after the commit (but for what metrics count, which is told with
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

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.decision import Decision, chain_finders
from foqs.core.flush.item_numbers import ItemNumbers
from foqs.core.flush.purge_markers import PurgeMarker, PurgeMarkers, SetPurgeMarker
from foqs.core.flush.work import HandOut
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number, pack_order_key
from foqs.core.items.life import EventKind, becomes_ready
from foqs.core.memory.namespace_usage import NamespaceUsage
from foqs.core.memory.ready_index import ReadyIndex
from foqs.core.memory.row_cache import RowCache
from foqs.core.memory.topic_counts import TopicCounts
from foqs.core.timing.due_timers import DueTimers
from foqs.options.shard_options import ShardOptions
from foqs.shard.observer import ShardObserver
from foqs.shard.shard_flush import Flush
from foqs.store.port import TopicCount

_TOPICS_REMOVED_PER_FLUSH: Final = 100
_TOPICS_PER_STEP: Final = 1_000
"""Topics taken in, or looked at, in one go: a millisecond or two."""
_CACHE_HORIZON_MS: Final = 60_000
"""A row that nobody can want for so long is not remembered."""
_DUE_KIND_IF_KEPT: Final = {State.DEFERRED: "deliver_after", State.LEASED: "lease"}
_DUE_KIND_IF_DELETED: Final = {
    State.DEFERRED: "ttl",
    State.READY: "ttl",
    State.LEASED: "lease",
    State.DEAD: "retention",
}
"""What ended when a row of this state was due, and stayed, or is gone."""
_TOPIC_AND_STATE: Final = attrgetter("namespace", "topic", "state")


class DeliveryPort(Protocol):
    """Those who wait for items of this host, as its shards see them."""

    def has_waiters(self, namespace: str) -> bool:
        """Somebody waits for some topic of this namespace."""
        ...

    def assign_to_waiters(self, shard: Any, topic: TopicName, order_keys: Sequence[OrderKey]) -> list[HandOut]:
        """Hand-outs, of these keys in order, that waiters get as soon as they are inserted, or due."""
        ...

    def on_items_ready(self, topics: Iterable[TopicName]) -> None:
        """These topics have items: somebody may be waiting."""
        ...

    def on_room_freed(self, shard: Any, namespace: str) -> None:
        """The shard may have room for hand-outs of this namespace, where it had none."""
        ...

    def on_callers_notified(self) -> None:
        """Callers have their answers, and there is other work to do: what they are sent should leave before it."""
        ...


class ShardPort(Protocol):
    """The shard, as its memory sees it."""

    numbers: ItemNumbers

    def now_ms(self) -> int:
        """The shard's time."""
        ...

    def release_reservation(self, spans: Iterable[tuple[TopicName, Sequence[OrderKey]]]) -> None:
        """These keys were reserved for a hand-out, and are not any more."""
        ...

    def release(self, leased: Sequence[Row]) -> None:
        """Gives back items whose lease nobody has received."""
        ...

    def on_hand_out_refused(self, spans: list[tuple[TopicName, list[OrderKey]]]) -> None:
        """The database refused a hand-out of these keys."""
        ...

    def on_due_written(self, due_ms: int) -> None:
        """The least due that a flush has written."""
        ...

    def on_purge_marked(self) -> None:
        """There are rows of a purged topic to delete."""
        ...


class ShardMemory:
    """One shard's memory; see `ShardMemoryPort` in `foqs/shard/shard_flush.py`."""

    def __init__(
        self,
        shard: ShardPort,
        cache: RowCache,
        delivery_port: DeliveryPort,
        observer: ShardObserver,
        options: ShardOptions,
    ) -> None:
        self.index = ReadyIndex(options.ready_window_items_max, options.ready_index_items_max)
        self.timers = DueTimers(options.sweep_interval_ms)
        self.cache = cache
        self.counts = TopicCounts()
        self.usage = NamespaceUsage()
        self._shard = shard
        self._delivery_port = delivery_port
        self._observer = observer
        self._linger_ms = options.empty_topic_linger_ms
        self._waiter_payload_bytes_max = options.flush_bytes_max
        """Payloads of due items that one flush may read for those who wait."""
        self._now_ms = shard.now_ms
        self.key_slots: frozenset[int] = frozenset()
        """In the slots table."""
        self.purge_markers = PurgeMarkers()
        """In the table of cuts."""
        self._purged_uncounted: set[TopicName] = set()
        """Topics that were purged before what they held was counted."""
        self.purged_row_count = 0
        """Rows that cuts have ended."""
        self.due_counts: Counter[str] = Counter()
        """Items whose moment came, by what ended."""
        self.keys_repeated = 0
        self.keys_in_conflict = 0
        self._waiting_for_room: set[str] = set()
        self._topics: dict[str, set[str]] = {}
        """The topics table, by namespace."""
        self._empty_since_ms: dict[TopicName, int] = {}
        """Topics in the table without items, and since when."""

    # ----------------------------------------------------------------- reads

    def recover(
        self, topics: Iterable[TopicName], key_slots: Iterable[int], purge_markers: Iterable[PurgeMarker]
    ) -> Iterator[None]:
        """Takes in the tables of topics, each of which may have READY items, of slots and of cuts, as a takeover finds them; in steps."""
        self.key_slots = frozenset(key_slots)
        for cut in purge_markers:
            self.purge_markers.add(cut)
        for place, topic in enumerate(topics, 1):
            self._topics.setdefault(topic[0], set()).add(topic[1])
            self.index.discover(topic)
            if not place % _TOPICS_PER_STEP:
                yield

    def restart_count(self) -> None:
        """`add_counts` will bring what is in the table now."""
        self.counts.restart_initial()
        self.usage.restart_initial()
        self._purged_uncounted.clear()

    def add_counts(self, topic_counts: Sequence[TopicCount]) -> Iterator[None]:
        """Takes in what was in the table at the takeover, or when it was counted anew; in steps, each between two flushes.

        Of a topic that was purged since, none of it is an item any more.
        """
        for start in range(0, len(topic_counts), _TOPICS_PER_STEP):
            if start:
                yield
            part = topic_counts[start : start + _TOPICS_PER_STEP]
            items = [((count.namespace, count.topic), count.state, count.rows - count.purged_rows) for count in part]
            self.counts.add_initial([each for each in items if each[0] not in self._purged_uncounted])
            self.usage.add_initial([(count.namespace, count.rows, count.payload_bytes) for count in part])
        self.counts.complete_initial(())
        self._purged_uncounted.clear()
        looked = 0
        for namespace in list(self._topics):
            for name in list(self._topics.get(namespace, ())):
                if looked == _TOPICS_PER_STEP:
                    looked = 0
                    yield
                looked += 1
                topic = (namespace, name)
                if topic not in self.counts and name in self._topics.get(namespace, ()):
                    self._empty_since_ms.setdefault(topic, self._now_ms())
                if not self.counts.count(topic, State.READY):
                    self.index.forget(topic)

    def topics(self, namespace: str) -> list[str]:
        """Names of topics that have items, or may have while the counts lag."""
        if self.counts.is_lagging:
            return list(self._topics.get(namespace, ()))
        return self.counts.topic_names(namespace)

    def has_topic(self, topic: TopicName) -> bool:
        """The topic has items, or may have while the counts lag."""
        if self.counts.is_lagging:
            return topic[1] in self._topics.get(topic[0], ())
        return topic in self.counts

    def all_topics(self) -> list[tuple[str, list[str]]]:
        """All for which `has` may be true: the names of each namespace, in no particular order."""
        return [(namespace, list(names)) for namespace, names in self._topics.items()]

    # ---------------------------------------------------------- before a flush

    def assign_to_waiters(self, batch: Batch) -> list[HandOut]:
        """Hand-outs, for waiters, of items that this batch is about to insert, or finds due.

        The payloads of those that are due may have to be read: they are at most `claim_bytes_max`.
        """
        now_ms = self._now_ms()
        found: dict[TopicName, list[OrderKey]] = {}
        for part in batch.inserts:
            namespace = part.work.namespace
            if not self._delivery_port.has_waiters(namespace):
                continue
            items = part.work.items[part.start : part.stop]
            for number, item in zip(part.numbers, items, strict=True):
                if not item.delay_ms and (item.deliver_after_ms is None or item.deliver_after_ms <= now_ms):
                    key = pack_order_key(item.priority, now_ms, number)
                    found.setdefault((namespace, item.topic), []).append(key)
        due_bytes = self._add_due_keys(batch, now_ms, found) if batch.dues else {}
        claims: list[HandOut] = []
        bytes_left = self._waiter_payload_bytes_max
        for topic, keys in found.items():
            keys.sort()
            made = self._delivery_port.assign_to_waiters(
                self._shard, topic, _prefix_within_bytes(keys, due_bytes, bytes_left)
            )
            if due_bytes:
                bytes_left -= sum([due_bytes.get(number, 0) for claim in made for number in claim.numbers])
            claims += made
        return claims

    def _add_due_keys(self, batch: Batch, now_ms: int, found: dict[TopicName, list[OrderKey]]) -> dict[int, int]:
        """Adds the keys of due items that become READY. Returns their payloads' bytes by number.

        Those whose row is not known are left out: they were touched since the timers read them.
        """
        find = chain_finders(self.cache.get, *batch.due_rows())
        due_bytes: dict[int, int] = {}
        for part in batch.dues:
            for number in part.numbers:
                row = find(number)
                if row is None or not self._delivery_port.has_waiters(row.namespace) or self.purge_markers.covers(row):
                    continue
                if becomes_ready(row, now_ms):
                    found.setdefault((row.namespace, row.topic), []).append(row.order_key)
                    due_bytes[number] = row.payload_bytes
        return due_bytes

    def place_purge_markers(self, batch: Batch) -> None:
        """The cuts of this batch reach up to the last number given: so to all that is in the table after it."""
        last = self._shard.numbers.next_number - 1
        for part in batch.purges:
            if isinstance(part.work, SetPurgeMarker):
                part.work.marker = part.work.marker._replace(last_number=last)

    def topics_to_add(self, topics: Mapping[str, set[str]]) -> list[TopicName]:
        """Those that are not in the topics table yet."""
        return [
            (namespace, name)
            for namespace, names in topics.items()
            for name in sorted(names.difference(self._topics.get(namespace, ())))
        ]

    def topics_to_remove(self, topics: Mapping[str, set[str]], now_ms: int) -> list[TopicName]:
        """Those in the topics table that have had no item for a while, nor will have with these."""
        if self.counts.is_lagging or not self._empty_since_ms:
            return []
        long_ago = now_ms - self._linger_ms
        return [
            (namespace, name)
            for (namespace, name), since_ms in islice(self._empty_since_ms.items(), _TOPICS_REMOVED_PER_FLUSH)
            if since_ms <= long_ago and name not in topics.get(namespace, ())
        ]

    # ----------------------------------------------------------- after a flush

    def record_results(self, flush: Flush, callbacks: MutableSequence[Callable[[], None]]) -> None:
        """A flush is committed: its works have their results; adds what tells their callers."""
        batch, decision = flush.batch, flush.decision
        orphans: list[Row] = []
        # Who waits for work is told of it before those who brought it.
        for claim, rows in zip(batch.direct_deliveries, decision.directly_leased, strict=True):
            if claim.is_abandoned:
                orphans += [row for row in rows if row is not None]
            claim.record_results(0, rows, callbacks)
        for part, results in decision.results:
            work = part.work
            if work.is_abandoned and isinstance(work, HandOut):
                orphans += [row for row in results if row is not None]
            work.record_results(part.start, results, callbacks)
        if orphans:
            self._shard.release(orphans)

    def apply(self, flush: Flush, callbacks: MutableSequence[Callable[[], None]]) -> None:
        """Brings the memory up to a flush that is committed; adds what tells the metrics, and who made a cut."""
        batch, decision = flush.batch, flush.decision
        callbacks.append(partial(self._report_metrics, decision))
        self._remember_topics(flush)
        if batch.key_slots:
            self.key_slots = self.key_slots.union(batch.key_slots)
        ready = self._apply_inserts(decision)
        self._apply_deletes(decision)
        self._apply_leases(batch, decision)
        self._apply_changes(decision, ready)
        if batch.purges:
            self._apply_purges(batch, decision, callbacks)
        if ready:
            self._delivery_port.on_items_ready(ready)
        self._report_next_due(decision)
        for part, place, row in decision.unread:
            self.cache.longest_payloads.record(row.namespace, row.payload_bytes)
            self._shard.release_reservation(part.work.keys_at(range(place, part.stop)))

    def _remember_topics(self, flush: Flush) -> None:
        for namespace, name in flush.topics_added:
            self._topics.setdefault(namespace, set()).add(name)
        for topic in flush.topics_removed:
            del self._empty_since_ms[topic]
            names = self._topics[topic[0]]
            names.discard(topic[1])
            if not names:
                del self._topics[topic[0]]
        if self._empty_since_ms:
            for namespace, names in flush.decision.topics.items():
                for name in names:
                    self._empty_since_ms.pop((namespace, name), None)

    def _apply_inserts(self, decision: Decision) -> dict[TopicName, None]:
        """New rows. Returns the topics that have READY ones."""
        rows = decision.inserted
        if not rows:
            return {}
        self.counts.add_all(_count_by_topic_and_state(rows), 1)
        self.usage.on_rows_inserted(rows)
        keys: dict[TopicName, list[OrderKey]] = {}
        for row in rows:
            if row.state is State.READY:
                topic = (row.namespace, row.topic)
                found = keys.get(topic)
                if found is None:
                    keys[topic] = [row.order_key]
                else:
                    found.append(row.order_key)
        for topic, found in keys.items():
            found.sort()
            self.index.add_many(topic, found)
        self._remember(rows)
        return dict.fromkeys(keys)

    def _remember(self, rows: Sequence[Row]) -> None:
        """Rows as they were just written, but for those that would only keep others from being remembered."""
        far_ms = self._now_ms() + _CACHE_HORIZON_MS
        parked = {row.id for row in rows if _is_undeliverable_until(row, far_ms)}
        if parked:
            self.cache.remove(parked)
            rows = [row for row in rows if row.id not in parked]
        self.cache.store_written(rows)

    def _apply_deletes(self, decision: Decision) -> None:
        """Rows that are gone."""
        for rows in filter(None, decision.deleted.values()):
            spots = _count_by_topic_and_state(rows)
            self.counts.add_all(spots, -1)
            self.usage.on_rows_deleted(rows)
            for row in rows:
                if row.state is State.READY:
                    self.index.discard((row.namespace, row.topic), row.order_key)
            self._note_emptied_topics(spots)
            self.cache.remove([row.id for row in rows])

    def _apply_leases(self, batch: Batch, decision: Decision) -> None:
        """Rows that were handed out, and reservations that came to nothing."""
        olds, news = decision.leased
        leased = batch.hand_out_numbers
        if decision.unread:
            unread = {each for part, place, _ in decision.unread for each in part.work.numbers[place : part.stop]}
            leased = [number for number in leased if number not in unread]
        if leased and self.index.confirm_reservations(leased) < len(leased):
            # Some were re-keyed since they were taken: their new keys may stand in a window.
            for row in olds:
                self.index.discard((row.namespace, row.topic), row.order_key)
        if news:
            spots = _count_by_topic_and_state(olds)
            self.counts.move_all(spots, State.LEASED)
            self._note_emptied_topics(spots)
            self.cache.store_written(news)

    def _apply_changes(self, decision: Decision, ready: dict[TopicName, None]) -> None:
        """Rows that changed in another way; topics that have READY ones enter `ready`."""
        for _, old, new in decision.changed:
            topic = (old.namespace, old.topic)
            self.counts.add(topic, new.state, 1)
            self.counts.add(topic, old.state, -1)
            if old.state is State.READY:
                self.index.discard(topic, old.order_key)
                self._note_emptied_topics([(*topic, State.READY)])
            if new.state is State.READY:
                self.index.add(topic, new.order_key)
                ready[topic] = None
        if decision.changed:
            self._remember([new for _, _, new in decision.changed])

    def _apply_purges(self, batch: Batch, decision: Decision, callbacks: MutableSequence[Callable[[], None]]) -> None:
        """Rows of cuts that are gone, cuts that are over, and cuts that were made, after all else in their flush."""
        rows = decision.purged
        if rows:
            # They were counted as gone when their cut was made.
            self.usage.on_rows_deleted(rows)
            self.purged_row_count += len(rows)
            for row in rows:
                if row.state is State.READY:
                    self.index.discard((row.namespace, row.topic), row.order_key)
            self.cache.remove([row.id for row in rows])
        for cut in decision.markers_cleared:
            self.purge_markers.remove(cut)
        for part in batch.purges:
            if isinstance(part.work, SetPurgeMarker):
                part.work.record_results(part.start, [self._apply_purge_marker(part.work.marker)], callbacks)

    def _apply_purge_marker(self, purge_marker: PurgeMarker) -> int:
        """Everything that the topic has in the table is an item no more. Returns how many they were."""
        topic = (purge_marker.namespace, purge_marker.topic)
        self.purge_markers.add(purge_marker)
        self.index.forget(topic)
        if self.counts.is_lagging:
            self._purged_uncounted.add(topic)
        elif topic in self.counts:
            self._empty_since_ms.setdefault(topic, self._now_ms())
        self._shard.on_purge_marked()
        return max(0, self.counts.forget(topic))

    def _note_emptied_topics(self, spots: Iterable[tuple[str, str, State]]) -> None:
        """Some items of these topics have left these states: perhaps they were the last."""
        if self.counts.is_lagging:
            return
        gone, unready = self.counts.emptied_topics(spots, State.READY)
        self.index.forget_all(unready)
        if gone:
            self.index.forget_all(gone)
            now_ms = self._now_ms()
            for topic in gone:
                self._empty_since_ms.setdefault(topic, now_ms)

    def _report_next_due(self, decision: Decision) -> None:
        dues = [due_ms for due_ms, _, _ in decision.leases]
        dues += [row.due_ms for row in decision.inserted if row.due_ms is not None]
        dues += [row.due_ms for _, _, row in decision.changed if row.due_ms is not None]
        if dues:
            self._shard.on_due_written(min(dues))

    def _report_metrics(self, decision: Decision) -> None:
        facts = self._observer
        self.keys_repeated += decision.key_repeat_count
        self.keys_in_conflict += decision.key_conflict_count
        if decision.inserted:
            facts.items_enqueued(len(decision.inserted))
        leased = len(decision.leased[1]) + sum([len(list(filter(None, rows))) for rows in decision.directly_leased])
        if leased:
            facts.items_delivered(leased)
        if not decision.changed and not decision.deleted:
            return
        self.due_counts.update(
            [_DUE_KIND_IF_KEPT[old.state] for kind, old, _ in decision.changed if kind is EventKind.DUE]
        )
        self.due_counts.update([_DUE_KIND_IF_DELETED[row.state] for row in decision.deleted.get(EventKind.DUE, ())])
        tally = {kind: len(rows) for kind, rows in decision.deleted.items()}
        dead = 0
        for kind, old, new in decision.changed:
            if kind is not EventKind.DUE or old.state is not State.DEFERRED:
                tally[kind] = tally.get(kind, 0) + 1
            dead += new.state is State.DEAD and old.state is not State.DEAD
        tells = {
            EventKind.ACK: facts.items_acked,
            EventKind.NACK: facts.items_nacked,
            EventKind.RELEASE: facts.items_released,
            EventKind.DUE: facts.items_timed_out,
        }
        for kind, items in tally.items():
            if items and kind in tells:
                tells[kind](items)
        if dead:
            facts.items_dead_lettered(dead)

    # ------------------------------------------------------------- what fails

    def on_refused(self, part: Part[Any]) -> None:
        """The database refused a single event; its caller has been told.

        An item that cannot be leased stays reserved for a while: nobody tries it
        again at full speed, and it does not stand before the others.
        """
        if isinstance(part.work, HandOut):
            self._shard.on_hand_out_refused(part.work.keys_at([part.start]))

    def on_callers_notified(self) -> None:
        """Callers were told what is committed, before the memory is brought up to it."""
        self._delivery_port.on_callers_notified()

    def on_store_recovered(self) -> None:
        """The store answers after it had not."""
        self._delivery_port.on_items_ready(self.index.topics())

    # ----------------------------------------------------- more than is soon leased

    def notify_when_room(self, namespace: str) -> None:
        """Somebody found no room for a hand-out of this namespace, and waits until there is."""
        self._waiting_for_room.add(namespace)

    def on_batch_sealed(self) -> None:
        """A flush was sealed: those who were turned away look again."""
        if self._waiting_for_room:
            namespaces, self._waiting_for_room = self._waiting_for_room, set()
            for namespace in namespaces:
                self._delivery_port.on_room_freed(self._shard, namespace)


def _prefix_within_bytes(order_keys: list[OrderKey], sizes: Mapping[int, int], bytes_max: int) -> list[OrderKey]:
    """The first of these keys, as long as their items' sizes, as far as they have one, are not more than that."""
    if not sizes:
        return order_keys
    for place, key in enumerate(order_keys):
        bytes_max -= sizes.get(order_key_number(key), 0)
        if bytes_max < 0:
            return order_keys[:place]
    return order_keys


def _is_undeliverable_until(row: Row, moment_ms: int) -> bool:
    """Nobody can be handed this row by then, as far as is known."""
    if row.state is State.DEFERRED:
        return row.due_ms is not None and row.due_ms > moment_ms
    return row.state is State.DEAD


def _count_by_topic_and_state(rows: Sequence[Row]) -> Mapping[tuple[str, str, State], int]:
    """How many of these rows, of which there is one at least, are where."""
    spots = set(map(_TOPIC_AND_STATE, rows))
    return {spots.pop(): len(rows)} if len(spots) == 1 else Counter(map(_TOPIC_AND_STATE, rows))
