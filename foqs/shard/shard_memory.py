"""The memory of a shard: its ready index, cached rows, counts, topics and key slots.

Always true between two flushes: index and counts show exactly the committed
rows, less the items reserved for deliveries; a cached row equals the row in the
table. A flush changes the memory only in `apply`, after the commit (`FlushPlanner` plans it from the memory).
Results of reads enter between two flushes. Knows nothing of connections, tasks or the passing of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, Protocol

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.operation import Leases, Operation
from foqs.core.flush.purge_markers import PurgeMarker, PurgeMarkers, SetPurgeMarker
from foqs.core.groups.group import KEYS_PER_UNIT, NO_LIMIT, STRICT
from foqs.core.groups.group_room import FAIR_KEYS_MAX, GROUP_KEYS_MAX
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.groups.group_shares import GROUPS_MIN, GroupShares
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.groups.places import group_name, line_place
from foqs.core.groups.strict_items import StrictItems
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.groups.waiting_items import find_holders, items_before, oldest_ms, place_in_turn
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number
from foqs.core.items.life import Event, EventKind
from foqs.core.memory.namespace_usage import NamespaceUsage
from foqs.core.memory.ready_index import ReadyIndex
from foqs.core.memory.row_cache import RowCache
from foqs.core.memory.topic_counts import TopicCounts
from foqs.core.memory.topic_table import TopicTable
from foqs.core.timing.due_timers import DueTimers
from foqs.shard.host_services import HostServices
from foqs.store.port import TopicCount

TOPICS_PER_STEP: Final = 1_000
"""Topics added or inspected in one step: a millisecond or two."""
_CACHE_HORIZON_MS: Final = 60_000
"""A row that cannot be delivered for this long is not cached."""
_FULL_TOPICS_PER_STEP: Final = 100
"""Topics with a limit that are settled after a flush because others have given memory back: less than a millisecond."""
_PARKED_STATES: Final = (State.DEFERRED, State.DEAD)
_TOPIC_AND_STATE: Final = attrgetter("namespace", "topic", "state")


class ShardPort(Protocol):
    """The shard, as its memory uses it."""

    number: int

    def now_ms(self) -> int:
        """Return the time of the shard clock."""
        ...

    def release_reservation(self, spans: Iterable[tuple[TopicName, Sequence[OrderKey]]]) -> None:
        """Give back keys that were reserved for a delivery."""
        ...

    def release(self, leased: Sequence[Row]) -> None:
        """Release leased items that no consumer received."""
        ...

    def supersede(self, events: Sequence[Event]) -> None:
        """End the leases of items behind one of their run that has ended early, by events SUPERSEDE."""
        ...

    def may_follow_in_run(self, number: int) -> bool:
        """Return whether an item may follow another one in a run: nothing of it waits, and it was not refused in one."""
        ...

    def on_leases_refused(self, spans: list[tuple[TopicName, list[OrderKey]]]) -> None:
        """Release these keys after a pause, because the database refused their delivery."""
        ...

    def on_dues_written(self, dues: Collection[int], lease_ends: Mapping[int, list[int]], deleted: list[int]) -> None:
        """Record that a flush wrote timer entries with these dues and leases, by their ends, and deleted these rows."""
        ...

    def on_purge_marked(self) -> None:
        """Start to delete the rows of a purge marker that was set."""
        ...

    def on_topic_emptied(self) -> None:
        """Plan the removal of a topic that has become empty, while no other topic of the table is empty."""
        ...

    def on_groups_wanted(self, topic: TopicName) -> None:
        """Read the next page of a topic with a limit."""
        ...


class ShardMemory:
    """The index, cached rows, counts, topics and key slots of one shard.

    Committed rows enter and leave it only between two flushes. What it holds may be read at any time.
    """

    def __init__(self, shard: ShardPort, cache: RowCache, host: HostServices) -> None:
        options, constants = host.options, host.constants
        self.index = ReadyIndex(
            constants.ready_window_items_max, options.ready_index_items_max, shard.may_follow_in_run
        )
        self.timers = DueTimers(constants.sweep_interval_ms, options.lease_ranges_max)
        self.cache = cache
        self.counts = TopicCounts()
        self.usage = NamespaceUsage()
        self.topic_table = TopicTable(constants.empty_topic_linger_ms)
        self._shard = shard
        self._delivery_port = host.delivery_port
        self._topic_rates = host.topic_rates
        self._stopwatch_s = host.clock.stopwatch_s
        self._now_ms = shard.now_ms
        self.key_slots: frozenset[int] = frozenset()
        """The key slots in the shard's table."""
        self.purge_markers = PurgeMarkers()
        """The purge markers in the shard's table."""
        self._purged_uncounted: set[TopicName] = set()
        """Topics that were purged before their items were counted."""
        self._waiting_for_room: dict[str, None] = {}
        self._purged_groups: set[TopicName] = set()
        """Topics with a limit that the flush under way has purged."""
        units_max = max(GROUPS_MIN, options.ready_index_items_max // KEYS_PER_UNIT)
        self.group_shares: Final = GroupShares(units_max, host.namespaces.weight_of)
        """The memory for the groups of all topics with a limit."""
        self.limited_topics: dict[TopicName, LimitedTopic] = {}
        """The topics whose policy has rules for groups: a limit, or turns."""
        self._full_topics: dict[TopicName, None] = {}
        """Those whose memory is full, the one that has waited longest for memory of others first."""
        self.limited_names: frozenset[TopicName] = frozenset()
        """The names of those with a limit, which a flush may keep."""
        self.strict_names: frozenset[TopicName] = frozenset()
        """The names of those whose groups are strict."""
        self.run_topics: dict[TopicName, StrictItems] = {}
        """The strict items of those of which a group has leased a run."""
        self._forgotten_groups = 0
        """Those of topics that have a limit no more."""
        self._turns: Final = host.turns
        self._rule_changes: Final = host.rule_changes
        self._rules: Mapping[TopicName, GroupRules] = {}
        """The rules for groups, of topics that have any."""
        self._keys_max: Final = max(1, constants.ready_window_items_max // 2)
        self._former_reservations: dict[TopicName, set[int]] = {}
        """Of topics that have got their limit since the takeover: the items that were reserved before, and may be theirs."""

    # ----------------------------------------------------------------- reads

    def recover(
        self, topics: Iterable[TopicName], key_slots: Iterable[int], purge_markers: Iterable[PurgeMarker]
    ) -> Iterator[None]:
        """Load topics, key slots and purge markers at a takeover, and yield between steps. Each topic may have READY items."""
        self.key_slots = frozenset(key_slots)
        for marker in purge_markers:
            self.purge_markers.add(marker)
        for topic_count, topic in enumerate(topics, 1):
            self.topic_table.add(topic)
            self.index.discover(topic)  # a topic with a limit has its own window
            if not topic_count % TOPICS_PER_STEP:
                yield

    def restart_count(self) -> None:
        """Prepare for `add_counts`, which will add the rows that are in the table now."""
        self.counts.restart_initial()
        self.usage.restart_initial()
        self._purged_uncounted.clear()

    def add_counts(self, topic_counts: Sequence[TopicCount], topics_per_step: int = TOPICS_PER_STEP) -> Iterator[None]:
        """Add the counts of a snapshot of the table, in steps, each between two flushes.

        The counted items of a topic that was purged since are ignored.
        """
        for start in range(0, len(topic_counts), topics_per_step):
            if start:
                yield
            page = topic_counts[start : start + topics_per_step]
            items = [((count.namespace, count.topic), count.state, count.rows - count.purged_rows) for count in page]
            self.counts.add_initial([item for item in items if item[0] not in self._purged_uncounted])
            self.usage.add_initial([(count.namespace, count.rows, count.payload_bytes) for count in page])
        self.counts.complete_initial(())
        self._purged_uncounted.clear()
        for topics in self.topic_table.pages(topics_per_step):
            for topic in topics:
                if topic not in self.counts:
                    self._note_empty([topic])
                if not self.counts.count(topic, State.READY):
                    self.index.forget(topic)
            yield

    def topics(self, namespace: str) -> list[str]:
        """Return the names of the topics that have items, or may have while the counts lag."""
        if self.counts.is_lagging:
            return self.topic_table.names(namespace)
        return self.counts.topic_names(namespace)

    def has_topic(self, topic: TopicName) -> bool:
        """Return whether the topic has items, or may have while the counts lag."""
        if self.counts.is_lagging:
            return topic in self.topic_table
        return topic in self.counts

    def all_topics(self) -> list[tuple[str, list[str]]]:
        """Return all topics for which `has_topic` may be true: the names of each namespace, in any order."""
        return self.topic_table.names_by_namespace()

    def topics_with_leases(self, topics_per_step: int = TOPICS_PER_STEP) -> Iterator[list[TopicName]]:
        """Yield the topics that have LEASED items, or may have while the counts lag, in steps.

        Each topic is inspected in its step. One that is added later is left out.
        """
        for topics in self.topic_table.pages(topics_per_step):
            yield [topic for topic in topics if self.counts.is_lagging or self.counts.count(topic, State.LEASED)]

    # ----------------------------------------------------------- after a flush

    def settle(self, plan: FlushPlan, finished: MutableSequence[Operation]) -> None:
        """Give the operations of a committed flush their results, and add those that end to `finished`. `apply` follows."""
        orphans: list[Row] = []
        for part, results in plan.results:
            operation = part.operation
            if operation.settle(part.start, results):
                finished.append(operation)
            elif operation.is_abandoned and isinstance(operation, Leases):
                orphans += [row for row in results if row is not None]
        if orphans:
            self._shard.release(orphans)

    def apply(self, plan: FlushPlan, finished: MutableSequence[Operation]) -> None:
        """Update the memory after a committed flush. Give purges their results, and add those that end to `finished`."""
        batch = plan.batch
        self.topic_table.apply(plan.topics_added, plan.topics_removed, plan.topics)
        if batch.key_slots:
            self.key_slots = self.key_slots.union(batch.key_slots)
        # New rows come first: a topic that loses its last row and gets another one is never empty.
        ready = self._add_rows(plan.inserted)
        if plan.moved:
            ready |= self._add_rows([new for _, new in plan.moved])
        self._apply_deletes(plan)
        if plan.moved:
            self._remove_rows([old for old, _ in plan.moved])
        self._apply_leases(batch, plan)
        self._apply_changes(plan, ready)
        if batch.purges:
            self._apply_purges(batch, plan, finished)
        if self.limited_topics:
            found = self._follow_groups(plan)
            self.counts.mark_changed(found)
            ready |= found
        if plan.superseded_later:
            self._shard.supersede([*plan.superseded_later.values()])
        if ready:
            self._delivery_port.on_items_ready(ready)
        self._report_next_due(plan)
        for part, place, row in plan.unread:
            self.cache.longest_payloads.record(row.namespace, row.payload_bytes)
            self._shard.release_reservation(part.operation.order_keys_at(range(place, part.stop)))

    def _add_rows(self, rows: Sequence[Row]) -> dict[TopicName, None]:
        """Add new rows. Returns the topics that have READY ones."""
        if not rows:
            return {}
        counts = _count_by_topic_and_state(rows)
        self.counts.add_all(counts, 1)
        self._topic_rates.on_items_ready(counts, self._stopwatch_s())
        self.usage.on_rows_inserted(rows)
        order_keys: dict[TopicName, list[OrderKey]] = {}
        for row in rows:
            if row.state is State.READY:
                topic = (row.namespace, row.topic)
                found = order_keys.get(topic)
                if found is None:
                    order_keys[topic] = [row.order_key]
                else:
                    found.append(row.order_key)
        for topic, found in order_keys.items():
            found.sort()
            self.index.add_many(topic, found)
        self._remember(rows)
        return dict.fromkeys(order_keys)

    def _remember(self, rows: Sequence[Row]) -> None:
        """Cache rows that were just written, except those that cannot be delivered soon: they would evict others."""
        horizon_ms = self._now_ms() + _CACHE_HORIZON_MS
        parked = {row.id for row in rows if row.state in _PARKED_STATES and _is_undeliverable_until(row, horizon_ms)}
        if parked:
            self.cache.remove(parked)
            rows = [row for row in rows if row.id not in parked]
        self.cache.store_written(rows)

    def _apply_deletes(self, plan: FlushPlan) -> None:
        for kind, rows in plan.deleted.items():
            if rows:
                counts = self._remove_rows(rows)
                if kind is EventKind.ACK:
                    self._topic_rates.on_items_acked(counts, self._stopwatch_s())

    def _remove_rows(self, rows: Sequence[Row]) -> Mapping[tuple[str, str, State], int]:
        """Remove rows, at least one. Returns their number by topic and state."""
        counts = _count_by_topic_and_state(rows)
        self.counts.add_all(counts, -1)
        self.usage.on_rows_deleted(rows)
        for row in rows:
            if row.state is State.READY:
                self.index.discard((row.namespace, row.topic), row.order_key)
        self._note_emptied_topics(counts)
        self.cache.remove([row.id for row in rows])
        return counts

    def _apply_leases(self, batch: Batch, plan: FlushPlan) -> None:
        """Apply leased rows, and reservations whose row could not be leased."""
        olds, news = plan.leased
        leased = batch.lease_numbers
        if plan.unread:
            unread = {number for part, place, _ in plan.unread for number in part.operation.numbers[place : part.stop]}
            leased = [number for number in leased if number not in unread]
        if leased and self.index.confirm_reservations(leased) < len(leased):
            # Some got a new key since they were reserved; it may be in a window.
            for row in olds:
                self.index.discard((row.namespace, row.topic), row.order_key)
        if news:
            counts = _count_by_topic_and_state(olds)
            self.counts.move_all(counts, State.LEASED)
            self._note_emptied_topics(counts)
            self.cache.store_written(news)

    def _apply_changes(self, plan: FlushPlan, ready: dict[TopicName, None]) -> None:
        """Apply other changes of rows. Adds topics that have READY ones to `ready`."""
        for _, old, new in plan.changed:
            topic = (old.namespace, old.topic)
            self.counts.add(topic, new.state, 1)
            self.counts.add(topic, old.state, -1)
            if old.state is State.READY:
                self.index.discard(topic, old.order_key)
                self._note_emptied_topics([(*topic, State.READY)])
            if new.state is State.READY:
                self.index.add(topic, new.order_key)
                ready[topic] = None
        if plan.changed:
            self._remember([new for _, _, new in plan.changed])
            given = [new for _, old, new in plan.changed if _becomes_deliverable(old, new)]
            if given:
                self._topic_rates.on_items_ready(_count_by_topic_and_state(given), self._stopwatch_s())

    def _apply_purges(self, batch: Batch, plan: FlushPlan, finished: MutableSequence[Operation]) -> None:
        """Apply deleted rows, cleared markers and new markers; new markers cover all else in their flush."""
        rows = plan.purged
        if rows:
            # Their items were removed from the counts when the marker was set.
            self.usage.on_rows_deleted(rows)
            for row in rows:
                if row.state is State.READY:
                    self.index.discard((row.namespace, row.topic), row.order_key)
            self.cache.remove([row.id for row in rows])
        for marker in plan.markers_cleared:
            self.purge_markers.remove(marker)
        for part in batch.purges:
            operation = part.operation
            if isinstance(operation, SetPurgeMarker) and operation.settle(
                part.start, [self._apply_purge_marker(operation.marker)]
            ):
                finished.append(operation)

    def _apply_purge_marker(self, purge_marker: PurgeMarker) -> int:
        """Forget all items of the topic. Returns how many it had."""
        topic = (purge_marker.namespace, purge_marker.topic)
        self.purge_markers.add(purge_marker)
        self.index.forget(topic)
        self._purged_groups |= {topic} if topic in self.limited_topics else set()
        if self.counts.is_lagging:
            self._purged_uncounted.add(topic)
        elif topic in self.counts:
            self._note_empty([topic])
        self._shard.on_purge_marked()
        return max(0, self.counts.forget(topic))

    def _note_emptied_topics(self, topic_states: Iterable[tuple[str, str, State]]) -> None:
        """Check topics of which items have left these states: perhaps they were the last."""
        if self.counts.is_lagging:
            return
        emptied, unready = self.counts.emptied_topics(topic_states, State.READY)
        self.index.forget_all(unready)
        if emptied:
            self.index.forget_all(emptied)
            self._note_empty(emptied)

    def _note_empty(self, topics: Iterable[TopicName]) -> None:
        """Note that these topics of the table, at least one, have no items."""
        if not self.topic_table.has_empty_topics:
            self._shard.on_topic_emptied()
        self.topic_table.note_empty(topics, self._now_ms())

    def _report_next_due(self, plan: FlushPlan) -> None:
        timers, lease_ends, deleted = plan.new_timers(), plan.lease_ends(), plan.deleted_numbers()
        if timers or lease_ends or deleted:
            self._shard.on_dues_written({due_ms for due_ms, _ in timers}, lease_ends, deleted)

    # --------------------------------------------- topics with rules for groups

    def set_group_rules(self, rules: Mapping[TopicName, GroupRules]) -> None:
        """Follow the rules for groups that policies of topics have. At any moment. A change costs the topics that it changes."""
        if rules is self._rules:
            return
        change = self._rule_changes.between(self._rules, rules)
        self._rules = rules
        for topic in [topic for topic in change.topics if topic not in rules]:
            self._forgotten_groups += self.limited_topics.pop(topic).room.forgotten_groups
            self.group_shares.set_units(topic, 0)
            self._full_topics.pop(topic, None)
            self.run_topics.pop(topic, None)
            self._former_reservations.pop(topic, None)
            self.index.remove_source(topic)
            if not self.counts.is_lagging and not self.counts.count(topic, State.READY):
                self.index.forget(topic)
            self._report_deliverable([topic])
        self.limited_names = change.limited_names
        self.strict_names = change.strict_names
        turns = {topic: self._turns_of(topic, rules[topic]) for topic in change.topics if topic in rules}
        new = [topic for topic in turns if not self._has_turns(topic, turns[topic])]
        if new:
            self._add_limited_topics(new, rules, turns)
        for topic in turns:
            limited, limit = self.limited_topics[topic], rules[topic].leases_max or NO_LIMIT
            if limited.groups.limit != limit:
                limited.set_limit(limit)
                self.settle_groups(topic)
                self._report_deliverable([topic])
        self.settle_full_topics()

    def _turns_of(self, topic: TopicName, rules: GroupRules) -> TopicTurns | None:
        if rules.fair is None:
            return None
        return self._turns.of(topic, rules.weights, by_time=rules.fair is Fairness.TIME)

    def _has_turns(self, topic: TopicName, turns: TopicTurns | None) -> bool:
        """Return whether the groups of a topic are known, and take these turns, or none."""
        limited = self.limited_topics.get(topic)
        return limited is not None and limited.groups.turns is turns

    def _add_limited_topics(
        self,
        topics: Collection[TopicName],
        rules: Mapping[TopicName, GroupRules],
        turns: Mapping[TopicName, TopicTurns | None],
    ) -> None:
        """Give topics new groups. If a topic had others, these are forgotten with their heads."""
        unknown, by_topic = self._reserved_by_topic()
        for topic in topics:
            if topic in self.limited_topics:
                self._forgotten_groups += self.limited_topics[topic].room.forgotten_groups
                self.group_shares.set_units(topic, 0)
                self._full_topics.pop(topic, None)
                self.run_topics.pop(topic, None)
            limited = self.limited_topics[topic] = LimitedTopic(
                rules[topic].leases_max or NO_LIMIT,
                self.group_shares.units_max,
                min(GROUP_KEYS_MAX if turns[topic] is None else FAIR_KEYS_MAX, self._keys_max),
                turns[topic],
            )
            former = unknown.union(by_topic.get(topic, ()))
            if former:
                # Their permits are unknown. Nothing is delivered until they have ended.
                self._former_reservations[topic] = former
            self.index.set_source(topic, limited.heads, limited.groups.boundary)
            self._report_deliverable([topic])

    def _report_deliverable(self, topics: Sequence[TopicName]) -> None:
        """Notify the dequeues of this host, and by the counts other hosts, of topics that may deliver more without a changed row."""
        self.counts.mark_changed(topics)
        self._delivery_port.on_items_ready(topics)

    def _reserved_by_topic(self) -> tuple[set[int], Mapping[TopicName, list[int]]]:
        """Return the reserved items whose rows are not cached, and the others by topic."""
        unknown: set[int] = set()
        by_topic: dict[TopicName, list[int]] = {}
        for number in self.index.reserved_numbers():
            row = self.cache.get(number)
            if row is None:
                unknown.add(number)
            else:
                by_topic.setdefault((row.namespace, row.topic), []).append(number)
        return unknown, by_topic

    def may_read_groups(self, topic: TopicName) -> bool:
        """Return whether the groups of a topic with a limit may be read, or `on_items_ready` will be called when they may."""
        former = self._former_reservations.get(topic)
        if former is None:
            return True
        former.intersection_update([number for number in former if self.index.is_reserved(number)])
        if former:
            return False
        del self._former_reservations[topic]
        return True

    def deliverable_count(self, topic: TopicName) -> int:
        """Return how many READY items no group holds back. In a topic with a limit: as far as it is known, and 1 while there may be one."""
        ready = self.counts.count(topic, State.READY)
        if topic not in self.limited_names:
            return ready
        heads = self.index.window_size(topic)
        may_find_one = (ready > 0 or self.counts.is_lagging) and self.index.needs_refill(topic)
        return heads or int(may_find_one)

    def group_hold(self, row: Row) -> tuple[int, list[int]] | None:
        """Return the limit of a READY row's group and the items that hold the row back; None if nothing does. See `find_holders`.

        A row whose group waits for its turn is not held back.
        """
        limited = self.limited_topics.get((row.namespace, row.topic))
        if limited is None:
            return None
        limit = limited.groups.limit
        holders = find_holders(limited.groups, group_name(row), row.order_key, is_full=limited.room.is_full)
        if holders and limited.heads.takes_turns and (limit == NO_LIMIT or self.place_in_turn(row)[0] is not None):
            return None
        return None if holders is None else (limit, holders)

    def place_in_turn(self, row: Row) -> tuple[OrderKey | None, int]:
        """Return where a READY row of a fair topic waits. See `foqs.core.groups.waiting_items`."""
        limited = self.limited_topics.get((row.namespace, row.topic))
        return (None, 0) if limited is None else place_in_turn(limited.groups, group_name(row), row.order_key)

    def group_items_before(self, row: Row) -> int | None:
        """Return how many items of its group come before a READY row. See `foqs.core.groups.waiting_items`."""
        limited = self.limited_topics.get((row.namespace, row.topic))
        if limited is None or row.item_group is None:
            return None
        return items_before(limited.groups, group_name(row), row.order_key)

    def runs(self) -> list[Mapping[int, tuple[int, ...]]]:
        """Return, for each topic with leased runs, the run of each of their items, by its number."""
        return [strict_items.leased_runs for strict_items in self.run_topics.values()]

    @property
    def forgotten_groups(self) -> int:
        """How many groups have left the memory because it was full."""
        return self._forgotten_groups + sum([each.room.forgotten_groups for each in self.limited_topics.values()])

    def _limited_topic(self, topic: TopicName) -> list[LimitedTopic]:
        limited = self.limited_topics.get(topic)
        return [] if limited is None else [limited]

    def oldest_in_groups_ms(self, groups_max: int, topic: TopicName | None) -> int | None:
        """Return the lowest deliver_after_ms of known READY items of topics with rules for groups, or of one, about."""
        found: int | None = None
        for limited in [*self.limited_topics.values()] if topic is None else self._limited_topic(topic):
            own_ms = oldest_ms(limited.groups, groups_max)
            groups_max = max(1, groups_max - len(limited.groups))
            if own_ms is not None and (found is None or own_ms < found):
                found = own_ms
        return found

    def _follow_groups(self, plan: FlushPlan) -> dict[TopicName, None]:
        """Give the changed rows of topics with a limit to their groups. Returns the topics with new heads."""
        topics = self.limited_topics
        touched: dict[TopicName, None] = {}

        def follow(old: Row | None, new: Row | None) -> None:
            row = old or new
            assert row is not None
            topic = (row.namespace, row.topic)
            limited = topics.get(topic)
            if limited is not None:
                touched[topic] = None
                groups = limited.groups
                is_strict = groups.limit == STRICT
                if is_strict:
                    limited.strict_items.note_row(old, new)
                groups.follow(
                    group_name(row),
                    None if old is None else line_place(old, is_strict=is_strict),
                    None if new is None else line_place(new, is_strict=is_strict),
                )

        for row in plan.inserted:
            follow(None, row)
        for old, new in plan.moved:
            follow(old, None)
            follow(None, new)
        for rows in plan.deleted.values():
            for row in rows:
                follow(row, None)
        for old, new in zip(*plan.leased, strict=True):
            follow(old, new)
        for _, old, new in plan.changed:
            follow(old, new)
        for topic in self._purged_groups:
            topics[topic].purge()
        touched |= dict.fromkeys(self._purged_groups)
        self._purged_groups.clear()
        return dict.fromkeys(self.settle_touched_groups(touched))

    def settle_touched_groups(self, followed: Iterable[TopicName] = ()) -> list[TopicName]:
        """Settle topics of which rows have changed, or reservations have ended. Returns those that may deliver more."""
        touched = dict.fromkeys([*followed, *self.index.take_touched_sources(), *self._former_reservations])
        found = [topic for topic in touched if topic in self.limited_topics and self.settle_groups(topic)]
        # If one has grown, others must give its share back.
        found += [topic for topic in self.group_shares.large_topics() if self.settle_groups(topic)]
        self.settle_full_topics()
        return found

    def settle_full_topics(self) -> None:
        """Settle topics whose memory is full, if others have given memory back. Notify the delivery port of those with room."""
        if not self._full_topics or not self.group_shares.has_freed:
            return
        topics = [*islice(self._full_topics, _FULL_TOPICS_PER_STEP)]
        self.group_shares.has_freed = len(topics) < len(self._full_topics)
        for topic in topics:
            del self._full_topics[topic]  # one that is full again becomes the last
        found = [topic for topic in topics if self.settle_groups(topic)]
        if found:
            self._report_deliverable(found)

    def settle_groups(self, topic: TopicName) -> bool:
        """Let the window of a topic with a limit follow its heads. Returns whether it has new ones, or more may be read."""
        limited = self.limited_topics[topic]
        room, strict_items = limited.room, limited.strict_items
        room.units_max = self.group_shares.room(topic)
        changes = limited.settle()
        self.group_shares.set_units(topic, room.units)
        if strict_items.leased_runs:
            self.run_topics[topic] = strict_items
        else:
            self.run_topics.pop(topic, None)
        superseded = strict_items.take_superseded()
        if superseded:
            self._shard.supersede(superseded)
        if room.is_full:
            self._full_topics.setdefault(topic)
        else:
            self._full_topics.pop(topic, None)
        may_have_more = changes.boundary is not None and self.index.boundary(topic) is None
        if changes.is_reset or changes.removed or changes.added or changes.boundary != self.index.boundary(topic):
            self.index.set_heads(topic, changes.removed, changes.added, changes.boundary, is_reset=changes.is_reset)
        if limited.pages.next_kind is not None:
            self._shard.on_groups_wanted(topic)
        if topic in self._former_reservations and self.may_read_groups(topic):
            return True
        return may_have_more or bool(changes.added)

    # --------------------------------------------------------------- failures

    def on_refused(self, part: Part[Any]) -> None:
        """Handle a single entry, or a run, that the database refused for good. Its caller has its error.

        An item that cannot be leased stays reserved for a while, so that it is not
        tried again at full speed and does not block the others.
        """
        if isinstance(part.operation, Leases):
            self._shard.on_leases_refused(part.operation.order_keys_at(range(part.start, part.stop)))

    def on_callers_notified(self) -> None:
        """Notify the delivery port that callers have their results, before `apply`."""
        self._delivery_port.on_callers_notified()

    def on_store_recovered(self) -> None:
        """Notify the delivery port of all topics, because the store answers again."""
        self._delivery_port.on_items_ready(self.index.topics())

    # ------------------------------------------------------ room for deliveries

    def notify_when_room(self, namespace: str) -> None:
        """Notify the delivery port when there may be room for deliveries of this namespace again."""
        self._waiting_for_room[namespace] = None

    def on_batch_sealed(self) -> None:
        """Notify the delivery port of room: a flush was sealed, so fewer leases wait."""
        if self._waiting_for_room:
            namespaces, self._waiting_for_room = self._waiting_for_room, {}
            for namespace in namespaces:
                self._delivery_port.on_room_freed(self._shard.number, namespace)

    # ------------------------------------------------------------------- check

    def check(self) -> None:
        """Assert what is always true between two flushes, as far as the parts of the memory show it of each other.

        They know no table: `differences` in `tests/support/memory_check.py` compares them with the rows.
        """
        self.index.check()
        self.timers.check()
        self.counts.check()
        self.topic_table.check()
        if not self.counts.is_lagging:
            self._check_counts()
        runs = [topic for topic, each in self.limited_topics.items() if each.strict_items.leased_runs]
        assert sorted(self.run_topics) == sorted(runs), f"{runs} have leased runs, and {[*self.run_topics]} are known"
        for topic, limited in self.limited_topics.items():
            limited.check()
            heads = limited.heads.window_heads()
            window = self.index.peek(topic, len(heads) + 1)
            assert window == heads, f"invariant 13: the window of {topic} has {window}, and its heads are {heads}"
        for topic in self.purge_markers.topics():
            last = self.purge_markers.last_number(topic)
            purged = [key for key in self.index.peek(topic, len(self.index)) if order_key_number(key) <= last]
            assert not purged, f"invariant 19: {topic} has purged items in its window: {purged}"
        for row in self.cache.rows():
            if not self.purge_markers.covers(row):
                self._check_cached_row(row)

    def _check_counts(self) -> None:
        """Assert that index, topics table and counts agree."""
        for topic, ready_count in self.counts.ready_counts():
            self.index.check_ready(topic, ready_count)
            assert topic in self.topic_table, f"invariant 15: {topic} is not in the topics table"
            assert not self.topic_table.is_empty(topic), f"invariant 15: {topic} has items and counts as empty"
        for topic in self.index.topics():
            if topic not in self.counts:
                self.index.check_ready(topic, 0)

    def _check_cached_row(self, row: Row) -> None:
        """Assert that index, counts and lease ends know this row."""
        topic = (row.namespace, row.topic)
        assert self.counts.is_lagging or self.counts.count(topic, row.state) > 0, (
            f"invariant 15: no count has {_row_name(row)}"
        )
        if row.state is State.READY:
            assert self.index.covers(topic, row.order_key), f"invariant 13: the index does not know {_row_name(row)}"
        else:
            assert not self.index.holds(topic, row.order_key), f"invariant 13: the index has {_row_name(row)}"
        if row.state is State.LEASED and row.due_ms is not None:
            assert self.timers.leases.covers(row.id, row.due_ms), (
                f"invariant 10: the end of the lease of {_row_name(row)}, is forgotten"
            )


def _row_name(row: Row) -> str:
    """Return what names a row in a sentence."""
    return f"row {row.id} of {row.topic!r}, {row.state.name}"


def _is_undeliverable_until(row: Row, moment_ms: int) -> bool:
    """Return whether this row cannot be delivered before then, unless a call changes it."""
    if row.state is State.DEFERRED:
        return row.due_ms is not None and row.due_ms > moment_ms
    return row.state is State.DEAD


def _becomes_deliverable(old: Row, new: Row) -> bool:
    """Return whether a change made an item READY, or leased it when it would have become READY."""
    if new.state is State.READY:
        return old.state is not State.READY
    return new.state is State.LEASED and (old.state is State.DEFERRED or old.token != new.token)


def _count_by_topic_and_state(rows: Sequence[Row]) -> Mapping[tuple[str, str, State], int]:
    """Count these rows, at least one, by (namespace, topic, state)."""
    topic_states = set(map(_TOPIC_AND_STATE, rows))
    return {topic_states.pop(): len(rows)} if len(topic_states) == 1 else Counter(map(_TOPIC_AND_STATE, rows))
