"""A history sorted by item: for each id, all that was done to it and seen of it.

Holds `Casebook` and its `Case`s. Always true: a case's deliveries stand in the
order of their tokens, everything else in the order of the history. Draws no
conclusions; those are the checker's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.support.history import Call, CallEnd, Entry, Event, Record, Stamp, entries

ENDING = ("nack", "release")
"""The operations that end a lease and leave the item."""
DESTROYING = ("ack", "cancel")
PAGES = {"cancel matching": "cancel", "update matching": "update", "redrive matching": "redrive"}
"""Calls that do by filter, a page a call, what another does by id."""
BY_ID = ("ack", "nack", "extend", "release", "cancel", "redrive", "update")


@dataclass(slots=True)
class DeliveryReceipt:
    """One delivery, as its consumer saw it."""

    call: Call
    result: Event

    @property
    def token(self) -> int:
        return int(self.result["token"])

    @property
    def requested(self) -> Stamp:
        """When it was asked for: by its call, or by a poll that the call took over."""
        asked_ms = self.result.get("asked_at")
        return self.call.invoked if asked_ms is None else Stamp(asked_ms, "a poll", 0)

    @property
    def received(self) -> Stamp:
        assert self.call.returned is not None
        return self.call.returned

    def __str__(self) -> str:
        return f"delivery with token {self.token} ({self.call.process}, {self.call.name})"


@dataclass
class ItemHistory:
    """One item id. What is derived is kept, so ask only when the casebook is complete."""

    id: str
    histories: ItemHistories
    enqueued: list[Entry] = field(default_factory=list)
    """Enqueues that returned this id."""
    receipts: list[DeliveryReceipt] = field(default_factory=list)
    ops: dict[str, list[Entry]] = field(default_factory=lambda: {op: [] for op in BY_ID})
    explained: list[Call] = field(default_factory=list)
    """Calls that asked why it is not delivered."""
    foreign: list[Entry] = field(default_factory=list)
    """Operations on this id by clients of another namespace; in `ops` are only those of its own."""
    row: Event | None = None
    dropped: Event | None = None

    @cached_property
    def namespace(self) -> str | None:
        """Where it was enqueued; None when that is not known."""
        for entry in self.origins:
            return entry.call.args.get("namespace")
        return None

    @cached_property
    def marks(self) -> list[str]:
        """The payloads that were seen under this id, as enqueued, delivered or present."""
        seen = [entry.requested["mark"] for entry in self.enqueued] + [each.result["mark"] for each in self.receipts]
        if self.row is not None and self.row.get("mark") is not None:
            seen.append(self.row["mark"])
        return list(dict.fromkeys(seen))

    @cached_property
    def origins(self) -> list[Entry]:
        """The enqueues that may have made this item; those that failed cannot have."""
        if not self.marks:
            return []
        maybe = self.histories.by_mark.get(self.marks[0], [])
        return [e for e in maybe if e.end is CallEnd.UNKNOWN or (e.end is CallEnd.OK and e.result.get("id") == self.id)]

    def requested(self, name: str, default: Any = None) -> Any:
        """A property that the item was enqueued with."""
        for entry in self.origins:
            value = entry.requested.get(name)
            return default if value is None else value
        return default

    def possible_operations(self, *ops: str, token: int | None = None) -> list[Entry]:
        """Operations on this item that took effect or may have."""
        return [
            entry
            for op in ops
            for entry in self.ops[op]
            if entry.may_have_effect and (token is None or entry.requested.get("token") == token)
        ]

    def acknowledged_operations(self, *ops: str, token: int | None = None) -> list[Entry]:
        """Operations on this item that were acknowledged."""
        return [entry for entry in self.possible_operations(*ops, token=token) if entry.end is CallEnd.OK]

    def dequeues(self) -> list[Call]:
        """Calls that may have leased the item, whether or not they brought it."""
        topics = {(e.call.args.get("namespace"), e.requested["topic"]) for e in self.origins}
        return [call for key in sorted(topics, key=str) for call in self.histories.dequeues.get(key, [])]

    def purges(self) -> list[Call]:
        """Purges of its topic that took effect or may have."""
        topics = {(e.call.args.get("namespace"), e.requested["topic"]) for e in self.origins}
        return [call for key in sorted(topics, key=str) for call in self.histories.purges.get(key, [])]

    def timeline(self) -> list[str]:
        """Every event of the item, in time order, one line each."""
        lines = [line for entry in self._tried_enqueues() for line in _format_entry(entry)]
        lines += [line for op in BY_ID for entry in self.ops[op] for line in _format_entry(entry)]
        for each in self.receipts:
            who = f"{each.call.process}: {each.call.name}"
            got = " ".join(f"{name}={each.result[name]}" for name in sorted(each.result) if name != "id")
            lines.append((each.requested, f"{who} asks for {each.call.args.get('topics')}"))
            lines.append((each.received, f"{who} brings it: {got}"))
        for call in self.purges():
            lines.append((call.invoked, f"{call.process}: {call.name} asks for its topic"))
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

    def _tried_enqueues(self) -> list[Entry]:
        return [entry for each in self.marks for entry in self.histories.by_mark.get(each, [])]


@dataclass(slots=True)
class ItemHistories:
    """All items of a record."""

    record: Record
    item_histories: dict[str, ItemHistory] = field(default_factory=dict)
    by_mark: dict[str, list[Entry]] = field(default_factory=dict)
    dequeues: dict[tuple[str | None, str], list[Call]] = field(default_factory=dict)
    """By namespace and topic; without those that failed."""
    purges: dict[tuple[str | None, str], list[Call]] = field(default_factory=dict)
    """Likewise."""
    by_op: dict[str, list[Call]] = field(default_factory=dict)

    def calls_of(self, op: str) -> list[Call]:
        """All calls of an operation."""
        return self.by_op.get(op, [])

    def __iter__(self) -> Iterator[ItemHistory]:
        return iter(self.item_histories.values())

    def item_history(self, number: str) -> ItemHistory:
        if number not in self.item_histories:
            self.item_histories[number] = ItemHistory(number, self)
        return self.item_histories[number]


def sort_by_item(record: Record) -> ItemHistories:
    """Sorts a record by item."""
    book = ItemHistories(record)
    for call in record.calls:
        book.by_op.setdefault(call.op, []).append(call)
        if call.op == "enqueue":
            for entry in entries(call):
                book.by_mark.setdefault(entry.requested["mark"], []).append(entry)
                if entry.end is CallEnd.OK:
                    book.item_history(entry.result["id"]).enqueued.append(entry)
        elif call.op == "dequeue":
            _sort_dequeue(book, call)
        elif call.op == "purge":
            if call.end is not CallEnd.FAILED:
                book.purges.setdefault((call.args.get("namespace"), call.args["topic"]), []).append(call)
        elif call.op == "explain":
            book.item_history(call.args["id"]).explained.append(call)
        elif call.op in BY_ID:
            for entry in entries(call):
                book.item_history(entry.requested["id"]).ops[call.op].append(entry)
    for number, row in (record.present or {}).items():
        book.item_history(number).row = row
    for number, event in record.dropped.items():
        book.item_history(number).dropped = event
    for case in book:
        case.receipts.sort(key=lambda each: each.token)
        for op, found in case.ops.items():
            case.foreign += [entry for entry in found if _is_foreign(case, entry.call)]
            case.ops[op] = [entry for entry in found if not _is_foreign(case, entry.call)]
    for call in record.calls:
        if call.op in PAGES and call.end is not CallEnd.FAILED:
            _sort_page(book, call)
    return book


def _is_foreign(case: ItemHistory, call: Call) -> bool:
    return case.namespace is not None and call.args.get("namespace") != case.namespace


def _sort_page(book: ItemHistories, call: Call) -> None:
    """Whatever matched may have been changed, and nobody is told what did."""
    over, topic = call.returned if call.end is CallEnd.OK else None, call.args["topic"]
    for case in book:
        if case.namespace != call.args.get("namespace") or (topic is not None and case.requested("topic") != topic):
            continue
        if over is None or not all(over.before(entry.invoked) for entry in case.origins):
            asked = {"id": case.id, **call.args["change"]}
            case.ops[PAGES[call.op]].append(Entry(call, asked, CallEnd.UNKNOWN, None, {}))


def _sort_dequeue(book: ItemHistories, call: Call) -> None:
    if call.end is not CallEnd.FAILED:
        for topic in call.args["topics"]:
            book.dequeues.setdefault((call.args.get("namespace"), topic), []).append(call)
    for result in call.results:
        book.item_history(result["id"]).receipts.append(DeliveryReceipt(call, result))


def _format_entry(entry: Entry) -> list[tuple[Stamp, str]]:
    who = f"{entry.call.process}: {entry.call.name}"
    lines = [(entry.invoked, f"{who} asks: {_fields(entry.requested)}")]
    if entry.call.returned is None:
        return lines
    answer = entry.end.value if entry.code is None else f"{entry.end.value} {entry.code}"
    lines.append((entry.call.returned, f"{who}: {answer} {_fields(entry.result)}".rstrip()))
    return lines


def _fields(event: Event) -> str:
    return " ".join(f"{name}={event[name]}" for name in sorted(event) if event[name] is not None)
