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

from foqs_client.client import COMMIT_MS, Client
from foqs_client.consumer.hand import Hand, Held
from foqs_client.consumer.outbox import Outbox, Outboxes
from foqs_client.consumer.verdict import Fate, Verdict
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

LATER: Final = (
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


class Settlement:
    """Of one consumer.

    Args:
        changed: called when items have left the hand.
        failed: told of an error that is no host's answer.
    """

    def __init__(
        self,
        client: Client,
        hand: Hand,
        changed: Callable[[], object],
        failed: Callable[[Exception], object],
        rng: Random,
    ) -> None:
        self._client = client
        self._hand = hand
        self._changed = changed
        self._acks: Outboxes[Held] = Outboxes(lambda: Outbox(self._ack, self._acked, failed, rng), self._where)
        self._nacks: Outboxes[Held] = Outboxes(lambda: Outbox(self._nack, self._nacked, failed, rng), self._where)
        self._releases: Outboxes[Held] = Outboxes(lambda: Outbox(self._release, self._nacked, failed, rng), self._where)

    def tell(self, held: Held) -> None:
        """It has a verdict."""
        assert held.verdict is not None
        fate = held.verdict.fate
        if fate is Fate.DONE or fate is Fate.DISCARDED:
            self._acks.put(held)
        elif fate is Fate.RELEASED:
            self._releases.put(held)
        else:
            self._nacks.put(held)

    async def close(self) -> None:
        """Ends the calls under way; they may or may not have been read."""
        for outboxes in (self._acks, self._nacks, self._releases):
            await outboxes.close()

    def _where(self, held: Held) -> Hashable:
        return self._client.owner(held.delivery.id)

    async def _ack(self, batch: Sequence[Held]) -> Sequence[Outcome]:
        return await self._client.ack([held.delivery for held in batch], timeout_ms=COMMIT_MS)

    async def _nack(self, batch: Sequence[Held]) -> Sequence[Outcome]:
        return await self._client.nack([_nack_of(held) for held in batch], timeout_ms=COMMIT_MS)

    async def _release(self, batch: Sequence[Held]) -> Sequence[Outcome]:
        return await self._client.release([held.delivery for held in batch], timeout_ms=COMMIT_MS)

    def _acked(self, batch: Sequence[Held], outcomes: Sequence[Outcome]) -> Sequence[Held]:
        return self._told(batch, outcomes, lambda held, error: isinstance(error, LATER))

    def _nacked(self, batch: Sequence[Held], outcomes: Sequence[Outcome]) -> Sequence[Held]:
        return self._told(batch, outcomes, self._nack_again)

    def _told(
        self, batch: Sequence[Held], outcomes: Sequence[Outcome], again: Callable[[Held, FoqsError], bool]
    ) -> Sequence[Held]:
        """Those that were told leave the hand. Returns the others."""
        errors = [outcome.error for outcome in outcomes]
        if errors.count(None) == len(batch):
            self._hand.settle(batch)
            self._changed()
            return ()
        settled: list[Held] = []
        left: list[Held] = []
        for held, error in zip(batch, errors, strict=True):
            if error is None:
                settled.append(held)
            elif again(held, error):
                left.append(held)
            else:
                assert held.verdict is not None
                fate = held.verdict.fate.value
                log.warning("item %s: the hosts were told %r to no avail: %s", held.delivery.id, fate, error)
                self._hand.settle_in_vain(held)
        self._hand.settle(settled)
        if len(left) < len(batch):
            self._changed()
        return left

    def _nack_again(self, held: Held, error: FoqsError) -> bool:
        verdict = held.verdict
        assert verdict is not None
        if isinstance(error, LATER):
            return asyncio.get_running_loop().time() < held.until_s
        if isinstance(error, InvalidArgument | LimitExceeded) and verdict.metadata is not None:
            log.warning("item %s keeps its metadata, as the new one was refused: %s", held.delivery.id, error)
            held.verdict = Verdict(verdict.fate, verdict.delay_ms, None, verdict.error)
            return True
        return False


def _nack_of(held: Held) -> Nack:
    verdict, delivery = held.verdict, held.delivery
    assert verdict is not None
    return Nack(
        delivery.id, delivery.token, verdict.delay_ms, metadata=verdict.metadata, dead=verdict.fate is Fate.DEAD
    )
