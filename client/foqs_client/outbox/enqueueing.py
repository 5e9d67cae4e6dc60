"""Enqueue in a user's own transaction: `enqueue`, and `enqueue_async` for connections that do not block.

Always true: the items are written with the user's data or not at all; what is wrong with an
item is said before anything is written. Knows nothing of relays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs_client.outbox.new_rows import COLUMNS, PAYLOAD_BYTES_MAX, new_rows
from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX, Dialect, outbox_table
from foqs_client.outbox.user_connections import run_blocking, user_connection
from foqs_client.types import Item


def enqueue(
    connection: Any,
    items: Sequence[Item],
    *,
    row_groups: Sequence[str | None] | None = None,
    prefix: str = DEFAULT_PREFIX,
    payload_bytes_max: int = PAYLOAD_BYTES_MAX,
    notify: bool = False,
) -> list[str]:
    """Write items into the outbox, in the transaction of this connection. They are enqueued if it commits.

    Args:
        connection: of SQLAlchemy (Connection, Session, scoped_session), sqlite3, psycopg, PyMySQL or Django. A text is the
            alias of a database of Django.
        items: at most 10,000.
        row_groups: for each item, the group whose rows are enqueued in order; None: it has none.
        prefix: begins the names of the outbox' tables. They are in the schema that the connection uses.
        payload_bytes_max: what the namespace allows.
        notify: on Postgres, wake the relay at the commit. Postgres runs the commits of such transactions one after another.

    Returns:
        The name of each item in the outbox: 32 hexadecimal digits.

    Raises:
        InvalidArgument, LimitExceeded: an argument is wrong; `field` names it.
        NotInTransaction: the connection commits each statement, and no transaction is open.
    """
    rows = new_rows(items, row_groups, payload_bytes_max)
    if rows:
        insert_rows(connection, rows, prefix, notify=notify)
    return [row[0] for row in rows]


async def enqueue_async(
    connection: Any,
    items: Sequence[Item],
    *,
    row_groups: Sequence[str | None] | None = None,
    prefix: str = DEFAULT_PREFIX,
    payload_bytes_max: int = PAYLOAD_BYTES_MAX,
    notify: bool = False,
) -> list[str]:
    """Do the same as `enqueue` with an AsyncConnection, an AsyncSession or an async_scoped_session of SQLAlchemy."""

    def enqueue_blocking(blocking: Any) -> list[str]:
        return enqueue(
            blocking, items, row_groups=row_groups, prefix=prefix, payload_bytes_max=payload_bytes_max, notify=notify
        )

    return await run_blocking(connection, enqueue_blocking)


def insert_rows(connection: Any, rows: Sequence[tuple[Any, ...]], prefix: str, *, notify: bool) -> None:
    """Insert rows of `new_rows`, at least one. Arguments and errors are those of `enqueue`."""
    user, table = user_connection(connection), outbox_table(prefix)
    user.require_transaction()
    user.insert(table, COLUMNS, rows)
    if notify and user.dialect is Dialect.POSTGRES:
        user.execute(f"NOTIFY {table}")
