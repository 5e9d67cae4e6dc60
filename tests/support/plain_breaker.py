"""A plain window of flushes that keeps every flush: the specification of `foqs.core.limits.breaker_window`."""

from __future__ import annotations

from foqs.core.limits.breaker_window import SPAN_COUNT, BreakerSettings


class PlainWindow:
    """Holds all flushes that ended."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._ended: list[tuple[int, float, bool]] = []
        """(span, seconds, failed)."""

    def add(self, now_s: float, seconds: float, *, failed: bool) -> None:
        self._ended.append((self._span(now_s), seconds, failed))

    def clear(self) -> None:
        self._ended.clear()

    def opens(self, now_s: float, waiting_s: float | None) -> bool:
        """Return whether the breaker must open."""
        settings = self._settings
        recent = [(seconds, failed) for span, seconds, failed in self._ended if span > self._span(now_s) - SPAN_COUNT]
        failures = sum(failed for _, failed in recent)
        if len(recent) >= settings.flushes_min and failures * 100 >= settings.error_percent * len(recent):
            return True
        if waiting_s is not None and waiting_s >= settings.flushes_min * settings.latency_s_max:
            return True
        times = [seconds for seconds, _ in recent] + ([] if waiting_s is None else [waiting_s])
        return len(times) >= settings.flushes_min and sum(times) > settings.latency_s_max * len(times)

    def _span(self, now_s: float) -> int:
        return int(now_s / (self._settings.window_s / SPAN_COUNT))
