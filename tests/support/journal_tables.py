"""Creates the journal of a store, which no migration does yet."""

from __future__ import annotations

from contextlib import closing

from foqs.store.journaled.journaled_store import JournaledStore, JournalSettings
from foqs.store.mysql.mysql_driver import MysqlLink
from foqs.store.mysql.mysql_migrations import JOURNAL_MIGRATION as MYSQL_MIGRATION
from foqs.store.mysql.mysql_sql import Statements
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import Store
from foqs.store.sqlite.sqlite_sql import JOURNAL_MIGRATION as SQLITE_MIGRATION
from foqs.store.sqlite.sqlite_store import SqliteStore


class OpenedWithJournal(JournaledStore):
    """A store that journals, and creates its journal when it is opened."""

    def __init__(self, inner: Store, shard: int, settings: JournalSettings) -> None:
        super().__init__(inner, settings)
        self._shard = shard

    async def open(self) -> None:
        await super().open()
        await create_journal(self.inner, self._shard)


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
