"""Deliveries that a host or a client received but no caller got, and their releases.

Holds `SurplusLedger`, the ledger of one run, and `CountedClient`, a client that
writes to it; `CountedPeers` does so for hosts. Always true: it changes no call. A
received item is delivered to a caller or released, and a release that succeeds
costs no attempt. Both are invariant 8: a delivery without a receiver is no attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from foqs_client import Deliveries, Outcome
from tests.support.request_time_client import SURPLUS_AGE_S_MAX, RequestTimeClient

NAMES: Final = ("surplus released by hosts", "surplus released by clients")
"""Items."""

Leased: TypeAlias = tuple[str, int]
"""An item's id, and its lease's token."""
Row: TypeAlias = tuple[int, int]
"""An item's last token, and its attempts as they count now."""


class SurplusLedger:
    """Args:
    counts: the counters, by `NAMES`.
    now_s: the observer's clock.
    row: returns the row of an item; None if it is deleted.
    """

    def __init__(self, counts: Counter[str], now_s: Callable[[], float], row: Callable[[str], Row | None]) -> None:
        self.wrong: dict[str, None] = {}
        """The violations that releases showed."""
        self._counts = counts
        self._now_s = now_s
        self._row = row
        self._attempts: dict[Leased, int] = {}
        self._kept: dict[Leased, tuple[str, float]] = {}
        """By lease, its receiver and the time."""

    def on_received(self, receiver: str, deliveries: Iterable[Any]) -> None:
        """Record deliveries that are neither passed to a caller nor released yet."""
        now_s = self._now_s()
        for each in deliveries:
            self._attempts[each.id, each.token] = each.attempt
            self._kept[each.id, each.token] = receiver, now_s

    def on_accounted(self, deliveries: Iterable[Any]) -> None:
        """Record that deliveries are passed to callers, or that their release is requested."""
        for each in deliveries:
            self._kept.pop((each.id, each.token), None)

    def on_released(self, name: str, leases: Iterable[Any], errors: Iterable[object]) -> None:
        """Record the results of a release: an error or None for each."""
        for lease, error in zip(leases, errors, strict=False):
            attempt, row = self._attempts.get((lease.id, lease.token)), self._row(lease.id)
            if error is not None or attempt is None:
                continue
            self._counts[name] += 1
            # The token is negative after a nack or a release.
            if row is not None and abs(row[0]) == lease.token and row[1] >= attempt:
                self.wrong[
                    f"invariant 8: no caller received attempt {attempt} of {lease.id}, which was released and counts"
                ] = None

    def unreleased(self, dead: Iterable[str]) -> list[str]:
        """Return the deliveries that were neither passed to a caller nor released, except those of killed processes."""
        gone, now_s = set(dead), self._now_s()
        return [
            f"invariant 8: {receiver} kept {id}, token {token}, which no caller of its got, and did not release it"
            for (id, token), (receiver, since_s) in self._kept.items()
            if receiver not in gone and now_s - since_s > SURPLUS_AGE_S_MAX
        ]


class CountedClient(RequestTimeClient):
    """Args:
    surplus: the ledger of the items that the client receives.
    name: the name of the client.
    """

    def __init__(self, surplus: SurplusLedger, name: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._surplus = surplus
        self._called = name

    async def dequeue(self, *arguments: Any, **options: Any) -> Deliveries:
        deliveries = await super().dequeue(*arguments, **options)
        self._surplus.on_accounted(deliveries)
        return deliveries

    async def _dequeue_from(self, *arguments: Any, **options: Any) -> Deliveries:
        deliveries = await super()._dequeue_from(*arguments, **options)
        self._surplus.on_received(self._called, deliveries)
        return deliveries

    async def _call_by_id(
        self,
        method: Any,
        make_request: Any,
        entries: list[Any],
        retry_class: Any,
        timeout_ms: int | None,
        *,
        immediate: bool = False,
    ) -> list[Outcome]:
        if immediate:
            self._surplus.on_accounted(entries)
        outcomes = await super()._call_by_id(
            method, make_request, entries, retry_class, timeout_ms, immediate=immediate
        )
        if immediate:
            self._surplus.on_released(NAMES[1], entries, [outcome.error for outcome in outcomes])
        return outcomes
