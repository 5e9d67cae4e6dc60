"""What can the database alone do with the statements that a flush is made of?

Prebuilt statements of the product's own tables and shapes, one process and one
connection for each shard, COMMIT after every result was read. Nothing else
runs: no host, no client. Items per second count whole lives where the shape
has them; CPU is told apart for the database and its drivers. SQLite has no
server: its process is both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from foqs.store import sql_mysql, sql_sqlite
from foqs.store.port import Writes
from foqs.store.sql_rows import all_values, mutable_values
from perf.lib import machine, rows
from perf.lib.packets import Connection, query, run_all
from perf.lib.report import Report, middle, percentile, say
from perf.lib.rows import Flush, Shape
from perf.lib.servers import DATABASE, MariaDb

PACKET_BYTES: Final = 15 << 20
COLUMNS: Final = (
    "database", "shape", "flush_items", "payload_bytes", "items_per_s", "database_us", "driver_us", "flush_p50_ms",
    "commit_p50_ms",
)  # fmt: skip
_SPAWN: Final = multiprocessing.get_context("spawn")


def main() -> None:
    options = _parser().parse_args()
    report = Report("limit")
    for database in options.database:
        measure(report, database, options)
    report.table(COLUMNS)
    if report.lines and not options.no_plots:
        from perf.lib import plots

        say(f"plot: {plots.limits(report)}")


def measure(report: Report, database: str, options: argparse.Namespace) -> None:
    """Every shape at every flush size on one database."""
    for shape in rows.SHAPES:
        if shape.name not in options.shape:
            continue
        for size in [shape.rows] if shape.rows else options.flush:
            flushes = max(5, (options.singles if size == 1 else options.items) // size)
            parameters = {
                "database": database,
                "shape": shape.name,
                "flush_items": size,
                "payload_bytes": options.payload,
                "shards": shape.shards,
                "flushes": flushes,
                "repeats": options.repeats,
            }
            say(f"limit: {database}, {shape.name} ({shape.says}), {size} a flush")
            runs = [once(database, shape, size, flushes, options.payload) for _ in range(options.repeats)]
            report.add(parameters, {name: middle([run[name] for run in runs]) for name in runs[0]})


def once(database: str, shape: Shape, size: int, flushes: int, payload: int) -> dict[str, float]:
    """One run on fresh tables."""
    if database == "sqlite":
        with TemporaryDirectory(prefix="foqs-perf-sqlite-") as folder:
            places = [str(Path(folder) / f"{shard}.db") for shard in range(shape.shards)]
            return _race(_on_sqlite, places, shape, size, flushes, payload, None)
    with MariaDb() as server:
        connection = server.connect()
        for shard in range(shape.shards):
            statements = sql_mysql.Statements(shard)
            for step in sql_mysql.MIGRATIONS:
                run_all(connection, map(statements.migration, step.statements))
            run_all(connection, [statements.set_owner(rows.OWNER)])
        connection.close()
        places = [f"{server.socket}:{shard}" for shard in range(shape.shards)]
        return _race(_on_mariadb, places, shape, size, flushes, payload, server.pid)


def _race(
    target: Callable[..., None],
    places: list[str],
    shape: Shape,
    size: int,
    flushes: int,
    payload: int,
    server: int | None,
) -> dict[str, float]:
    """Runs one process for each place at once; the figures of all together."""
    barrier = _SPAWN.Barrier(len(places) + 1)
    results: Any = _SPAWN.Queue()
    processes = [
        _SPAWN.Process(target=target, args=(place, shape.name, size, flushes, payload, barrier, results), daemon=True)
        for place in places
    ]
    for process in processes:
        process.start()
    barrier.wait(300)
    before = machine.cpu_s(server) if server else 0.0
    found = [results.get(timeout=600) for _ in processes]
    database_s = machine.cpu_s(server) - before if server else sum(result["cpu_s"] for result in found)
    for process in processes:
        process.join(30)
    items = size * flushes * len(places)
    elapsed_s = max(result["end"] for result in found) - min(result["start"] for result in found)
    flush_ms = sorted(value for result in found for value in result["flush_ms"])
    commit_ms = sorted(value for result in found for value in result["commit_ms"])
    return {
        "items_per_s": items / elapsed_s,
        "database_us": database_s / items * 1e6,
        "driver_us": sum(result["cpu_s"] for result in found) / items * 1e6 if server else 0.0,
        "flush_p50_ms": percentile(flush_ms, 0.5) or 0.0,
        "flush_p99_ms": percentile(flush_ms, 0.99) or 0.0,
        "commit_p50_ms": percentile(commit_ms, 0.5) or 0.0,
        "elapsed_s": elapsed_s,
    }


def _flushes(shape: str, size: int, count: int, payload: int) -> Iterable[Flush]:
    content = bytes(range(256)) * (payload // 256 + 1)
    batches = [rows.new_rows(1 + number * size, size, content[:payload]) for number in range(count)]
    return next(known for known in rows.SHAPES if known.name == shape).flushes(batches)


def _timed(steps: list[Any], write: Callable[[Any], None], commit: Callable[[], None], barrier: Any) -> dict[str, Any]:
    """Runs the prepared flushes, one after the other, when everybody is ready."""
    flush_ms, commit_ms = [], []
    barrier.wait(300)
    used_s, start = machine.own_cpu_s(), time.monotonic()
    for step in steps:
        begun = time.monotonic()
        write(step)
        written = time.monotonic()
        commit()
        ended = time.monotonic()
        flush_ms.append((ended - begun) * 1e3)
        commit_ms.append((ended - written) * 1e3)
    return {
        "start": start,
        "end": time.monotonic(),
        "cpu_s": machine.own_cpu_s() - used_s,
        "flush_ms": flush_ms,
        "commit_ms": commit_ms,
    }


# ----------------------------------------------------------------- MariaDB


def _on_mariadb(place: str, shape: str, size: int, count: int, payload: int, barrier: Any, results: Any) -> None:
    path, _, shard = place.rpartition(":")
    connection = Connection(Path(path), DATABASE)
    *session, _ = (text.format(lock_wait_s=5) for text in sql_mysql.SESSION)
    run_all(connection, session)
    statements = sql_mysql.Statements(int(shard))
    steps = [_packet(statements, int(shard), flush) for flush in _flushes(shape, size, count, payload)]
    committed = query(sql_mysql.COMMIT)

    def write(step: tuple[bytes, list[int]]) -> None:
        packet, expected = step
        if [result.matched for result in connection.run(packet)] != expected:
            raise AssertionError("a statement did not match the rows it names")

    def commit() -> None:
        connection.run(committed)

    if shape == "bare-commit":
        # Autocommit: the statement is its own commit.
        results.put(_timed([committed] * len(steps), lambda _: None, _each(write, steps), barrier))
    else:
        results.put(_timed(steps, write, commit, barrier))
    connection.close()


def _each(write: Callable[[Any], None], steps: Iterable[Any]) -> Callable[[], None]:
    following = iter(steps)
    return lambda: write(next(following))


def _packet(statements: sql_mysql.Statements, shard: int, flush: Flush) -> tuple[bytes, list[int]]:
    """A flush up to its COMMIT, and how many rows each statement must match."""
    texts, expected = [], []
    if flush.fence is not None:
        texts = [sql_mysql.BEGIN, statements.fence(flush.fence)]
        expected = [0, 1]
    if flush.leased:
        lease = rows.leased(rows.new_rows(1, 1, b"")[0], flush.fence.flush if flush.fence else 0)
        texts.append(
            f"UPDATE foqs_{shard}_item SET state = {int(lease.state)}, due_ms = {lease.due_ms}, "
            f"token = {lease.token}, attempt = 1 WHERE id IN ({','.join(map(str, flush.leased))})"
        )
        expected.append(len(flush.leased))
    parts = (
        (Writes(deletes=flush.writes.deletes), sql_mysql.IDS_PER_STATEMENT),
        (Writes(updates=flush.writes.updates), sql_mysql.UPDATES_PER_STATEMENT),
        (Writes(inserts=flush.writes.inserts), len(flush.writes.inserts)),
    )
    for writes, most in parts:
        texts.extend(statements.write(writes, PACKET_BYTES))
        left = len(writes.deletes) + len(writes.updates) + len(writes.inserts)
        while left:
            expected.append(min(left, most))
            left -= expected[-1]
    return query(*texts), expected


# ------------------------------------------------------------------ SQLite


def _on_sqlite(place: str, shape: str, size: int, count: int, payload: int, barrier: Any, results: Any) -> None:
    db = _sqlite_file(Path(place))
    steps = [
        (
            flush.fence,
            [(number,) for number in flush.writes.deletes],
            [(*mutable_values(row), row.id) for row in flush.writes.updates],
            [all_values(row) for row in flush.writes.inserts],
            [(rows.NOW_MS + rows.LEASE_MS, rows.EPOCH << 43, number) for number in flush.leased],
        )
        for flush in _flushes(shape, size, count, payload)
    ]

    def write(step: Any) -> None:
        fence, deletes, updates, inserts, leases = step
        db.execute(sql_sqlite.BEGIN)
        if fence:
            values = (fence.flush, fence.clock_ms, fence.epoch, fence.nonce, fence.flush)
            if db.execute(sql_sqlite.FENCE, values).rowcount != 1:
                raise AssertionError("the fence matched no row")
        for text, values in (
            (sql_sqlite.DELETE, deletes),
            (sql_sqlite.UPDATE, updates),
            ("UPDATE item SET state = 3, due_ms = ?, token = ?, attempt = 1 WHERE id = ?", leases),
            (sql_sqlite.INSERT, inserts),
        ):
            if values and db.executemany(text, values).rowcount != len(values):
                raise AssertionError("a statement did not match the rows it names")

    def commit() -> None:
        db.execute("COMMIT")

    results.put(_timed(steps, write, commit, barrier))
    db.close()


def _sqlite_file(path: Path) -> sqlite3.Connection:
    """A fresh file with the product's tables and settings."""
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -16384"):
        db.execute(f"PRAGMA {pragma}")
    for step in sql_sqlite.MIGRATIONS:
        for text in step.statements:
            db.execute(text)
    db.execute(sql_sqlite.ADD_OWNER, (0,))
    owner = rows.OWNER
    db.execute(sql_sqlite.SET_OWNER, (owner.epoch, owner.nonce, owner.flush, owner.connection))
    return db


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.limit", description=__doc__)
    parser.add_argument("--database", nargs="+", choices=("mariadb", "sqlite"), default=["mariadb", "sqlite"])
    names = [shape.name for shape in rows.SHAPES]
    parser.add_argument("--shape", nargs="+", choices=names, default=names)
    parser.add_argument("--flush", nargs="+", type=int, default=[32, 100, 200], help="items of a flush")
    parser.add_argument("--payload", type=int, default=1024, help="bytes of an item")
    parser.add_argument("--items", type=int, default=30_000, help="items of a run, in each shard")
    parser.add_argument("--singles", type=int, default=2_000, help="items of a run in flushes of one")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the medians are told")
    parser.add_argument("--no-plots", action="store_true")
    return parser


if __name__ == "__main__":
    main()
