"""Keeping the leases of the items in hand.

Holds `Renewal`. Always true: one timer serves all leases; a lease is renewed when
half of it is over, and again and again until it ends; of one item one renewal is
under way at a time; an item whose lease ended, or that a host says is not ours, is
lost at once. `Hand` decides by what a host answers. Knows nothing of handlers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from foqs_client.client import Client
from foqs_client.consumer.in_flight_set import HandlingState, InFlightItem, InFlightSet
from foqs_client.consumer.settler import RETRYABLE
from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_client.types import Outcome

LEASES_PER_CALL = 500

log = logging.getLogger("foqs.consumer")


class LeaseRenewal:
    """Of one consumer.

    Args:
        lease_ms: what the consumer asks for; None: the items' own lease durations.
        on_lost: told of each item that is lost.
        on_failure: told of an error that is no host's answer.
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
        """Items have come: has the timer ring when the first lease needs it."""
        next_s = self._in_flight.next_timer_s
        if next_s is None or (self._timer is not None and self._timer_at_s <= next_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = next_s
        self._timer = asyncio.get_running_loop().call_at(next_s, self._on_timer)

    def renew(self, items: Sequence[InFlightItem]) -> None:
        """Renews these now. An item whose renewal is under way is renewed when that ends, if it wants another length."""
        by_length: dict[int | None, list[InFlightItem]] = {}
        for held in items:
            if not held.is_renewing:
                held.is_renewing = True
                by_length.setdefault(held.lease_ms, []).append(held)
        for lease_ms, members in by_length.items():
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
        for held in lost:
            log.warning("item %s was lost: its lease ended before it could be renewed", held.delivery.id)
            self._on_lost(held)
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
        left_ms = int((min(held.lease_end_s for held in items) - sent_s) * 500)
        outcomes: Sequence[Outcome]
        try:
            outcomes = await self._client.extend(
                [held.delivery for held in items],
                lease_ms=lease_ms,
                timeout_ms=max(1, min(left_ms, self._client.timeout_ms)),
            )
        except FoqsError as error:
            outcomes = [Outcome(error)] * len(items)
        done: list[InFlightItem] = []
        again: list[InFlightItem] = []
        for held, outcome in zip(items, outcomes, strict=True):
            refusal = outcome.error
            held.is_renewing = False
            if held.is_lost or held.state not in (HandlingState.WAITING, HandlingState.RUNNING):
                continue
            if refusal is None:
                done.append(held)
            elif isinstance(refusal, RETRYABLE):
                again.append(held)
            elif isinstance(refusal, InvalidArgument | LimitExceeded) and lease_ms != self._lease_ms:
                log.warning("item %s keeps its lease, as another was refused: %s", held.delivery.id, refusal)
                if held.lease_ms == lease_ms:
                    held.lease_ms = self._lease_ms
                again.append(held)
            else:
                log.warning("item %s was lost: %s", held.delivery.id, refusal)
                self._in_flight.mark_lost(held)
                self._on_lost(held)
        self._in_flight.on_renewed(done, sent_s, lease_ms)
        self._in_flight.on_renewal_failed(again, now_s())
        self.renew([held for held in (*done, *again) if held.lease_ms != lease_ms])
        self.schedule()
