"""The SQL of the MySQL store, for MariaDB 10.11 and MySQL 8 and 9: each shard has its own tables.

Always true: every statement has a name and a stated purpose. Numbers are decimal
text and other values are literals of `mysql_values`, so no value can end its
literal. A statement with ids names the primary key, and its lists are short
enough that the optimiser reads ranges of it. Statements are bytes; the fence and
the inserts are a `BoundStatement`. Knows nothing of connections or errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

from foqs.core.flush.fence import Fence, Owner
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.flush.writes import LeaseUpdate, Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import OrderKey, Row, State, TopicName, unpack_order_key
from foqs.core.items.row_filter import RowFilter
from foqs.store.mysql.mysql_protocol import BoundStatement, Statement
from foqs.store.mysql.mysql_values import (
    BOUND_COLUMNS,
    BOUND_OVERHEAD_BYTES,
    BOUND_ROW_BYTES,
    bind,
    bind_rows,
    bind_rows_in_bulk,
    bytes_literal,
    chunked,
    encode_rows,
    idempotency_key_values,
    lease_assignments,
    name_literal,
    update_select,
)
from foqs.store.port import DueRow, IdRange
from foqs.store.row_columns import (
    COLUMNS,
    MUTABLE_COLUMNS,
    NEVER_MS,
    ROW_COLUMNS,
)
from foqs.store.sql_rows import (
    COLUMNS_WITHOUT_PAYLOAD,
    FENCE_COLUMNS,
    KEY_COLUMNS,
    OWNER_COLUMNS,
    columns_with_payload_up_to,
    fence_values,
)

TABLES: Final = ("item", "owner", "topic", "key", "slot", "cut", "timer", "journal")
"""The tables of a shard, without their prefix."""

IDS_PER_STATEMENT: Final = 500
"""The most ids of a statement: MariaDB rewrites an IN list of 1,000 or more as a join, and scans the table for 16,000."""
UPDATES_PER_STATEMENT: Final = 200
TOPICS_PER_STATEMENT: Final = 200
INSERT_BYTES_MAX: Final = 4 << 20
"""The most bytes of a multi-row INSERT; a smaller max_allowed_packet of the server has precedence."""
_ROWS_PER_PAUSE: Final = 4096
"""A count of a shard sleeps once in this many rows, because the numbers in ids are consecutive."""
PAUSE_S: Final = 0.005
"""The length of these pauses: a count takes about a fifth of a processor."""
INSERT_ROW_COUNTS: Final = (100, 50, *range(32, 0, -1))
"""The numbers of rows of the INSERT statements, each prepared by a writer when first needed. Up to 32 rows are one
statement, because the server replies to each statement separately and each reply wakes the host."""
PREPARED_STATEMENTS_MAX: Final = len(INSERT_ROW_COUNTS) + 2
"""The most statements that a shard's writer prepares: the INSERTs, the fence and the row of the journal."""
PREPARED_STATEMENTS_IN_BULK: Final = 3
"""The statements that it prepares if the server executes in bulk: the INSERT of one row, the fence, and the row of the journal."""
_INT64_MIN: Final = -(1 << 63)
NOT_FILLED: Final = -1
"""The `timers_filled_to` of a shard whose timer table lacks entries."""
FILLED: Final = (1 << 63) - 1
"""The `timers_filled_to` of a shard whose timer table has the entries of all rows."""


_KEY_COLUMNS: Final = ", ".join(KEY_COLUMNS)
_NO_ITEM: Final = ", ".join(
    ("0 AS " if column.is_number else "'' AS ") + column.name
    for column in ROW_COLUMNS
    if column.name == "id" or column.name in MUTABLE_COLUMNS
)
"""A row with id 0, which no item has. It names the columns of the constants."""


class Statements:
    """The statements of one shard."""

    def __init__(self, shard: int) -> None:
        self._item = f"foqs_{shard}_item"
        self._owner = f"foqs_{shard}_owner"
        self._topic = f"foqs_{shard}_topic"
        self._key = f"foqs_{shard}_key"
        self._slot = f"foqs_{shard}_slot"
        self._cut = f"foqs_{shard}_cut"
        self._timer = f"foqs_{shard}_timer"
        self._journal = f"foqs_{shard}_journal"
        # Parts of the statements of a flush. They name the index, because a server that expects
        # a handful of rows in the table, perhaps from old statistics, would read and lock all of
        # them. A DELETE can name an index only if it names the table that it deletes from. It reads
        # `attempt`, which no index has: with the id alone, MariaDB prefers to scan the named index.
        item = self._item
        self._from_ids = f"FROM {item} FORCE INDEX (PRIMARY) WHERE id IN (".encode()
        self._delete = f"DELETE {item} FROM {item} FORCE INDEX (PRIMARY) WHERE attempt >= 0 AND id IN (".encode()
        timer = self._timer
        self._remove_timers = f"DELETE {timer} FROM {timer} FORCE INDEX (PRIMARY) WHERE zero = 0 AND (".encode()
        self._add_timers = f"INSERT IGNORE INTO {timer} (due_ms, id) VALUES ".encode()
        self._lease = f"UPDATE {item} FORCE INDEX (PRIMARY) SET ".encode()
        row = f"({', '.join('?' * len(BOUND_COLUMNS))})"
        insert = f"INSERT INTO {item} ({', '.join(BOUND_COLUMNS)}) VALUES "
        self._insert = {count: (insert + ", ".join([row] * count)).encode() for count in INSERT_ROW_COUNTS}
        self._fence = (
            f"UPDATE {self._owner} SET {', '.join(f'{name} = ?' for name in FENCE_COLUMNS)} "
            "WHERE one = 1 AND epoch = ? AND nonce = ? AND flush = ?"
        ).encode()
        self._add_topics = f"INSERT INTO {self._topic} (namespace, topic) VALUES ".encode()
        self._add_idempotency_keys = f"INSERT INTO {self._key} ({_KEY_COLUMNS}) VALUES ".encode()
        self._update = f"UPDATE (SELECT {_NO_ITEM}".encode()
        self._move = f"{self._update.decode()}, 0 AS old_id, '' AS topic".encode()
        self._move_tail = (
            f") AS new STRAIGHT_JOIN {item} AS item FORCE INDEX (PRIMARY) ON item.id = new.old_id SET "
            + ", ".join(f"item.{name} = new.{name}" for name in ("id", "topic", *MUTABLE_COLUMNS))
        ).encode()
        self._update_tail = (
            f") AS new STRAIGHT_JOIN {item} AS item FORCE INDEX (PRIMARY) ON item.id = new.id SET "
            + ", ".join(f"item.{name} = new.{name}" for name in MUTABLE_COLUMNS)
        ).encode()

    def migration(self, step: str) -> bytes:
        """Return a migration's statement for this shard's tables."""
        tables = {name: getattr(self, f"_{name}") for name in TABLES}
        return step.format(**tables).encode()

    @property
    def non_innodb_tables(self) -> bytes:
        """Reads the shard's tables that are not InnoDB."""
        names = "', '".join([getattr(self, f"_{name}") for name in TABLES])
        return (
            "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
            f"AND TABLE_NAME IN ('{names}') AND ENGINE <> 'InnoDB'"
        ).encode()

    @property
    def right_probes(self) -> tuple[bytes, ...]:
        """Statements that need every right that a flush needs, and change nothing.

        They name no row that may exist: a probe that waits for the flush of a frozen owner would keep its shard from the next one.
        """
        item, owner, topic, key, slot, cut = self._item, self._owner, self._topic, self._key, self._slot, self._cut
        timer, journal = self._timer, self._journal
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
            f"INSERT INTO {timer} SELECT * FROM {timer} WHERE FALSE",
            f"DELETE FROM {timer} WHERE due_ms = 0 AND id = 0",
            f"INSERT INTO {journal} SELECT * FROM {journal} WHERE FALSE",
            f"UPDATE {journal} SET floor = floor WHERE position = 0 AND part = -1",
            f"DELETE FROM {journal} WHERE position = 0 AND part = -1",
        )
        return tuple(map(str.encode, texts))

    # ---------------------------------------------------------------- the owner

    def read_owner(self, *, lock: bool = False) -> bytes:
        """Read the owner row; with a lock, so that no earlier transaction can still change it."""
        tail = " FOR UPDATE" if lock else ""
        return f"SELECT {', '.join(OWNER_COLUMNS)} FROM {self._owner} WHERE one = 1{tail}".encode()

    def set_owner(self, owner: Owner) -> bytes:
        """Write the owner row at a takeover or a new connection, after it was locked. `timers_epoch`: the owner writes timers."""
        return (
            f"UPDATE {self._owner} SET epoch = {owner.epoch}, timers_epoch = {owner.epoch}, "
            f"nonce = {name_literal(owner.nonce)}, flush = {owner.flush}, connection = {owner.connection} WHERE one = 1"
        ).encode()

    def fence(self, fence: Fence) -> BoundStatement:
        """Begin a flush: matches no row if another owner wrote since; otherwise locks the owner row."""
        return bind(self._fence, (*fence_values(fence), fence.epoch, fence.nonce.encode(), fence.flush - 1))

    # ---------------------------------------------------------------- the writes

    def write(self, writes: Writes, packet_bytes: int, *, can_bulk: bool = False) -> Iterator[Statement]:
        """Return the writes of one flush. No statement with several rows is longer than `packet_bytes`.

        Keys come first, because a key that exists ends the flush.

        Args:
            can_bulk: the server executes statements in bulk.
        """
        if writes.idempotency_keys_added:
            yield from self._idempotency_key_statements(
                self._add_idempotency_keys, writes.idempotency_keys_added, packet_bytes
            )
        if writes.idempotency_keys_replaced:
            yield from self._idempotency_key_statements(
                f"REPLACE INTO {self._key} ({_KEY_COLUMNS}) VALUES ".encode(),
                writes.idempotency_keys_replaced,
                packet_bytes,
            )
        if writes.idempotency_keys_expired_by_ms is not None:
            ended = f"until_ms >= {writes.idempotency_keys_expired_from_ms} AND until_ms <= {writes.idempotency_keys_expired_by_ms}"
            expired = f"{ended} ORDER BY until_ms, namespace, name LIMIT {writes.idempotency_keys_expired_max}"
            yield f"DELETE FROM {self._key} WHERE {expired}".encode()
        if writes.key_slots_added:
            slots = ",".join([f"({slot})" for slot in writes.key_slots_added])
            yield f"INSERT IGNORE INTO {self._slot} (slot) VALUES {slots}".encode()
        for marker in writes.purge_markers_removed:
            yield f"DELETE FROM {self._cut} WHERE {_marker_condition(marker)} AND last = {marker.last_number}".encode()
        for marker in writes.purge_markers_added:
            values = f"({name_literal(marker.namespace)},{name_literal(marker.topic)},{marker.last_number})"
            yield f"REPLACE INTO {self._cut} (namespace, topic, last) VALUES {values}".encode()
        for part in _chunks_of_ids(sorted(writes.deletes)):
            yield b"%b%b)" % (self._delete, part)
        for lease in writes.leases:
            yield from self._lease_statements(lease)
        if writes.updates:
            yield from self._update_statements(writes.updates, packet_bytes)
        if writes.moves:
            yield from self._move_statements(writes.moves, packet_bytes)
        if writes.inserts:
            insert = self._bulk_insert_statements if can_bulk else self._insert_statements
            yield from insert(writes.inserts, min(packet_bytes, INSERT_BYTES_MAX))
        if writes.timers_removed or writes.timers_added:
            yield from self._timer_statements(writes)
        if writes.topics_removed or writes.topics_added:
            yield from self._topic_statements(writes, packet_bytes)

    def _lease_statements(self, lease: LeaseUpdate) -> Iterator[bytes]:
        """Write equal values to many rows."""
        values = lease_assignments(lease)
        for part in _chunks_of_ids(sorted(lease.ids)):
            yield b"%b%b WHERE id IN (%b)" % (self._lease, values, part)

    def _update_statements(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[bytes]:
        """Write absolute values, joined to the rows that exist, so that nothing can be inserted.

        STRAIGHT_JOIN makes the server read the constants and find their rows by primary
        key, however small it expects the table to be.
        """
        selects = [update_select(row) for row in sorted(rows, key=lambda row: row.id)]
        room = packet_bytes - len(self._update) - len(self._update_tail)
        for part in chunked(selects, room, UPDATES_PER_STATEMENT):
            yield b"".join((self._update, *part, self._update_tail))

    def _move_statements(self, moves: Sequence[tuple[int, Row]], packet_bytes: int) -> Iterator[bytes]:
        """Give rows that exist another id and topic, and absolute values; joined as updates are."""
        selects = [
            b"%b,%d,%b" % (update_select(row), old_id, name_literal(row.topic).encode())
            for old_id, row in sorted(moves, key=itemgetter(0))
        ]
        room = packet_bytes - len(self._move) - len(self._move_tail)
        for part in chunked(selects, room, UPDATES_PER_STATEMENT):
            yield b"".join((self._move, *part, self._move_tail))

    def _insert_statements(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[BoundStatement]:
        """Insert rows. An id that exists is an error."""
        encoded = encode_rows(rows)
        values, start = encoded.values, 0
        room = packet_bytes - BOUND_OVERHEAD_BYTES
        while start < len(values):
            for count in INSERT_ROW_COUNTS:
                stop = start + count
                if stop <= len(values) and (count == 1 or _bound_bytes(values[start:stop]) <= room):
                    break
            yield bind_rows(self._insert[count], encoded, start, stop)
            start = stop

    def _bulk_insert_statements(self, rows: Sequence[Row], packet_bytes: int) -> Iterator[BoundStatement]:
        """Insert rows by executing the INSERT of one row in bulk. An id that exists is an error."""
        room = packet_bytes - BOUND_OVERHEAD_BYTES - BOUND_ROW_BYTES
        for part in chunked(encode_rows(rows, is_bulk=True).values, room, len(rows)):
            yield bind_rows_in_bulk(self._insert[1], part)

    def _timer_statements(self, writes: Writes) -> Iterator[bytes]:
        """Remove and add timer entries, by primary key and in its order."""
        groups: dict[int, list[int]] = {}
        for due_ms, number in writes.timers_removed:
            groups.setdefault(due_ms, []).append(number)
        conditions: list[bytes] = []
        count = 0
        for due_ms, ids in sorted(groups.items()):
            for part in _chunks_of_ids(sorted(ids)):
                conditions.append(b"due_ms = %d AND id IN (%b)" % (due_ms, part))
                count += len(ids)
                if count >= IDS_PER_STATEMENT or len(conditions) == UPDATES_PER_STATEMENT:
                    yield b"%b%b)" % (self._remove_timers, b" OR ".join(conditions))
                    conditions, count = [], 0
        if conditions:
            yield b"%b%b)" % (self._remove_timers, b" OR ".join(conditions))
        added = [b"(%d,%d)" % entry for entry in sorted(writes.timers_added)]
        for start in range(0, len(added), IDS_PER_STATEMENT):
            yield self._add_timers + b",".join(added[start : start + IDS_PER_STATEMENT])

    def _idempotency_key_statements(
        self, prefix: bytes, rows: Sequence[IdempotencyKey], packet_bytes: int
    ) -> Iterator[bytes]:
        """Add or replace key rows, depending on `prefix`."""
        for part in chunked(idempotency_key_values(rows), packet_bytes - len(prefix), len(rows)):
            yield prefix + b",".join(part)

    def adds_idempotency_keys(self, statement: Statement) -> bool:
        """Return whether the statement adds key rows, so that a duplicate key means that one exists."""
        return isinstance(statement, bytes) and statement.startswith(self._add_idempotency_keys)

    def _topic_statements(self, writes: Writes, packet_bytes: int) -> Iterator[bytes]:
        """Remove topics and add topics; one that exists stays as it is."""
        room = packet_bytes - 1_000  # for the rest of the statement and separators
        conditions = [
            f"(namespace = {name_literal(name)} AND topic = {name_literal(topic)})".encode()
            for name, topic in writes.topics_removed
        ]
        for part in chunked(conditions, room, TOPICS_PER_STATEMENT):
            yield f"DELETE FROM {self._topic} WHERE ".encode() + b" OR ".join(part)
        added = [f"({name_literal(name)},{name_literal(topic)})".encode() for name, topic in writes.topics_added]
        for part in chunked(added, room, TOPICS_PER_STATEMENT):
            values = b",".join(part)
            yield self._add_topics + values + b" ON DUPLICATE KEY UPDATE topic = topic"

    # ----------------------------------------------------------------- the reads

    def read_rows(self, ids: Sequence[int]) -> list[bytes]:
        """Read rows by id, without payload."""
        return [
            b"SELECT %b %b%b)" % (COLUMNS_WITHOUT_PAYLOAD.encode(), self._from_ids, part)
            for part in _chunks_of_ids(ids)
        ]

    def read_rows_with_payload(self, payload_limits: Mapping[int, int]) -> list[bytes]:
        """Read rows by id, with payloads up to each id's limit."""
        groups: dict[int, list[int]] = {}
        for number, length in payload_limits.items():
            groups.setdefault(length, []).append(number)
        return [
            b"SELECT %b %b%b)" % (columns_with_payload_up_to(str(length)).encode(), self._from_ids, part)
            for length, ids in groups.items()
            for part in _chunks_of_ids(ids)
        ]

    def read_idempotency_keys(self, key_names: Sequence[KeyName]) -> list[bytes]:
        """Read key rows by ranges of the primary key, with a statement for each namespace."""
        names: dict[str, list[bytes]] = {}
        for namespace, key in key_names:
            names.setdefault(namespace, []).append(bytes_literal(key))
        select = f"SELECT {_KEY_COLUMNS} FROM {self._key} FORCE INDEX (PRIMARY) WHERE namespace = "
        return [
            b"%b%b AND name IN (%b)" % (select.encode(), name_literal(namespace).encode(), b",".join(part))
            for namespace, named in names.items()
            for part in chunked(named, INSERT_BYTES_MAX, IDS_PER_STATEMENT)
        ]

    def next_key_expiry(self, from_ms: int) -> bytes:
        """Read when the next key window ends, not before `from_ms`."""
        select = f"SELECT until_ms FROM {self._key} FORCE INDEX (key_until)"
        return f"{select} WHERE until_ms >= {from_ms} ORDER BY until_ms LIMIT 1".encode()

    def idempotency_keys_of(self, untils: Mapping[int, int]) -> list[bytes]:
        """Read (item, key, until_ms) of keys that name these items, by their `until_ms`."""
        select = f"SELECT id, name, until_ms FROM {self._key} FORCE INDEX (key_until) WHERE until_ms IN ("
        return [
            b"%b%b) AND id IN (%b)" % (select.encode(), b",".join({b"%d" % untils[number] for number in ids}), part)
            for ids, part in _chunked_ids(sorted(untils))
        ]

    @property
    def key_slots(self) -> bytes:
        """Reads the key slots of the shard."""
        return f"SELECT slot FROM {self._slot} ORDER BY slot".encode()

    @property
    def purge_markers(self) -> bytes:
        """Reads the purge markers."""
        return f"SELECT namespace, topic, last FROM {self._cut}".encode()

    def count_purged_rows(self, purge_marker: PurgeMarker) -> bytes:
        """Count the rows under a purge marker by state, from the index alone."""
        return (
            f"SELECT namespace, topic, state, COUNT(*) FROM {self._item} FORCE INDEX (item_order) "
            f"WHERE {_marker_condition(purge_marker)} AND id <= {purge_marker.last_number} GROUP BY namespace, topic, state"
        ).encode()

    @property
    def topics(self) -> bytes:
        """Reads the topics table."""
        return f"SELECT namespace, topic FROM {self._topic}".encode()

    def ready_order_keys(self, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0) -> bytes:
        """Read the next keys of a topic's READY rows."""
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
        """Read the next rows of a topic in a state: first the keys by index, then only those rows."""
        columns = ", ".join("NULL" if name == "payload" and not with_payload else f"item.{name}" for name in COLUMNS)
        return (
            f"SELECT {columns} FROM ({self._order_keys(topic, state, after, limit, purged_up_to)}) AS page "
            f"STRAIGHT_JOIN {self._item} AS item FORCE INDEX (PRIMARY) ON item.id = page.id "
            "ORDER BY item.priority, item.deliver_after_ms, item.id"
        ).encode()

    def _order_keys(self, topic: TopicName, state: State, after: OrderKey | None, limit: int, purged_up_to: int) -> str:
        """Read keys above a key as three ranges of the index: neither server turns a row comparison into one range."""
        columns = "priority, deliver_after_ms, id"
        select = (
            f"SELECT {columns} FROM {self._item} FORCE INDEX (item_order) "
            f"WHERE namespace = {name_literal(topic[0])} AND topic = {name_literal(topic[1])} AND state = {int(state)}"
        )
        if purged_up_to:
            select += f" AND id > {purged_up_to}"
        order = f"ORDER BY {columns} LIMIT {limit}"
        if after is None:
            return f"{select} {order}"
        priority, deliver_after, number = unpack_order_key(after)
        ranges = (
            f"priority = {priority} AND deliver_after_ms = {deliver_after} AND id > {number}",
            f"priority = {priority} AND deliver_after_ms > {deliver_after}",
            f"priority > {priority}",
        )
        return " UNION ALL ".join(f"({select} AND {bounds} {order})" for bounds in ranges) + f" {order}"

    def rows_by_id(self, namespace: str, only: RowFilter, ids: IdRange) -> tuple[bytes, bytes]:
        """Read how many rows a page by id reads and the last of them; then those that match, without payload.

        `attempt` is read for the reason that `_delete` has.
        """
        page = (
            f"(SELECT id FROM {self._item} FORCE INDEX (PRIMARY) "
            f"WHERE attempt >= 0 AND id > {ids.after} AND id <= {ids.last} "
            f"ORDER BY id LIMIT {ids.rows_max}) AS page"
        )
        columns = ", ".join("NULL" if name == "payload" else f"item.{name}" for name in COLUMNS)
        earliest_ms, latest_ms = only.enqueued_between_ms
        names = only.topic_names
        topics = "" if names is None else f"AND item.topic IN ({', '.join(map(name_literal, names))}) "
        group = "" if only.group is None else f"AND item.item_group = 0x{only.group.hex()} "
        return (
            f"SELECT COUNT(*), MAX(id) FROM {page}".encode(),
            (
                f"SELECT {columns} FROM {page} "
                f"STRAIGHT_JOIN {self._item} AS item FORCE INDEX (PRIMARY) ON item.id = page.id "
                f"WHERE item.namespace = {name_literal(namespace)} {topics}{group}"
                f"AND item.state IN ({', '.join(str(int(state)) for state in only.states)}) "
                f"AND item.priority BETWEEN {only.priority_min} AND {only.priority_max} "
                f"AND item.enqueued_at_ms BETWEEN {earliest_ms} AND {latest_ms} ORDER BY item.id LIMIT {ids.limit}"
            ).encode(),
        )

    def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int, *, is_filled: bool) -> bytes:
        """Read a page of timer entries, bounded on both sides.

        Args:
            is_filled: the timer table has them. If not, the index of all dues has them, with those of leases.
        """
        start = (_INT64_MIN if low_ms is None else low_ms, -1)
        if after is not None:
            start = max(start, (after.due_ms, after.id))
        select = f"SELECT due_ms, id FROM {self._timer} FORCE INDEX (PRIMARY) WHERE zero = 0 AND"
        if not is_filled:
            select = (
                f"SELECT due_ms, id FROM {self._item} FORCE INDEX (item_due) WHERE state <> {int(State.LEASED)} AND"
            )
        order = f"ORDER BY due_ms, id LIMIT {limit}"
        return (
            f"({select} due_ms = {start[0]} AND due_ms <= {high_ms} AND id > {start[1]} {order}) UNION ALL "
            f"({select} due_ms > {start[0]} AND due_ms <= {high_ms} {order}) {order}"
        ).encode()

    def next_due_ms(self, above_ms: int, below_ms: int, *, is_filled: bool) -> bytes:
        """Read the next timer entry's due. It reads past deleted entries between the bounds.

        Until the timer table is filled the result may be the end of a lease: excluding leases would mean reading their rows.
        """
        table = f"{self._timer} FORCE INDEX (PRIMARY) WHERE zero = 0 AND"
        if not is_filled:
            table = f"{self._item} FORCE INDEX (item_due) WHERE"
        return (
            f"SELECT due_ms FROM {table} due_ms > {above_ms} AND due_ms < {below_ms} ORDER BY due_ms LIMIT 1"
        ).encode()

    def leases_in(self, ranges: Sequence[tuple[int, int]], last_ms: int) -> bytes:
        """Read which rows of these ranges of ids are leased, and when their leases end."""
        bounds = " OR ".join([f"id BETWEEN {first} AND {last}" for first, last in ranges])
        return (
            f"SELECT due_ms, id FROM {self._item} FORCE INDEX (PRIMARY) "
            f"WHERE ({bounds}) AND state = {int(State.LEASED)} AND due_ms <= {last_ms}"
        ).encode()

    def leases_of(self, topic: TopicName, after: OrderKey | None, limit: int) -> bytes:
        """Read the next leases of a topic: their keys by index, then their ends by id."""
        return (
            f"SELECT page.priority, page.deliver_after_ms, page.id, item.due_ms "
            f"FROM ({self._order_keys(topic, State.LEASED, after, limit, 0)}) AS page "
            f"STRAIGHT_JOIN {self._item} AS item FORCE INDEX (PRIMARY) ON item.id = page.id AND item.due_ms < {NEVER_MS} "
            "ORDER BY page.priority, page.deliver_after_ms, page.id"
        ).encode()

    @property
    def counts(self) -> bytes:
        """Counts rows and payload bytes by topic and state, from the index alone, with pauses for the flushes."""
        columns = "namespace, topic, state"
        sums = "COUNT(*), CAST(SUM(payload_bytes) AS SIGNED)"
        # Always true: SLEEP returns 0, or 1 if the statement is killed. It sleeps without holding a lock.
        pauses = f"id % {_ROWS_PER_PAUSE} <> 0 OR SLEEP({PAUSE_S}) >= 0"
        return (
            f"SELECT {columns}, {sums} FROM {self._item} FORCE INDEX (item_order) WHERE {pauses} GROUP BY {columns}"
        ).encode()


def _marker_condition(purge_marker: PurgeMarker) -> str:
    return f"namespace = {name_literal(purge_marker.namespace)} AND topic = {name_literal(purge_marker.topic)}"


def _bound_bytes(values: Sequence[bytes]) -> int:
    return sum(map(len, values)) + BOUND_ROW_BYTES * len(values)


def _chunks_of_ids(ids: Sequence[int]) -> Iterator[bytes]:
    return (text for _, text in _chunked_ids(ids))


def _chunked_ids(ids: Sequence[int]) -> Iterator[tuple[Sequence[int], bytes]]:
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        part = ids[start : start + IDS_PER_STATEMENT]
        yield part, ",".join(map(str, part)).encode()
