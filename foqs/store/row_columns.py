"""The columns of an item's row: the only list of them.

Holds `ROW_COLUMNS`, in the order of `Row`'s fields. The class `Row`, the code that encodes
and decodes rows, and the table in docs/design/stores.md are generated from it by
tools/columns.py; the texts of the statements are made from it when their modules are
imported. Always true: a column that was added after the first migration has a default, which
is the value of the rows from before. Knows nothing of connections or statements.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from foqs.core.items.item import GROUP_BYTES_MAX, TRACE_CONTEXT_BYTES_MAX

NEVER_MS: Final = (1 << 63) - 1
"""The `due_ms` in MySQL of a row that is never due; rows of earlier versions may have NULL."""

NOT_DELIVERED_MS: Final = 0
"""The `first_delivered_at_ms` in MySQL of a row that was never delivered."""


class WrittenBy(enum.Enum):
    """The writes that set a column of an item that exists. The insert sets every column."""

    INSERT = "insert"
    MOVE = "move"
    UPDATE = "update"
    FIRST_LEASE = "first lease, update"
    LEASE = "lease, update"


@dataclass(slots=True, frozen=True)
class RowColumn:
    """A column of the item table.

    Attributes:
        type: its type in `Row`.
        sqlite, mysql: its type in the tables. Migrations repeat it, because they never change; a test compares.
        when_new: its value in the row of a new `item`, as Python; empty if it is computed, into a variable of its name.
        meaning: what it holds, for people.
        written_by: the writes that set it later.
        when_leased: its value in a leased row, as Python in a method of `Row`; empty if a lease does not change it.
        default: its value in a row from before the column, as Python; empty if there are none.
        mysql_none: the number that stands for None in MySQL. None takes no room there, so a
            lease would change the row's length, and InnoDB would delete and insert the row.
    """

    name: str
    type: str
    sqlite: str
    mysql: str
    when_new: str
    meaning: str
    written_by: WrittenBy = WrittenBy.INSERT
    when_leased: str = ""
    default: str = ""
    mysql_none: int | None = None

    @property
    def is_number(self) -> bool:
        return "str" not in self.type and "bytes" not in self.type

    @property
    def can_be_null(self) -> bool:
        """Whether the table of MySQL may hold NULL in rows that this program writes."""
        return "NOT NULL" not in self.mysql and self.mysql_none is None


_MOVE, _UPDATE, _LEASE = WrittenBy.MOVE, WrittenBy.UPDATE, WrittenBy.LEASE
_INT, _INT_OR_NONE = "int", "int | None"
_NUMBER: Final = "INTEGER NOT NULL"

ROW_COLUMNS: Final = (
    RowColumn(
        "id",
        _INT,
        "INTEGER PRIMARY KEY",
        "BIGINT NOT NULL PRIMARY KEY",
        "number",
        "the number: epoch and sequence",
        _MOVE,
    ),
    RowColumn(
        "namespace", "str", "TEXT NOT NULL", "VARBINARY(255) NOT NULL", "item.namespace", "the tenant; never changes"
    ),
    RowColumn(
        "topic",
        "str",
        "TEXT NOT NULL",
        "VARBINARY(255) NOT NULL",
        "item.topic",
        "the topic, which a move changes",
        _MOVE,
    ),
    RowColumn("priority", _INT, _NUMBER, "INT NOT NULL", "item.priority", "the lowest is delivered first", _UPDATE),
    RowColumn(
        "deliver_after_ms",
        _INT,
        _NUMBER,
        "BIGINT NOT NULL",
        "",
        "no delivery before this; then the place among items of one priority",
        _UPDATE,
    ),
    RowColumn("enqueued_at_ms", _INT, _NUMBER, "BIGINT NOT NULL", "now_ms", "the time of the insert"),
    RowColumn("lease_ms", _INT, _NUMBER, "BIGINT NOT NULL", "item.lease_ms", "the length of a lease"),
    RowColumn(
        "ttl_ms", _INT_OR_NONE, "INTEGER", "BIGINT NULL", "item.ttl_ms", "the whole TTL; a redrive gives it again"
    ),
    RowColumn("expires_at_ms", _INT_OR_NONE, "INTEGER", "BIGINT NULL", "", "the end of the TTL", _UPDATE),
    RowColumn("policy", "DeliveryPolicy", _NUMBER, "TINYINT NOT NULL", "item.policy", "the delivery policy"),
    RowColumn(
        "attempts_max", _INT, _NUMBER, "INT NOT NULL", "item.attempts_max", "the maximum of `attempt`; 0 means no limit"
    ),
    RowColumn("payload_bytes", _INT, _NUMBER, "INT NOT NULL", "len(item.payload)", "the size of the payload"),
    RowColumn(
        "payload",
        "bytes | None",
        "BLOB NOT NULL",
        "MEDIUMBLOB NOT NULL",
        "item.payload",
        "the caller's bytes; None in a row that was read without them",
    ),
    RowColumn(
        "metadata",
        "bytes",
        "BLOB NOT NULL",
        "VARBINARY(16384) NOT NULL",
        "item.metadata",
        "bytes that a nack or an update replaces",
        _UPDATE,
    ),
    RowColumn(
        "state", "State", _NUMBER, "TINYINT NOT NULL", "", "the state of the item's life", _LEASE, "State.LEASED"
    ),
    RowColumn(
        "due_ms",
        _INT_OR_NONE,
        "INTEGER",
        f"BIGINT NULL DEFAULT {NEVER_MS}",
        "",
        "the moment at which the owner must change the row; none if nothing is due",
        _LEASE,
        "due_ms",
        mysql_none=NEVER_MS,
    ),
    RowColumn(
        "token",
        _INT,
        _NUMBER,
        "BIGINT NOT NULL",
        "0",
        "the token of the last lease, 0 if there was none; a negative one can only ack: the lease ended early, or the item "
        "was redriven",
        _LEASE,
        "token",
    ),
    RowColumn("attempt", _INT, _NUMBER, "INT NOT NULL", "", "the deliveries that count", _LEASE, "self.attempt + 1"),
    RowColumn(
        "trace_context",
        "bytes | None",
        "BLOB",
        f"VARBINARY({TRACE_CONTEXT_BYTES_MAX}) NULL",
        "item.trace_context",
        "the trace to which the item belongs",
        default="None",
    ),
    RowColumn(
        "first_delivered_at_ms",
        _INT_OR_NONE,
        "INTEGER",
        f"BIGINT NOT NULL DEFAULT {NOT_DELIVERED_MS}",
        "None",
        "the time of the first lease, which never changes; none before it, or if it was before the table had this column",
        WrittenBy.FIRST_LEASE,
        "now_ms if self.first_delivered_at_ms is None else self.first_delivered_at_ms",
        default="None",
        mysql_none=NOT_DELIVERED_MS,
    ),
    RowColumn(
        "item_group",
        "bytes | None",
        "BLOB",
        f"VARBINARY({GROUP_BYTES_MAX}) NULL",
        "item.item_group",
        "the group of the item; none: it has none; never changes",
        default="None",
    ),
)

COLUMNS: Final = tuple(column.name for column in ROW_COLUMNS)
"""The order of `Row`'s fields."""


def _written_by(*writes: WrittenBy) -> tuple[str, ...]:
    return tuple(column.name for column in ROW_COLUMNS if column.written_by in writes)


MUTABLE_COLUMNS: Final = _written_by(WrittenBy.UPDATE, WrittenBy.FIRST_LEASE, WrittenBy.LEASE)
"""The columns that an update writes."""

LEASE_COLUMNS: Final = _written_by(WrittenBy.LEASE)
"""The columns that a lease writes."""

FIRST_LEASE_COLUMNS: Final = (*LEASE_COLUMNS, *_written_by(WrittenBy.FIRST_LEASE))
"""The columns that the first lease of an item writes."""

MYSQL_NONES: Final = {column.name: column.mysql_none for column in ROW_COLUMNS if column.mysql_none is not None}
"""The numbers that stand for None in MySQL."""
