"""The limits of namespaces at a host alone: the whole limit is its own.

Holds `WholeLimit`, which enqueues use like a `rate_allocation.RateAllocation`, and
`WholeLimits`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from foqs.core.limits.token_bucket import TokenBucket

_NAMESPACES_MAX: Final = 10_000
"""With more namespaces than this, those that were unused for a minute are forgotten."""


class WholeLimit(TokenBucket):
    """The limits of one namespace at a host alone, which are not divided."""

    __slots__ = ()

    scope = ""
    elsewhere_items = 0
    elsewhere_bytes = 0

    def record_request(self, items: int, now_s: float) -> None:
        """Do nothing: the limit does not depend on the items that callers ask for."""

    def items_max(self, limit: int) -> int:
        return limit

    def bytes_max(self, limit: int) -> int:
        return limit


class WholeLimits:
    """The limits of all namespaces at a host alone, which are not divided."""

    def __init__(self, stopwatch_s: Callable[[], float]) -> None:
        self._stopwatch_s = stopwatch_s
        self._by_namespace: dict[str, WholeLimit] = {}

    def of(self, namespace: str) -> WholeLimit:
        """Return the limits of a namespace."""
        found = self._by_namespace.get(namespace)
        if found is None:
            if len(self._by_namespace) >= _NAMESPACES_MAX:
                now_s = self._stopwatch_s()
                self._by_namespace = {name: old for name, old in self._by_namespace.items() if not old.is_full(now_s)}
            found = self._by_namespace[namespace] = WholeLimit()
        return found

    def forget(self, namespaces: Iterable[str]) -> None:
        """Forget the use of namespaces that were deleted."""
        for name in namespaces:
            self._by_namespace.pop(name, None)
