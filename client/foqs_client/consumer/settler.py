"""Telling the hosts what came of items.

Holds `Settlement`. Always true: acks, nacks and releases each go in batches of
their own, to each host its own, and none holds up another; what may be told again is, an ack until a
host says what holds, the others until the lease ends, as the item comes back by
itself then; every item that was told of, or needs not be any more, leaves the
hand. Knows nothing of handlers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from random import Random
from typing import Final

from foqs_client.client import COMMIT_TIMEOUT_MS, Client
from foqs_client.consumer.handler_outcome import HandlerOutcome, OutcomeKind
from foqs_client.consumer.in_flight_set import InFlightItem, InFlightSet
from foqs_client.consumer.settlement_queue import SettlementQueue, SettlementQueues
from foqs_client.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    NotOwner,
    Overloaded,
    RateLimited,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.types import Nack, Outcome

RETRYABLE: Final = (
    DeadlineExceeded,
    NotOwner,
    Overloaded,
    RateLimited,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
"""What a host, or none, may answer to be told again."""

log = logging.getLogger("foqs.consumer")


class Settler:
    """Of one consumer.

    Args:
        on_changed: called when items have left the hand.
        on_failure: told of an error that is no host's answer.
    """

    def __init__(
        self,
        client: Client,
        in_flight: InFlightSet,
        on_changed: Callable[[], object],
        on_failure: Callable[[Exception], object],
        rng: Random,
    ) -> None:
        self._client = client
        self._in_flight = in_flight
        self._on_changed = on_changed
        self._acks: SettlementQueues[InFlightItem] = SettlementQueues(
            lambda: SettlementQueue(self._ack, self._on_acked, on_failure, rng), self._owner_of
        )
        self._nacks: SettlementQueues[InFlightItem] = SettlementQueues(
            lambda: SettlementQueue(self._nack, self._on_nacked, on_failure, rng), self._owner_of
        )
        self._releases: SettlementQueues[InFlightItem] = SettlementQueues(
            lambda: SettlementQueue(self._release, self._on_nacked, on_failure, rng), self._owner_of
        )

    def settle(self, item: InFlightItem) -> None:
        """It has a verdict."""
        assert item.outcome is not None
        fate = item.outcome.kind
        if fate is OutcomeKind.DONE or fate is OutcomeKind.DISCARDED:
            self._acks.put(item)
        elif fate is OutcomeKind.RELEASED:
            self._releases.put(item)
        else:
            self._nacks.put(item)

    async def close(self) -> None:
        """Ends the calls under way; they may or may not have been read."""
        for outboxes in (self._acks, self._nacks, self._releases):
            await outboxes.close()

    def _owner_of(self, item: InFlightItem) -> Hashable:
        return self._client.owner(item.delivery.id)

    async def _ack(self, batch: Sequence[InFlightItem]) -> Sequence[Outcome]:
        return await self._client.ack([held.delivery for held in batch], timeout_ms=COMMIT_TIMEOUT_MS)

    async def _nack(self, batch: Sequence[InFlightItem]) -> Sequence[Outcome]:
        return await self._client.nack([_nack_of(held) for held in batch], timeout_ms=COMMIT_TIMEOUT_MS)

    async def _release(self, batch: Sequence[InFlightItem]) -> Sequence[Outcome]:
        return await self._client.release([held.delivery for held in batch], timeout_ms=COMMIT_TIMEOUT_MS)

    def _on_acked(self, batch: Sequence[InFlightItem], outcomes: Sequence[Outcome]) -> Sequence[InFlightItem]:
        return self._apply_outcomes(batch, outcomes, lambda held, error: isinstance(error, RETRYABLE))

    def _on_nacked(self, batch: Sequence[InFlightItem], outcomes: Sequence[Outcome]) -> Sequence[InFlightItem]:
        return self._apply_outcomes(batch, outcomes, self._should_retry_nack)

    def _apply_outcomes(
        self,
        batch: Sequence[InFlightItem],
        outcomes: Sequence[Outcome],
        should_retry: Callable[[InFlightItem, FoqsError], bool],
    ) -> Sequence[InFlightItem]:
        """Those that were told leave the hand. Returns the others."""
        errors = [outcome.error for outcome in outcomes]
        if errors.count(None) == len(batch):
            self._in_flight.mark_settled(batch)
            self._on_changed()
            return ()
        settled: list[InFlightItem] = []
        left: list[InFlightItem] = []
        for held, error in zip(batch, errors, strict=True):
            if error is None:
                settled.append(held)
            elif should_retry(held, error):
                left.append(held)
            else:
                assert held.outcome is not None
                fate = held.outcome.kind.value
                log.warning("item %s: the hosts were told %r to no avail: %s", held.delivery.id, fate, error)
                self._in_flight.mark_settle_failed(held)
        self._in_flight.mark_settled(settled)
        if len(left) < len(batch):
            self._on_changed()
        return left

    def _should_retry_nack(self, item: InFlightItem, error: FoqsError) -> bool:
        verdict = item.outcome
        assert verdict is not None
        if isinstance(error, RETRYABLE):
            return asyncio.get_running_loop().time() < item.lease_end_s
        if isinstance(error, InvalidArgument | LimitExceeded) and verdict.metadata is not None:
            log.warning("item %s keeps its metadata, as the new one was refused: %s", item.delivery.id, error)
            item.outcome = HandlerOutcome(verdict.kind, verdict.delay_ms, None, verdict.error)
            return True
        return False


def _nack_of(item: InFlightItem) -> Nack:
    verdict, delivery = item.outcome, item.delivery
    assert verdict is not None
    return Nack(
        delivery.id, delivery.token, verdict.delay_ms, metadata=verdict.metadata, dead=verdict.kind is OutcomeKind.DEAD
    )
