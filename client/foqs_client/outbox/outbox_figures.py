"""What an outbox holds: how many rows, how old the oldest one is, and how many are parked.

Holds `OutboxFigures`. Always true: a read passes rows that exist, at most `ROWS_COUNTED_MAX` of them. Calls block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foqs_client.outbox import relay_sql
from foqs_client.outbox.outbox_connection import OutboxConnection

ROWS_COUNTED_MAX: Final = 100_000
"""Further rows are estimated by their ids: a count must not slow down an outbox that is far behind."""


@dataclass(slots=True, frozen=True)
class OutboxFigures:
    """What an outbox holds.

    Attributes:
        rows: rows that are not deleted yet; beyond `ROWS_COUNTED_MAX` as if each id had a row.
        oldest_ms: how long ago, by the database's clock, the oldest of them was inserted; 0: there is none.
        oldest_id: its id; None: there is none.
        parked: rows that wait for a decision.
        resent: parked rows that the relay sends again.
    """

    rows: int = 0
    oldest_ms: int = 0
    oldest_id: int | None = None
    parked: int = 0
    resent: int = 0


def read_figures(tables: OutboxConnection, above: int = 0) -> OutboxFigures:
    """Return what an outbox holds. Raises TablesUnavailable.

    Args:
        above: the oldest row is looked for above this id. While a snapshot is held, deleted rows stay in the table,
            and a read from its start would pass all of them.
    """
    parked = {bool(is_resent): int(count) for is_resent, count in tables.query(relay_sql.COUNT_PARKED)}
    waits, resent = parked.get(False, 0), parked.get(True, 0)
    oldest = tables.query(relay_sql.READ_OLDEST, (above,))
    if not oldest:
        return OutboxFigures(parked=waits, resent=resent)
    [(id, age_ms)] = oldest
    [(rows, last_id)] = tables.query(relay_sql.COUNT_ROWS, (id, ROWS_COUNTED_MAX))
    if rows == ROWS_COUNTED_MAX:
        [(newest_id,)] = tables.query(relay_sql.READ_NEWEST)
        rows += max(0, (newest_id or 0) - last_id)
    return OutboxFigures(int(rows), max(0, int(age_ms)), int(id), waits, resent)
