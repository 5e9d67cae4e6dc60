"""The SQL of a session with a MySQL server: its settings, its transactions, the server's clock and its connections.

Always true: every statement has a name and a stated purpose, and is bytes. No statement
names a table. Knows nothing of connections or errors.
"""

from __future__ import annotations

from typing import Final

_CLOCK_MS: Final = b"CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"


def set_autocommit(enabled: bool) -> bytes:
    """Set whether every statement commits by itself."""
    return b"SET SESSION autocommit = %d" % enabled


NAMES_AS_BYTES: Final = b"SET NAMES binary"
"""Literals and results are bytes, with any content."""


def session_settings(lock_wait_s: int, *, read_only: bool = False) -> tuple[bytes, ...]:
    """Set up a new connection. The last statement reads its id, the server's packet limit and the server's clock.

    The literals of `mysql_values` rely on the charset and on this sql_mode. The time
    zone is UTC, because a local clock repeats an hour each year. A read-only
    transaction shows one moment. A writing one reads the newest rows and locks no
    gaps; it begins with its first statement, and only COMMIT makes its writes permanent.
    """
    level = "REPEATABLE READ" if read_only else "READ COMMITTED"
    return (
        set_autocommit(read_only),
        NAMES_AS_BYTES,
        b"SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
        b"SESSION innodb_lock_wait_timeout = %d" % lock_wait_s,
        b"SET SESSION TRANSACTION ISOLATION LEVEL " + level.encode(),
        b"SELECT CONNECTION_ID(), @@max_allowed_packet, " + _CLOCK_MS,
    )


SERVER_SETTINGS: Final = (
    b"SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog, @@GLOBAL.sql_mode, "
    b"@@GLOBAL.read_only"
)
"""Reads whether COMMIT syncs to disk, bad values are refused, and writes are allowed.

MySQL's super_read_only need not be read: it switches read_only on. MariaDB has no such variable.
"""

READ_PREPARED_STATEMENTS_MAX: Final = b"SELECT @@GLOBAL.max_prepared_stmt_count"
"""Reads how many prepared statements the server keeps for all connections together."""

READ_CONNECTIONS_MAX: Final = b"SELECT @@GLOBAL.max_connections, @@SESSION.max_user_connections"
"""Reads how many connections the server accepts, and how many of this user; 0: no limit of its own."""

NOW_MS: Final = b"SELECT " + _CLOCK_MS
"""Reads the server's clock, in milliseconds since 1970-01-01 UTC."""

UPTIME_S: Final = b"SHOW SESSION STATUS LIKE 'Uptime'"
"""Reads how long the server has run: connection ids start again with every start of the server."""

BEGIN: Final = b"START TRANSACTION"
BEGIN_READ: Final = b"START TRANSACTION READ ONLY"
"""All reads until COMMIT show the moment of the first SELECT, and wait for no lock."""
COMMIT: Final = b"COMMIT"
ROLLBACK: Final = b"ROLLBACK"


def set_lock_wait(seconds: int) -> bytes:
    """Set how long the next statements wait for a row lock."""
    return b"SET SESSION innodb_lock_wait_timeout = %d" % seconds


PROCESSES: Final = b"SHOW PROCESSLIST"
"""Reads the connections that this user may see, at least its own.

Needs a connection with `NAMES_AS_BYTES`, because the statements that run may hold any bytes. MySQL cannot convert
them for information_schema.PROCESSLIST.
"""


def kill(connection_id: int) -> bytes:
    """End a connection, roll its transaction back and free its locks."""
    return b"KILL CONNECTION %d" % connection_id


def take_lock(name: str) -> bytes:
    """Take a lock of this name for the connection, if nobody has it. Reads the connection's number, and 1 if it was taken."""
    return b"SELECT CONNECTION_ID(), GET_LOCK('%s', 0)" % name.encode()


def lock_owner(name: str) -> bytes:
    """Read the number of the connection that has the lock of this name; NULL if none has."""
    return b"SELECT IS_USED_LOCK('%s')" % name.encode()
