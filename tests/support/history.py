"""The history of a run: the calls of clients, their results, and the contents of the tables at the end.

`History` writes events. `read` turns them back into a `Record` of `Call`s and
`Entry`s. Always true: an event is one JSON line with sorted keys, so the same
run gives the same bytes. Lines of one source are in the order of their events.
Knows nothing of clients, and does not judge.

Lines, all with `at` (milliseconds on the observer's clock), `source` and `seq`:
- `invoke`: `call`, `process`, `op`, `args` (of the whole call), `items` (one
  object for each item of the batch).
- `ok`: `call`, `results`: an object for each item, `{"error": CODE}` if the item
  failed. For dequeue: one object for each delivery, with `asked_at` if an
  earlier poll, which the call took over, had asked for it.
- `fail`: `call`, `error`: the code of the whole call. `UNKNOWN_OUTCOME` is
  written as `unknown`.
- `unknown`: `call`. A call that never returned is unknown as well.
- `healed`: from here on every server is up, no fault is injected, and no call
  of unknown outcome can still take effect.
- `dropped`: `id`, `why`: the server deleted an item on its own (`expired`,
  `at most once`, `retention`). `drops known`: the history lists all of these.
- `present`: `rows`: everything that the tables hold at the end.

A payload is named by its `mark`, a hash; the workload makes each payload unique.
Each process writes its own file; `read_files` merges them.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

Event: TypeAlias = dict[str, Any]

UNKNOWN = "UNKNOWN_OUTCOME"


def mark(payload: bytes) -> str:
    """Return the name of a payload in a history."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def machine_clock_ms() -> float:
    """Read the clock that all processes of a machine share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 / 1000


class History:
    """Keeps events in memory and, if `path` is given, appends each to a file at once.

    Args:
        clock_ms: the observer's clock; it must never go back.
        source: the writer's name, unique among files that are merged.
        path: the file. Each event is one line and one write, so a kill loses at
            most the line that is being written.
    """

    def __init__(self, clock_ms: Callable[[], float], *, source: str = "run", path: Path | None = None) -> None:
        self._clock_ms = clock_ms
        self._source = source
        self._events: list[Event] = []
        self._calls = 0
        self._file: IO[bytes] | None = None
        if path is not None:
            self._file = path.open("ab", buffering=0)

    def invoke(self, process: str, op: str, items: Sequence[Event], **args: Any) -> int:
        """Record a call that is about to be made. Returns its number."""
        self._calls += 1
        self._note("invoke", call=self._calls, process=process, op=op, items=list(items), args=args)
        return self._calls

    def ok(self, call: int, results: Sequence[Event]) -> None:
        self._note("ok", call=call, results=list(results))

    def fail(self, call: int, code: str) -> None:
        if code == UNKNOWN:
            self._note("unknown", call=call)
        else:
            self._note("fail", call=call, error=code)

    def unknown(self, call: int) -> None:
        self._note("unknown", call=call)

    def healed(self) -> None:
        self._note("healed")

    def dropped(self, item: str, why: str) -> None:
        self._note("dropped", id=item, why=why)

    def drops_known(self) -> None:
        self._note("drops known")

    def present(self, rows: Sequence[Event]) -> None:
        """Record the tables at the end. Each row: id, mark, topic, priority, state (lower case), token, attempt,
        attempts_max and, if something is scheduled, due_in_ms (negative: overdue)."""
        self._note("present", rows=sorted(rows, key=lambda row: str(row["id"])))

    @property
    def events(self) -> list[Event]:
        return list(self._events)

    def text(self) -> str:
        """Return the whole history as JSON lines."""
        return "".join(_line(event) for event in self._events)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _note(self, kind: str, **fields: Any) -> None:
        event = {"at": round(self._clock_ms(), 3), "source": self._source, "seq": len(self._events), "event": kind}
        event.update(fields)
        self._events.append(event)
        if self._file is not None:
            os.write(self._file.fileno(), _line(event).encode())


def _line(event: Event) -> str:
    return json.dumps(event, sort_keys=True, separators=(",", ":")) + "\n"


def read_files(paths: Iterable[Path]) -> list[Event]:
    """Return the events of several files, in the order of the clock, without a last line that a kill left incomplete."""
    events: list[Event] = []
    for path in sorted(paths):
        for line in path.read_bytes().split(b"\n")[:-1]:
            events.append(json.loads(line))
    return sorted(events, key=lambda event: (event["at"], event["source"], event["seq"]))


# ------------------------------------------------------------------ reading back


@dataclass(slots=True, frozen=True)
class Stamp:
    """The moment of an event. The order of two stamps may be unknown."""

    at_ms: float
    source: str
    seq: int

    def before(self, other: Stamp) -> bool:
        """Whether this is certainly earlier."""
        if self.source == other.source:
            return self.seq < other.seq
        return self.at_ms < other.at_ms


class CallEnd(enum.Enum):
    """How a call, or one item of it, ended."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Call:
    """One call. Without a reply `returned` is None and `end` is UNKNOWN."""

    source: str
    number: int
    process: str
    op: str
    args: Event
    items: list[Event]
    invoked: Stamp
    returned: Stamp | None = None
    end: CallEnd = CallEnd.UNKNOWN
    code: str | None = None
    results: list[Event] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.op} {self.source}#{self.number}"

    @property
    def may_have_effect(self) -> bool:
        """Whether the call took effect, or may have."""
        return self.end is not CallEnd.FAILED


@dataclass(slots=True)
class Entry:
    """One item of a batched call: the request for it and its result."""

    call: Call
    requested: Event
    end: CallEnd
    code: str | None
    result: Event

    @property
    def invoked(self) -> Stamp:
        return self.call.invoked

    @property
    def returned(self) -> Stamp | None:
        """The moment of the reply; None if the outcome is unknown, as the call may still take effect."""
        return self.call.returned if self.end is not CallEnd.UNKNOWN else None

    @property
    def may_have_effect(self) -> bool:
        """Whether the request took effect, or may have."""
        return self.end is not CallEnd.FAILED


@dataclass(slots=True)
class Record:
    """A history, read back."""

    calls: list[Call] = field(default_factory=list)
    present: dict[str, Event] | None = None
    dropped: dict[str, Event] = field(default_factory=dict)
    drops_known: bool = False
    healed: Stamp | None = None
    ended: Stamp | None = None
    """The moment at which the tables were read; without that, of the last event."""


def read(events: Iterable[Event]) -> Record:
    """Build calls from events, which must be in the order of `read_files`."""
    record = Record()
    calls: dict[tuple[str, int], Call] = {}
    for event in events:
        kind, stamp = event["event"], Stamp(event["at"], event["source"], event["seq"])
        if kind == "invoke":
            call = Call(
                event["source"], event["call"], event["process"], event["op"], event["args"], event["items"], stamp
            )
            calls[call.source, call.number] = call
            record.calls.append(call)
        elif kind in ("ok", "fail", "unknown"):
            _finish(calls[event["source"], event["call"]], event, stamp)
        elif kind == "healed":
            record.healed = stamp
        elif kind == "dropped":
            record.dropped[event["id"]] = event
        elif kind == "drops known":
            record.drops_known = True
        elif kind == "present":
            record.present = {row["id"]: row for row in event["rows"]}
            record.ended = stamp
        else:
            raise ValueError(f"no such event: {kind}")
        if record.present is None:
            record.ended = stamp
    return record


def entries(call: Call) -> list[Entry]:
    """Return a batched call item by item. A dequeue has no entries: its results are deliveries."""
    found = []
    for index, requested in enumerate(call.items):
        if call.end is CallEnd.OK and index < len(call.results):
            result = call.results[index]
            code = result.get("error")
            end = CallEnd.OK if code is None else CallEnd.UNKNOWN if code == UNKNOWN else CallEnd.FAILED
            found.append(Entry(call, requested, end, code, result))
        else:
            # A reply that is too short leaves the rest unknown.
            end = CallEnd.UNKNOWN if call.end is CallEnd.OK else call.end
            found.append(Entry(call, requested, end, call.code, {}))
    return found


def _finish(call: Call, event: Event, stamp: Stamp) -> None:
    call.returned = stamp
    if event["event"] == "ok":
        call.end = CallEnd.OK
        call.results = event["results"]
    elif event["event"] == "fail":
        call.end = CallEnd.FAILED
        call.code = event["error"]
