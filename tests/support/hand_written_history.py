"""Histories of client calls that a test writes by hand, call by call, for the checker."""

from __future__ import annotations

from typing import Any

from tests.support.checker import check
from tests.support.clock_bounds import ClockBounds
from tests.support.history import Event, History

BOUNDS = ClockBounds(
    lease_ms_default=1000,
    attempts_max_default=0,
    backoff_ms_max=100,
    dead_retention_ms=10_000,
    key_window_ms=5_000,
    bound_ms=500,
)


class HandWrittenHistory:
    """A history written by hand: each call states when it begins and when it ends.

    `till`: None if the call never ends. `error`: the error of each of its items.
    `failed`: the error of the whole call.
    """

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.history = History(lambda: self.now_ms)
        self._lines: list[tuple[float, int, Any]] = []

    def call(
        self,
        at: float,
        till: float | None,
        op: str,
        items: list[Event],
        results: list[Event],
        failed: str | None = None,
        namespace: str = "n",
        **args: Any,
    ) -> HandWrittenHistory:
        numbers: list[int] = []

        def begin() -> None:
            numbers.append(self.history.invoke("p", op, items, namespace=namespace, **args))

        def end() -> None:
            if failed is None:
                self.history.ok(numbers[0], results)
            else:
                self.history.fail(numbers[0], failed)

        self._at(at, begin)
        if till is not None:
            self._at(till, end)
        return self

    def enqueue(
        self,
        at: float,
        till: float | None,
        id: str = "0-1",
        payload: str = "a",
        error: str | None = None,
        repeated: bool = False,
        **asked: Any,
    ) -> HandWrittenHistory:
        item = {"mark": payload, "topic": "t", "priority": 0, **asked}
        result = {"id": id, "repeated": repeated} if error is None else {"error": error}
        return self.call(at, till, "enqueue", [item], [result])

    def dequeue(
        self,
        at: float,
        till: float | None,
        token: int | None = None,
        id: str = "0-1",
        failed: str | None = None,
        lease: int | None = None,
        namespace: str = "n",
        **shown: Any,
    ) -> HandWrittenHistory:
        found = {
            "id": id,
            "token": token,
            "mark": "a",
            "topic": "t",
            "priority": 0,
            "attempt": token,
            "lease_remaining_ms": 900,
        }
        found.update(shown)
        results = [] if token is None else [found]
        return self.call(
            at, till, "dequeue", [], results, failed, namespace, topics={"t": 1}, wait_ms=0, lease_ms=lease
        )

    def op(
        self,
        op: str,
        at: float,
        till: float | None,
        token: int | None = None,
        id: str = "0-1",
        error: str | None = None,
        gone: bool = False,
        namespace: str = "n",
        **asked: Any,
    ) -> HandWrittenHistory:
        item = {"id": id, **asked} if token is None else {"id": id, "token": token, **asked}
        result: Event = {"error": error} if error else {"already_gone": True} if gone else {}
        return self.call(at, till, op, [item], [result], namespace=namespace)

    def purge(
        self, at: float, till: float | None, topic: str = "t", failed: str | None = None, namespace: str = "n"
    ) -> HandWrittenHistory:
        return self.call(at, till, "purge", [], [{"purged": 1}], failed, namespace, topic=topic)

    def healed(self, at: float) -> HandWrittenHistory:
        self._at(at, self.history.healed)
        return self

    def dropped(self, at: float, why: str, id: str = "0-1") -> HandWrittenHistory:
        self._at(at, lambda: self.history.dropped(id, why))
        return self

    def present(self, at: float, *rows: Event) -> HandWrittenHistory:
        views = [{"mark": "a", "topic": "t", "priority": 0, "attempt": 0, "state": "ready", **row} for row in rows]
        self._at(at, lambda: self.history.present(views))
        return self

    def drops_known(self) -> HandWrittenHistory:
        self._at(0, self.history.drops_known)
        return self

    def events(self) -> list[Event]:
        for at, _, note in sorted(self._lines, key=lambda line: line[:2]):
            self.now_ms = at
            note()
        self._lines.clear()
        return self.history.events

    def broken(self, bounds: ClockBounds = BOUNDS) -> list[int]:
        return sorted({violation.invariant for violation in check(self.events(), bounds)})

    def _at(self, at: float, note: Any) -> None:
        self._lines.append((at, len(self._lines), note))


def item(**fields: Any) -> HandWrittenHistory:
    """An item that was enqueued at 0 to 10 ms."""
    return HandWrittenHistory().enqueue(0, 10, **fields)
