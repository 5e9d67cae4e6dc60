"""A small model of a queue that is correct, or wrong in one chosen way, to test the checker.

Holds `ServerModel`, its `FLAWS`, and `run_model`, which lets random clients use it and
returns their history. Calls overlap, fail, and have unknown outcomes with or without
an effect, at once or late. Without a flaw every history is one of a correct server:
rows change by `foqs.core.items.life`. No I/O, no asyncio.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from foqs.core.items.item import DeliveryPolicy, NewItem, Row, State, format_id, make_number
from foqs.core.items.life import Effect, EventKind, FlushContext, RetryPolicy, apply_event, becomes_ready, new_row
from foqs.core.items.life import Event as Happening
from foqs_contract.errors import FoqsError
from tests.support.clock_bounds import ClockBounds
from tests.support.history import Event, History, mark

FLAWS: Final = {
    "loses some items": 1,
    "changes bytes": 2,
    "forgets keys": 3,
    "keeps what was acked": 4,
    "counts leases from the enqueue": 5,
    "ignores tokens": 6,
    "delivers at-most-once items again": 7,
    "does not count attempts": 8,
    "does not wait for deliver-after": 9,
    "forgets some ready items": 11,
    "fails after writing": 16,
}
"""The possible flaws, and the invariant that each breaks."""

_LEASE_MS, _WINDOW_MS, _RETENTION_MS, _BOUND_MS = 300, 1500, 1000, 100
_POLICY = RetryPolicy(backoff_ms_min=20, backoff_ms_max=80, dead_retention_ms=_RETENTION_MS, key_window_ms=_WINDOW_MS)
_TOPICS = ("t", "u")
_BUSY_MS, _HEALED_MS, _END_MS = 4000, 5000, 7000


class ServerModel:
    """The server: rows, keys, and a clock that `play` moves."""

    BOUNDS = ClockBounds(
        lease_ms_default=_LEASE_MS,
        attempts_max_default=0,
        backoff_ms_max=80,
        dead_retention_ms=_RETENTION_MS,
        key_window_ms=_WINDOW_MS,
        bound_ms=_BOUND_MS,
    )

    def __init__(self, rng: random.Random, flaw: str | None = None) -> None:
        self.rng = rng
        self.flaw = flaw
        self.now_ms = 0.0
        self.rows: dict[int, Row] = {}
        self.dropped: Callable[[str, str], None] = lambda number, why: None
        self.waited: Counter[str] = Counter()
        """The number of consumers that wait on a topic. An item that comes due there is delivered to one of them."""
        self._keys: dict[str, tuple[int, str, float]] = {}
        self._numbers = 0

    def enqueue(self, asked: Event, payload: bytes) -> Event:
        key = asked["key"]
        if key is not None and self.flaw != "forgets keys":
            number, known, at_ms = self._keys.get(key, (0, "", 0.0))
            if number and self.now_ms < at_ms + _WINDOW_MS:
                return {"id": format_id(0, number), "repeated": True} if known == asked["mark"] else _conflict()
        self._numbers += 1
        number = make_number(1, self._numbers)
        self._keys[key] = (number, asked["mark"], self.now_ms)
        row = new_row(_new_item(asked, payload), number, int(self.now_ms), int(self.now_ms))
        if self.flaw == "does not wait for deliver-after":
            row.state = State.READY
        if not (self.flaw == "loses some items" and self.rng.random() < 0.2):
            self.rows[number] = row
        if self.flaw == "fails after writing" and self.rng.random() < 0.3:
            return {"error": "OVERLOADED"}
        return {"id": format_id(0, number), "repeated": False}

    def dequeue(self, topics: dict[str, int], lease_ms: int | None) -> list[Event]:
        self.tick()
        found = []
        for topic, count in topics.items():
            ready = [row for row in self.rows.values() if row.topic == topic and self._is_available(row)]
            if self.flaw == "forgets some ready items":
                ready = [row for row in ready if row.id % 5]
            for row in sorted(ready, key=lambda row: row.order_key)[:count]:
                kind = EventKind.DELIVER if row.state is State.READY else EventKind.DUE
                self.apply(Happening(kind, row.id, lease_ms=lease_ms, has_waiter=kind is EventKind.DUE))
                if row.id in self.rows:
                    found.append(self._delivery(self.rows[row.id]))
        return found

    def by_id(self, kind: EventKind, asked: Event) -> Event:
        number = int(asked["id"].partition("-")[2])
        token = asked.get("token", 0)
        if self.flaw == "ignores tokens" and number in self.rows:
            token = self.rows[number].token
        delay = asked.get("delay_ms")
        happening = Happening(
            kind,
            number,
            "n",
            token=token,
            delay_ms=delay,
            jitter=self.rng.random(),
            dead=asked.get("dead", False),
            lease_ms=asked.get("lease_ms"),
        )
        if kind is EventKind.ACK and self.flaw == "keeps what was acked" and self.rng.random() < 0.3:
            return {}
        return self.apply(happening)

    def tick(self) -> None:
        """Apply the due transitions, except for items that are left to a waiter."""
        for row in list(self.rows.values()):
            if row.due_ms is None or row.due_ms > self.now_ms:
                continue
            if not self.waited[row.topic] or not becomes_ready(row, int(self.now_ms)):
                self.apply(Happening(EventKind.DUE, row.id))

    def _is_available(self, row: Row) -> bool:
        return row.state is State.READY or becomes_ready(row, int(self.now_ms))

    def apply(self, happening: Happening) -> Event:
        self._numbers += 1
        moment = FlushContext(int(self.now_ms), int(self.now_ms), make_number(1, self._numbers), {"n": _POLICY})
        row = self.rows.get(happening.id)
        transition = apply_event(happening, row, moment)
        if transition.effect is Effect.CHANGED:
            assert row is not None and transition.row is not None
            self.rows[happening.id] = self._apply_flaw(row, transition.row)
        elif transition.effect is Effect.DELETED:
            assert row is not None
            self._drop(happening, row)
        if transition.error is not None:
            return _error(transition.error)
        return {"already_gone": True} if transition.already_gone else {}

    def _apply_flaw(self, old: Row, new: Row) -> Row:
        leased = new.state is State.LEASED and new.token != old.token
        if leased and self.flaw == "counts leases from the enqueue":
            return replace(new, due_ms=new.enqueued_at_ms + new.lease_ms)
        if leased and self.flaw == "does not count attempts":
            return replace(new, attempt=1)
        return new

    def _drop(self, happening: Happening, row: Row) -> None:
        expired = row.expires_at_ms is not None and row.expires_at_ms <= self.now_ms
        ended = row.state is State.LEASED and happening.kind in (EventKind.NACK, EventKind.DUE) and not expired
        if self.flaw == "delivers at-most-once items again" and ended:
            self.rows[row.id] = replace(row, state=State.READY, due_ms=row.expires_at_ms)
            return
        del self.rows[row.id]
        if happening.kind in (EventKind.ACK, EventKind.CANCEL):
            return
        if row.state is State.DEAD:
            self.dropped(format_id(0, row.id), "retention")
        else:
            self.dropped(format_id(0, row.id), "expired" if expired else "at most once")

    def _delivery(self, row: Row) -> Event:
        payload = row.payload or b""
        if self.flaw == "changes bytes" and self.rng.random() < 0.2:
            payload = payload[:-1]
        assert row.due_ms is not None
        return {
            "id": format_id(0, row.id),
            "token": row.token,
            "mark": mark(payload),
            "topic": row.topic,
            "priority": row.priority,
            "attempt": row.attempt,
            "lease_remaining_ms": row.due_ms - int(self.now_ms),
        }


def run_model(model: ServerModel, *, drops_known: bool, calls: int = 150) -> History:
    """Random clients, then a quiet end in which consumers wait on every topic, then the tables."""
    return _ModelRun(model, drops_known).run(calls)


class _ModelRun:
    """Clients and the moments at which their calls begin, take effect and end."""

    def __init__(self, model: ServerModel, drops_known: bool) -> None:
        self._model = model
        self._rng = model.rng
        self._history = History(lambda: model.now_ms)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._made = 0
        self._held: list[Event] = []
        self._ids: list[str] = []
        self._past: list[tuple[Event, bytes]] = []
        if drops_known:
            model.dropped = self._history.dropped
            self._history.drops_known()

    def run(self, calls: int) -> History:
        for _ in range(calls):
            self._plan(self._rng.uniform(0, _BUSY_MS), self._any_call)
        self._plan(_HEALED_MS, self._history.healed)
        for topic in _TOPICS:
            for at_ms in range(_HEALED_MS, _END_MS - 400, 40):
                self._plan(at_ms + self._rng.uniform(1, 30), partial(self._drain, topic))
        while self._agenda:
            self._model.now_ms, _, act = heapq.heappop(self._agenda)
            self._model.tick()
            act()
        self._model.now_ms = max(self._model.now_ms, _END_MS)
        self._model.tick()
        self._history.present([self._row(row) for row in self._model.rows.values()])
        return self._history

    def _plan(self, at_ms: float, act: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._agenda, (at_ms, self._planned, act))

    def _any_call(self) -> None:
        act = self._rng.choices((self._enqueue, self._dequeue, self._by_id), (4, 4, 5))[0]
        act()

    def _call(self, op: str, items: list[Event], effect: Callable[[], list[Event]], **args: Any) -> None:
        """One call: it fails, ends unknown with or without an effect, or ends well."""
        rng, now_ms = self._rng, self._model.now_ms
        call = self._history.invoke("p", op, items, namespace="n", **args)
        took_ms, back_ms = rng.expovariate(1 / 20), rng.expovariate(1 / 20)
        fate = rng.random()
        if fate < 0.05:
            self._plan(now_ms + took_ms, lambda: self._history.fail(call, "UNAVAILABLE"))
        elif fate < 0.2 and now_ms < _BUSY_MS:
            if rng.random() < 0.5:
                self._plan(
                    min(now_ms + took_ms + rng.choice((0, 500)), _HEALED_MS - 1), lambda: discard_results(effect())
                )
            if rng.random() < 0.5:
                self._plan(now_ms + back_ms, lambda: self._history.unknown(call))
        else:

            def act() -> None:
                results = effect()
                self._plan(self._model.now_ms + back_ms, lambda: self._end(op, call, results))

            self._plan(now_ms + took_ms, act)

    def _end(self, op: str, call: int, results: list[Event]) -> None:
        self._history.ok(call, results)
        if op == "dequeue":
            self._held += results
        self._ids += [result["id"] for result in results if op == "enqueue" and "id" in result]

    def _enqueue(self) -> None:
        rng = self._rng
        if self._past and rng.random() < 0.15:
            asked, payload = rng.choice(self._past)
        else:
            self._made += 1
            payload = b"payload %d" % self._made
            asked = {
                "mark": mark(payload),
                "topic": rng.choice(_TOPICS),
                "priority": rng.randint(-1, 1),
                "delay_ms": rng.choice((None, None, 0, 400)),
                "lease_ms": rng.choice((None, 60)),
                "ttl_ms": rng.choice((None, None, 200, 1000)),
                "at_most_once": rng.random() < 0.2,
                "attempts_max": rng.choice((None, 1, 3)),
                "key": rng.choice((None, f"k{rng.randint(0, 9)}")),
            }
            self._past.append((asked, payload))
        self._call("enqueue", [asked], lambda: [self._model.enqueue(asked, payload)])

    def _dequeue(self) -> None:
        topics, lease_ms = {self._rng.choice(_TOPICS): self._rng.randint(1, 3)}, self._rng.choice((None, None, 40))
        self._call("dequeue", [], lambda: self._model.dequeue(topics, lease_ms), topics=topics, lease_ms=lease_ms)

    def _by_id(self) -> None:
        if not self._held:
            return
        rng = self._rng
        held = rng.choice(self._held)
        kind = rng.choices(
            (EventKind.ACK, EventKind.NACK, EventKind.EXTEND, EventKind.RELEASE, EventKind.CANCEL, EventKind.REDRIVE),
            (6, 4, 2, 2, 1, 1),
        )[0]
        asked: Event = {"id": held["id"]}
        if kind is EventKind.CANCEL:
            asked["id"] = rng.choice(self._ids or [held["id"]])
        elif kind is not EventKind.REDRIVE:
            asked["token"] = held["token"]
        if kind is EventKind.NACK:
            asked["delay_ms"] = rng.choice((None, 0, 150))
            asked["dead"] = rng.random() < 0.2
        elif kind is EventKind.EXTEND:
            asked["lease_ms"] = rng.choice((None, 0, 30, 500))
        self._call(kind.value, [asked], lambda: [self._model.by_id(kind, asked)])

    def _drain(self, topic: str) -> None:
        """A consumer that waits twice the bound, then acks most of the items."""
        call = self._history.invoke("drain", "dequeue", [], namespace="n", topics={topic: 5}, lease_ms=None)
        until_ms = self._model.now_ms + 2 * _BOUND_MS
        self._model.waited[topic] += 1

        def poll() -> None:
            results = self._model.dequeue({topic: 5}, None)
            if not results and self._model.now_ms < until_ms:
                self._plan(self._model.now_ms + 5, poll)
                return
            self._model.waited[topic] -= 1
            self._history.ok(call, results)
            for held in results:
                if self._rng.random() < 0.8:
                    asked = {"id": held["id"], "token": held["token"]}
                    self._call("ack", [asked], partial(self._acked, asked))

        poll()

    def _acked(self, asked: Event) -> list[Event]:
        return [self._model.by_id(EventKind.ACK, asked)]

    def _row(self, row: Row) -> Event:
        due_ms = None if row.due_ms is None else row.due_ms - int(self._model.now_ms)
        return {
            "id": format_id(0, row.id),
            "mark": mark(row.payload or b""),
            "topic": row.topic,
            "priority": row.priority,
            "state": row.state.name.lower(),
            "token": row.token,
            "attempt": row.attempt,
            "due_in_ms": due_ms,
        }


def discard_results(results: list[Event]) -> None:
    """A reply that reaches no caller."""


def _new_item(asked: Event, payload: bytes) -> NewItem:
    return NewItem(
        namespace="n",
        topic=asked["topic"],
        priority=asked["priority"],
        payload=payload,
        metadata=b"",
        delay_ms=asked["delay_ms"] or 0,
        deliver_after_ms=None,
        lease_ms=asked["lease_ms"] or _LEASE_MS,
        ttl_ms=asked["ttl_ms"],
        policy=DeliveryPolicy.AT_MOST_ONCE if asked["at_most_once"] else DeliveryPolicy.AT_LEAST_ONCE,
        attempts_max=asked["attempts_max"] or 0,
    )


def _conflict() -> Event:
    return {"error": "KEY_CONFLICT"}


def _error(error: FoqsError) -> Event:
    return {"error": error.code}
