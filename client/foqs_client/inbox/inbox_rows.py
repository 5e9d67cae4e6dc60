"""The rows of an inbox: their names, and the statements that add, read and delete them. Calls block.

Always true: a name is the number of a namespace's incarnation and an item's id, so two items never have one name;
a row that is there is no error; rows are read by the index of their times, and deleted by their names. Knows
nothing of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from foqs_client.outbox.outbox_sql import Dialect, inbox_table, now_sql
from foqs_contract.errors import InvalidArgument

PAGE_ROWS: Final = 500

_ADD: Final = {
    # Its count of rows does not depend on the flag for found rows, as that of ON DUPLICATE KEY does.
    Dialect.MYSQL: "INSERT IGNORE INTO {inbox} (delivery, token) VALUES (?, ?)",
    Dialect.POSTGRES: "INSERT INTO {inbox} (delivery, token) VALUES (?, ?) ON CONFLICT DO NOTHING",
    Dialect.SQLITE: "INSERT INTO {inbox} (delivery, token) VALUES (?, ?) ON CONFLICT DO NOTHING",
}
"""Add a row, unless it is there. Postgres would refuse the rest of a transaction after an error."""
_NOW: Final = "SELECT {now}"
"""The clock is read first: as a part of a condition, Postgres would compute it for each row, and use no index."""
_READ: Final = (
    "SELECT done_ms, delivery, token FROM {inbox} "
    "WHERE done_ms <= ? AND done_ms >= ? AND (done_ms > ? OR delivery > ?) ORDER BY done_ms, delivery LIMIT ?"
)
_DELETE: Final = "DELETE FROM {inbox} WHERE delivery IN ({marks})"
_OLDEST: Final = "SELECT {now} - MIN(done_ms) FROM {inbox}"


class InboxTables(Protocol):
    """A connection as an inbox uses it. `UserConnection` and `OutboxConnection` are some."""

    @property
    def dialect(self) -> Dialect:
        """The database."""
        ...

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Return the number of rows that a statement has changed."""
        ...

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        ...


@dataclass(slots=True, frozen=True)
class InboxRow:
    """A delivery whose effects are committed.

    Attributes:
        done_ms: when it was added, by the database's clock.
        name: see `delivery_name`.
        token: of the lease under which the effects were committed.
    """

    done_ms: int
    name: str
    token: int

    @property
    def id(self) -> str:
        """The item's id."""
        return self.name.partition("/")[2]

    def is_of(self, incarnation: int) -> bool:
        """Return whether the item is of this incarnation of a namespace."""
        return self.name.startswith(f"{incarnation:016x}/")


BEFORE_ALL: Final = InboxRow(0, "", 0)
"""Stands before all rows."""


def delivery_name(incarnation: int, id: str) -> str:
    """Return the name of an item's row."""
    return f"{incarnation:016x}/{id}"


def add_row(tables: InboxTables, prefix: str, name: str, token: int) -> bool:
    """Add a row, and return whether it is new. Waits for another transaction that adds it.

    Raises:
        InvalidArgument: the connection does not say how many rows it has added.
    """
    count = tables.execute(_ADD[tables.dialect].format(inbox=inbox_table(prefix)), (name, token))
    if count not in (0, 1):
        raise InvalidArgument(
            "the connection does not say whether the row of the inbox is new; end its pipeline before",
            field="connection",
        )
    return count == 1


def read_old(tables: InboxTables, prefix: str, keep_ms: int, after: InboxRow, limit: int = PAGE_ROWS) -> list[InboxRow]:
    """Return the first rows after another one that are older than this, by time and name."""
    [(now_ms,)] = tables.query(_NOW.format(now=now_sql(tables.dialect)))
    values = (int(now_ms) - keep_ms, after.done_ms, after.done_ms, after.name, limit)
    found = tables.query(_READ.format(inbox=inbox_table(prefix)), values)
    return [InboxRow(int(done_ms), name, int(token)) for done_ms, name, token in found]


def delete_rows(tables: InboxTables, prefix: str, rows: Sequence[InboxRow]) -> None:
    """Delete rows, at most a page."""
    if rows:
        marks = ", ".join(["?"] * len(rows))
        tables.execute(_DELETE.format(inbox=inbox_table(prefix), marks=marks), [row.name for row in rows])


def oldest_age_ms(tables: InboxTables, prefix: str) -> int | None:
    """Return how long ago the oldest row was added; None if there is none."""
    [(age_ms,)] = tables.query(_OLDEST.format(inbox=inbox_table(prefix), now=now_sql(tables.dialect)))
    return None if age_ms is None else int(age_ms)
