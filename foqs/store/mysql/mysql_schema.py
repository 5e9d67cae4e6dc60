"""Checks a MySQL server's settings and rights, and migrates a shard's tables, at open.

Always true: when `prepare_tables` returns, the tables are InnoDB and of the newest
version, and the user has all rights that a flush needs. `unsafe_settings` and
`is_read_only` check the settings that every new connection reads. Knows nothing of
owners.
"""

from __future__ import annotations

from typing import Final

from foqs.store.migrations import pending_migrations
from foqs.store.mysql import mysql_sql as sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings, Result, ServerError
from foqs.store.port import StoreUnusable

_NO_SUCH_TABLE_CODE: Final = 1146
_COLUMN_EXISTS_CODE: Final = 1060
_NO_SUCH_KEY_CODE: Final = 1091
DENIED_CODES: Final = frozenset({1044, 1142, 1143, 1370})
"""A right is missing."""
READ_ONLY_CODES: Final = frozenset({1290, 1792, 1836})
"""The server accepts no writes."""
_STEP_TIMEOUT_S: Final = 24 * 3_600.0
"""An index of a large table takes long to build; a timeout would only start it again and again."""
_STRICT_MODES: Final = frozenset({"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"})
RUN_RIGHTS: Final = "SELECT, INSERT, UPDATE, DELETE"
"""The rights that the user of a host needs on its database. Ending its own connections needs no right."""
SCHEMA_RIGHTS: Final = f"{RUN_RIGHTS}, CREATE, ALTER, INDEX"
"""The rights that a user needs to create or migrate the tables."""


async def prepare_tables(link: MysqlLink, settings: MysqlSettings, shard: int) -> None:
    """Migrate the shard's tables; check them and the user's rights.

    Raises:
        StoreUnusable: the text names the setting, its value and the remedy.
        ServerError, MysqlLinkLost: from the driver.
    """
    statements = sql.Statements(shard)
    await _migrate(link, settings, shard, statements)
    (found,) = await link.run(statements.non_innodb_tables)
    for table, engine in found.rows:
        raise StoreUnusable(
            f"table {_decode_text(table)} of {settings.location} uses the engine {_decode_text(engine)}, which has no transactions: "
            f"run ALTER TABLE {_decode_text(table)} ENGINE = InnoDB"
        )
    await link.run(sql.BEGIN, *statements.right_probes, sql.ROLLBACK)


def unsafe_settings(result: Result, settings: MysqlSettings) -> str | None:
    """Return a text with the settings that can lose or alter acknowledged writes and the remedy; None if there are none.

    Args:
        result: the result of `sql.SERVER_SETTINGS`.
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
        result: the result of `sql.SERVER_SETTINGS`. Newer MariaDB servers return the value as a name, others as a number.
    """
    return _decode_text(result.rows[0][-1]).upper() not in ("0", "OFF")


async def _migrate(link: MysqlLink, settings: MysqlSettings, shard: int, statements: sql.Statements) -> None:
    """Run the pending migrations.

    DDL commits by itself in MySQL, so a second connection holds the version row's lock
    meanwhile: another host that opens the shard waits for it and then finds nothing to
    do. After a crash the step's statements run again.
    """
    location = f"shard {shard} in {settings.location}"
    version = await read_version(link, shard)
    if not pending_migrations(version or 0, sql.MIGRATIONS, location):
        return
    await _check_can_migrate(link, settings, location, version or 0)
    if version is None:
        await link.run(sql.CREATE_VERSIONS)
    await link.run(sql.add_version(shard))
    guard = await MysqlLink.connect(settings)
    try:
        _, found = await guard.run(sql.BEGIN, sql.read_version(shard, lock=True))
        link.timeout_s = _STEP_TIMEOUT_S
        for step in pending_migrations(found.rows[0][0], sql.MIGRATIONS, location):
            for text in step.statements:
                await _run_migration_statement(link, statements.migration(text))
            await guard.run(sql.set_version(shard, step.number))
        await guard.run(sql.COMMIT)
    finally:
        link.timeout_s = settings.statement_timeout_s
        await guard.close()


async def _run_migration_statement(link: MysqlLink, statement: bytes) -> None:
    """Run a migration's statement. A column that exists, or a key that does not, was changed before a crash.

    MySQL has no ADD COLUMN IF NOT EXISTS and no DROP KEY IF EXISTS.
    """
    try:
        await link.run(statement)
    except ServerError as error:
        if error.code not in (_COLUMN_EXISTS_CODE, _NO_SUCH_KEY_CODE):
            raise


async def read_version(link: MysqlLink, shard: int) -> int | None:
    """Return the version of a shard's tables; 0 if it has none, None if no shard of the database has tables."""
    try:
        (found,) = await link.run(sql.read_version(shard))
    except ServerError as error:
        if error.code != _NO_SUCH_TABLE_CODE:
            raise
        return None
    return int(found.rows[0][0]) if found.rows else 0


async def read_versions(link: MysqlLink) -> dict[int, int]:
    """Return the version of every shard that has tables in this database."""
    try:
        (found,) = await link.run(sql.READ_VERSIONS)
    except ServerError as error:
        if error.code not in (_NO_SUCH_TABLE_CODE, *DENIED_CODES):
            raise
        return {}
    return dict(found.rows)


async def clock_ms(link: MysqlLink) -> int:
    """Return the server's time."""
    (found,) = await link.run(sql.NOW_MS)
    return int(found.rows[0][0])


async def prepared_statements_max(link: MysqlLink) -> int:
    """Return how many prepared statements the server keeps at once."""
    (found,) = await link.run(sql.READ_PREPARED_STATEMENTS_MAX)
    return int(found.rows[0][0])


async def can_create_tables(link: MysqlLink) -> bool:
    """Return whether the user may create tables. Creates none."""
    try:
        await link.run(sql.PROBE_CREATE, sql.END_PROBE)
    except ServerError as error:
        if error.code not in DENIED_CODES:
            raise
        return False
    return True


async def missing_rights(link: MysqlLink, shard: int) -> list[str]:
    """Return the server's errors for rights that a flush needs and the user lacks. Changes nothing.

    Tables that do not exist yet are ignored.
    """
    missing = []
    for probe in sql.Statements(shard).right_probes:
        try:
            await link.run(sql.BEGIN, probe, sql.ROLLBACK)
        except ServerError as error:
            await link.run(sql.ROLLBACK)
            if error.code in DENIED_CODES:
                missing.append(str(error))
            elif error.code != _NO_SUCH_TABLE_CODE:
                raise
    return missing


async def _check_can_migrate(link: MysqlLink, settings: MysqlSettings, location: str, version: int) -> None:
    """Raise an error with the remedy if the user may not create tables."""
    if not await can_create_tables(link):
        newest = sql.MIGRATIONS[-1].number
        raise StoreUnusable(
            f"{location} has schema version {version} and needs {newest}, but user {settings.user} may not create tables: "
            f"run foqs schema apply as a user with that right, or GRANT {SCHEMA_RIGHTS} ON `{settings.database}`.* "
            f"TO '{settings.user}'"
        )


def _decode_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
