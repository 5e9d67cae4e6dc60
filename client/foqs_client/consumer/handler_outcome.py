"""What becomes of an item, by what its handler came to.

Holds `Verdict` and `verdict_of`. Always true: there is one for everything that a
handler can raise; metadata that a producer wrote is not replaced by a reason.
Pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from foqs_client.consumer.job import Dead, Discard, RemoteError, Retry

REASON_PREFIX: Final = b"failed: "
"""How metadata begins that is the reason of an earlier failure, and may be replaced by the next."""
REASON_CHARACTERS_MAX: Final = 200


class OutcomeKind(enum.Enum):
    """What an item ends as, in this consumer."""

    DONE = "done"
    RETRIED = "retried"
    DEAD = "dead"
    DISCARDED = "discarded"
    RELEASED = "released"
    LOST = "lost"

    __hash__ = object.__hash__  # each is there once; the enum's own is ten times as slow


@dataclass(slots=True, frozen=True)
class HandlerOutcome:
    """What the hosts are to be told.

    Attributes:
        delay_ms: of a retry; None: by the namespace's backoff.
        metadata: of a retry or a dead one; None: it stays.
        error: what a person is to be told of; None where nothing is wrong.
    """

    kind: OutcomeKind
    delay_ms: int | None = None
    metadata: bytes | None = None
    error: str | None = None


DONE: Final = HandlerOutcome(OutcomeKind.DONE)
RELEASED: Final = HandlerOutcome(OutcomeKind.RELEASED)
DISCARDED: Final = HandlerOutcome(OutcomeKind.DISCARDED)


def outcome_of(error: BaseException | None, metadata: bytes) -> HandlerOutcome:
    """The verdict on an item with this metadata, whose handler returned (None) or raised."""
    if error is None:
        return DONE
    if isinstance(error, Retry):
        return HandlerOutcome(OutcomeKind.RETRIED, error.delay_ms, error.metadata)
    if isinstance(error, Dead):
        text = error.reason[:REASON_CHARACTERS_MAX].encode() if error.reason else None
        return HandlerOutcome(OutcomeKind.DEAD, metadata=text, error=error.reason or "given up by its handler")
    if isinstance(error, Discard):
        return DISCARDED
    said = describe_error(error)
    free = not metadata or metadata.startswith(REASON_PREFIX)
    reason = REASON_PREFIX + said[:REASON_CHARACTERS_MAX].encode("utf-8", "replace") if free else None
    return HandlerOutcome(OutcomeKind.RETRIED, metadata=reason, error=said)


def describe_error(error: BaseException) -> str:
    """An exception in a line."""
    if isinstance(error, RemoteError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
