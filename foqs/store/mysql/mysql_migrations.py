"""The SQL of migrations: the numbered migrations of a MySQL shard, their states, and the filling of timers.

Always true: a statement that changes a large table names how the server does it, so
that the server refuses it rather than copy the table. Knows nothing of connections
and errors, nor of when statements run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foqs.core.items.item import TRACE_CONTEXT_BYTES_MAX, State
from foqs.store.migrations import Migration, SchemaState
from foqs.store.mysql.mysql_sql import IDS_PER_STATEMENT, NOT_FILLED
from foqs.store.row_columns import NEVER_MS, NOT_DELIVERED_MS

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

# No index has `zero`, and all conditions name it. Without it the primary key covers every
# statement, and MySQL prefers a scan of a table that it takes for small to a range.
_TIMER: Final = """CREATE TABLE IF NOT EXISTS {timer} (
  due_ms BIGINT NOT NULL,
  id BIGINT NOT NULL,
  zero TINYINT NOT NULL DEFAULT 0,
  PRIMARY KEY (due_ms, id)
) ENGINE = InnoDB"""

# A row is written once and deleted once. Payloads that do not fit its page have pages of their own, which
# a read of the events does not touch.
_JOURNAL: Final = """CREATE TABLE IF NOT EXISTS {journal} (
  position BIGINT NOT NULL,
  part INT NOT NULL,
  floor BIGINT NOT NULL,
  events LONGBLOB NOT NULL,
  payloads LONGBLOB NOT NULL,
  PRIMARY KEY (position, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"""

MIGRATIONS: Final = (
    Migration(
        1,
        "items and their owner",
        (
            _ITEM,
            _OWNER,
            # Later migrations add columns, and an interrupted creation begins again with this statement.
            "INSERT IGNORE INTO {owner} (one, epoch, nonce, flush, clock_ms, connection) VALUES (1, 0, '', 0, 0, 0)",
        ),
    ),
    Migration(
        2,
        "a table of topics",
        (_TOPIC, "INSERT IGNORE INTO {topic} (namespace, topic) SELECT DISTINCT namespace, topic FROM {item}"),
    ),
    Migration(3, "idempotency keys, and the slots of keys that the shard holds", (_KEY, _SLOT)),
    Migration(
        4,
        "the distance of the shard's time from the database's clock",
        ("ALTER TABLE {owner} ADD COLUMN offset_ms BIGINT NOT NULL DEFAULT 0",),
    ),
    Migration(
        5,
        "sizes in the order index, so that a namespace's bytes are counted without reading its items",
        (
            "ALTER TABLE {item} DROP KEY item_order, "
            "ADD KEY item_order (namespace, topic, state, priority, deliver_after_ms, id, payload_bytes)",
        ),
    ),
    Migration(6, "purge markers: purged topics whose rows are still to be deleted", (_CUT,)),
    Migration(
        7,
        "a row that is never due has the largest due_ms; NULL in an older row means the same",
        (f"ALTER TABLE {{item}} ALTER COLUMN due_ms SET DEFAULT {NEVER_MS}",),
    ),
    Migration(
        8,
        "an item's group, its trace context and the time of its first delivery; a table of timers in place of an index "
        "of all dues, because the owner remembers when leases end; the place in the order of the last accepted item; "
        "a journal of the changes of items whose rows are written later",
        # INSTANT changes no row, however many the table has; all columns are added, or none. An owner of version 7
        # writes no timers, so the constraint refuses it before they are filled. See docs/design/upgrades.md.
        (
            "ALTER TABLE {item} ADD COLUMN item_group VARBINARY(255) NULL, "
            f"ADD COLUMN trace_context VARBINARY({TRACE_CONTEXT_BYTES_MAX}) NULL, "
            f"ADD COLUMN first_delivered_at_ms BIGINT NOT NULL DEFAULT {NOT_DELIVERED_MS}, ALGORITHM = INSTANT",
            _TIMER,
            _JOURNAL,
            "ALTER TABLE {owner} ADD COLUMN timers_epoch BIGINT NOT NULL DEFAULT 0, "
            f"ADD COLUMN timers_filled_to BIGINT NOT NULL DEFAULT {NOT_FILLED}, "
            "ADD COLUMN arrival_ms BIGINT NOT NULL DEFAULT 0, ALGORITHM = INSTANT",
        ),
        rolls=True,
        exclude=(
            "ALTER TABLE {owner} ADD CONSTRAINT {owner}_timers CHECK (timers_epoch = epoch), "
            "ALGORITHM = COPY, LOCK = SHARED",
        ),
        fills=True,
        contract=("ALTER TABLE {item} DROP KEY item_due, ALGORITHM = INPLACE, LOCK = NONE",),
    ),
)
"""All migrations, in order. `{item}` and similar names stand for the shard's tables."""

EXISTS_CODES: Final = frozenset({1060, 1826, 3822})
"""Server errors for a column or a constraint that exists: a statement ran again. MySQL has no IF NOT EXISTS for them."""
GONE_CODES: Final = frozenset({1091})
"""Server errors for a key that does not exist any more."""
EXCLUDE_REFUSED_CODES: Final = frozenset({4025, 3819})
"""Server errors for a constraint that the owner row breaks: the owner is of the older version."""

# --------------------------------------------------------------------- states

CREATE_VERSIONS: Final = (
    b"CREATE TABLE IF NOT EXISTS foqs_schema (shard INT NOT NULL PRIMARY KEY, version INT NOT NULL) ENGINE = InnoDB"
)
"""Creates the table of the versions of all shards of a database."""

CREATE_STEPS: Final = (
    b"CREATE TABLE IF NOT EXISTS foqs_schema_steps (shard INT NOT NULL PRIMARY KEY, expanded INT NOT NULL, "
    b"contracted INT NOT NULL, filled_rows BIGINT NOT NULL DEFAULT 0) ENGINE = InnoDB"
)
"""Creates the table of the phases. A shard without a row there has no migration between its phases."""

READ_VERSIONS: Final = b"SELECT shard, version, version, version FROM foqs_schema"
"""Reads the version of every shard of a database, in the form of `READ_STATES`."""

READ_STATES: Final = (
    b"SELECT shard, COALESCE(contracted, version), version, COALESCE(expanded, version) "
    b"FROM foqs_schema LEFT JOIN foqs_schema_steps USING (shard)"
)
"""Reads every shard of a database with its state."""

PROBE_CREATE: Final = b"PREPARE foqs_probe FROM 'CREATE TABLE foqs_probe (one INT)'"
"""Checks the right to create tables without creating one: it is never executed."""
END_PROBE: Final = b"DEALLOCATE PREPARE foqs_probe"


def add_version(shard: int) -> bytes:
    """Add a new shard with version 0."""
    return b"INSERT IGNORE INTO foqs_schema (shard, version) VALUES (%d, 0)" % shard


def lock_version(shard: int) -> bytes:
    """Lock a shard's version row while its tables change, so that a second program waits."""
    return b"SELECT version FROM foqs_schema WHERE shard = %d FOR UPDATE" % shard


def set_state(shard: int, state: SchemaState) -> tuple[bytes, ...]:
    """Store the state after some steps. The version row must be locked by this transaction."""
    return (
        b"REPLACE INTO foqs_schema_steps (shard, expanded, contracted) VALUES (%d, %d, %d)"
        % (shard, state.expanded, state.contracted),
        b"UPDATE foqs_schema SET version = %d WHERE shard = %d" % (state.version, shard),
    )


# ----------------------------------------------------------- online statements

LIMIT_LOCK_WAIT: Final = b"SET SESSION lock_wait_timeout = 1"
"""Limits the wait for a table's lock to a second, the least on MySQL, in case the program that watches the wait dies."""


WAITING_STATE: Final = "Waiting for table"
"""The beginning of the state of a statement that waits for a table's lock."""


def table_rows(shard: int) -> bytes:
    """Read about how many rows the shard has, from the server's statistics."""
    return (
        b"SELECT CAST(COALESCE(MAX(TABLE_ROWS), 0) AS SIGNED) FROM information_schema.TABLES "
        b"WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'foqs_%d_item'" % shard
    )


# ------------------------------------------------------------------ the filling

_NEEDS_TIMER: Final = b"state <> %d AND due_ms < %d" % (State.LEASED, NEVER_MS)
"""The condition of the rows that have a timer entry."""


def filling_position(shard: int, *, lock: bool = False) -> bytes:
    """Read up to which id the timers are filled; with the lock that every flush takes first."""
    return b"SELECT timers_filled_to FROM foqs_%d_owner WHERE one = 1%b" % (shard, b" FOR UPDATE" if lock else b"")


def set_filling_position(shard: int, filled_to: int) -> bytes:
    """Store the position, in the transaction that locked it."""
    return b"UPDATE foqs_%d_owner SET timers_filled_to = %d WHERE one = 1" % (shard, filled_to)


def add_filled_rows(shard: int, rows: int) -> bytes:
    """Count the rows of a filled page, in its transaction. A new shard has no count."""
    return b"UPDATE foqs_schema_steps SET filled_rows = filled_rows + %d WHERE shard = %d" % (rows, shard)


def filled_rows(shard: int) -> bytes:
    """Read the number of rows that were filled since the shard excluded older owners."""
    return b"SELECT filled_rows FROM foqs_schema_steps WHERE shard = %d" % shard


def page_of_rows(shard: int, above: int, limit: int) -> bytes:
    """Read the ids of the next rows in order, and whether each needs a timer entry."""
    return b"SELECT id, %b FROM foqs_%d_item FORCE INDEX (PRIMARY) WHERE id > %d ORDER BY id LIMIT %d" % (
        _NEEDS_TIMER,
        shard,
        above,
        limit,
    )


def fill_timers(shard: int, ids: Sequence[int]) -> Iterator[bytes]:
    """Add the timer entries of rows, as the rows are now. Some exist: they were written by flushes.

    The condition on `attempt` keeps the server to these ids: see docs/design/held-snapshot.md.
    """
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        part = b",".join(b"%d" % number for number in ids[start : start + IDS_PER_STATEMENT])
        yield (
            b"INSERT IGNORE INTO foqs_%d_timer (due_ms, id) SELECT due_ms, id FROM foqs_%d_item FORCE INDEX (PRIMARY) "
            b"WHERE attempt >= 0 AND id IN (%b) AND %b" % (shard, shard, part, _NEEDS_TIMER)
        )
