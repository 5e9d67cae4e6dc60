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
from foqs_client.consumer.hand import Hand, Held, State
from foqs_client.consumer.settlement import LATER
from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_client.types import Outcome

LEASES_PER_CALL = 500

log = logging.getLogger("foqs.consumer")


class Renewal:
    """Of one consumer.

    Args:
        lease_ms: what the consumer asks for; None: the items' own lease durations.
        lost: told of each item that is lost.
        failed: told of an error that is no host's answer.
    """

    def __init__(
        self,
        client: Client,
        hand: Hand,
        lease_ms: int | None,
        lost: Callable[[Held], object],
        failed: Callable[[Exception], object],
    ) -> None:
        self._client = client
        self._hand = hand
        self._lease_ms = lease_ms
        self._lost = lost
        self._failed = failed
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_s = 0.0
        self._calls: dict[asyncio.Task[None], None] = {}

    def watch(self) -> None:
        """Items have come: has the timer ring when the first lease needs it."""
        next_s = self._hand.next_s
        if next_s is None or (self._alarm is not None and self._alarm_s <= next_s):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_s = next_s
        self._alarm = asyncio.get_running_loop().call_at(next_s, self._ring)

    def renew(self, due: Sequence[Held]) -> None:
        """Renews these now. An item whose renewal is under way is renewed when that ends, if it wants another length."""
        by_length: dict[int | None, list[Held]] = {}
        for held in due:
            if not held.renewing:
                held.renewing = True
                by_length.setdefault(held.lease_ms, []).append(held)
        for lease_ms, members in by_length.items():
            for start in range(0, len(members), LEASES_PER_CALL):
                call = asyncio.ensure_future(self._try(members[start : start + LEASES_PER_CALL], lease_ms))
                self._calls[call] = None
                call.add_done_callback(self._calls.pop)

    async def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _ring(self) -> None:
        self._alarm = None
        now_s = asyncio.get_running_loop().time()
        renew, lost = self._hand.due(max(now_s, self._alarm_s))
        for held in lost:
            log.warning("item %s was lost: its lease ended before it could be renewed", held.delivery.id)
            self._lost(held)
        self.renew(renew)
        self.watch()

    async def _try(self, members: Sequence[Held], lease_ms: int | None) -> None:
        try:
            await self._renew(members, lease_ms)
        except Exception as error:
            self._failed(error)

    async def _renew(self, members: Sequence[Held], lease_ms: int | None) -> None:
        now_s = asyncio.get_running_loop().time
        sent_s = now_s()
        self._hand.renewal_sent(members, sent_s, lease_ms)
        self.watch()
        left_ms = int((min(held.until_s for held in members) - sent_s) * 500)
        outcomes: Sequence[Outcome]
        try:
            outcomes = await self._client.extend(
                [held.delivery for held in members],
                lease_ms=lease_ms,
                timeout_ms=max(1, min(left_ms, self._client.timeout_ms)),
            )
        except FoqsError as error:
            outcomes = [Outcome(error)] * len(members)
        done: list[Held] = []
        again: list[Held] = []
        for held, outcome in zip(members, outcomes, strict=True):
            refusal = outcome.error
            held.renewing = False
            if held.lost or held.state not in (State.WAITING, State.RUNNING):
                continue
            if refusal is None:
                done.append(held)
            elif isinstance(refusal, LATER):
                again.append(held)
            elif isinstance(refusal, InvalidArgument | LimitExceeded) and lease_ms != self._lease_ms:
                log.warning("item %s keeps its lease, as another was refused: %s", held.delivery.id, refusal)
                if held.lease_ms == lease_ms:
                    held.lease_ms = self._lease_ms
                again.append(held)
            else:
                log.warning("item %s was lost: %s", held.delivery.id, refusal)
                self._hand.lose(held)
                self._lost(held)
        self._hand.renewed(done, sent_s, lease_ms)
        self._hand.not_renewed(again, now_s())
        self.renew([held for held in (*done, *again) if held.lease_ms != lease_ms])
        self.watch()
