"""The outcome of a handler, and the counts of all outcomes.

Holds `HandlerOutcome`, `outcome_of` and `Counts`. Always true: every exception of a
handler has an outcome that a call can send, also one whose attributes or text raise.
A failure reason never replaces metadata that a producer wrote. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from foqs_client.consumer.job import Dead, Discard, NotBegun, RemoteError, Retry
from foqs_client.safe_text import safe_text
from foqs_client.types import Delivery, Item

REASON_PREFIX: Final = b"failed: "
"""The beginning of metadata that is the reason of an earlier failure. The next failure may replace such metadata."""
REASON_CHARACTERS_MAX: Final = 200


class OutcomeKind(enum.Enum):
    """The ways in which a consumer ends its work on an item."""

    DONE = "done"
    RETRIED = "retried"
    DEAD = "dead"
    DISCARDED = "discarded"
    RELEASED = "released"
    LOST = "lost"

    __hash__ = object.__hash__  # members are singletons; the hash of Enum is ten times as slow


@dataclass(slots=True, frozen=True)
class HandlerOutcome:
    """The outcome of a handler: the way in which its item is settled.

    Attributes:
        delay_ms: the delay of a retry; None: the namespace's backoff.
        metadata: the new metadata of a retried or dead item; None keeps it.
        error: a sentence for the log; None if nothing is wrong.
        is_given_up: the handler gave the item up. One that failed in its last attempt is nacked like any other: its host
            knows what becomes of it.
        then: the items that follow from a done one.
    """

    kind: OutcomeKind
    delay_ms: int | None = None
    metadata: bytes | None = None
    error: str | None = None
    is_given_up: bool = False
    then: Sequence[Item] = ()


@dataclass(slots=True, frozen=True)
class Counts:
    """The items of a consumer by their outcome, and those in flight. `+` adds the counts of consumers.

    Attributes:
        done: acked after their handlers returned.
        retried: nacked, and delivered again later.
        dead: given up by their handlers, or failed in the last of their attempts: dead, or deleted if they were delivered
            at most once or had expired.
        discarded: deleted because their handlers raised `Discard`.
        released: returned before a handler began its work, or interrupted by a stop.
        lost: the lease ended before the item was settled.
        running: the items in flight with a running handler.
        waiting: the items in flight whose handler does not run yet.
    """

    done: int = 0
    retried: int = 0
    dead: int = 0
    discarded: int = 0
    released: int = 0
    lost: int = 0
    running: int = 0
    waiting: int = 0

    def __add__(self, other: Counts) -> Counts:
        others = asdict(other)
        return Counts(**{name: value + others[name] for name, value in asdict(self).items()})


DONE: Final = HandlerOutcome(OutcomeKind.DONE)
RELEASED: Final = HandlerOutcome(OutcomeKind.RELEASED)
DISCARDED: Final = HandlerOutcome(OutcomeKind.DISCARDED)


def end_attempts(outcome: HandlerOutcome, delivery: Delivery) -> HandlerOutcome:
    """Return the outcome, counted as dead if the item was to be retried and this was the last of its attempts."""
    if outcome.kind is not OutcomeKind.RETRIED or not 0 < delivery.attempts_max <= delivery.attempt:
        return outcome
    return replace(outcome, kind=OutcomeKind.DEAD, error=outcome.error or "its handler asked for a retry")


def describe_attempt(delivery: Delivery) -> str:
    """Return the number of the attempt for the log, with the maximum: `attempt 2 of 5`, or `attempt 8, no maximum,`."""
    return f"attempt {delivery.attempt}" + (
        f" of {delivery.attempts_max}" if delivery.attempts_max else ", no maximum,"
    )


def outcome_of(error: BaseException | None, metadata: bytes) -> HandlerOutcome:
    """Return the outcome of an item with this metadata, whose handler returned (None) or raised `error`."""
    if error is None:
        return DONE
    if isinstance(error, Discard):
        return DISCARDED
    if isinstance(error, NotBegun):
        return RELEASED
    try:
        # Both are made again, which checks their values: a subclass or a handler may have set others.
        if isinstance(error, Retry):
            again = Retry(error.delay_ms, error.metadata)
            return HandlerOutcome(OutcomeKind.RETRIED, again.delay_ms, again.metadata)
        if isinstance(error, Dead):
            reason = Dead(error.reason).reason
            given_up = reason[:REASON_CHARACTERS_MAX].encode() or None
            error_text = reason or "given up by its handler"
            return HandlerOutcome(OutcomeKind.DEAD, metadata=given_up, error=error_text, is_given_up=True)
    except Exception as unusable:
        error = unusable
    text = describe_error(error)
    may_replace = not metadata or metadata.startswith(REASON_PREFIX)
    reason_bytes = REASON_PREFIX + text[:REASON_CHARACTERS_MAX].encode() if may_replace else None
    return HandlerOutcome(OutcomeKind.RETRIED, metadata=reason_bytes, error=text)


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an exception. Never raises."""
    text = safe_text(error)
    if isinstance(error, RemoteError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
