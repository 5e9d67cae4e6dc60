"""The statements of a relay, each with its purpose. `{marks}` stands for markers in a list of ids.

Always true: a round begins with the fence, and names rows by their primary keys only. A marker is `?`; `for_driver` gives those
of another driver.
"""

from __future__ import annotations

from typing import Final

from foqs_client.outbox.new_rows import COLUMNS
from foqs_client.outbox.outbox_sql import Dialect, now_sql, table_names
from foqs_client.outbox.relayed_items import READ_COLUMNS

_READ: Final = ", ".join(READ_COLUMNS)
_KEPT: Final = ", ".join(("id", *COLUMNS, "created_ms"))
"""What a parked row keeps."""

BEGIN: Final = {
    Dialect.MYSQL: "START TRANSACTION",
    Dialect.POSTGRES: "BEGIN",
    Dialect.SQLITE: "BEGIN IMMEDIATE",  # it takes the lock at once: a later upgrade could fail for ever
}
SESSION: Final = {
    Dialect.MYSQL: [
        # A delete of an id that is not there locks the gap under MySQL's default, in which users insert.
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        # The server ends a session that says nothing, and so its lock of the owner row.
        "SET SESSION wait_timeout = {idle_s}, innodb_lock_wait_timeout = 5",
    ],
    Dialect.POSTGRES: [
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET idle_in_transaction_session_timeout = '{idle_s}s'",
        "SET lock_timeout = '5s'",
        "SET statement_timeout = '60s'",
    ],
    Dialect.SQLITE: ["PRAGMA busy_timeout = 5000"],
}
LOCK: Final = {Dialect.MYSQL: " FOR UPDATE", Dialect.POSTGRES: " FOR UPDATE", Dialect.SQLITE: ""}

# Who owns the outbox.
READ_OWNER: Final = "SELECT epoch, nonce, round, state FROM {relay} WHERE one = 1"
FIRST_OWNER: Final = "INSERT INTO {relay} (one, epoch, nonce, round, state) VALUES (1, 0, '', 0, ?)"
TAKE_OVER: Final = (
    "UPDATE {relay} SET epoch = epoch + 1, nonce = ?, round = 0 WHERE one = 1 AND epoch = ? AND round = ?"
)
LEAVE: Final = "UPDATE {relay} SET nonce = '' WHERE one = 1 AND epoch = ? AND nonce = ? AND round = ?"

# What a relay reads. Sizes first: a page ends by the length of its payloads.
READ_SIZES_ABOVE: Final = "SELECT id, LENGTH(payload) FROM {outbox} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
READ_SIZES_IN: Final = "SELECT id, LENGTH(payload) FROM {outbox} WHERE {ranges} ORDER BY id LIMIT ?"
READ_SIZES_RESENT: Final = "SELECT id, LENGTH(payload) FROM {parked} WHERE verdict IS NOT NULL ORDER BY id"
READ_ABOVE: Final = f"SELECT {_READ} FROM {{outbox}} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"  # noqa: S608
READ_IDS: Final = f"SELECT {_READ} FROM {{outbox}} WHERE id IN ({{marks}})"  # noqa: S608
READ_PARKED: Final = "SELECT id, row_group, may_be_queued FROM {parked} ORDER BY id"
READ_PARKED_IDS: Final = f"SELECT {_READ}, may_be_queued, verdict FROM {{parked}} WHERE id IN ({{marks}})"  # noqa: S608

# A round.
FENCE: Final = "UPDATE {relay} SET round = ?, state = ? WHERE one = 1 AND epoch = ? AND nonce = ? AND round = ?"
PARK: Final = (
    f"INSERT INTO {{parked}} ({_KEPT}, reason, may_be_queued) SELECT {_KEPT}, ?, ? FROM {{outbox}} WHERE id = ?"  # noqa: S608
)
PARK_AGAIN: Final = "UPDATE {parked} SET verdict = NULL, reason = ?, may_be_queued = ? WHERE id = ?"
DELETE_ROWS: Final = "DELETE FROM {outbox} WHERE id IN ({marks})"
DELETE_PARKED: Final = "DELETE FROM {parked} WHERE id IN ({marks})"


# What others look at.
READ_OLDEST: Final = "SELECT id, {now} - created_ms FROM {outbox} WHERE id > ? ORDER BY id LIMIT 1"
COUNT_ROWS: Final = (
    "SELECT COUNT(*), MAX(id) FROM (SELECT id FROM {outbox} WHERE id >= ? ORDER BY id LIMIT ?) AS counted"
)
READ_NEWEST: Final = "SELECT MAX(id) FROM {outbox}"
COUNT_PARKED: Final = "SELECT verdict IS NOT NULL, COUNT(*) FROM {parked} GROUP BY verdict IS NOT NULL"
CHECK_COLUMNS: Final = (
    f"SELECT {_KEPT} FROM {{outbox}} WHERE id = 0",  # noqa: S608
    f"SELECT {_KEPT}, reason, may_be_queued, verdict FROM {{parked}} WHERE id = 0",  # noqa: S608
    READ_OWNER,
)
IS_READ_ONLY: Final = {Dialect.MYSQL: "SELECT @@global.read_only", Dialect.POSTGRES: "SELECT pg_is_in_recovery()"}
ID_STEP: Final = {Dialect.MYSQL: "SELECT @@auto_increment_increment"}

# What an operator sees and decides.
LIST_PARKED: Final = (
    "SELECT id, topic, row_group, payload, reason, may_be_queued, verdict, {now} - created_ms FROM {parked} "
    "WHERE id > ? ORDER BY id LIMIT ?"
)
FIND_PARKED: Final = "SELECT verdict FROM {parked} WHERE id = ?"
RESEND: Final = (
    "UPDATE {parked} SET verdict = 'resend' WHERE id = ? AND verdict IS NULL AND (may_be_queued = 0 OR ? = 1)"
)
DROP: Final = "DELETE FROM {parked} WHERE id = ? AND verdict IS NULL"


def for_driver(statement: str, prefix: str, marker: str, dialect: Dialect, **parts: str) -> str:
    """Return a statement for a database: names of the tables, its clock, and the markers of its driver. Raises InvalidArgument."""
    outbox, parked, relay, _ = table_names(prefix)
    now = now_sql(dialect) if "{now}" in statement else ""
    return statement.format(outbox=outbox, parked=parked, relay=relay, now=now, **parts).replace("?", marker)
