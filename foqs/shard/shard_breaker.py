"""The circuit breaker of one shard: it keeps new items away from an unhealthy database.

The window over flushes (`core.limits.breaker_window`) decides when it opens; pybreaker
holds the state, the length of the reset timeout and the listener. It refuses new items only:
acks, nacks and deliveries continue, and their flushes count as well. Always
true: while it is half open, at most one flush with new items is under way. A
timer of the event loop ends the reset timeout, because pybreaker compares times
of the wall clock, which can jump, and only when it is called. Knows nothing of
the contents of a flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from pybreaker import STATE_CLOSED, STATE_HALF_OPEN, STATE_OPEN, CircuitBreaker, CircuitBreakerListener

from foqs.core.limits.breaker_window import SPAN_COUNT, BreakerSettings, FlushWindow
from foqs.shard.observer import ShardObserver
from foqs_contract.errors import Unavailable

log = logging.getLogger(__name__)

_RETRY_AFTER_MS_MIN: Final = 100
"""The shortest pause that callers are asked for: the probe takes a moment."""


class ShardBreaker(CircuitBreakerListener):
    """The circuit breaker of one ownership of a shard.

    Args:
        stopwatch_s: monotonic seconds.
        on_opened: called each time it opens, with the error for new items that wait to be written.
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
        self.is_open = False
        """Whether new items are refused until the reset timeout ends."""
        self._window = FlushWindow(settings)
        self._reason = ""
        """Why it was last opened."""
        self._circuit = CircuitBreaker(reset_timeout=settings.reset_s, listeners=[self])
        self._wait_started_s: float | None = None
        """When the wait for the database began, by a flush or a read; None while the writer does not wait."""
        self._retrying_since_s: float | None = None
        """When the first attempt of a retried flush began; None when there is none."""
        self._is_probing = False
        """The flush under way is the probe of the half-open state."""
        self._failure = ""
        """The last failure."""
        self._failed_s = 0.0
        """When the last failure happened."""
        self._watch_timer: asyncio.TimerHandle | None = None
        self._reset_timer: asyncio.TimerHandle | None = None
        """Ends the reset timeout; None before the breaker was opened."""

    @property
    def state(self) -> str:
        """The state of the breaker: closed, open or half-open."""
        return self._circuit.current_state

    def check(self) -> None:
        """Check that new items are accepted.

        Raises:
            Unavailable: they are not; nothing was written.
        """
        if self._is_probing or self.is_open:
            raise self.unavailable_error()

    def unavailable_error(self) -> Unavailable:
        """Return the error for new items that are refused."""
        timer = self._reset_timer
        remaining_s = 0.0 if timer is None else timer.when() - asyncio.get_running_loop().time()
        return Unavailable(
            f"shard {self._shard} refuses new items at the moment because its database is unhealthy: {self._reason}; "
            "try again, or try another shard",
            retry_after_ms=max(_RETRY_AFTER_MS_MIN, int(remaining_s * 1000)),
        )

    # ------------------------------------------------------- reports of the writer

    def on_wait_started(self, *, has_new_items: bool) -> None:
        """Record that the writer starts to wait for the database. `has_new_items`: for a flush with new items."""
        self._wait_started_s = self._stopwatch_s()
        self._is_probing = has_new_items and self.state == STATE_HALF_OPEN
        if self._watch_timer is None:
            self._schedule_watch()

    def on_flush_succeeded(self) -> None:
        """Record that the flush under way is committed."""
        self._record_outcome(None)

    def on_flush_failed(self, reason: str) -> None:
        """Record that the flush or the read under way failed, and not because of its contents."""
        self._record_outcome(reason)

    def on_flush_retry(self, first_attempt_s: float) -> None:
        """Record that a flush will be retried. It counts as waiting since its first attempt, also between two attempts."""
        self._retrying_since_s = first_attempt_s
        waited_s = self._stopwatch_s() - first_attempt_s
        if not self.is_open and waited_s >= self._settings.stall_s_max:
            self._open(f"a transaction was retried for {waited_s * 1000:.0f} ms, the last failure: {self._failure}")

    def on_retries_ended(self) -> None:
        """Record that the retried flush is committed, or is not retried any more."""
        self._retrying_since_s = None

    def on_wait_ended(self) -> None:
        """Record that the writer does not wait any more. A wait that neither succeeded nor failed does not count."""
        self._wait_started_s = None
        self._is_probing = False

    def close(self) -> None:
        """Stop its timers: the shard ends."""
        self.on_wait_ended()
        for timer in (self._watch_timer, self._reset_timer):
            if timer is not None:
                timer.cancel()

    # --------------------------------------------------------------------- inside

    def state_change(self, cb: CircuitBreaker, old_state: Any, new_state: Any) -> None:
        """Report and log a change of state. Called by pybreaker."""
        state = new_state.name
        self.is_open = state == STATE_OPEN
        self._observer.breaker_changed(self._shard, state)
        if state == STATE_OPEN:
            log.warning(
                "shard %d: the circuit breaker is open, so new items are refused: %s", self._shard, self._reason
            )
        elif state == STATE_HALF_OPEN:
            log.info("shard %d: the circuit breaker is half open: trying one transaction with new items", self._shard)
        else:
            log.info("shard %d: the circuit breaker is closed: new items are accepted again", self._shard)

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
                self._open(failure or f"the trial transaction took {took_s * 1000:.0f} ms")

    def _open_if_unhealthy(self) -> None:
        now_s = self._stopwatch_s()
        waiting_s = None if self._wait_started_s is None else now_s - self._wait_started_s
        reason = self._window.trip_reason(now_s, waiting_s)
        if reason is not None:
            failed_lately = self._failure and now_s - self._failed_s < self._settings.window_s
            self._open(f"{reason}, the last failure: {self._failure}" if failed_lately else reason)

    def _open(self, reason: str) -> None:
        self._reason = reason
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
        """Whether the writer has waited for too long."""
        now_s, settings = self._stopwatch_s(), self._settings
        is_late = self._wait_started_s is not None and now_s - self._wait_started_s > settings.latency_s_max
        return is_late or (
            self._retrying_since_s is not None and now_s - self._retrying_since_s >= settings.stall_s_max
        )

    def _schedule_watch(self) -> None:
        self._watch_timer = asyncio.get_running_loop().call_later(
            self._settings.window_s / SPAN_COUNT, self._check_wait
        )

    def _check_wait(self) -> None:
        """Check for how long the writer has waited, as no flush ends meanwhile."""
        self._watch_timer = None
        if self._wait_started_s is None:
            return
        if self.state == STATE_CLOSED:
            self._open_if_unhealthy()
        elif self.state == STATE_HALF_OPEN and self._is_stuck():
            self._open("a transaction gets no reply")
        self._schedule_watch()
