"""Settles items: sends their acks, nacks and releases.

Holds `Settler`. Always true: each kind has batches of its own for each host, and no
batch delays another. An ack or a completion is retried until a host replies with success
or a refusal; the lease of a completion is renewed meanwhile. A completion that is refused
for its new items is nacked, as if its handler had failed. A nack or a release is retried
until the lease ends, because the item then comes back by itself. Every settled item leaves
the in-flight set. Knows nothing of handlers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from foqs_client.client import COMMIT_TIMEOUT_MS, Client
from foqs_client.consumer.handler_outcome import HandlerOutcome, OutcomeKind, end_attempts, outcome_of
from foqs_client.consumer.in_flight_set import InFlightItem, InFlightSet
from foqs_client.consumer.settlement_queue import SettlementQueue, SettlementQueues
from foqs_client.errors import (
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    StaleLease,
)
from foqs_client.types import Completed, Completion, EntryResult, Nack, Outcome

ITEM_WEIGHT: Final = 1_024
"""What a new item weighs beside its bytes: a call then has at most about 500. A host takes 1,000 by default."""

_FOLLOWERS: Final = re.compile(r"\bcompletions\[[0-9]+\]\.items(?=\[)")
"""The items of a completion, which a handler knows as the argument `then` of `Job.done`."""
_SUPERSEDED: Final = "the item was delivered again, and its newer lease has replaced this one"

log = logging.getLogger("foqs.consumer")


class Settler:
    """Settles the items of one consumer.

    Args:
        on_changed: called when items have left the in-flight set.
        on_failure: gets an internal error, one that is not a FoqsError.
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
        self._completions: SettlementQueues[InFlightItem] = SettlementQueues(
            lambda: SettlementQueue(self._complete, self._on_completed, on_failure, rng, _completion_weight),
            self._owner_of,
        )
        self._nacks: SettlementQueues[InFlightItem] = SettlementQueues(
            lambda: SettlementQueue(self._nack, self._on_nacked, on_failure, rng), self._owner_of
        )
        self._releases: SettlementQueues[InFlightItem] = SettlementQueues(
            lambda: SettlementQueue(self._release, self._on_nacked, on_failure, rng), self._owner_of
        )

    def settle(self, item: InFlightItem) -> None:
        """Queue the item for the call that its outcome needs."""
        assert item.outcome is not None
        kind = item.outcome.kind
        if item.outcome.then:
            self._completions.put(item)
        elif kind is OutcomeKind.DONE or kind is OutcomeKind.DISCARDED:
            self._acks.put(item)
        elif kind is OutcomeKind.RELEASED:
            self._releases.put(item)
        else:
            self._nacks.put(item)

    async def close(self) -> None:
        """End the calls in flight. Their outcomes are unknown."""
        for queues in (self._acks, self._completions, self._nacks, self._releases):
            await queues.close()

    def _owner_of(self, item: InFlightItem) -> Hashable:
        return self._client.owner(item.delivery.id)

    async def _ack(self, batch: Sequence[InFlightItem]) -> Sequence[Outcome]:
        return await self._client.ack([item.delivery for item in batch], timeout_ms=COMMIT_TIMEOUT_MS)

    async def _complete(self, batch: Sequence[InFlightItem]) -> Sequence[EntryResult]:
        # An item that was delivered again has another completion here, and a host refuses an id that occurs twice.
        tokens: dict[str, int] = {}
        for delivery in [item.delivery for item in batch]:
            tokens[delivery.id] = max(delivery.token, tokens.get(delivery.id, delivery.token))
        sent = [item for item in batch if item.delivery.token == tokens[item.delivery.id]]
        completions = [Completion(item.delivery, _outcome_of(item).then) for item in sent]
        results = await self._client.complete(completions, timeout_ms=COMMIT_TIMEOUT_MS)
        if len(sent) == len(batch):
            return results
        by_item = dict(zip(sent, results, strict=True))
        return [by_item.get(item) or Completed(error=StaleLease(_SUPERSEDED)) for item in batch]

    async def _nack(self, batch: Sequence[InFlightItem]) -> Sequence[Outcome]:
        return await self._client.nack([_nack_of(item) for item in batch], timeout_ms=COMMIT_TIMEOUT_MS)

    async def _release(self, batch: Sequence[InFlightItem]) -> Sequence[Outcome]:
        return await self._client.release([item.delivery for item in batch], timeout_ms=COMMIT_TIMEOUT_MS)

    def _on_acked(self, batch: Sequence[InFlightItem], outcomes: Sequence[EntryResult]) -> Sequence[InFlightItem]:
        return self._apply_outcomes(batch, outcomes, lambda item, error: error.may_succeed_later)

    def _on_completed(self, batch: Sequence[InFlightItem], results: Sequence[EntryResult]) -> Sequence[InFlightItem]:
        """Nack the items whose completions will be refused again, as if their handlers had failed. Nothing of them was written."""
        others: list[tuple[InFlightItem, EntryResult]] = []
        for item, result in zip(batch, results, strict=True):
            error = result.error
            if error is None or _may_be_written_later(error) or isinstance(error, StaleLease | NotFound):
                others.append((item, result))
                continue
            error = error.with_renamed_places(lambda text: _FOLLOWERS.sub("then", text))
            log.warning("item %s is not done, because the items that follow are refused: %s", item.delivery.id, error)
            item.outcome = end_attempts(outcome_of(error, item.delivery.metadata), item.delivery)
            self._in_flight.end_renewal(item)
            self._nacks.put(item)
        if not others:
            return ()
        return self._apply_outcomes(
            [item for item, _ in others],
            [result for _, result in others],
            lambda item, error: _may_be_written_later(error),
        )

    def _on_nacked(self, batch: Sequence[InFlightItem], outcomes: Sequence[EntryResult]) -> Sequence[InFlightItem]:
        return self._apply_outcomes(batch, outcomes, self._should_retry_nack)

    def _apply_outcomes(
        self,
        batch: Sequence[InFlightItem],
        outcomes: Sequence[EntryResult],
        should_retry: Callable[[InFlightItem, FoqsError], bool],
    ) -> Sequence[InFlightItem]:
        """Remove settled and failed items from the in-flight set. Return the items to retry."""
        errors = [outcome.error for outcome in outcomes]
        if errors.count(None) == len(batch):
            self._in_flight.mark_settled(batch)
            self._on_changed()
            return ()
        settled: list[InFlightItem] = []
        to_retry: list[InFlightItem] = []
        for item, error in zip(batch, errors, strict=True):
            if error is None:
                settled.append(item)
            elif should_retry(item, error):
                to_retry.append(item)
            else:
                assert item.outcome is not None
                kind = item.outcome.kind.value
                log.warning("item %s could not be settled as %r: %s", item.delivery.id, kind, error)
                self._in_flight.mark_settle_failed(item)
        self._in_flight.mark_settled(settled)
        if len(to_retry) < len(batch):
            self._on_changed()
        return to_retry

    def _should_retry_nack(self, item: InFlightItem, error: FoqsError) -> bool:
        outcome = item.outcome
        assert outcome is not None
        if error.may_succeed_later:
            return asyncio.get_running_loop().time() < item.lease_end_s
        if not isinstance(error, InvalidArgument | LimitExceeded):
            return False
        if outcome.delay_ms is not None and (error.field or "").endswith("delay_ms"):
            log.warning(
                "item %s gets the backoff of its namespace; a host refused its delay: %s", item.delivery.id, error
            )
            item.outcome = replace(outcome, delay_ms=None)
            return True
        if outcome.metadata is not None:
            log.warning("item %s keeps its metadata; a host refused the new one: %s", item.delivery.id, error)
            item.outcome = replace(outcome, metadata=None)
            return True
        return False


def _outcome_of(item: InFlightItem) -> HandlerOutcome:
    assert item.outcome is not None
    return item.outcome


def _may_be_written_later(error: FoqsError) -> bool:
    """Whether a completion may pass later. A full backlog says when to try again."""
    return error.may_succeed_later or error.retry_after_ms is not None


def _completion_weight(item: InFlightItem) -> int:
    """Return about how many bytes the new items of an item take in a call, and at least as much as keeps their count bounded."""
    return sum(ITEM_WEIGHT + len(new.payload) + len(new.metadata) for new in _outcome_of(item).then)


def _nack_of(item: InFlightItem) -> Nack:
    outcome, delivery = _outcome_of(item), item.delivery
    return Nack(delivery.id, delivery.token, outcome.delay_ms, metadata=outcome.metadata, dead=outcome.is_given_up)
