"""The circuit breaker of one shard: new items keep away from a database that is not well.

The window over flushes (`core.limits.breaker_window`) decides when it opens; pybreaker holds
the states, the reset timeout and who is told of changes. It gates new items
only: acks, nacks and hand-outs go on, and their flushes are judged as well.
Always true: while it is half open one flush with new items is under way at
most. A timer of the event loop ends the reset timeout: pybreaker itself would
compare moments of the wall clock, which jumps, and only when somebody calls.
Knows nothing of what a flush holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from pybreaker import STATE_CLOSED, STATE_HALF_OPEN, STATE_OPEN, CircuitBreaker, CircuitBreakerListener

from foqs.core.errors import Unavailable
from foqs.core.limits.breaker_window import SPAN_COUNT, BreakerSettings, FlushWindow
from foqs.shard.observer import ShardObserver

log = logging.getLogger(__name__)

_RETRY_AFTER_MS_MIN: Final = 100
"""Nobody is told to come back sooner: the probe takes a moment."""


class ShardBreaker:
    """The breaker of one ownership of a shard.

    Args:
        stopwatch_s: a stop watch.
        on_opened: told, each time it opens, the error for new items that wait to be written.
    """

    def __init__(
        self,
        shard: int,
        settings: BreakerSettings,
        stopwatch_s: Callable[[], float],
        observer: ShardObserver,
        on_opened: Callable[[Unavailable], None],
    ) -> None:
        self._shard = shard
        self._settings = settings
        self._stopwatch_s = stopwatch_s
        self._observer = observer
        self._on_opened = on_opened
        self._window = FlushWindow(settings)
        self._reason = ""
        """Why it was last opened."""
        self.state = STATE_CLOSED
        """closed, open or half-open, as pybreaker last said: asked for with every flush and every call."""
        listener = _Listener(self._on_state_changed)
        self._circuit = CircuitBreaker(reset_timeout=settings.reset_s, listeners=[listener])
        self._opened_s = 0.0
        self._wait_started_s: float | None = None
        """When the flush under way began; None when there is none."""
        self._retrying_since_s: float | None = None
        """Since when a flush is tried in vain; None when none is."""
        self._is_probing = False
        """The flush under way is the one that is tried while it is half open."""
        self._failure = ""
        self._failed_s = 0.0
        """The last failure, and when that was."""
        self._watch_timer: asyncio.TimerHandle | None = None
        self._reset_timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """New items are refused until the reset timeout is over."""
        return self.state == STATE_OPEN

    def check(self) -> None:
        """New items may come.

        Raises:
            Unavailable: not now; nothing was written.
        """
        if self.state != STATE_CLOSED and (self._is_probing or self.state == STATE_OPEN):
            raise self.unavailable_error()

    def unavailable_error(self) -> Unavailable:
        """What new items are told while they are not taken."""
        left_s = self._opened_s + self._settings.reset_s - self._stopwatch_s()
        return Unavailable(
            f"shard {self._shard} takes no new items just now, because its database is not well: {self._reason}; "
            "try again, or at another shard",
            retry_after_ms=max(_RETRY_AFTER_MS_MIN, int(left_s * 1000)),
        )

    # ------------------------------------------------------- what the writer tells

    def on_wait_started(self, *, has_new_items: bool) -> None:
        """The writer waits for the database from now on; `has_new_items`: for a flush that has some."""
        self._wait_started_s = self._stopwatch_s()
        self._is_probing = has_new_items and self.state == STATE_HALF_OPEN
        if self._watch_timer is None:
            self._schedule_watch()

    def on_flush_succeeded(self) -> None:
        """The flush under way is committed."""
        self._record_outcome(None)

    def on_flush_failed(self, reason: str) -> None:
        """The flush under way failed, and not because of what stands in it."""
        self._record_outcome(reason)

    def on_flush_retry(self, first_attempt_s: float) -> None:
        """A flush is to be tried again that was tried first at this moment of the stop watch: it still waits, though no attempt does."""
        self._retrying_since_s = first_attempt_s
        waited_s = self._stopwatch_s() - first_attempt_s
        if self.state != STATE_OPEN and waited_s >= self._settings.stall_s_max:
            self._open(f"a transaction was tried for {waited_s * 1000:.0f} ms, the last failure: {self._failure}")

    def on_retries_ended(self) -> None:
        """What was tried is written, however that was learned, or is not tried again."""
        self._retrying_since_s = None

    def on_wait_ended(self) -> None:
        """The writer waits no more; what neither succeeded nor failed tells nothing of the database."""
        self._wait_started_s = None
        self._is_probing = False

    def close(self) -> None:
        """The shard is over."""
        self.on_wait_ended()
        for timer in (self._watch_timer, self._reset_timer):
            if timer is not None:
                timer.cancel()

    # --------------------------------------------------------------------- inside

    def _on_state_changed(self, state: str) -> None:
        self.state = state
        self._observer.breaker_changed(self._shard, state)
        if state == STATE_OPEN:
            log.warning("shard %d: the breaker is open, new items are refused: %s", self._shard, self._reason)
        elif state == STATE_HALF_OPEN:
            log.info("shard %d: the breaker is half open: one transaction with new items is tried", self._shard)
        else:
            log.info("shard %d: the breaker is closed: new items are taken again", self._shard)

    def _record_outcome(self, failure: str | None) -> None:
        now_s = self._stopwatch_s()
        assert self._wait_started_s is not None
        took_s = now_s - self._wait_started_s
        probing = self._is_probing
        self.on_wait_ended()
        self._window.add(now_s, took_s, failed=failure is not None)
        if failure is not None:
            self._failure, self._failed_s = failure, now_s
        if self.state == STATE_CLOSED:
            self._open_if_unhealthy()
        elif probing:
            if failure is None and took_s <= self._settings.latency_s_max:
                self._window.clear()
                self._circuit.close()
            else:
                self._open(failure or f"the transaction that was tried took {took_s * 1000:.0f} ms")

    def _open_if_unhealthy(self) -> None:
        now_s = self._stopwatch_s()
        waiting_s = None if self._wait_started_s is None else now_s - self._wait_started_s
        why = self._window.trip_reason(now_s, waiting_s)
        if why is not None:
            lately = self._failure and now_s - self._failed_s < self._settings.window_s
            self._open(f"{why}, the last failure: {self._failure}" if lately else why)

    def _open(self, reason: str) -> None:
        self._reason = reason
        self._opened_s = self._stopwatch_s()
        self._is_probing = False
        self._schedule_reset(self._circuit.reset_timeout)
        self._circuit.open()
        self._on_opened(self.unavailable_error())

    def _schedule_reset(self, delay_s: float) -> None:
        self._reset_timer = asyncio.get_running_loop().call_later(delay_s, self._reset)

    def _reset(self) -> None:
        if self._is_stuck():
            # Another flush would only wait behind this one.
            self._schedule_reset(self._settings.window_s / SPAN_COUNT)
        else:
            self._circuit.half_open()

    def _is_stuck(self) -> bool:
        """The writer waits for longer than it should."""
        now_s, settings = self._stopwatch_s(), self._settings
        waits = self._wait_started_s is not None and now_s - self._wait_started_s > settings.latency_s_max
        return waits or (self._retrying_since_s is not None and now_s - self._retrying_since_s >= settings.stall_s_max)

    def _schedule_watch(self) -> None:
        self._watch_timer = asyncio.get_running_loop().call_later(
            self._settings.window_s / SPAN_COUNT, self._check_wait
        )

    def _check_wait(self) -> None:
        """Looks at what the writer waits for, since nobody else does meanwhile."""
        self._watch_timer = None
        if self._wait_started_s is None:
            return
        if self.state == STATE_CLOSED:
            self._open_if_unhealthy()
        elif self.state == STATE_HALF_OPEN and self._is_stuck():
            self._open("a transaction gets no answer")
        self._schedule_watch()


class _Listener(CircuitBreakerListener):
    """Hears of every change."""

    def __init__(self, on_state_changed: Callable[[str], None]) -> None:
        self._on_state_changed = on_state_changed

    def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
        self._on_state_changed(new_state.name)
