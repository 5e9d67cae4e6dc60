"""A history sorted by item: for each id, all operations on it and all replies that show it.

Holds `ItemHistories` and its `ItemHistory`s. Always true: the deliveries of an
item are in the order of their tokens, everything else in the order of the
history. Does not judge; the checker does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.support.history import Call, CallEnd, Entry, Event, Record, Stamp, entries

ENDING = ("nack", "release")
"""The operations that end a lease and leave the item."""
DESTROYING = ("ack", "cancel")
PAGES = {"cancel matching": "cancel", "update matching": "update", "redrive matching": "redrive"}
"""Calls that change items by filter, one page per call, and the call that does the same by id."""
BY_ID = ("ack", "nack", "extend", "release", "cancel", "redrive", "update")


@dataclass(slots=True)
class DeliveryReceipt:
    """One delivery, as its consumer saw it."""

    call: Call
    result: Event
    ahead: tuple[tuple[ItemHistory, DeliveryReceipt], ...] = ()
    """The items before it in its run, with their deliveries: an early end of one of these ends this lease, too."""

    def possible_ends_ahead(self) -> list[Entry]:
        """Return the operations that may have ended leases ahead in its run early, so that this one was superseded."""
        found = []
        for item, receipt in self.ahead:
            found += item.possible_operations("nack", "release", token=receipt.token)
            extended = item.possible_operations("extend", token=receipt.token)
            found += [entry for entry in extended if entry.requested.get("lease_ms") == 0]
        return found

    @property
    def token(self) -> int:
        return int(self.result["token"])

    @property
    def requested(self) -> Stamp:
        """When it was requested: by its call, or by an earlier poll that the call took over."""
        asked_ms = self.result.get("asked_at")
        return self.call.invoked if asked_ms is None else Stamp(asked_ms, "a poll", 0)

    @property
    def received(self) -> Stamp:
        assert self.call.returned is not None
        return self.call.returned

    def __str__(self) -> str:
        return f"delivery with token {self.token} ({self.call.process}, {self.call.name})"


@dataclass(slots=True)
class TopicDequeues:
    """The dequeues of one topic that did not fail.

    A record has tens of thousands of them, and as many items that are left at its end. So what all these items ask of them is
    found once.
    """

    calls: list[Call] = field(default_factory=list)
    empty: list[Call] = field(default_factory=list)
    """Those that returned no item."""
    early: Counter[int | None] = field(default_factory=Counter)
    """How many were invoked before the record was healed, by the length of the leases that they ask for."""
    late_unknown: list[Call] = field(default_factory=list)
    """The others of unknown outcome."""

    def add(self, call: Call, healed: Stamp | None) -> None:
        self.calls.append(call)
        if call.end is not CallEnd.UNKNOWN and call.returned is not None and not call.results:
            self.empty.append(call)
        if healed is not None and call.invoked.before(healed):
            self.early[call.args.get("lease_ms")] += 1
        elif call.end is CallEnd.UNKNOWN:
            self.late_unknown.append(call)


@dataclass
class ItemHistory:
    """The history of one item id. Properties are cached: read them only when all events are sorted in."""

    id: str
    histories: ItemHistories
    enqueued: list[Entry] = field(default_factory=list)
    """Enqueues that returned this id."""
    receipts: list[DeliveryReceipt] = field(default_factory=list)
    ops: dict[str, list[Entry]] = field(default_factory=lambda: {op: [] for op in BY_ID})
    explained: list[Call] = field(default_factory=list)
    """`explain` calls for it."""
    foreign: list[Entry] = field(default_factory=list)
    """Operations on this id by clients of another namespace; `ops` holds those of its own namespace."""
    row: Event | None = None
    dropped: Event | None = None

    @cached_property
    def namespace(self) -> str | None:
        """The namespace in which it was enqueued; None if that is unknown."""
        for entry in self.origins:
            return entry.call.args.get("namespace")
        return None

    @cached_property
    def marks(self) -> list[str]:
        """The payloads that enqueues, deliveries and the final row show for this id."""
        seen = [entry.requested["mark"] for entry in self.enqueued] + [each.result["mark"] for each in self.receipts]
        if self.row is not None and self.row.get("mark") is not None:
            seen.append(self.row["mark"])
        return list(dict.fromkeys(seen))

    @cached_property
    def origins(self) -> list[Entry]:
        """The enqueues that may have made this item. A failed enqueue cannot."""
        if not self.marks:
            return []
        maybe = self.histories.by_mark.get(self.marks[0], [])
        return [e for e in maybe if e.end is CallEnd.UNKNOWN or (e.end is CallEnd.OK and e.result.get("id") == self.id)]

    def requested(self, name: str, default: Any = None) -> Any:
        """Return a property with which the item was enqueued."""
        for entry in self.origins:
            value = entry.requested.get(name)
            return default if value is None else value
        return default

    def possible_operations(self, *ops: str, token: int | None = None) -> list[Entry]:
        """Return the operations on this item that took effect or may have."""
        return [
            entry
            for op in ops
            for entry in self.ops[op]
            if entry.may_have_effect and (token is None or entry.requested.get("token") == token)
        ]

    def acknowledged_operations(self, *ops: str, token: int | None = None) -> list[Entry]:
        """Return the operations on this item that were acknowledged."""
        return [entry for entry in self.possible_operations(*ops, token=token) if entry.end is CallEnd.OK]

    def dequeues(self) -> list[Call]:
        """Return the calls that may have leased the item, whether or not their reply contained it."""
        return [call for each in self.topic_dequeues() for call in each.calls]

    def topic_dequeues(self) -> list[TopicDequeues]:
        """Return these calls by topic."""
        topics = {(e.call.args.get("namespace"), e.requested["topic"]) for e in self.origins}
        return [self.histories.dequeues[key] for key in sorted(topics, key=str) if key in self.histories.dequeues]

    def purges(self) -> list[Call]:
        """Return the purges of its topic that took effect or may have."""
        topics = {(e.call.args.get("namespace"), e.requested["topic"]) for e in self.origins}
        return [call for key in sorted(topics, key=str) for call in self.histories.purges.get(key, [])]

    def timeline(self) -> list[str]:
        """Return every event of the item in the order of time, one line each."""
        lines = [line for entry in self._enqueue_attempts() for line in _format_entry(entry)]
        lines += [line for op in BY_ID for entry in self.ops[op] for line in _format_entry(entry)]
        for each in self.receipts:
            call_name = f"{each.call.process}: {each.call.name}"
            fields = " ".join(f"{name}={each.result[name]}" for name in sorted(each.result) if name != "id")
            lines.append((each.requested, f"{call_name} requests {each.call.args.get('topics')}"))
            lines.append((each.received, f"{call_name} delivers it: {fields}"))
        for call in self.purges():
            lines.append((call.invoked, f"{call.process}: {call.name} purges its topic"))
            if call.returned is not None:
                lines.append((call.returned, f"{call.process}: {call.name}: {call.end.value}"))
        if self.dropped is not None:
            stamp = Stamp(self.dropped["at"], self.dropped["source"], self.dropped["seq"])
            lines.append((stamp, f"the server drops it: {self.dropped['why']}"))
        ended = self.histories.record.ended
        if ended is not None and self.histories.record.present is not None:
            shown = "not in the tables" if self.row is None else f"in the tables: {_fields(self.row)}"
            lines.append((ended, f"at the end: {shown}"))
        lines.sort(key=lambda line: (line[0].at_ms, line[0].source, line[0].seq))
        return [f"{stamp.at_ms:>12.3f} ms  {text}" for stamp, text in lines]

    def _enqueue_attempts(self) -> list[Entry]:
        return [entry for each in self.marks for entry in self.histories.by_mark.get(each, [])]


@dataclass(slots=True)
class ItemHistories:
    """All items of a record."""

    record: Record
    item_histories: dict[str, ItemHistory] = field(default_factory=dict)
    by_mark: dict[str, list[Entry]] = field(default_factory=dict)
    dequeues: dict[tuple[str | None, str], TopicDequeues] = field(default_factory=dict)
    """By namespace and topic."""
    purges: dict[tuple[str | None, str], list[Call]] = field(default_factory=dict)
    """By namespace and topic, without failed calls."""
    by_op: dict[str, list[Call]] = field(default_factory=dict)

    def calls_of(self, op: str) -> list[Call]:
        """Return all calls of an operation."""
        return self.by_op.get(op, [])

    def __iter__(self) -> Iterator[ItemHistory]:
        return iter(self.item_histories.values())

    def item_history(self, number: str) -> ItemHistory:
        if number not in self.item_histories:
            self.item_histories[number] = ItemHistory(number, self)
        return self.item_histories[number]


def sort_by_item(record: Record) -> ItemHistories:
    """Sort a record by item."""
    histories = ItemHistories(record)
    for call in record.calls:
        histories.by_op.setdefault(call.op, []).append(call)
        if call.op == "enqueue":
            for entry in entries(call):
                histories.by_mark.setdefault(entry.requested["mark"], []).append(entry)
                if entry.end is CallEnd.OK:
                    histories.item_history(entry.result["id"]).enqueued.append(entry)
        elif call.op == "dequeue":
            _sort_dequeue(histories, call)
        elif call.op == "purge":
            if call.end is not CallEnd.FAILED:
                histories.purges.setdefault((call.args.get("namespace"), call.args["topic"]), []).append(call)
        elif call.op == "explain":
            histories.item_history(call.args["id"]).explained.append(call)
        elif call.op in BY_ID:
            for entry in entries(call):
                histories.item_history(entry.requested["id"]).ops[call.op].append(entry)
    for number, row in (record.present or {}).items():
        histories.item_history(number).row = row
    for number, event in record.dropped.items():
        histories.item_history(number).dropped = event
    for item in histories:
        item.receipts.sort(key=lambda each: each.token)
        for op, found in item.ops.items():
            item.foreign += [entry for entry in found if _is_foreign(item, entry.call)]
            item.ops[op] = [entry for entry in found if not _is_foreign(item, entry.call)]
    for call in record.calls:
        if call.op in PAGES and call.end is not CallEnd.FAILED:
            _sort_page(histories, call)
    return histories


def _is_foreign(item: ItemHistory, call: Call) -> bool:
    return item.namespace is not None and call.args.get("namespace") != item.namespace


def _sort_page(histories: ItemHistories, call: Call) -> None:
    """Add an operation of unknown outcome to each item that the page may have changed: the reply does not name them."""
    returned, topic = call.returned if call.end is CallEnd.OK else None, call.args["topic"]
    for item in histories:
        if item.namespace != call.args.get("namespace") or (topic is not None and item.requested("topic") != topic):
            continue
        if returned is None or not all(returned.before(entry.invoked) for entry in item.origins):
            requested = {"id": item.id, **call.args["change"]}
            item.ops[PAGES[call.op]].append(Entry(call, requested, CallEnd.UNKNOWN, None, {}))


def _sort_dequeue(histories: ItemHistories, call: Call) -> None:
    if call.end is not CallEnd.FAILED:
        for topic in call.args["topics"]:
            of_topic = histories.dequeues.setdefault((call.args.get("namespace"), topic), TopicDequeues())
            of_topic.add(call, histories.record.healed)
    runs: dict[Any, list[tuple[ItemHistory, DeliveryReceipt]]] = {}
    for result in call.results:
        item, receipt = histories.item_history(result["id"]), DeliveryReceipt(call, result)
        item.receipts.append(receipt)
        if call.args.get("run_max", 1) > 1 and result["group"] is not None:
            run = runs.setdefault((result["topic"], result["group"]), [])
            receipt.ahead = tuple(run)
            run.append((item, receipt))


def _format_entry(entry: Entry) -> list[tuple[Stamp, str]]:
    call_name = f"{entry.call.process}: {entry.call.name}"
    lines = [(entry.invoked, f"{call_name} requests: {_fields(entry.requested)}")]
    if entry.call.returned is None:
        return lines
    outcome = entry.end.value if entry.code is None else f"{entry.end.value} {entry.code}"
    lines.append((entry.call.returned, f"{call_name}: {outcome} {_fields(entry.result)}".rstrip()))
    return lines


def _fields(event: Event) -> str:
    return " ".join(f"{name}={event[name]}" for name in sorted(event) if event[name] is not None)
