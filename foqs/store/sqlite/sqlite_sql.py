"""The SQL of the SQLite store: one file holds one shard.

Always true: every statement has a name and a stated purpose; values are bound,
never part of the text. Knows nothing of connections or errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foqs.core.items.item import State
from foqs.store.migrations import Migration
from foqs.store.row_columns import COLUMNS, FIRST_LEASE_COLUMNS, LEASE_COLUMNS, MUTABLE_COLUMNS
from foqs.store.sql_rows import (
    COLUMNS_WITH_PAYLOAD,
    COLUMNS_WITHOUT_PAYLOAD,
    FENCE_COLUMNS,
    KEY_COLUMNS,
    OWNER_COLUMNS,
    columns_with_payload_up_to,
)
from foqs_contract.key_slots import GROUP_PREFIX_BYTES, GROUP_TAG

APPLICATION_ID: Final = 0x464F5153
"""`FOQS` in the header of a file: distinguishes it from the files of other programs."""

# Every index ends with the rowid, so an index needs `id` only if another column follows it.
MIGRATIONS: Final = (
    Migration(
        1,
        "items and their owner",
        (
            """CREATE TABLE item (
  id INTEGER PRIMARY KEY,
  namespace TEXT NOT NULL,
  topic TEXT NOT NULL,
  priority INTEGER NOT NULL,
  deliver_after_ms INTEGER NOT NULL,
  enqueued_at_ms INTEGER NOT NULL,
  lease_ms INTEGER NOT NULL,
  ttl_ms INTEGER,
  expires_at_ms INTEGER,
  policy INTEGER NOT NULL,
  attempts_max INTEGER NOT NULL,
  payload_bytes INTEGER NOT NULL,
  payload BLOB NOT NULL,
  metadata BLOB NOT NULL,
  state INTEGER NOT NULL,
  due_ms INTEGER,
  token INTEGER NOT NULL,
  attempt INTEGER NOT NULL
)""",
            "CREATE INDEX item_order ON item (namespace, topic, state, priority, deliver_after_ms)",
            "CREATE INDEX item_due ON item (due_ms) WHERE due_ms IS NOT NULL",
            """CREATE TABLE owner (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  shard INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  nonce TEXT NOT NULL,
  flush INTEGER NOT NULL,
  clock_ms INTEGER NOT NULL,
  connection INTEGER NOT NULL
)""",
        ),
    ),
    Migration(
        2,
        "a table of topics",
        (
            """CREATE TABLE topic (
  namespace TEXT NOT NULL,
  topic TEXT NOT NULL,
  PRIMARY KEY (namespace, topic)
) WITHOUT ROWID""",
            "INSERT INTO topic SELECT DISTINCT namespace, topic FROM item",
        ),
    ),
    Migration(
        3,
        "idempotency keys, and the slots of keys that the shard holds",
        (
            """CREATE TABLE key (
  namespace TEXT NOT NULL,
  name BLOB NOT NULL,
  id INTEGER NOT NULL,
  digest BLOB NOT NULL,
  until_ms INTEGER NOT NULL,
  PRIMARY KEY (namespace, name)
) WITHOUT ROWID""",
            "CREATE INDEX key_until ON key (until_ms)",
            "CREATE TABLE slot (slot INTEGER PRIMARY KEY)",
        ),
    ),
    Migration(
        4,
        "the distance of the shard's time from the database's clock",
        ("ALTER TABLE owner ADD COLUMN offset_ms INTEGER NOT NULL DEFAULT 0",),
    ),
    Migration(
        5,
        "sizes in the order index, so that a namespace's bytes are counted without reading its items",
        (
            "DROP INDEX item_order",
            "CREATE INDEX item_order ON item (namespace, topic, state, priority, deliver_after_ms, id, payload_bytes)",
        ),
    ),
    Migration(
        6,
        "purge markers: purged topics whose rows are still to be deleted",
        (
            """CREATE TABLE cut (
  namespace TEXT NOT NULL,
  topic TEXT NOT NULL,
  last INTEGER NOT NULL,
  PRIMARY KEY (namespace, topic)
) WITHOUT ROWID""",
        ),
    ),
    Migration(
        7,
        "an item's group, its trace context and the time of its first delivery; a table of timers in place of an index "
        "of all dues, because the owner remembers when leases end",
        # The first statement ends the ownership of a program that writes no timers.
        (
            "UPDATE owner SET nonce = ''",
            "ALTER TABLE item ADD COLUMN item_group BLOB",
            "ALTER TABLE item ADD COLUMN trace_context BLOB",
            "ALTER TABLE item ADD COLUMN first_delivered_at_ms INTEGER",
            "CREATE TABLE timer (due_ms INTEGER NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (due_ms, id)) WITHOUT ROWID",
            f"INSERT INTO timer SELECT due_ms, id FROM item WHERE due_ms IS NOT NULL AND state <> {int(State.LEASED)}",
            "DROP INDEX item_due",
        ),
    ),
    Migration(
        8,
        "the place in the order of the last item that the owner had accepted",
        ("ALTER TABLE owner ADD COLUMN arrival_ms INTEGER NOT NULL DEFAULT 0",),
    ),
    Migration(
        9,
        "a journal of the changes of items whose rows are written later",
        # The payloads come last: a read of the others does not read their pages.
        (
            """CREATE TABLE journal (
  position INTEGER PRIMARY KEY,
  floor INTEGER NOT NULL,
  events BLOB NOT NULL,
  payloads BLOB NOT NULL
)""",
        ),
    ),
)


def _assigned(names: Sequence[str]) -> str:
    """Return an assignment of a bound value to each column."""
    return ", ".join(f"{name} = ?" for name in names)


ADD_OWNER: Final = (
    "INSERT OR IGNORE INTO owner (one, shard, epoch, nonce, flush, clock_ms, connection) VALUES (1, ?, 0, '', 0, 0, 0)"
)
"""Adds the owner row of a new file, without an owner. Binds the shard's number."""

READ_SHARD: Final = "SELECT shard FROM owner WHERE one = 1"
"""Reads the number of the shard in the file."""

NOW_MS: Final = (
    "SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)"
)
"""Reads the machine's clock, in milliseconds since 1970-01-01 UTC; 'now' is one moment within a statement."""

BEGIN: Final = "BEGIN IMMEDIATE"
"""Takes the write lock at once, so that nothing read in the transaction becomes stale."""

BEGIN_READ: Final = "BEGIN DEFERRED"
"""The first SELECT fixes the moment that the transaction shows. Waits for no lock."""

COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"

READ_OWNER: Final = f"SELECT {', '.join(OWNER_COLUMNS)} FROM owner WHERE one = 1"
"""Reads the owner row."""

SET_OWNER: Final = "UPDATE owner SET epoch = ?, nonce = ?, flush = ?, connection = ? WHERE one = 1"
"""Writes the owner row at a takeover or a new connection, after the row was read under the write lock."""

FENCE: Final = (
    f"UPDATE owner SET {_assigned(FENCE_COLUMNS)} WHERE one = 1 AND epoch = ? AND nonce = ? AND flush = ? - 1"
)
"""Begins a flush: matches no row if another owner wrote since."""

READ_ROW: Final = f"SELECT {COLUMNS_WITHOUT_PAYLOAD} FROM item WHERE id = ?"
"""Reads one row without its payload."""

READ_ROW_WITH_PAYLOAD: Final = f"SELECT {columns_with_payload_up_to('?')} FROM item WHERE id = ?"
"""Reads one row with its payload, unless it is longer than the limit."""

DELETE: Final = "DELETE FROM item WHERE id = ?"
"""Deletes a row, if it exists."""

UPDATE: Final = f"UPDATE item SET {_assigned(MUTABLE_COLUMNS)} WHERE id = ?"
"""Writes a row's mutable columns; never inserts."""

MOVE: Final = f"UPDATE item SET id = ?, topic = ?, {_assigned(MUTABLE_COLUMNS)} WHERE id = ?"
"""Gives a row another id and topic, and writes its mutable columns; never inserts."""

LEASES: Final = {
    names: f"UPDATE item SET {_assigned(names)} WHERE id = ?" for names in (LEASE_COLUMNS, FIRST_LEASE_COLUMNS)
}
"""Write the columns that a lease changes, and those that the first lease of an item changes."""

INSERT: Final = f"INSERT INTO item ({COLUMNS_WITH_PAYLOAD}) VALUES ({', '.join('?' * len(COLUMNS))})"
"""Adds a row; an id that exists is an error."""

TOPICS: Final = "SELECT namespace, topic FROM topic"
"""Reads the topics table."""

ADD_TOPIC: Final = "INSERT INTO topic VALUES (?, ?) ON CONFLICT DO NOTHING"
"""Adds a topic."""

REMOVE_TOPIC: Final = "DELETE FROM topic WHERE namespace = ? AND topic = ?"
"""Removes a topic without items."""

READ_IDEMPOTENCY_KEY: Final = f"SELECT {', '.join(KEY_COLUMNS)} FROM key WHERE namespace = ? AND name = ?"
"""Reads a key row."""

ADD_IDEMPOTENCY_KEY: Final = f"INSERT INTO key VALUES ({', '.join('?' * len(KEY_COLUMNS))})"
"""Adds a key row; one that exists is an error."""

REPLACE_IDEMPOTENCY_KEY: Final = f"INSERT OR REPLACE INTO key VALUES ({', '.join('?' * len(KEY_COLUMNS))})"
"""Replaces a key row whose window has ended."""

EXPIRE_IDEMPOTENCY_KEYS: Final = (
    "DELETE FROM key WHERE (namespace, name) IN "
    "(SELECT namespace, name FROM key WHERE until_ms >= ? AND until_ms <= ? ORDER BY until_ms, namespace, name LIMIT ?)"
)
"""Deletes some key rows whose windows have ended, the oldest first."""

NEXT_KEY_EXPIRY: Final = "SELECT MIN(until_ms) FROM key WHERE until_ms >= ?"
"""Reads when the next key window ends, not before a moment."""

IDEMPOTENCY_KEY_OF: Final = (
    "SELECT id, name FROM key INDEXED BY key_until WHERE until_ms = ? AND id = ? "
    f"AND substr(name, CASE WHEN substr(name, 1, 2) = x'{GROUP_TAG.hex()}' THEN {GROUP_PREFIX_BYTES + 1} ELSE 1 END, 1) <> x'00' "
    "LIMIT 1"
)
"""Reads the key that names an item, by its `until_ms`: the caller's, and no record of FOQS itself. See `own_key`."""

KEY_SLOTS: Final = "SELECT slot FROM slot ORDER BY slot"
"""Reads the key slots of the shard."""

ADD_KEY_SLOT: Final = "INSERT INTO slot VALUES (?) ON CONFLICT DO NOTHING"
"""Adds a key slot."""

PURGE_MARKERS: Final = "SELECT namespace, topic, last FROM cut"
"""Reads the purge markers."""

SET_PURGE_MARKER: Final = "INSERT OR REPLACE INTO cut VALUES (?, ?, ?)"
"""Marks a topic as purged up to a number."""

REMOVE_PURGE_MARKER: Final = "DELETE FROM cut WHERE namespace = ? AND topic = ? AND last = ?"
"""Removes a marker whose rows are deleted."""

COUNT_PURGED_ROWS: Final = (
    "SELECT state, COUNT(*) FROM item WHERE namespace = ? AND topic = ? AND +id <= ? GROUP BY state"
)
"""Counts the rows under a purge marker by state, from the index alone."""

_TOPIC_CONDITION: Final = (
    "namespace = ? AND topic = ? AND state = ? AND +id > ?"  # + keeps SQLite on the index item_order
)
_AFTER_CONDITION: Final = "(priority, deliver_after_ms, id) > (?, ?, ?)"
_ORDER_AND_LIMIT: Final = "ORDER BY priority, deliver_after_ms, id LIMIT ?"

FIRST_ORDER_KEYS: Final = f"SELECT priority, deliver_after_ms, id FROM item WHERE {_TOPIC_CONDITION} {_ORDER_AND_LIMIT}"
"""Reads the first keys of a topic in a state."""

NEXT_ORDER_KEYS: Final = f"SELECT priority, deliver_after_ms, id FROM item WHERE {_TOPIC_CONDITION} AND {_AFTER_CONDITION} {_ORDER_AND_LIMIT}"
"""Reads the keys after a key."""

FIRST_ROWS: Final = f"SELECT {COLUMNS_WITH_PAYLOAD} FROM item WHERE {_TOPIC_CONDITION} {_ORDER_AND_LIMIT}"
"""Reads the first rows of a topic in a state."""

NEXT_ROWS: Final = (
    f"SELECT {COLUMNS_WITH_PAYLOAD} FROM item WHERE {_TOPIC_CONDITION} AND {_AFTER_CONDITION} {_ORDER_AND_LIMIT}"
)
"""Reads the rows after a key."""

FIRST_ROWS_WITHOUT_PAYLOAD: Final = (
    f"SELECT {COLUMNS_WITHOUT_PAYLOAD} FROM item WHERE {_TOPIC_CONDITION} {_ORDER_AND_LIMIT}"
)
"""Reads the first rows of a topic in a state, without payload."""

NEXT_ROWS_WITHOUT_PAYLOAD: Final = (
    f"SELECT {COLUMNS_WITHOUT_PAYLOAD} FROM item WHERE {_TOPIC_CONDITION} AND {_AFTER_CONDITION} {_ORDER_AND_LIMIT}"
)
"""Reads the rows after a key, without payload."""

LAST_OF_PAGE: Final = "SELECT COUNT(*), MAX(id) FROM (SELECT id FROM item WHERE id > ? AND id <= ? ORDER BY id LIMIT ?)"
"""Reads how many rows a page by id reads, and the last one."""


def rows_by_id(topics: int, states: int, *, has_group: bool) -> str:
    """Read the rows of a page by id that match a filter with this number of topics (0: all) and of states."""
    topic = f"+topic IN ({', '.join('?' * topics)}) AND " if topics else ""
    return (
        f"SELECT {COLUMNS_WITHOUT_PAYLOAD} FROM item WHERE id > ? AND id <= ? AND +namespace = ? AND {topic}"
        f"{'item_group = ? AND ' if has_group else ''}+state IN ({', '.join('?' * states)}) AND priority BETWEEN ? AND ? AND enqueued_at_ms BETWEEN ? AND ? "
        "ORDER BY id LIMIT ?"
    )


ADD_TIMER: Final = "INSERT INTO timer VALUES (?, ?) ON CONFLICT DO NOTHING"
"""Adds a timer entry."""

REMOVE_TIMER: Final = "DELETE FROM timer WHERE due_ms = ? AND id = ?"
"""Removes a timer entry, if it exists."""

DUE_ROWS: Final = "SELECT due_ms, id FROM timer WHERE (due_ms, id) > (?, ?) AND due_ms <= ? ORDER BY due_ms, id LIMIT ?"
"""Reads a page of timer entries after (due_ms, id)."""

NEXT_DUE: Final = "SELECT due_ms FROM timer WHERE due_ms > ? AND due_ms < ? ORDER BY due_ms LIMIT 1"
"""Reads the next timer entry's due."""

LEASES_IN: Final = (
    f"SELECT due_ms, id FROM item WHERE id BETWEEN ? AND ? AND +state = {int(State.LEASED)} AND due_ms <= ?"
)
"""Reads which rows of a range of ids are leased, and when their leases end."""

_LEASES: Final = "SELECT priority, deliver_after_ms, id, due_ms FROM item"

FIRST_LEASES: Final = f"{_LEASES} WHERE {_TOPIC_CONDITION} {_ORDER_AND_LIMIT}"
"""Reads the first leases of a topic."""

NEXT_LEASES: Final = f"{_LEASES} WHERE {_TOPIC_CONDITION} AND {_AFTER_CONDITION} {_ORDER_AND_LIMIT}"
"""Reads the leases after a key."""

COUNTS: Final = (
    "SELECT namespace, topic, state, COUNT(*), SUM(payload_bytes) FROM item GROUP BY namespace, topic, state"
)
"""Counts rows and payload bytes by topic and state, from the index alone."""

ADD_JOURNAL_ROW: Final = "INSERT INTO journal (position, floor, events, payloads) VALUES (?, ?, ?, ?)"
"""Adds the journal row of a flush."""

TRIM_JOURNAL: Final = "DELETE FROM journal WHERE position >= ? AND position < ?"
"""Deletes the journal rows of a range of positions."""

EMPTY_JOURNAL_ROW: Final = "UPDATE journal SET payloads = x'' WHERE position = ?"
"""Deletes the payloads of a journal row."""

DELETE_RESERVE: Final = "DELETE FROM journal WHERE position = 0"
"""Deletes the reserve of the journal, if there is one."""

ADD_RESERVE: Final = "INSERT INTO journal (position, floor, events, payloads) VALUES (0, 0, x'', zeroblob(?))"
"""Adds a reserve of this length."""

JOURNAL_FLOOR: Final = "SELECT floor FROM journal WHERE position > 0 ORDER BY position DESC LIMIT 1"
"""Reads the floor of the newest journal row."""

JOURNAL_EVENTS: Final = "SELECT position, events FROM journal WHERE position >= ? ORDER BY position"
"""Reads the events of journal rows at or above a position."""

JOURNAL_PAYLOADS: Final = "SELECT substr(payloads, ?, ?) FROM journal WHERE position = ?"
"""Reads a part of the payloads of a flush: its first byte, counted from 1, and its length."""
