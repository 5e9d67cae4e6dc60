"""The tables of a shard as the version before left them, and an owner of that version.

Knows the statements of a takeover and of a flush of version 7. Knows nothing of hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_migrations import MIGRATIONS
from foqs.store.mysql.mysql_sql import TABLES
from tests.support.mariadb import MariaDb

OLDER_VERSION: Final = 7
NEWEST: Final = MIGRATIONS[-1].number


@dataclass(slots=True, frozen=True)
class OlderShard:
    """A shard on a server, as a host of version 7 sees it."""

    server: MariaDb
    place: MysqlSettings
    shard: int = 3

    def table(self, name: str) -> str:
        return f"{self.place.database}.foqs_{self.shard}_{name}"

    def create(self) -> None:
        """Create the tables as version 7 does."""
        database, names = self.place.database, {name: self.table(name) for name in TABLES}
        for migration in MIGRATIONS[:OLDER_VERSION]:
            for statement in migration.statements:
                self.server.query(statement.format(**names))
        self.server.query(
            f"CREATE TABLE IF NOT EXISTS {database}.foqs_schema "
            "(shard INT NOT NULL PRIMARY KEY, version INT NOT NULL) ENGINE = InnoDB"
        )
        self.server.query(f"INSERT INTO {database}.foqs_schema VALUES ({self.shard}, {OLDER_VERSION})")

    def take_over(self, epoch: int) -> None:
        """Take the shard over as version 7 does. Raises the driver's error if the server refuses it."""
        self.server.query(
            f"UPDATE {self.table('owner')} SET epoch = {epoch}, nonce = 'older', flush = 0, connection = 1 WHERE one = 1"
        )

    def insert(self, number: int, state: int = 2, due_ms: int | None = None) -> None:
        """Insert a row as version 7 does: without timer entry, naming its columns."""
        due = (1 << 63) - 1 if due_ms is None else due_ms
        self.server.query(
            f"INSERT INTO {self.table('item')} (id, namespace, topic, priority, deliver_after_ms, enqueued_at_ms, lease_ms, "
            "policy, attempts_max, payload_bytes, payload, metadata, state, due_ms, token, attempt) "
            f"VALUES ({number}, 'default', 't', 0, 1000, 1000, 30000, 1, 0, 7, 'payload', '', {state}, {due}, 0, 0)"
        )

    def delete(self, number: int) -> None:
        self.server.query(f"DELETE FROM {self.table('item')} WHERE id = {number}")

    def version(self) -> int:
        """Return the version that a host of version 7 compares with its own."""
        [(version,)] = self.server.query(
            f"SELECT version FROM {self.place.database}.foqs_schema WHERE shard = {self.shard}"
        )
        return int(version)

    def timers(self) -> list[tuple[Any, ...]]:
        """Return the timer table in order."""
        return [*self.server.query(f"SELECT due_ms, id FROM {self.table('timer')} ORDER BY due_ms, id")]

    def has_due_index(self) -> bool:
        return bool([*self.server.query(f"SHOW INDEX FROM {self.table('item')} WHERE Key_name = 'item_due'")])
