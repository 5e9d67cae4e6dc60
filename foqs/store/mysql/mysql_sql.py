"""The SQL of the MySQL store, for MariaDB 10.11 and MySQL 8 and 9: each shard has its own tables.

Always true: every statement is named and says its purpose; numbers are spliced
in as decimal and everything else as `sql_mysql_values` spells it, so no value
can end a literal; what goes by ids names the primary key, and its lists are cut
so short that the optimiser keeps to ranges of it. Statements are bytes, but for those of
every flush, which are `Bound`. Knows nothing of connections or errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from foqs.core.flush.fence import Fence, Owner
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import OrderKey, Row, State, TopicName, unpack_order_key
from foqs.store.migrations import Migration
from foqs.store.mysql.mysql_protocol import BoundStatement, Statement
from foqs.store.mysql.mysql_values import (
    BOUND_COLUMNS,
    BOUND_OVERHEAD_BYTES,
    NEVER_MS,
    BoundRow,
    bind,
    bind_rows,
    bytes_literal,
    chunked,
    due_or_never,
    encode_rows,
    idempotency_key_values,
    name_literal,
    update_select,
)
from foqs.store.port import KEY_EXPIRY_ROWS_MAX, DueRow, LeaseUpdate, Writes
from foqs.store.sql_rows import (
    COLUMNS,
    COLUMNS_WITHOUT_PAYLOAD,
    MUTABLE_COLUMNS,
    OWNER_COLUMNS,
    columns_with_payload_up_to,
)

IDS_PER_STATEMENT: Final = 500
"""From 1,000 ids on MariaDB rewrites an IN list as a join; from 16,000 on it scans the table."""
UPDATES_PER_STATEMENT: Final = 200
TOPICS_PER_STATEMENT: Final = 200
INSERT_BYTES_MAX: Final = 4 << 20
"""A multi-row INSERT is cut here; a server's smaller max_allowed_packet cuts earlier."""
_ROWS_PER_PAUSE: Final = 4096
"""A count of a shard sleeps at so many rows, as the numbers in ids are given in turn."""
_PAUSE_S: Final = 0.005
"""So it takes a fifth of a processor: 4,096 rows take 0.8 ms, and 1.3 from the disk."""
INSERT_ROW_COUNTS: Final = (100, 50, *range(32, 0, -1))
"""New rows go in statements of so many, each prepared once by each writer when it is first needed: what few callers bring
is one statement, as each is answered by itself, and the host wakes for it."""
PREPARED_STATEMENTS_MAX: Final = len(INSERT_ROW_COUNTS) + 1
"""So many statements a shard's writer prepares at most: those of new rows, and the fence."""
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

_TOPIC: Final = """CREATE TABLE IF NOT EXISTS {topic} (
  namespace VARBINARY(255) NOT NULL,
  topic VARBINARY(255) NOT NULL,
  PRIMARY KEY (namespace, topic)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"""

_KEY: Final = """CREATE TABLE IF NOT EXISTS {key} (
  namespace VARBINARY(255) NOT NULL,
  name VARBINARY(255) NOT NULL,
  id BIGINT NOT NULL,
  digest BINARY(16) NOT NULL,
  until_ms BIGINT NOT NULL,
  PRIMARY KEY (namespace, name),
  KEY key_until (until_ms)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"""

_CUT: Final = """CREATE TABLE IF NOT EXISTS {cut} (
  namespace VARBINARY(255) NOT NULL,
  topic VARBINARY(255) NOT NULL,
  last BIGINT NOT NULL,
  PRIMARY KEY (namespace, topic)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"""

_SLOT: Final = "CREATE TABLE IF NOT EXISTS {slot} (slot INT NOT NULL PRIMARY KEY) ENGINE = InnoDB"

MIGRATIONS: Final = (
    Migration(
        1,
        "items and their owner",
        (_ITEM, _OWNER, "INSERT IGNORE INTO {owner} VALUES (1, 0, '', 0, 0, 0)"),
    ),
    Migration(
        2,
        "a table of topics",
        (_TOPIC, "INSERT IGNORE INTO {topic} SELECT DISTINCT namespace, topic FROM {item}"),
    ),
    Migration(3, "idempotency keys, and the slots of keys that the shard holds", (_KEY, _SLOT)),
    Migration(
        4,
        "how far the shard's time is from the database's clock",
        ("ALTER TABLE {owner} ADD COLUMN offset_ms BIGINT NOT NULL DEFAULT 0",),
    ),
    Migration(
        5,
        "sizes in the order's index, so that a namespace's bytes are counted without reading its items",
        (
            "ALTER TABLE {item} DROP KEY item_order, "
            "ADD KEY item_order (namespace, topic, state, priority, deliver_after_ms, id, payload_bytes)",
        ),
    ),
    Migration(6, "cuts: topics that were purged, whose rows still have to go", (_CUT,)),
    Migration(
        7,
        "what is not scheduled is due at the end of time; a NULL that is there means the same",
        (f"ALTER TABLE {{item}} ALTER COLUMN due_ms SET DEFAULT {NEVER_MS}",),
    ),
)
"""`{item}` and the like stand for the shard's tables."""


_CLOCK_MS: Final = b"CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"


def set_autocommit(enabled: bool) -> bytes:
    """Whether every statement commits by itself."""
    return b"SET SESSION autocommit = %d" % enabled


def session_settings(lock_wait_s: int, *, read_only: bool = False) -> tuple[bytes, ...]:
    """A new connection's settings; the last statement gives its number, the server's limit and the server's clock.

    The literals of `sql_mysql_values` rely on the charset and on what this sql_mode
    leaves out. UTC, because a local clock repeats an hour each year. A transaction
    that only reads shows one moment; one that writes sees what is newest and locks
    no gaps, and begins with its first statement: nothing is written but by a COMMIT.
    """
    level = "REPEATABLE READ" if read_only else "READ COMMITTED"
    return (
        set_autocommit(read_only),
        b"SET NAMES binary",
        b"SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
        b"SESSION innodb_lock_wait_timeout = %d" % lock_wait_s,
        b"SET SESSION TRANSACTION ISOLATION LEVEL " + level.encode(),
        b"SELECT CONNECTION_ID(), @@max_allowed_packet, " + _CLOCK_MS,
    )


SERVER_SETTINGS: Final = (
    b"SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog, @@GLOBAL.sql_mode, "
    b"@@GLOBAL.read_only"
)
"""What decides whether a COMMIT is on disk, whether bad values are refused, and whether anything is written at all.

MySQL's super_read_only needs no look: it switches read_only on. MariaDB has no such variable.
"""

READ_PREPARED_STATEMENTS_MAX: Final = b"SELECT @@GLOBAL.max_prepared_stmt_count"
"""So many prepared statements the server keeps, of all its connections together."""

NOW_MS: Final = b"SELECT " + _CLOCK_MS
"""The clock."""

UPTIME_S: Final = b"SHOW SESSION STATUS LIKE 'Uptime'"
"""A name and for how long the server has run: its connections' numbers begin anew with every start."""

BEGIN: Final = b"START TRANSACTION"
BEGIN_READ: Final = b"START TRANSACTION READ ONLY"
"""What is read until COMMIT is of one moment, that of the first SELECT, and waits for no lock."""
COMMIT: Final = b"COMMIT"
ROLLBACK: Final = b"ROLLBACK"

CREATE_VERSIONS: Final = (
    b"CREATE TABLE IF NOT EXISTS foqs_schema (shard INT NOT NULL PRIMARY KEY, version INT NOT NULL) ENGINE = InnoDB"
)
"""The versions of all shards of a database."""

READ_VERSIONS: Final = b"SELECT shard, version FROM foqs_schema"
"""Of every shard of a database."""

PROBE_CREATE: Final = b"PREPARE foqs_probe FROM 'CREATE TABLE foqs_probe (one INT)'"
"""Needs the right to create tables, and creates none: it is never executed."""
END_PROBE: Final = b"DEALLOCATE PREPARE foqs_probe"


def add_version(shard: int) -> bytes:
    """A new shard is at version 0."""
    return b"INSERT IGNORE INTO foqs_schema VALUES (%d, 0)" % shard


def read_version(shard: int, *, lock: bool = False) -> bytes:
    """A shard's schema version; locked while it migrates, so that a second host waits."""
    return b"SELECT version FROM foqs_schema WHERE shard = %d%b" % (shard, b" FOR UPDATE" if lock else b"")


def set_version(shard: int, number: int) -> bytes:
    """A step was taken."""
    return b"UPDATE foqs_schema SET version = %d WHERE shard = %d" % (number, shard)


def set_lock_wait(seconds: int) -> bytes:
    """How long the next statements wait for a row lock."""
    return b"SET SESSION innodb_lock_wait_timeout = %d" % seconds


def is_ours(connection_id: int) -> bytes:
    """1 when that connection is open, and of the same user and database as this one."""
    return (
        b"SELECT COUNT(*) FROM information_schema.PROCESSLIST "
        b"WHERE ID = %d AND USER = SUBSTRING_INDEX(USER(), '@', 1) AND DB = DATABASE()" % connection_id
    )


def is_running(connection_id: int) -> bytes:
    """1 when that connection of this user is open, and the server runs a statement of it."""
    return b"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %d AND COMMAND <> 'Sleep'" % connection_id


def kill(connection_id: int) -> bytes:
    """Ends a connection, rolls its transaction back and frees its locks."""
    return b"KILL CONNECTION %d" % connection_id


_UPDATE_COLUMNS: Final = (
    ("id", "0"),
    ("priority", "0"),
    ("deliver_after_ms", "0"),
    ("expires_at_ms", "0"),
    ("metadata", "''"),
    ("state", "0"),
    ("due_ms", "0"),
    ("token", "0"),
    ("attempt", "0"),
)
"""A row of id 0, which no item has: it names the columns of the constants."""


class Statements:
    """The statements of one shard."""

    def __init__(self, shard: int) -> None:
        self._item = f"foqs_{shard}_item"
        self._owner = f"foqs_{shard}_owner"
        self._topic = f"foqs_{shard}_topic"
        self._key = f"foqs_{shard}_key"
        self._slot = f"foqs_{shard}_slot"
        self._cut = f"foqs_{shard}_cut"
        # What the statements of a flush begin and end with. The index is named because where the
        # server believes in a handful of rows, rightly or by what it knew before a restart, it
        # reads, and locks, all of them rather than those of a few ids. A DELETE can name it only
        # when it says which table it deletes from.
        item = self._item
        self._from_ids = f"FROM {item} FORCE INDEX (PRIMARY) WHERE id IN (".encode()
        self._delete = f"DELETE {item} FROM {item} FORCE INDEX (PRIMARY) WHERE id IN (".encode()
        self._lease = f"UPDATE {item} FORCE INDEX (PRIMARY) SET ".encode()
        row = f"({', '.join('?' * len(BOUND_COLUMNS))})"
        insert = f"INSERT INTO {item} ({', '.join(BOUND_COLUMNS)}) VALUES "
        self._insert = {count: (insert + ", ".join([row] * count)).encode() for count in INSERT_ROW_COUNTS}
        self._fence = (
            f"UPDATE {self._owner} SET flush = ?, clock_ms = ?, offset_ms = ? "
            "WHERE one = 1 AND epoch = ? AND nonce = ? AND flush = ?"
        ).encode()
        self._add_idempotency_keys = f"INSERT INTO {self._key} VALUES ".encode()
        self._update = f"UPDATE (SELECT {', '.join(f'{value} AS {name}' for name, value in _UPDATE_COLUMNS)}".encode()
        self._update_tail = (
            f") AS new STRAIGHT_JOIN {item} AS item FORCE INDEX (PRIMARY) ON item.id = new.id SET "
            + ", ".join(f"item.{name} = new.{name}" for name in MUTABLE_COLUMNS)
        ).encode()

    def migration(self, step: str) -> bytes:
        """A migration's statement for this shard's tables."""
        tables = {name: getattr(self, f"_{name}") for name in ("item", "owner", "topic", "key", "slot", "cut")}
        return step.format(**tables).encode()

    @property
    def non_innodb_tables(self) -> bytes:
        """The shard's tables that are not InnoDB."""
        names = "', '".join((self._item, self._owner, self._topic, self._key, self._slot, self._cut))
        return (
            "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
            f"AND TABLE_NAME IN ('{names}') AND ENGINE <> 'InnoDB'"
        ).encode()

    @property
    def right_probes(self) -> tuple[bytes, ...]:
        """Need every right that a flush needs and change nothing."""
        item, owner, topic, key, slot, cut = self._item, self._owner, self._topic, self._key, self._slot, self._cut
        texts = (
            f"INSERT INTO {item} SELECT * FROM {item} WHERE FALSE",
            f"UPDATE {item} SET attempt = attempt WHERE id = 0",
            f"DELETE FROM {item} WHERE id = 0",
            f"UPDATE {owner} SET flush = flush WHERE one = 0",
            f"INSERT INTO {topic} SELECT * FROM {topic} WHERE FALSE",
            f"DELETE FROM {topic} WHERE namespace = ''",
            f"INSERT INTO {key} SELECT * FROM {key} WHERE FALSE",
            f"DELETE FROM {key} WHERE namespace = ''",
            f"INSERT INTO {slot} SELECT * FROM {slot} WHERE FALSE",
            f"INSERT INTO {cut} SELECT * FROM {cut} WHERE FALSE",
            f"DELETE FROM {cut} WHERE namespace = ''",
        )
        return tuple(map(str.encode, texts))

    # ---------------------------------------------------------------- the owner

    def read_owner(self, *, lock: bool = False) -> bytes:
        """The owner row; locked, so that no earlier transaction can still change it."""
        tail = " FOR UPDATE" if lock else ""
        return f"SELECT {', '.join(OWNER_COLUMNS)} FROM {self._owner} WHERE one = 1{tail}".encode()

    def set_owner(self, owner: Owner) -> bytes:
        """A takeover or a new connection of the owner, after the row was locked."""
        return (
            f"UPDATE {self._owner} SET epoch = {owner.epoch}, nonce = {name_literal(owner.nonce)}, flush = {owner.flush}, "
            f"connection = {owner.connection} WHERE one = 1"
        ).encode()

    def fence(self, fence: Fence) -> BoundStatement:
        """The first statement of a flush: matches nothing when another owner wrote since; holds the row's lock."""
        return bind(
            self._fence,
            (fence.flush, fence.clock_ms, fence.offset_ms, fence.epoch, fence.nonce.encode(), fence.flush - 1),
        )

    # ---------------------------------------------------------------- the writes

    def write(self, writes: Writes, packet_bytes: int) -> Iterator[Statement]:
        """What one flush changes; no statement with several rows is longer than `packet_bytes`.

        Keys come first: one that is taken ends the flush.
        """
        if writes.idempotency_keys_added:
            yield from self._idempotency_key_statements(
                self._add_idempotency_keys, writes.idempotency_keys_added, packet_bytes
            )
        if writes.idempotency_keys_replaced:
            yield from self._idempotency_key_statements(
                f"REPLACE INTO {self._key} VALUES ".encode(), writes.idempotency_keys_replaced, packet_bytes
            )
        if writes.keys_expired_by_ms is not None:
            over = f"until_ms <= {writes.keys_expired_by_ms} ORDER BY until_ms, namespace, name LIMIT {KEY_EXPIRY_ROWS_MAX}"
            yield f"DELETE FROM {self._key} WHERE {over}".encode()
        if writes.key_slots_added:
            slots = ",".join([f"({slot})" for slot in writes.key_slots_added])
            yield f"INSERT IGNORE INTO {self._slot} VALUES {slots}".encode()
        for cut_over in writes.purge_markers_removed:
            yield f"DELETE FROM {self._cut} WHERE {_marker_condition(cut_over)} AND last = {cut_over.last_number}".encode()
        for made in writes.purge_markers_added:
            values = f"({name_literal(made.namespace)},{name_literal(made.topic)},{made.last_number})"
            yield f"REPLACE INTO {self._cut} VALUES {values}".encode()
        for part in _chunks_of_ids(sorted(writes.deletes)):
            yield b"%b%b)" % (self._delete, part)
        for lease in writes.leases:
            yield from self._lease_statements(lease)
        if writes.updates:
            yield from self._update_statements(writes.updates, packet_bytes)
        if writes.inserts:
            yield from self._insert_statements(writes.inserts, min(packet_bytes, INSERT_BYTES_MAX))
        if writes.topics_removed or writes.topics_added:
            yield from self._topic_statements(writes, packet_bytes)

    def _lease_statements(self, lease: LeaseUpdate) -> Iterator[bytes]:
        """Equal values for many rows."""
        told = (lease.state, due_or_never(lease.due_ms), lease.token, lease.attempt)
        values = b"state = %d, due_ms = %d, token = %d, attempt = %d" % told
        for part in _chunks_of_ids(sorted(lease.ids)):
            yield b"%b%b WHERE id IN (%b)" % (self._lease, values, part)

    def _update_statements(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[bytes]:
        """Absolute values, joined to the rows that exist: it can never insert.

        STRAIGHT_JOIN makes the server walk the constants and look rows up by
        primary key, however small it believes the table to be.
        """
        selects = [update_select(row) for row in sorted(rows, key=lambda row: row.id)]
        room = packet_bytes - len(self._update) - len(self._update_tail)
        for part in chunked(selects, room, UPDATES_PER_STATEMENT):
            yield b"".join((self._update, *part, self._update_tail))

    def _insert_statements(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[BoundStatement]:
        """New rows; an id that exists is an error, never a change."""
        left: Sequence[BoundRow] = encode_rows(rows)
        room = packet_bytes - BOUND_OVERHEAD_BYTES
        whole = sum(map(len, left)) <= room
        while left:
            for count in INSERT_ROW_COUNTS:
                if count <= len(left) and (whole or count == 1 or sum(map(len, left[:count])) <= room):
                    break
            yield bind_rows(self._insert[count], left[:count])
            left = left[count:]

    def _idempotency_key_statements(
        self, head: bytes, rows: Sequence[IdempotencyKey], packet_bytes: int
    ) -> Iterator[bytes]:
        """Rows of keys, new ones or in place of those that are over."""
        for part in chunked(idempotency_key_values(rows), packet_bytes - len(head), len(rows)):
            yield head + b",".join(part)

    def adds_idempotency_keys(self, statement: Statement) -> bool:
        """This is the statement that a key's row which is there already refuses."""
        return isinstance(statement, bytes) and statement.startswith(self._add_idempotency_keys)

    def _topic_statements(self, writes: Writes, packet_bytes: int) -> Iterator[bytes]:
        """Names leave the topics table and enter it; one that is there stays as it is."""
        room = packet_bytes - 1_000  # for what begins the statements and joins the names
        gone = [
            f"(namespace = {name_literal(name)} AND topic = {name_literal(topic)})".encode()
            for name, topic in writes.topics_removed
        ]
        for part in chunked(gone, room, TOPICS_PER_STATEMENT):
            yield f"DELETE FROM {self._topic} WHERE ".encode() + b" OR ".join(part)
        new = [f"({name_literal(name)},{name_literal(topic)})".encode() for name, topic in writes.topics_added]
        for part in chunked(new, room, TOPICS_PER_STATEMENT):
            values = b",".join(part)
            yield b"INSERT INTO %b VALUES %b ON DUPLICATE KEY UPDATE topic = topic" % (self._topic.encode(), values)

    # ----------------------------------------------------------------- the reads

    def read_rows(self, ids: Sequence[int]) -> list[bytes]:
        """Rows by id, without their payload."""
        return [
            b"SELECT %b %b%b)" % (COLUMNS_WITHOUT_PAYLOAD.encode(), self._from_ids, part)
            for part in _chunks_of_ids(ids)
        ]

    def read_rows_with_payload(self, payload_limits: Mapping[int, int]) -> list[bytes]:
        """Rows by id, with their payload unless it is longer than is said of the id."""
        groups: dict[int, list[int]] = {}
        for number, length in payload_limits.items():
            groups.setdefault(length, []).append(number)
        return [
            b"SELECT %b %b%b)" % (columns_with_payload_up_to(str(length)).encode(), self._from_ids, part)
            for length, ids in groups.items()
            for part in _chunks_of_ids(ids)
        ]

    def read_idempotency_keys(self, key_names: Sequence[KeyName]) -> list[bytes]:
        """Rows of keys: ranges of the primary key, a statement for each namespace."""
        names: dict[str, list[bytes]] = {}
        for namespace, key in key_names:
            names.setdefault(namespace, []).append(bytes_literal(key))
        head = f"SELECT namespace, name, id, digest, until_ms FROM {self._key} FORCE INDEX (PRIMARY) WHERE namespace = "
        return [
            b"%b%b AND name IN (%b)" % (head.encode(), name_literal(namespace).encode(), b",".join(part))
            for namespace, found in names.items()
            for part in chunked(found, INSERT_BYTES_MAX, IDS_PER_STATEMENT)
        ]

    @property
    def next_key_expiry(self) -> bytes:
        """When the next key's row is over."""
        return f"SELECT until_ms FROM {self._key} FORCE INDEX (key_until) ORDER BY until_ms LIMIT 1".encode()

    def idempotency_key_of(self, number: int, until_ms: int) -> bytes:
        """The key that names an item, by when its row is over."""
        head = f"SELECT name FROM {self._key} FORCE INDEX (key_until)"
        return f"{head} WHERE until_ms = {until_ms} AND id = {number} LIMIT 1".encode()

    @property
    def key_slots(self) -> bytes:
        """The slots that the shard holds."""
        return f"SELECT slot FROM {self._slot} ORDER BY slot".encode()

    @property
    def purge_markers(self) -> bytes:
        """The cuts that stand."""
        return f"SELECT namespace, topic, last FROM {self._cut}".encode()

    def count_purged_rows(self, purge_marker: PurgeMarker) -> bytes:
        """Rows of a cut by state, from the index alone."""
        return (
            f"SELECT namespace, topic, state, COUNT(*) FROM {self._item} FORCE INDEX (item_order) "
            f"WHERE {_marker_condition(purge_marker)} AND id <= {purge_marker.last_number} GROUP BY namespace, topic, state"
        ).encode()

    @property
    def topics(self) -> bytes:
        """The topics table."""
        return f"SELECT namespace, topic FROM {self._topic}".encode()

    def ready_keys(self, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0) -> bytes:
        """The next keys of a topic's READY rows."""
        return self._order_keys(topic, State.READY, after, limit, purged_up_to).encode()

    def list_rows(
        self,
        topic: TopicName,
        state: State,
        after: OrderKey | None,
        limit: int,
        purged_up_to: int = 0,
        *,
        with_payload: bool,
    ) -> bytes:
        """The next rows of a topic in a state: keys by index first, then only those rows."""
        columns = ", ".join("NULL" if name == "payload" and not with_payload else f"item.{name}" for name in COLUMNS)
        return (
            f"SELECT {columns} FROM ({self._order_keys(topic, state, after, limit, purged_up_to)}) AS page "
            f"STRAIGHT_JOIN {self._item} AS item FORCE INDEX (PRIMARY) ON item.id = page.id "
            "ORDER BY item.priority, item.deliver_after_ms, item.id"
        ).encode()

    def _order_keys(self, topic: TopicName, state: State, after: OrderKey | None, limit: int, purged_up_to: int) -> str:
        """Keys above a key, as three ranges of the index: neither server makes one range of a row comparison."""
        columns = "priority, deliver_after_ms, id"
        head = (
            f"SELECT {columns} FROM {self._item} FORCE INDEX (item_order) "
            f"WHERE namespace = {name_literal(topic[0])} AND topic = {name_literal(topic[1])} AND state = {int(state)}"
        )
        if purged_up_to:
            head += f" AND id > {purged_up_to}"
        order = f"ORDER BY {columns} LIMIT {limit}"
        if after is None:
            return f"{head} {order}"
        priority, deliver_after, number = unpack_order_key(after)
        ranges = (
            f"priority = {priority} AND deliver_after_ms = {deliver_after} AND id > {number}",
            f"priority = {priority} AND deliver_after_ms > {deliver_after}",
            f"priority > {priority}",
        )
        return " UNION ALL ".join(f"({head} AND {bounds} {order})" for bounds in ranges) + f" {order}"

    def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> bytes:
        """A page of what is due, bounded on both sides."""
        start = (_INT64_MIN if low_ms is None else low_ms, -1)
        if after is not None:
            start = max(start, (after.due_ms, after.id))
        head = f"SELECT due_ms, id FROM {self._item} FORCE INDEX (item_due) WHERE"
        order = f"ORDER BY due_ms, id LIMIT {limit}"
        return (
            f"({head} due_ms = {start[0]} AND due_ms <= {high_ms} AND id > {start[1]} {order}) UNION ALL "
            f"({head} due_ms > {start[0]} AND due_ms <= {high_ms} {order}) {order}"
        ).encode()

    def next_due_ms(self, above_ms: int) -> bytes:
        """When the next row comes due."""
        return (
            f"SELECT due_ms FROM {self._item} FORCE INDEX (item_due) "
            f"WHERE due_ms > {above_ms} AND due_ms < {NEVER_MS} ORDER BY due_ms LIMIT 1"
        ).encode()

    @property
    def counts(self) -> bytes:
        """Rows and their bytes by topic and state, from the index alone, at a pace that leaves processors to flushes."""
        columns = "namespace, topic, state"
        sums = "COUNT(*), CAST(SUM(payload_bytes) AS SIGNED)"
        # Always true, as SLEEP is 0, or 1 where the statement is killed meanwhile; no lock is held while it sleeps.
        pauses = f"id % {_ROWS_PER_PAUSE} <> 0 OR SLEEP({_PAUSE_S}) >= 0"
        return (
            f"SELECT {columns}, {sums} FROM {self._item} FORCE INDEX (item_order) WHERE {pauses} GROUP BY {columns}"
        ).encode()


def _marker_condition(purge_marker: PurgeMarker) -> str:
    return f"namespace = {name_literal(purge_marker.namespace)} AND topic = {name_literal(purge_marker.topic)}"


def _chunks_of_ids(ids: Sequence[int]) -> Iterator[bytes]:
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        yield ",".join(map(str, ids[start : start + IDS_PER_STATEMENT])).encode()
