"""Do the work of a delivery once: `once`, and `once_async` for connections that do not block.

Always true: of all transactions with one item, one commits with a row that it has added. Knows nothing of acks: a
handler that returns acks its item.
"""

from __future__ import annotations

from typing import Any, Protocol

from foqs_client.errors import NotImplementedYet
from foqs_client.inbox.inbox_rows import add_row, delivery_name
from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX
from foqs_client.outbox.user_connections import run_blocking, user_connection


class Delivered(Protocol):
    """A delivery of an item. `Delivery` and `Job` are some."""

    @property
    def id(self) -> str:
        """The item's id."""
        ...

    @property
    def token(self) -> int:
        """The number of the lease."""
        ...

    @property
    def incarnation(self) -> int:
        """The number of the namespace's incarnation."""
        ...


def once(connection: Any, delivery: Delivered, *, prefix: str = DEFAULT_PREFIX) -> bool:
    """Return True if the work on an item is to be done, in the transaction of this connection.

    False: a transaction with its effects has committed. Then do nothing and return, so that the item is acked. Waits
    for a transaction that works on the item now.

    Example: `if once(connection, job): connection.execute("INSERT INTO charge VALUES (?)", (job.payload,))`

    Args:
        connection: of SQLAlchemy (Connection, Session, scoped_session), sqlite3, psycopg, PyMySQL or Django. A text is
            the alias of a database of Django.
        delivery: a delivery of the client, or a handler's job.
        prefix: begins the name of the inbox' table. It is in the schema that the connection uses.

    Raises:
        InvalidArgument: the connection is of no kind that is known, or the prefix is no name of a table.
        NotInTransaction: the connection commits each statement, and no transaction is open.
        NotImplementedYet: the host that delivered the item is of an older version.
    """
    if not delivery.incarnation:
        raise NotImplementedYet(
            f"the delivery of item {delivery.id} does not name the incarnation of its namespace; upgrade the hosts first"
        )
    user = user_connection(connection)
    user.require_transaction()
    return add_row(user, prefix, delivery_name(delivery.incarnation, delivery.id), delivery.token)


async def once_async(connection: Any, delivery: Delivered, *, prefix: str = DEFAULT_PREFIX) -> bool:
    """Do the same as `once` with an AsyncConnection, an AsyncSession or an async_scoped_session of SQLAlchemy."""
    return await run_blocking(connection, lambda blocking: once(blocking, delivery, prefix=prefix))
