"""Renews the leases of the items in flight.

Holds `LeaseRenewal`. Always true: one timer serves all leases. A lease is renewed
when half of it has passed, and retried until it ends, also while a completion waits. At
most one renewal of an item is in flight. An item is lost at once if its lease ends or a
host refuses it, unless its completion is under way. `InFlightSet` keeps the times.
Knows nothing of handlers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from foqs_client.client import Client
from foqs_client.consumer.in_flight_set import HandlingState, InFlightItem, InFlightSet
from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_client.types import Outcome

LEASES_PER_CALL = 500

log = logging.getLogger("foqs.consumer")


class LeaseRenewal:
    """The lease renewals of one consumer.

    Args:
        lease_ms: the duration of renewed leases; None: the items' own lease durations.
        on_lost: gets each item that is lost.
        on_failure: gets an internal error, one that is not a FoqsError.
    """

    def __init__(
        self,
        client: Client,
        in_flight: InFlightSet,
        lease_ms: int | None,
        on_lost: Callable[[InFlightItem], object],
        on_failure: Callable[[Exception], object],
    ) -> None:
        self._client = client
        self._in_flight = in_flight
        self._lease_ms = lease_ms
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._calls: dict[asyncio.Task[None], None] = {}

    def schedule(self) -> None:
        """Set the timer to the first moment at which a lease needs it."""
        next_s = self._in_flight.next_timer_s
        if next_s is None or (self._timer is not None and self._timer_at_s <= next_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = next_s
        self._timer = asyncio.get_running_loop().call_at(next_s, self._on_timer)

    def renew(self, items: Sequence[InFlightItem]) -> None:
        """Renew leases now. If a renewal of an item is in flight and its duration differs, another follows it."""
        by_lease_ms: dict[int | None, list[InFlightItem]] = {}
        for item in items:
            if not item.is_renewing:
                item.is_renewing = True
                by_lease_ms.setdefault(item.lease_ms, []).append(item)
        for lease_ms, members in by_lease_ms.items():
            for start in range(0, len(members), LEASES_PER_CALL):
                call = asyncio.ensure_future(self._run_renewal(members[start : start + LEASES_PER_CALL], lease_ms))
                self._calls[call] = None
                call.add_done_callback(self._calls.pop)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _on_timer(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        renew, lost = self._in_flight.pop_due(max(now_s, self._timer_at_s))
        for item in lost:
            log.warning(
                "the lease of item %s ended before it could be renewed; this worker no longer settles it",
                item.delivery.id,
            )
            self._on_lost(item)
        self.renew(renew)
        self.schedule()

    async def _run_renewal(self, items: Sequence[InFlightItem], lease_ms: int | None) -> None:
        try:
            await self._renew(items, lease_ms)
        except Exception as error:
            self._on_failure(error)

    async def _renew(self, items: Sequence[InFlightItem], lease_ms: int | None) -> None:
        now_s = asyncio.get_running_loop().time
        sent_s = now_s()
        self._in_flight.on_renewal_sent(items, sent_s, lease_ms)
        self.schedule()
        left_ms = int((min(item.lease_end_s for item in items) - sent_s) * 500)
        outcomes: Sequence[Outcome]
        try:
            outcomes = await self._client.extend(
                [item.delivery for item in items],
                lease_ms=lease_ms,
                timeout_ms=max(1, min(left_ms, self._client.timeout_ms)),
            )
        except FoqsError as error:
            outcomes = [Outcome(error)] * len(items)
        renewed: list[InFlightItem] = []
        failed: list[InFlightItem] = []
        for item, outcome in zip(items, outcomes, strict=True):
            refusal = outcome.error
            item.is_renewing = False
            if not item.needs_lease:
                continue
            if refusal is None:
                renewed.append(item)
            elif refusal.may_succeed_later:
                failed.append(item)
            elif isinstance(refusal, InvalidArgument | LimitExceeded) and lease_ms != self._lease_ms:
                log.warning(
                    "item %s keeps the lease duration of its worker; a host refused another one: %s",
                    item.delivery.id,
                    refusal,
                )
                if item.lease_ms == lease_ms:
                    item.lease_ms = self._lease_ms
                failed.append(item)
            elif item.state is HandlingState.SETTLING:  # its completion may be written, and the reply on its way
                self._in_flight.end_renewal(item)
            else:
                log.warning("the lease of item %s was lost: %s", item.delivery.id, refusal)
                self._in_flight.mark_lost(item)
                self._on_lost(item)
        self._in_flight.on_renewed(renewed, sent_s, lease_ms)
        self._in_flight.on_renewal_failed(failed, now_s())
        self.renew([item for item in (*renewed, *failed) if item.lease_ms != lease_ms])
        self.schedule()
