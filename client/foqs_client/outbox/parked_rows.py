"""The decisions of an operator about parked rows: resend or drop.

Always true: a decision is one statement; a row that is being sent again gets no other decision; a row that may be in
the queue is sent again only if the operator accepts a second item. Calls block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from foqs_client.errors import FoqsError, InvalidArgument, NotFound
from foqs_client.outbox import relay_sql


class OutboxStatements(Protocol):
    """The tables of an outbox, over a connection of any kind. `OutboxConnection` raises TablesUnavailable."""

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        ...

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Return the number of rows that a statement has changed."""
        ...


@dataclass(slots=True, frozen=True)
class ParkedView:
    """A parked row as an operator sees it.

    Attributes:
        reason: the error with which it was parked.
        may_be_queued: an earlier send may have made an item.
        is_resent: the relay sends it again.
        age_ms: how long ago the user's transaction inserted it, by the database's clock.
    """

    id: int
    topic: str
    row_group: str | None
    payload: bytes
    reason: str
    may_be_queued: bool
    is_resent: bool
    age_ms: int


def list_parked(tables: OutboxStatements, limit: int, above: int = 0) -> list[ParkedView]:
    """Return the first parked rows above an id, by id. Raises TablesUnavailable."""
    return [
        ParkedView(id, topic, group, _shown(payload), reason, bool(may_be_queued), verdict is not None, int(age_ms))
        for id, topic, group, payload, reason, may_be_queued, verdict, age_ms in tables.query(
            relay_sql.LIST_PARKED, (above, limit)
        )
    ]


def _shown(payload: Any) -> bytes:
    """Return a payload, also one that was written as text, which SQLite keeps as it is."""
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def resend(tables: OutboxStatements, id: int, *, may_double: bool = False) -> None:
    """Let the relay send a parked row again.

    Raises:
        NotFound: it is not parked.
        InvalidArgument: it is being sent again already, or it may be queued and may not be doubled.
        TablesUnavailable: the outcome is unknown; look at the row.
    """
    if not tables.execute(relay_sql.RESEND, (id, int(may_double))):
        raise _refusal(tables, id)


def drop(tables: OutboxStatements, id: int) -> None:
    """Delete a parked row for good. Errors are those of `resend`."""
    if not tables.execute(relay_sql.DROP, (id,)):
        raise _refusal(tables, id)


def _refusal(tables: OutboxStatements, id: int) -> FoqsError:
    """Return why a decision did not apply to a row."""
    found = tables.query(relay_sql.FIND_PARKED, (id,))
    if not found:
        return NotFound(f"row {id} is not parked; it was dropped, or is in the queue")
    [(verdict,)] = found
    if verdict is not None:
        return InvalidArgument(f"row {id} is being sent again already; wait for its outcome", field="id")
    return InvalidArgument(
        f"row {id} may be in the queue already, and sending it again may make a second item; look for its payload with "
        "foqs peek --payload, then drop it, or resend it with --may-double",
        field="id",
    )
