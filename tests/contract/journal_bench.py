"""A bench whose stores have a journal: their tables are not in the list of migrations yet."""

from __future__ import annotations

from contextlib import closing

from foqs.store.mysql.mysql_driver import MysqlLink
from foqs.store.mysql.mysql_migrations import JOURNAL_MIGRATION as MYSQL_MIGRATION
from foqs.store.mysql.mysql_sql import Statements
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import FaultHook, Store, no_faults
from foqs.store.sqlite.sqlite_sql import JOURNAL_MIGRATION as SQLITE_MIGRATION
from foqs.store.sqlite.sqlite_store import SqliteStore
from tests.contract.conftest import SHARD, Bench
from tests.support.stores import NONCE, Ownership, opened


async def opened_with_journal(
    bench: Bench, epoch: int = 1, nonce: str = NONCE, shard: int = SHARD, faults: FaultHook = no_faults
) -> Ownership:
    """A new store of the bench, opened and taken over, with a journal."""
    owned = await opened(bench.store(shard, faults), epoch, nonce)
    await create_journal(owned.store, shard)
    return owned


async def create_journal(store: Store, shard: int) -> None:
    """Create the journal of an open store, if it is not there."""
    if isinstance(store, SqliteStore):
        with closing(store._file.open(create=False)) as db:
            for statement in SQLITE_MIGRATION.statements:
                db.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
    elif isinstance(store, MysqlStore):
        link = await MysqlLink.connect(store._settings)
        try:
            await link.run(*[Statements(shard).migration(step) for step in MYSQL_MIGRATION.statements])
        finally:
            await link.close()
