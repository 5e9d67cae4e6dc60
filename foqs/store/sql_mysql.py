"""The SQL of the MySQL store, for MariaDB 10.11 and MySQL 8 and 9: each shard has its own tables.

Always true: every statement is named and says its purpose; numbers are spliced
in as decimal and everything else as hex, so no value can end a literal; lists
are cut so short that the optimiser keeps to ranges of the primary key. Knows
nothing of connections or errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foqs.core.fence import Fence, Owner
from foqs.core.item import Key, Row, State
from foqs.store.port import Due, Writes
from foqs.store.sql_migrations import Migration
from foqs.store.sql_rows import (
    COLUMNS,
    LEASED,
    MUTABLE,
    OWNER_COLUMNS,
    WITH_PAYLOAD,
    WITHOUT_PAYLOAD,
    leased_values,
)

IDS_PER_STATEMENT: Final = 500
"""From 1,000 ids on MariaDB rewrites an IN list as a join; from 16,000 on it scans the table."""
UPDATES_PER_STATEMENT: Final = 200
INSERT_BYTES: Final = 4 << 20
"""A multi-row INSERT is cut here; a server's smaller max_allowed_packet cuts earlier."""
_INT64_MIN: Final = -(1 << 63)

_ITEM: Final = """CREATE TABLE IF NOT EXISTS {item} (
  id BIGINT NOT NULL PRIMARY KEY,
  namespace VARBINARY(255) NOT NULL,
  topic VARBINARY(255) NOT NULL,
  priority INT NOT NULL,
  deliver_after_ms BIGINT NOT NULL,
  enqueued_at_ms BIGINT NOT NULL,
  lease_ms BIGINT NOT NULL,
  ttl_ms BIGINT NULL,
  expires_at_ms BIGINT NULL,
  policy TINYINT NOT NULL,
  attempts_max INT NOT NULL,
  payload_bytes INT NOT NULL,
  payload MEDIUMBLOB NOT NULL,
  metadata VARBINARY(16384) NOT NULL,
  state TINYINT NOT NULL,
  due_ms BIGINT NULL,
  token BIGINT NOT NULL,
  attempt INT NOT NULL,
  KEY item_order (namespace, topic, state, priority, deliver_after_ms, id),
  KEY item_due (due_ms, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"""

_OWNER: Final = """CREATE TABLE IF NOT EXISTS {owner} (
  one TINYINT NOT NULL PRIMARY KEY,
  epoch BIGINT NOT NULL,
  nonce VARBINARY(255) NOT NULL,
  flush BIGINT NOT NULL,
  clock_ms BIGINT NOT NULL,
  connection BIGINT NOT NULL
) ENGINE = InnoDB"""

MIGRATIONS: Final = (
    Migration(
        1,
        "items and their owner",
        (_ITEM, _OWNER, "INSERT IGNORE INTO {owner} VALUES (1, 0, '', 0, 0, 0)"),
    ),
)
"""`{item}` and `{owner}` stand for the shard's tables."""

SESSION: Final = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
    "SESSION innodb_lock_wait_timeout = {lock_wait_s}",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SELECT CONNECTION_ID(), @@max_allowed_packet",
)
"""A new connection's settings; UTC, because a local clock repeats an hour each year."""

SERVER_SETTINGS: Final = (
    "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog, @@GLOBAL.sql_mode"
)
"""What decides whether a COMMIT is on disk and whether bad values are refused."""

NOW_MS: Final = "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
"""The clock."""

BEGIN: Final = "START TRANSACTION"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"

CREATE_VERSIONS: Final = (
    "CREATE TABLE IF NOT EXISTS foqs_schema (shard INT NOT NULL PRIMARY KEY, version INT NOT NULL) ENGINE = InnoDB"
)
"""The versions of all shards of a database."""


def add_version(shard: int) -> str:
    """A new shard is at version 0."""
    return f"INSERT IGNORE INTO foqs_schema VALUES ({shard}, 0)"


def read_version(shard: int, *, lock: bool = False) -> str:
    """A shard's schema version; locked while it migrates, so that a second host waits."""
    return f"SELECT version FROM foqs_schema WHERE shard = {shard}{' FOR UPDATE' if lock else ''}"


def set_version(shard: int, number: int) -> str:
    """A step was taken."""
    return f"UPDATE foqs_schema SET version = {number} WHERE shard = {shard}"


def lock_wait(seconds: int) -> str:
    """How long the next statements wait for a row lock."""
    return f"SET SESSION innodb_lock_wait_timeout = {seconds}"


def kill(connection: int) -> str:
    """Ends a connection, rolls its transaction back and frees its locks."""
    return f"KILL CONNECTION {connection}"


class Statements:
    """The statements of one shard."""

    def __init__(self, shard: int) -> None:
        self._item = f"foqs_{shard}_item"
        self._owner = f"foqs_{shard}_owner"

    def migration(self, text: str) -> str:
        """A migration's statement for this shard's tables."""
        return text.format(item=self._item, owner=self._owner)

    @property
    def engines(self) -> str:
        """The shard's tables that are not InnoDB."""
        return (
            "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
            f"AND TABLE_NAME IN ('{self._item}', '{self._owner}') AND ENGINE <> 'InnoDB'"
        )

    @property
    def probes(self) -> tuple[str, ...]:
        """Need every right that a flush needs and change nothing."""
        item, owner = self._item, self._owner
        return (
            f"INSERT INTO {item} SELECT * FROM {item} WHERE FALSE",
            f"UPDATE {item} SET attempt = attempt WHERE id = 0",
            f"DELETE FROM {item} WHERE id = 0",
            f"UPDATE {owner} SET flush = flush WHERE one = 0",
        )

    # ---------------------------------------------------------------- the owner

    def read_owner(self, *, lock: bool = False) -> str:
        """The owner row; locked, so that no earlier transaction can still change it."""
        return f"SELECT {', '.join(OWNER_COLUMNS)} FROM {self._owner} WHERE one = 1{' FOR UPDATE' if lock else ''}"

    def set_owner(self, owner: Owner) -> str:
        """A takeover or a new connection of the owner, after the row was locked."""
        return (
            f"UPDATE {self._owner} SET epoch = {owner.epoch}, nonce = {_text(owner.nonce)}, flush = {owner.flush}, "
            f"connection = {owner.connection} WHERE one = 1"
        )

    def fence(self, fence: Fence) -> str:
        """The first statement of a flush: matches nothing when another owner wrote since; holds the row's lock."""
        return (
            f"UPDATE {self._owner} SET flush = {fence.flush}, clock_ms = {fence.clock_ms} WHERE one = 1 "
            f"AND epoch = {fence.epoch} AND nonce = {_text(fence.nonce)} AND flush = {fence.flush - 1}"
        )

    # ----------------------------------------------------------------- the items

    def read_rows(self, ids: Sequence[int], *, payload: bool) -> list[str]:
        """Rows by id, with or without their payload."""
        columns = WITH_PAYLOAD if payload else WITHOUT_PAYLOAD
        return [f"SELECT {columns} FROM {self._item} WHERE id IN ({part})" for part in _id_lists(ids)]

    def write(self, writes: Writes, packet_bytes: int) -> Iterator[str]:
        """What one flush changes; no statement with several rows is longer than `packet_bytes`."""
        for part in _id_lists(sorted(writes.deletes)):
            yield f"DELETE FROM {self._item} WHERE id IN ({part})"
        yield from self._leases(writes.leases)
        yield from self._updates(writes.updates, packet_bytes)
        yield from self._inserts(writes.inserts, min(packet_bytes, INSERT_BYTES))

    def _leases(self, rows: Sequence[Row]) -> Iterator[str]:
        """What leases change: one statement for all rows that get the same values, as most of a flush do."""
        groups: dict[tuple[int | None, ...], list[int]] = {}
        for row in rows:
            groups.setdefault(leased_values(row), []).append(row.id)
        for values, ids in groups.items():
            changes = ", ".join(f"{name} = {_number(value)}" for name, value in zip(LEASED, values, strict=True))
            for part in _id_lists(sorted(ids)):
                yield f"UPDATE {self._item} SET {changes} WHERE id IN ({part})"

    def _updates(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[str]:
        """Absolute values, joined to the rows that exist: it can never insert.

        STRAIGHT_JOIN makes the server walk the constants and look rows up by
        primary key, however small it believes the table to be.
        """
        head = f"UPDATE (SELECT {', '.join(f'{value} AS {name}' for name, value in _UPDATE_TYPES)}"
        tail = (
            f") AS new STRAIGHT_JOIN {self._item} AS item FORCE INDEX (PRIMARY) ON item.id = new.id SET "
            + ", ".join(f"item.{name} = new.{name}" for name in MUTABLE)
        )
        selects = (" UNION ALL SELECT " + _update(row) for row in sorted(rows, key=lambda row: row.id))
        room = packet_bytes - len(head) - len(tail)
        for part in _cut(selects, room, UPDATES_PER_STATEMENT):
            yield head + "".join(part) + tail

    def _inserts(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[str]:
        """New rows; an id that exists is an error, never a change."""
        head = f"INSERT INTO {self._item} ({WITH_PAYLOAD}) VALUES "
        for part in _cut((_insert(row) for row in rows), packet_bytes - len(head), len(rows)):
            yield head + ",".join(part)

    # ----------------------------------------------------------------- the reads

    def ready(self, namespace: str, topic: str, after: Key | None, limit: int) -> str:
        """The next keys of a topic's READY rows."""
        return self._keys(namespace, topic, State.READY, after, limit)

    def listed(self, namespace: str, topic: str, state: State, after: Key | None, limit: int) -> str:
        """The next rows of a topic in a state: keys by index first, then only those rows."""
        columns = ", ".join(f"item.{name}" for name in COLUMNS)
        return (
            f"SELECT {columns} FROM ({self._keys(namespace, topic, state, after, limit)}) AS page "
            f"STRAIGHT_JOIN {self._item} AS item FORCE INDEX (PRIMARY) ON item.id = page.id "
            "ORDER BY item.priority, item.deliver_after_ms, item.id"
        )

    def _keys(self, namespace: str, topic: str, state: State, after: Key | None, limit: int) -> str:
        """Keys above a key, as three ranges of the index: neither server makes one range of a row comparison."""
        columns = "priority, deliver_after_ms, id"
        head = (
            f"SELECT {columns} FROM {self._item} FORCE INDEX (item_order) "
            f"WHERE namespace = {_text(namespace)} AND topic = {_text(topic)} AND state = {int(state)}"
        )
        order = f"ORDER BY {columns} LIMIT {limit}"
        if after is None:
            return f"{head} {order}"
        priority, deliver_after, number = after
        ranges = (
            f"priority = {priority} AND deliver_after_ms = {deliver_after} AND id > {number}",
            f"priority = {priority} AND deliver_after_ms > {deliver_after}",
            f"priority > {priority}",
        )
        return " UNION ALL ".join(f"({head} AND {bounds} {order})" for bounds in ranges) + f" {order}"

    def due(self, low_ms: int | None, high_ms: int, after: Due | None, limit: int) -> str:
        """A page of what is due, bounded on both sides."""
        start = (_INT64_MIN if low_ms is None else low_ms, -1)
        if after is not None:
            start = max(start, (after.due_ms, after.id))
        head = f"SELECT due_ms, id FROM {self._item} FORCE INDEX (item_due) WHERE"
        order = f"ORDER BY due_ms, id LIMIT {limit}"
        return (
            f"({head} due_ms = {start[0]} AND due_ms <= {high_ms} AND id > {start[1]} {order}) UNION ALL "
            f"({head} due_ms > {start[0]} AND due_ms <= {high_ms} {order}) {order}"
        )

    def next_due(self, above_ms: int) -> str:
        """When the next row comes due."""
        return (
            f"SELECT due_ms FROM {self._item} FORCE INDEX (item_due) WHERE due_ms > {above_ms} ORDER BY due_ms LIMIT 1"
        )

    @property
    def counts(self) -> str:
        """Rows by topic and state, from the index alone."""
        columns = "namespace, topic, state"
        return f"SELECT {columns}, COUNT(*) FROM {self._item} FORCE INDEX (item_order) GROUP BY {columns}"


def _text(value: str) -> str:
    return f"x'{value.encode().hex()}'"


def _bytes(value: bytes | None) -> str:
    return "NULL" if value is None else f"x'{value.hex()}'"


def _number(value: int | None) -> str:
    return "NULL" if value is None else str(int(value))


_UPDATE_TYPES: Final = (
    ("id", "0"),
    ("priority", "0"),
    ("deliver_after_ms", "0"),
    ("expires_at_ms", "0"),
    ("metadata", "x''"),
    ("state", "0"),
    ("due_ms", "0"),
    ("token", "0"),
    ("attempt", "0"),
)
"""A row of id 0, which no item has: it names the columns of the constants."""


def _update(row: Row) -> str:
    return (
        f"{row.id},{row.priority},{row.deliver_after_ms},{_number(row.expires_at_ms)},{_bytes(row.metadata)},"
        f"{int(row.state)},{_number(row.due_ms)},{row.token},{row.attempt}"
    )


def _insert(row: Row) -> str:
    return (
        f"({row.id},{_text(row.namespace)},{_text(row.topic)},{row.priority},{row.deliver_after_ms},"
        f"{row.enqueued_at_ms},{row.lease_ms},{_number(row.ttl_ms)},{_number(row.expires_at_ms)},{int(row.policy)},"
        f"{row.attempts_max},{row.payload_bytes},{_bytes(row.payload)},{_bytes(row.metadata)},{int(row.state)},"
        f"{_number(row.due_ms)},{row.token},{row.attempt})"
    )


def _id_lists(ids: Sequence[int]) -> Iterator[str]:
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        yield ",".join(map(str, ids[start : start + IDS_PER_STATEMENT]))


def _cut(parts: Iterator[str], bytes_max: int, count_max: int) -> Iterator[list[str]]:
    """Groups of parts within both limits; a part that is too long by itself stands alone."""
    group: list[str] = []
    size = 0
    for part in parts:
        if group and (size + len(part) + 1 > bytes_max or len(group) >= count_max):
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part) + 1
    if group:
        yield group
