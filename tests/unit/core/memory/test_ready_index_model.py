"""The ready index, compared with the plain one and a table, while refills run during flushes."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foqs.core.items.item import OrderKey, TopicName, order_key_number, pack_order_key
from foqs.core.memory.ready_index import ReadyIndex
from foqs.core.memory.ready_window import Refill
from tests.support.example_counts import examples
from tests.support.plain_ready import PlainReady

TOPICS = [("ns", "a"), ("ns", "b"), ("ns", "c")]
WINDOW_KEYS_MAX = 4
KEYS_MAX = 7
NUMBERS = 24

topics = st.sampled_from(TOPICS)
ranks = st.tuples(st.integers(-1, 1), st.integers(0, 3))
changes = st.lists(
    st.tuples(st.integers(1, NUMBERS), st.sampled_from(["gone", "re-key", "lease"]), ranks),
    min_size=1,
    max_size=6,
    unique_by=lambda change: change[0],
)


@dataclass
class Committed:
    """The changes of a flush to the table that the index does not know yet."""

    discarded: list[tuple[TopicName, OrderKey]] = field(default_factory=list)
    leased: list[tuple[TopicName, OrderKey]] = field(default_factory=list)
    ready: dict[TopicName, list[OrderKey]] = field(default_factory=dict)


@dataclass
class Reading:
    refill: Refill
    keys: list[OrderKey] | None = None


class SideBySide(RuleBasedStateMachine):
    """Invariant 13: the READY rows at or below the boundary are exactly those in window and reservations."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ReadyIndex(WINDOW_KEYS_MAX, KEYS_MAX)
        self.plain = PlainReady(3)
        self.table: dict[int, OrderKey] = {}
        self.reserved: list[tuple[TopicName, OrderKey]] = []
        self.in_flight: Committed | None = None
        self.readings: list[Reading] = []

    def topic(self, number: int) -> TopicName:
        return TOPICS[number % len(TOPICS)]

    def ready(self, topic: TopicName) -> list[OrderKey]:
        return sorted(key for number, key in self.table.items() if self.topic(number) == topic)

    def free(self, topic: TopicName) -> list[OrderKey]:
        return [key for key in self.ready(topic) if order_key_number(key) not in self.plain.reserved]

    # ---------------------------------------------------------------- flushes

    @precondition(lambda self: self.in_flight is None)
    @rule(changes=changes)
    def commit(self, changes: list[tuple[int, str, tuple[int, int]]]) -> None:
        flush = self.in_flight = Committed()
        for number, kind, (priority, after_ms) in changes:
            topic, old, key = self.topic(number), self.table.get(number), pack_order_key(priority, after_ms, number)
            if old is None:
                self.table[number] = key
                flush.ready.setdefault(topic, []).append(key)
            elif kind == "lease" and number in {order_key_number(key) for _, key in self.reserved}:
                # Reserved by this key or by a former one: the lease applies to the present row.
                del self.table[number]
                flush.leased.append((topic, old))
            elif kind == "re-key" and key != old:
                self.table[number] = key
                flush.discarded.append((topic, old))
                flush.ready.setdefault(topic, []).append(key)
            else:
                del self.table[number]
                flush.discarded.append((topic, old))

    @precondition(lambda self: self.in_flight is not None)
    @rule(twice=st.booleans(), forget=st.booleans())
    def apply_flush(self, twice: bool, forget: bool) -> None:
        flush = self.in_flight
        assert flush is not None
        self.in_flight = None
        for topic, key in flush.discarded:
            self.index.discard(topic, key)
            self.plain.discard(topic, key)
        for topic, key in flush.leased:
            reserved = self.index.confirm_reservations([order_key_number(key)])
            assert reserved == self.plain.confirm_reservation(order_key_number(key))
            if not reserved:
                self.index.discard(topic, key)
                self.plain.discard(topic, key)
            self.reserved = [
                (of, reserved_key)
                for of, reserved_key in self.reserved
                if order_key_number(reserved_key) != order_key_number(key)
            ]
        for topic in TOPICS:
            if (
                forget
                and (flush.discarded or flush.leased)
                and set(self.ready(topic)) <= set(flush.ready.get(topic, []))
            ):
                self.index.forget(topic)
                self.plain.forget(topic)
        for topic, keys in flush.ready.items():
            for _ in range(1 + twice):
                self.index.add_many(topic, sorted(keys))
            for key in keys:
                self.plain.add(topic, key)

    # --------------------------------------------------------------- delivery

    @rule(topic=topics, count=st.integers(1, 3))
    def reserve(self, topic: TopicName, count: int) -> None:
        window = self.index.peek(topic, WINDOW_KEYS_MAX)
        keys = self.index.reserve(topic, count)
        assert keys == window[:count]
        for key in keys:
            if self.in_flight is None:
                assert key == self.plain.best_key(topic, self.ready(topic))
            self.plain.reserve(topic, key)
            self.reserved.append((topic, key))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        topic, _ = data.draw(st.sampled_from(self.reserved))
        of_topic = [key for of, key in self.reserved if of == topic]
        keys = data.draw(st.lists(st.sampled_from(of_topic), min_size=1, unique=True))
        assert self.index.release_reservations(topic, keys) == self.plain.release_reservations(topic, keys)
        self.reserved = [(of, key) for of, key in self.reserved if key not in keys]

    # ---------------------------------------------------------------- refills

    @rule(topic=topics)
    def begin_refill(self, topic: TopicName) -> None:
        refill = self.index.start_refill(topic)
        if refill is not None:
            assert 0 < refill.limit <= WINDOW_KEYS_MAX
            self.readings.append(Reading(refill))

    @rule(topic=topics)
    def begin_first_key_read(self, topic: TopicName) -> None:
        refill = self.index.start_first_key_read(topic)
        if refill is not None:
            self.readings.append(Reading(refill))

    @precondition(lambda self: any(reading.keys is None for reading in self.readings))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        reading = data.draw(st.sampled_from([reading for reading in self.readings if reading.keys is None]))
        refill = reading.refill
        reading.keys = [key for key in self.ready(refill.topic) if key > refill.after][: refill.limit]

    @precondition(lambda self: self.in_flight is None and any(reading.keys is not None for reading in self.readings))
    @rule(data=st.data(), drop=st.sampled_from([False, False, False, True]))
    def end_refill(self, data: st.DataObject, drop: bool) -> None:
        reading = data.draw(st.sampled_from([reading for reading in self.readings if reading.keys is not None]))
        self.readings.remove(reading)
        assert reading.keys is not None
        if drop:
            self.index.cancel_refill(reading.refill)
        elif reading.refill.is_of_first_key:
            self.index.finish_first_key_read(reading.refill, reading.keys)
        else:
            self.index.finish_refill(reading.refill, reading.keys, complete=len(reading.keys) < reading.refill.limit)

    @precondition(lambda self: self.in_flight is None)
    @rule(topic=topics)
    def refill_at_once(self, topic: TopicName) -> None:
        refill = self.index.start_refill(topic)
        if refill is not None:
            keys = [key for key in self.ready(topic) if key > refill.after][: refill.limit]
            self.index.finish_refill(refill, keys, complete=len(keys) < refill.limit)

    @precondition(lambda self: self.in_flight is None)
    @rule(topic=topics)
    def read_first_key_at_once(self, topic: TopicName) -> None:
        refill = self.index.start_first_key_read(topic)
        if refill is not None:
            self.index.finish_first_key_read(refill, [key for key in self.ready(topic) if key > refill.after][:1])
            event("a first key was read")

    @rule(topic=topics)
    def discover(self, topic: TopicName) -> None:
        self.index.discover(topic)
        self.plain.discover(topic)

    # ------------------------------------------------------------- invariants

    @invariant()
    def the_window_is_the_table_up_to_the_boundary(self) -> None:
        if self.in_flight is not None:
            return
        for topic in TOPICS:
            boundary, free = self.index.boundary(topic), self.free(topic)
            window = self.index.peek(topic, WINDOW_KEYS_MAX + 1)
            assert window == [key for key in free if boundary is None or key <= boundary]
            best = self.plain.best_key(topic, self.ready(topic))
            assert best == (free[0] if free else None)
            assert self.index.best_key(topic) == best or self.index.needs_refill(topic)
            assert self.index.first_known_key(topic) in (best, self.index.best_key(topic))

    @invariant()
    def what_the_keys_alone_show_is_true(self) -> None:
        self.index.check()
        assert self.index.reserved_count == len(self.plain.reserved)


TestSideBySide = SideBySide.TestCase
TestSideBySide.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)
