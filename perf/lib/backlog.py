"""A deep backlog, written into the tables of a FOQS host by the database itself.

Always true: a row is a copy of an enqueued one with its own id, number and time. All
shards hold the same span of time, as after enqueues by calls, and are drained in
parallel. The topics table, if there is one, names the topic. While MariaDB is filled
it need not survive a power failure; then it is stopped cleanly and started as in
production, with cold caches, before the measurement. Knows nothing of load.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final

from foqs.store.row_columns import COLUMNS
from perf.lib.packets import Connection, query
from perf.lib.payload import HEAD_BYTES, NUMBER_BYTES
from perf.lib.servers import MariaDb, MySql9, ServerNotAvailable

_STATEMENT_ROWS: Final = 100_000
_QUICK: Final = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=OFF",
    "--innodb-io-capacity=20000",
    "--innodb-io-capacity-max=40000",
)
_ROW_BYTES: Final = 200
"""The bytes of a row beside its payload: MariaDB took 285 with a payload of 100, indexes included."""
_SERVER_BYTES: Final = 2 << 30
_ROWS_PER_MS: Final = 100
"""The number of rows of a shard with the same millisecond."""


def shares(shards: int, first: int, last: int) -> list[range]:
    """Divide the numbers from `first` to below `last` among the shards."""
    edges = [first + (last - first) * shard // shards for shard in range(shards + 1)]
    return [range(*pair) for pair in pairwise(edges)]


def check_space(folder: Path, count: int, payload_bytes: int) -> None:
    """Raise ServerNotAvailable if the disk of `folder` is too small."""
    needed = count * (payload_bytes + _ROW_BYTES) + _SERVER_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ServerNotAvailable(
            f"{count:,} items need {needed / 1e9:.1f} GB in {folder.parent} and {free / 1e9:.1f} GB are free: "
            "set TMPDIR to a larger disk, or ask for fewer"
        )


def fill_mariadb(server: MariaDb, given: Sequence[range], padding: int) -> None:
    """Fill shards 0, 1, ... at once, with one session each. Their host must be stopped; each must hold an item.

    Args:
        padding: bytes of a payload after its number and time.
    """
    server.stop()
    server.start(*_QUICK)
    last_ms = now_ms()
    with ThreadPoolExecutor(len(given)) as sessions:
        for _ in sessions.map(
            lambda shard: _fill_mariadb(
                server.connect(), shard, given[shard], padding, last_ms, is_mysql=isinstance(server, MySql9)
            ),
            range(len(given)),
        ):
            pass
    server.stop()
    server.start()


def _fill_mariadb(
    connection: Connection, shard: int, share: range, padding: int, last_ms: int, *, is_mysql: bool
) -> None:
    item, topic = f"foqs_{shard}_item", f"foqs_{shard}_topic"
    ((low, high),) = connection.run(query(f"SELECT MIN(id), MAX(id) FROM {item}"))[0].rows
    assert low is not None and high is not None, f"shard {shard} holds no item to copy"
    if connection.run(query(f"SHOW TABLES LIKE '{topic}'"))[0].rows:
        connection.run(
            query(
                f"INSERT IGNORE INTO {topic} (namespace, topic) SELECT namespace, topic FROM {item} WHERE id = {int(low)}"
            )
        )
    number = f"LPAD(seq + {share.start - 1}, {NUMBER_BYTES}, '0')"
    rest = f"REPEAT('0', {HEAD_BYTES - NUMBER_BYTES}), REPEAT('x', {padding})"
    moment = f"{last_ms - len(share) // _ROWS_PER_MS} + seq DIV {_ROWS_PER_MS}"
    chosen = _columns(f"{int(high)} + seq", f"CONCAT({number}, {rest})", moment)
    if is_mysql:
        connection.run(query(f"SET SESSION cte_max_recursion_depth = {_STATEMENT_ROWS}"))
    for start in range(0, len(share), _STATEMENT_ROWS):
        first, last = start + 1, min(len(share), start + _STATEMENT_ROWS)
        # MariaDB has tables of numbers.
        given, numbers = "", f"seq_{first}_to_{last}"
        if is_mysql:
            numbers = "numbers"
            given = (
                f"WITH RECURSIVE numbers (seq) AS (SELECT {first} UNION ALL SELECT seq + 1 FROM numbers "
                f"WHERE seq < {last}) "
            )
        connection.run(
            query(
                f"INSERT INTO {item} ({', '.join(COLUMNS)}) {given}"
                f"SELECT {chosen} FROM {numbers} JOIN {item} ON id = {int(low)}"
            )
        )
    # Without this the server notices only seconds later that the table is not small any more.
    connection.run(query(f"ANALYZE TABLE {item}"))
    connection.close()


def fill_sqlite(files: Sequence[Path], given: Sequence[range], padding: int) -> None:
    """Do the same as `fill_mariadb` on the files of shards 0, 1, ..."""
    last_ms = now_ms()
    for file, share in zip(files, given, strict=True):
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            _fill_sqlite(db, share, padding, last_ms)


def _fill_sqlite(db: sqlite3.Connection, share: range, padding: int, last_ms: int) -> None:
    number = f"printf('%0{NUMBER_BYTES}d', seq + {share.start - 1})"
    rest = f"'{'0' * (HEAD_BYTES - NUMBER_BYTES)}' || '{'x' * padding}'"
    moment = f"{last_ms - len(share) // _ROWS_PER_MS} + seq / {_ROWS_PER_MS}"
    chosen = _columns("(SELECT MAX(id) FROM item) + seq", f"CAST({number} || {rest} AS BLOB)", moment)
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'topic'").fetchone():
        db.execute(
            "INSERT OR IGNORE INTO topic (namespace, topic) "
            "SELECT namespace, topic FROM item WHERE id = (SELECT MIN(id) FROM item)"
        )
    db.execute(
        "WITH RECURSIVE numbers(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM numbers WHERE seq < ?) "
        f"INSERT INTO item ({', '.join(COLUMNS)}) SELECT {chosen} FROM numbers "
        "JOIN item ON id = (SELECT MIN(id) FROM item)",
        (len(share),),
    )


def _columns(number: str, payload: str, moment: str) -> str:
    """Return the expressions that select the copy of a row."""
    own = {"id": number, "payload": payload, "deliver_after_ms": moment, "enqueued_at_ms": moment}
    return ", ".join(own.get(name, name) for name in COLUMNS)


def now_ms() -> int:
    """Return the time of the last copies."""
    return time.time_ns() // 1_000_000
