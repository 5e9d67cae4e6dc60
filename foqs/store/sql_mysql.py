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

from foqs.core.cuts import Cut
from foqs.core.fence import Fence, Owner
from foqs.core.item import Key, Row, State, TopicName, unpack_key
from foqs.core.keys import KeyName, KeyRow
from foqs.store.mysql_wire import Bound, Statement
from foqs.store.port import KEYS_OVER_PAGE, Due, Lease, Writes
from foqs.store.sql_migrations import Migration
from foqs.store.sql_mysql_values import (
    BOUND,
    BOUND_BYTES,
    NEVER_MS,
    BoundRow,
    bound,
    bound_rows,
    cut,
    data,
    due_or_never,
    inserted,
    key_values,
    text,
    updated,
)
from foqs.store.sql_rows import COLUMNS, MUTABLE, OWNER_COLUMNS, WITHOUT_PAYLOAD, payload_up_to

IDS_PER_STATEMENT: Final = 500
"""From 1,000 ids on MariaDB rewrites an IN list as a join; from 16,000 on it scans the table."""
UPDATES_PER_STATEMENT: Final = 200
TOPICS_PER_STATEMENT: Final = 200
INSERT_BYTES: Final = 4 << 20
"""A multi-row INSERT is cut here; a server's smaller max_allowed_packet cuts earlier."""
_ROWS_PER_PAUSE: Final = 4096
"""A count of a shard sleeps at so many rows, as the numbers in ids are given in turn."""
_PAUSE_S: Final = 0.005
"""So it takes a fifth of a processor: 4,096 rows take 0.8 ms, and 1.3 from the disk."""
ROWS_BOUND: Final = (100, 50, *range(32, 0, -1))
"""New rows go in statements of so many, each prepared once by each writer when it is first needed: what few callers bring
is one statement, as each is answered by itself, and the host wakes for it."""
PREPARED_MAX: Final = len(ROWS_BOUND) + 1
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


def commit_each(yes: bool) -> bytes:
    """Whether every statement commits by itself."""
    return b"SET SESSION autocommit = %d" % yes


def session(lock_wait_s: int, *, reads: bool = False) -> tuple[bytes, ...]:
    """A new connection's settings; the last statement gives its number, the server's limit and the server's clock.

    The literals of `sql_mysql_values` rely on the charset and on what this sql_mode
    leaves out. UTC, because a local clock repeats an hour each year. A transaction
    that only reads shows one moment; one that writes sees what is newest and locks
    no gaps, and begins with its first statement: nothing is written but by a COMMIT.
    """
    level = "REPEATABLE READ" if reads else "READ COMMITTED"
    return (
        commit_each(reads),
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

PREPARED_LIMIT: Final = b"SELECT @@GLOBAL.max_prepared_stmt_count"
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


def lock_wait(seconds: int) -> bytes:
    """How long the next statements wait for a row lock."""
    return b"SET SESSION innodb_lock_wait_timeout = %d" % seconds


def is_ours(connection: int) -> bytes:
    """1 when that connection is open, and of the same user and database as this one."""
    return (
        b"SELECT COUNT(*) FROM information_schema.PROCESSLIST "
        b"WHERE ID = %d AND USER = SUBSTRING_INDEX(USER(), '@', 1) AND DB = DATABASE()" % connection
    )


def is_running(connection: int) -> bytes:
    """1 when that connection of this user is open, and the server runs a statement of it."""
    return b"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %d AND COMMAND <> 'Sleep'" % connection


def kill(connection: int) -> bytes:
    """Ends a connection, rolls its transaction back and frees its locks."""
    return b"KILL CONNECTION %d" % connection


_UPDATE_TYPES: Final = (
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
        self._of_ids = f"FROM {item} FORCE INDEX (PRIMARY) WHERE id IN (".encode()
        self._delete = f"DELETE {item} FROM {item} FORCE INDEX (PRIMARY) WHERE id IN (".encode()
        self._lease = f"UPDATE {item} FORCE INDEX (PRIMARY) SET ".encode()
        row = f"({', '.join('?' * len(BOUND))})"
        insert = f"INSERT INTO {item} ({', '.join(BOUND)}) VALUES "
        self._insert = {count: (insert + ", ".join([row] * count)).encode() for count in ROWS_BOUND}
        self._fence = (
            f"UPDATE {self._owner} SET flush = ?, clock_ms = ?, offset_ms = ? "
            "WHERE one = 1 AND epoch = ? AND nonce = ? AND flush = ?"
        ).encode()
        self._add_keys = f"INSERT INTO {self._key} VALUES ".encode()
        self._update = f"UPDATE (SELECT {', '.join(f'{value} AS {name}' for name, value in _UPDATE_TYPES)}".encode()
        self._update_tail = (
            f") AS new STRAIGHT_JOIN {item} AS item FORCE INDEX (PRIMARY) ON item.id = new.id SET "
            + ", ".join(f"item.{name} = new.{name}" for name in MUTABLE)
        ).encode()

    def migration(self, step: str) -> bytes:
        """A migration's statement for this shard's tables."""
        tables = {name: getattr(self, f"_{name}") for name in ("item", "owner", "topic", "key", "slot", "cut")}
        return step.format(**tables).encode()

    @property
    def engines(self) -> bytes:
        """The shard's tables that are not InnoDB."""
        names = "', '".join((self._item, self._owner, self._topic, self._key, self._slot, self._cut))
        return (
            "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
            f"AND TABLE_NAME IN ('{names}') AND ENGINE <> 'InnoDB'"
        ).encode()

    @property
    def probes(self) -> tuple[bytes, ...]:
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
            f"UPDATE {self._owner} SET epoch = {owner.epoch}, nonce = {text(owner.nonce)}, flush = {owner.flush}, "
            f"connection = {owner.connection} WHERE one = 1"
        ).encode()

    def fence(self, fence: Fence) -> Bound:
        """The first statement of a flush: matches nothing when another owner wrote since; holds the row's lock."""
        return bound(
            self._fence,
            (fence.flush, fence.clock_ms, fence.offset_ms, fence.epoch, fence.nonce.encode(), fence.flush - 1),
        )

    # ---------------------------------------------------------------- the writes

    def write(self, writes: Writes, packet_bytes: int) -> Iterator[Statement]:
        """What one flush changes; no statement with several rows is longer than `packet_bytes`.

        Keys come first: one that is taken ends the flush.
        """
        if writes.keys:
            yield from self._keys_added(self._add_keys, writes.keys, packet_bytes)
        if writes.keys_replaced:
            yield from self._keys_added(
                f"REPLACE INTO {self._key} VALUES ".encode(), writes.keys_replaced, packet_bytes
            )
        if writes.keys_over_ms is not None:
            over = f"until_ms <= {writes.keys_over_ms} ORDER BY until_ms, namespace, name LIMIT {KEYS_OVER_PAGE}"
            yield f"DELETE FROM {self._key} WHERE {over}".encode()
        if writes.slots_added:
            slots = ",".join([f"({slot})" for slot in writes.slots_added])
            yield f"INSERT IGNORE INTO {self._slot} VALUES {slots}".encode()
        for cut_over in writes.cuts_over:
            yield f"DELETE FROM {self._cut} WHERE {_of_cut(cut_over)} AND last = {cut_over.last}".encode()
        for made in writes.cuts:
            values = f"({text(made.namespace)},{text(made.topic)},{made.last})"
            yield f"REPLACE INTO {self._cut} VALUES {values}".encode()
        for part in _id_lists(sorted(writes.deletes)):
            yield b"%b%b)" % (self._delete, part)
        for lease in writes.leases:
            yield from self._leases(lease)
        if writes.updates:
            yield from self._updates(writes.updates, packet_bytes)
        if writes.inserts:
            yield from self._inserts(writes.inserts, min(packet_bytes, INSERT_BYTES))
        if writes.topics_removed or writes.topics_added:
            yield from self._topics(writes, packet_bytes)

    def _leases(self, lease: Lease) -> Iterator[bytes]:
        """Equal values for many rows."""
        told = (lease.state, due_or_never(lease.due_ms), lease.token, lease.attempt)
        values = b"state = %d, due_ms = %d, token = %d, attempt = %d" % told
        for part in _id_lists(sorted(lease.ids)):
            yield b"%b%b WHERE id IN (%b)" % (self._lease, values, part)

    def _updates(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[bytes]:
        """Absolute values, joined to the rows that exist: it can never insert.

        STRAIGHT_JOIN makes the server walk the constants and look rows up by
        primary key, however small it believes the table to be.
        """
        selects = [updated(row) for row in sorted(rows, key=lambda row: row.id)]
        room = packet_bytes - len(self._update) - len(self._update_tail)
        for part in cut(selects, room, UPDATES_PER_STATEMENT):
            yield b"".join((self._update, *part, self._update_tail))

    def _inserts(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[Bound]:
        """New rows; an id that exists is an error, never a change."""
        left: Sequence[BoundRow] = inserted(rows)
        room = packet_bytes - BOUND_BYTES
        whole = sum(map(len, left)) <= room
        while left:
            for count in ROWS_BOUND:
                if count <= len(left) and (whole or count == 1 or sum(map(len, left[:count])) <= room):
                    break
            yield bound_rows(self._insert[count], left[:count])
            left = left[count:]

    def _keys_added(self, head: bytes, rows: Sequence[KeyRow], packet_bytes: int) -> Iterator[bytes]:
        """Rows of keys, new ones or in place of those that are over."""
        for part in cut(key_values(rows), packet_bytes - len(head), len(rows)):
            yield head + b",".join(part)

    def adds_keys(self, statement: Statement) -> bool:
        """This is the statement that a key's row which is there already refuses."""
        return isinstance(statement, bytes) and statement.startswith(self._add_keys)

    def _topics(self, writes: Writes, packet_bytes: int) -> Iterator[bytes]:
        """Names leave the topics table and enter it; one that is there stays as it is."""
        room = packet_bytes - 1_000  # for what begins the statements and joins the names
        gone = [
            f"(namespace = {text(name)} AND topic = {text(topic)})".encode() for name, topic in writes.topics_removed
        ]
        for part in cut(gone, room, TOPICS_PER_STATEMENT):
            yield f"DELETE FROM {self._topic} WHERE ".encode() + b" OR ".join(part)
        new = [f"({text(name)},{text(topic)})".encode() for name, topic in writes.topics_added]
        for part in cut(new, room, TOPICS_PER_STATEMENT):
            values = b",".join(part)
            yield b"INSERT INTO %b VALUES %b ON DUPLICATE KEY UPDATE topic = topic" % (self._topic.encode(), values)

    # ----------------------------------------------------------------- the reads

    def read_rows(self, ids: Sequence[int]) -> list[bytes]:
        """Rows by id, without their payload."""
        return [b"SELECT %b %b%b)" % (WITHOUT_PAYLOAD.encode(), self._of_ids, part) for part in _id_lists(ids)]

    def load_rows(self, lengths: Mapping[int, int]) -> list[bytes]:
        """Rows by id, with their payload unless it is longer than is said of the id."""
        groups: dict[int, list[int]] = {}
        for number, length in lengths.items():
            groups.setdefault(length, []).append(number)
        return [
            b"SELECT %b %b%b)" % (payload_up_to(str(length)).encode(), self._of_ids, part)
            for length, ids in groups.items()
            for part in _id_lists(ids)
        ]

    def read_keys(self, keys: Sequence[KeyName]) -> list[bytes]:
        """Rows of keys: ranges of the primary key, a statement for each namespace."""
        names: dict[str, list[bytes]] = {}
        for namespace, key in keys:
            names.setdefault(namespace, []).append(data(key))
        head = f"SELECT namespace, name, id, digest, until_ms FROM {self._key} FORCE INDEX (PRIMARY) WHERE namespace = "
        return [
            b"%b%b AND name IN (%b)" % (head.encode(), text(namespace).encode(), b",".join(part))
            for namespace, found in names.items()
            for part in cut(found, INSERT_BYTES, IDS_PER_STATEMENT)
        ]

    @property
    def next_key_over(self) -> bytes:
        """When the next key's row is over."""
        return f"SELECT until_ms FROM {self._key} FORCE INDEX (key_until) ORDER BY until_ms LIMIT 1".encode()

    def key_of(self, number: int, until_ms: int) -> bytes:
        """The key that names an item, by when its row is over."""
        head = f"SELECT name FROM {self._key} FORCE INDEX (key_until)"
        return f"{head} WHERE until_ms = {until_ms} AND id = {number} LIMIT 1".encode()

    @property
    def slots(self) -> bytes:
        """The slots that the shard holds."""
        return f"SELECT slot FROM {self._slot} ORDER BY slot".encode()

    @property
    def cuts(self) -> bytes:
        """The cuts that stand."""
        return f"SELECT namespace, topic, last FROM {self._cut}".encode()

    def count_cut(self, cut: Cut) -> bytes:
        """Rows of a cut by state, from the index alone."""
        return (
            f"SELECT namespace, topic, state, COUNT(*) FROM {self._item} FORCE INDEX (item_order) "
            f"WHERE {_of_cut(cut)} AND id <= {cut.last} GROUP BY namespace, topic, state"
        ).encode()

    @property
    def topics(self) -> bytes:
        """The topics table."""
        return f"SELECT namespace, topic FROM {self._topic}".encode()

    def ready(self, topic: TopicName, after: Key | None, limit: int, last_cut: int = 0) -> bytes:
        """The next keys of a topic's READY rows."""
        return self._keys(topic, State.READY, after, limit, last_cut).encode()

    def listed(
        self, topic: TopicName, state: State, after: Key | None, limit: int, last_cut: int = 0, *, payload: bool
    ) -> bytes:
        """The next rows of a topic in a state: keys by index first, then only those rows."""
        columns = ", ".join("NULL" if name == "payload" and not payload else f"item.{name}" for name in COLUMNS)
        return (
            f"SELECT {columns} FROM ({self._keys(topic, state, after, limit, last_cut)}) AS page "
            f"STRAIGHT_JOIN {self._item} AS item FORCE INDEX (PRIMARY) ON item.id = page.id "
            "ORDER BY item.priority, item.deliver_after_ms, item.id"
        ).encode()

    def _keys(self, topic: TopicName, state: State, after: Key | None, limit: int, last_cut: int) -> str:
        """Keys above a key, as three ranges of the index: neither server makes one range of a row comparison."""
        columns = "priority, deliver_after_ms, id"
        head = (
            f"SELECT {columns} FROM {self._item} FORCE INDEX (item_order) "
            f"WHERE namespace = {text(topic[0])} AND topic = {text(topic[1])} AND state = {int(state)}"
        )
        if last_cut:
            head += f" AND id > {last_cut}"
        order = f"ORDER BY {columns} LIMIT {limit}"
        if after is None:
            return f"{head} {order}"
        priority, deliver_after, number = unpack_key(after)
        ranges = (
            f"priority = {priority} AND deliver_after_ms = {deliver_after} AND id > {number}",
            f"priority = {priority} AND deliver_after_ms > {deliver_after}",
            f"priority > {priority}",
        )
        return " UNION ALL ".join(f"({head} AND {bounds} {order})" for bounds in ranges) + f" {order}"

    def due(self, low_ms: int | None, high_ms: int, after: Due | None, limit: int) -> bytes:
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

    def next_due(self, above_ms: int) -> bytes:
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


def _of_cut(cut: Cut) -> str:
    return f"namespace = {text(cut.namespace)} AND topic = {text(cut.topic)}"


def _id_lists(ids: Sequence[int]) -> Iterator[bytes]:
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        yield ",".join(map(str, ids[start : start + IDS_PER_STATEMENT])).encode()
