"""Checks a MySQL server's settings and rights, and prepares a shard's tables, at open.

Always true: when `prepare_tables` returns, the tables are InnoDB and this program can
use them, and the user has all rights that a flush needs. `unsafe_settings` and
`is_read_only` check the settings that every new connection reads. Knows nothing of
owners.
"""

from __future__ import annotations

from typing import Final

from foqs.store.mysql import mysql_session_sql as session_sql
from foqs.store.mysql import mysql_sql as sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings, Result, ServerError
from foqs.store.mysql.schema_upgrade import DENIED_CODES, NO_SUCH_TABLE_CODE, expand_tables
from foqs.store.port import StoreUnusable

READ_ONLY_CODES: Final = frozenset({1290, 1792, 1836})
"""Server errors of a server that accepts no writes."""
_STRICT_MODES: Final = frozenset({"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"})


async def prepare_tables(link: MysqlLink, settings: MysqlSettings, shard: int) -> None:
    """Create the shard's tables, or expand them for this program; check them and the user's rights.

    Raises:
        StoreUnusable: the text names the setting, its value and the remedy.
        ServerError, MysqlLinkLost: from the driver.
    """
    statements = sql.Statements(shard)
    await expand_tables(link, settings, shard)
    (found,) = await link.run(statements.non_innodb_tables)
    for table, engine in found.rows:
        raise StoreUnusable(
            f"table {_decode_text(table)} of {settings.location} uses the engine {_decode_text(engine)}, which has no transactions: "
            f"run ALTER TABLE {_decode_text(table)} ENGINE = InnoDB"
        )
    await link.run(session_sql.BEGIN, *statements.right_probes, session_sql.ROLLBACK)


def unsafe_settings(result: Result, settings: MysqlSettings) -> str | None:
    """Return a text with the settings that can lose or alter acknowledged writes and the remedy; None if there are none.

    Args:
        result: the result of `session_sql.SERVER_SETTINGS`.
    """
    at_commit, binary_log, sync_binary_log, sql_mode, _ = result.rows[0]
    modes = _decode_text(sql_mode)
    unsafe = []
    if at_commit != 1:
        unsafe.append(("innodb_flush_log_at_trx_commit", at_commit, "1"))
    if binary_log and sync_binary_log != 1:
        unsafe.append(("sync_binlog", sync_binary_log, "1"))
    if not _STRICT_MODES & set(modes.upper().split(",")):
        unsafe.append(("sql_mode", modes or "''", "one with STRICT_TRANS_TABLES"))
    if not unsafe:
        return None
    remedies = "; ".join(f"{name} is {value}: set it to {wanted}" for name, value, wanted in unsafe)
    return (
        f"the server of {settings.location} may lose or alter acknowledged writes: {remedies} "
        "(SET GLOBAL and the server's configuration file), or accept the loss with --unsafe-durability"
    )


def is_read_only(result: Result) -> bool:
    """Return whether the server is a replica or has writing switched off. A user with enough rights could still write.

    Args:
        result: the result of `session_sql.SERVER_SETTINGS`. Newer MariaDB servers return the value as a name, others as a number.
    """
    return _decode_text(result.rows[0][-1]).upper() not in ("0", "OFF")


async def clock_ms(link: MysqlLink) -> int:
    """Return the server's time."""
    (found,) = await link.run(session_sql.NOW_MS)
    return int(found.rows[0][0])


async def prepared_statements_max(link: MysqlLink) -> int:
    """Return how many prepared statements the server keeps at once."""
    (found,) = await link.run(session_sql.READ_PREPARED_STATEMENTS_MAX)
    return int(found.rows[0][0])


async def connections_max(link: MysqlLink) -> tuple[int, str]:
    """Return how many connections this user can have at once, and the name of the variable that says so."""
    (found,) = await link.run(session_sql.READ_CONNECTIONS_MAX)
    of_all, of_user = map(int, found.rows[0])
    return (of_user, "max_user_connections") if 0 < of_user < of_all else (of_all, "max_connections")


async def missing_rights(link: MysqlLink, shard: int) -> list[str]:
    """Return the server's errors for rights that a flush needs and the user lacks. Changes nothing.

    Tables that do not exist yet are ignored.
    """
    missing = []
    for probe in sql.Statements(shard).right_probes:
        try:
            await link.run(session_sql.BEGIN, probe, session_sql.ROLLBACK)
        except ServerError as error:
            await link.run(session_sql.ROLLBACK)
            if error.code in DENIED_CODES:
                missing.append(str(error))
            elif error.code != NO_SUCH_TABLE_CODE:
                raise
    return missing


def _decode_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
