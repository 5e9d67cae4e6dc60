"""What a reply makes of an outbox row that was sent: one table.

Always true: a row that an earlier, unanswered send may have written is never sent again
under a later end of its key, unless an operator says so. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from foqs_client.errors import InvalidArgument, KeyConflict, KeyEnded, LimitExceeded, UnknownOutcome
from foqs_contract.errors import FoqsError


class SentState(enum.Enum):
    """The knowledge about a row that is stamped."""

    IN_FLIGHT = enum.auto()
    """No earlier send is unanswered."""
    IN_DOUBT = enum.auto()
    """An earlier send may have written it, or may still write it."""


class Reply(enum.Enum):
    """The replies that a send of one row can get."""

    WRITTEN = enum.auto()
    """An id, of this send or of an earlier one with the key."""
    LATER = enum.auto()
    """This send wrote nothing. The row may be accepted later."""
    REFUSED = enum.auto()
    """This send wrote nothing, and the row as it is will not be accepted."""
    ENDED = enum.auto()
    """This send wrote nothing, and the shard does not remember whether an earlier one did."""
    PARTLY_KNOWN = enum.auto()
    """This send wrote nothing: the shard remembers the keys of some rows of the atomic call, and not of all."""
    UNKNOWN = enum.auto()
    """No answer, or one that says that the outcome is unknown."""


class RowOutcome(enum.Enum):
    """The treatment of a row after its reply."""

    DONE = enum.auto()
    """The next round deletes it."""
    FORGOTTEN = enum.auto()
    """Its stamp ends. A sweep finds it again."""
    DOUBTED = enum.auto()
    """It is sent again under the same stamp."""
    PARKED = enum.auto()
    """An operator decides. It is not in the queue."""
    PARKED_IN_DOUBT = enum.auto()
    """An operator decides. It may be in the queue."""


ROW_OUTCOMES: Final[Mapping[tuple[SentState, Reply], RowOutcome]] = {
    (SentState.IN_FLIGHT, Reply.WRITTEN): RowOutcome.DONE,
    (SentState.IN_FLIGHT, Reply.LATER): RowOutcome.FORGOTTEN,
    (SentState.IN_FLIGHT, Reply.REFUSED): RowOutcome.PARKED,
    (SentState.IN_FLIGHT, Reply.ENDED): RowOutcome.FORGOTTEN,  # it was sent late; the next stamp has a later end
    (SentState.IN_FLIGHT, Reply.PARTLY_KNOWN): RowOutcome.DOUBTED,  # one by one, each row learns what is so of it
    (SentState.IN_FLIGHT, Reply.UNKNOWN): RowOutcome.DOUBTED,
    (SentState.IN_DOUBT, Reply.WRITTEN): RowOutcome.DONE,
    (SentState.IN_DOUBT, Reply.LATER): RowOutcome.DOUBTED,  # it says nothing of the earlier send
    (SentState.IN_DOUBT, Reply.REFUSED): RowOutcome.PARKED_IN_DOUBT,
    (SentState.IN_DOUBT, Reply.ENDED): RowOutcome.PARKED_IN_DOUBT,
    (SentState.IN_DOUBT, Reply.PARTLY_KNOWN): RowOutcome.DOUBTED,
    (SentState.IN_DOUBT, Reply.UNKNOWN): RowOutcome.DOUBTED,
}

KEY_UNTIL_FIELD: Final = "key_until_ms"

_REFUSED: Final = (InvalidArgument, KeyConflict)


def replies_of(answers: Mapping[int, FoqsError | None], *, is_atomic: bool) -> dict[int, Reply]:
    """Return the replies that the outcomes of one call stand for, by id. None: the row has an id.

    Args:
        is_atomic: the rows were to be written as a whole or not at all.
    """
    if is_atomic and any(isinstance(error, KeyConflict) for error in answers.values()):
        return dict.fromkeys(answers, Reply.PARTLY_KNOWN)
    return {id: _reply_of(error) for id, error in answers.items()}


def _reply_of(error: FoqsError | None) -> Reply:
    if error is None:
        return Reply.WRITTEN
    if isinstance(error, UnknownOutcome):
        return Reply.UNKNOWN
    if isinstance(error, KeyEnded):
        return Reply.ENDED
    if error.field is not None and error.field.endswith(KEY_UNTIL_FIELD):
        return Reply.LATER  # the key window was shortened; the next stamp has an end within it
    if isinstance(error, _REFUSED) or (isinstance(error, LimitExceeded) and error.retry_after_ms is None):
        return Reply.REFUSED
    return Reply.LATER
