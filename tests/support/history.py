"""The history of a run: what clients asked, what they were told, and what the tables held in the end.

Holds `History`, which writes events down, and `Call`, `Entry` and `Record`, as
which they are read back. Always true: an event is one JSON line with sorted
keys, so the same run gives the same bytes; lines of one source stand in the
order in which they happened. Knows nothing of clients or of what is right.

Lines, all with `at` (milliseconds on the observer's clock), `source` and `seq`:
- `invoke`: `call`, `process`, `op`, `args` (of the whole call), `items` (one
  object for each item of the batch).
- `ok`: `call`, `results`: for each item an object, `{"error": CODE}` where that
  one failed. For dequeue: one object for each delivery, with `asked_at` where a
  poll that the call took over had asked for it before.
- `fail`: `call`, `error`: the code of the whole call. `UNKNOWN_OUTCOME` is
  written as `unknown`.
- `unknown`: `call`. A call that never returned is unknown as well.
- `healed`: from here on every server is up, no fault is injected, and no call
  that ended unknown can still take effect.
- `dropped`: `id`, `why`: the server deleted an item on its own (`expired`,
  `at most once`, `retention`). `drops known`: all of these were written down.
- `present`: `rows`: everything that the tables hold at the end.

Payloads are known by `mark`, a hash; the workload makes every one unique.
Several processes each write a file of their own; `read_files` merges them.
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
    """The name of a payload in a history."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def machine_clock_ms() -> float:
    """A clock that all processes of a machine share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 / 1000


class History:
    """Writes events down, in memory and, where `path` is given, at once to a file.

    Args:
        clock_ms: the observer's clock; it must never go back.
        source: the writer's name, unique among files that are merged.
        path: appended to, a line an event, each in one write, so that a kill
            loses at most the line under way.
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
        """Before a call is made; returns the call's number."""
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
        """The tables, at the end. Each row: id, mark, topic, priority, state (lower case), token, attempt,
        attempts_max and, where something is scheduled, due_in_ms (negative: overdue)."""
        self._note("present", rows=sorted(rows, key=lambda row: str(row["id"])))

    @property
    def events(self) -> list[Event]:
        return list(self._events)

    def text(self) -> str:
        """The whole history as JSON lines."""
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
    """The events of several sources, in the order of the clock; a last line cut short by a kill is left out."""
    events: list[Event] = []
    for path in sorted(paths):
        for line in path.read_bytes().split(b"\n")[:-1]:
            events.append(json.loads(line))
    return sorted(events, key=lambda event: (event["at"], event["source"], event["seq"]))


# ------------------------------------------------------------------ reading back


@dataclass(slots=True, frozen=True)
class Stamp:
    """When something happened. Two stamps may be too close to be told apart."""

    at_ms: float
    source: str
    seq: int

    def before(self, other: Stamp) -> bool:
        """Certainly earlier."""
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
    """One call. `returned` is None when no answer was ever seen; then `end` is UNKNOWN."""

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
        """It took effect, or may have."""
        return self.end is not CallEnd.FAILED


@dataclass(slots=True)
class Entry:
    """One item of a batched call: what was asked of it and how that ended."""

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
        """When the outcome was known; None for outcomes that never were, which may still come."""
        return self.call.returned if self.end is not CallEnd.UNKNOWN else None

    @property
    def may_have_effect(self) -> bool:
        """It took effect, or may have."""
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
    """When the tables were read; else the last event."""


def read(events: Iterable[Event]) -> Record:
    """Builds calls from events, which must be in the order of `read_files`."""
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
    """A batched call, item by item (dequeue has none: its results are deliveries)."""
    found = []
    for at, asked in enumerate(call.items):
        if call.end is CallEnd.OK and at < len(call.results):
            result = call.results[at]
            code = result.get("error")
            end = CallEnd.OK if code is None else CallEnd.UNKNOWN if code == UNKNOWN else CallEnd.FAILED
            found.append(Entry(call, asked, end, code, result))
        else:
            # An answer too short says nothing of the rest.
            end = CallEnd.UNKNOWN if call.end is CallEnd.OK else call.end
            found.append(Entry(call, asked, end, call.code, {}))
    return found


def _finish(call: Call, event: Event, stamp: Stamp) -> None:
    call.returned = stamp
    if event["event"] == "ok":
        call.end = CallEnd.OK
        call.results = event["results"]
    elif event["event"] == "fail":
        call.end = CallEnd.FAILED
        call.code = event["error"]
