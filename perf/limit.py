"""How fast can the database alone run the statements of a flush?

Sends prebuilt statements to the product's own tables, with one process and one
connection per shard, and COMMIT after every result was read. No host and no client
runs. Items per second count complete lives of items if the shape has them. CPU is
shown separately for the database and its drivers; SQLite has no server, so its
process is both.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any, Final

from foqs.dev.server_process import stop_on_signals
from foqs.store.mysql import mysql_sql
from foqs.store.mysql.mysql_migrations import MIGRATIONS
from foqs.store.row_columns import COLUMNS, FIRST_LEASE_COLUMNS
from foqs.store.sqlite import sqlite_sql
from perf.lib import machine, rows
from perf.lib.packets import Connection, query, query_bytes, run_all
from perf.lib.report import Report, middle, percentile, say
from perf.lib.rows import Flush, Shape
from perf.lib.servers import DATABASE, MariaDb

SHOWN: Final = (
    "database", "shape", "flush_items", "payload_bytes", "items_per_s", "database_us", "driver_us", "flush_p50_ms",
    "commit_p50_ms",
)  # fmt: skip
RATED_MAX: Final = 500
"""The most flushes in a run of a shape with a rate."""
_SPAWN: Final = multiprocessing.get_context("spawn")


def main() -> None:
    options = _parser().parse_args()
    report = Report("limit")
    for database in options.database:
        measure(report, database, options)
    report.table(SHOWN)
    if report.lines and not options.no_plots:
        from perf.lib import plots

        say(f"plot: {plots.limits(report)}")


def measure(report: Report, database: str, options: argparse.Namespace) -> None:
    """Measure every shape at every flush size on one database."""
    for shape in rows.SHAPES:
        if shape.name not in options.shape:
            continue
        for size in [shape.rows] if shape.rows else options.flush:
            flushes = max(5, (options.singles if size == 1 else options.items) // size)
            if shape.rate is not None:
                flushes = min(flushes, RATED_MAX)
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
    """Return the figures of one run on fresh tables."""
    if database == "sqlite":
        with TemporaryDirectory(prefix="foqs-perf-sqlite-") as folder:
            places = [str(Path(folder) / f"{shard}.db") for shard in range(shape.shards)]
            return _race(_on_sqlite, places, shape, size, flushes, payload, None)
    with MariaDb() as server:
        connection = server.connect()
        for shard in range(shape.shards):
            mariadb_tables(connection, shard)
        connection.close()
        places = [f"{server.socket}:{shard}" for shard in range(shape.shards)]
        return _race(_on_mariadb, places, shape, size, flushes, payload, server.pid)


def result(results: Any, processes: Sequence[Any], within_s: float = math.inf) -> Any:
    """Return the result of one process. Raise RuntimeError if a process failed or none ends in time."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            return results.get(timeout=1)
        except Empty:
            if any(process.exitcode for process in processes):
                raise RuntimeError("a process of the race failed; its error is above") from None
            if time.monotonic() > until_s:
                raise RuntimeError(f"the processes of the race returned nothing within {within_s:.0f} s") from None


def _race(
    target: Callable[..., None],
    places: list[str],
    shape: Shape,
    size: int,
    flushes: int,
    payload: int,
    server: int | None,
) -> dict[str, float]:
    """Run one process for each place at once. Return the figures of all together."""
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
    found = [result(results, processes) for _ in processes]
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


def _flushes(shape: str, size: int, count: int) -> Iterable[Flush]:
    return rows.shape(shape).flushes(rows.batches(size, count))


def _content(size: int) -> bytes:
    """Return bytes of every value, as a payload may have."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def _timed(
    steps: list[Any], write: Callable[[Any], None], commit: Callable[[], None], rate: float | None, barrier: Any
) -> dict[str, Any]:
    """Run the prepared flushes when all processes are ready: one after the other, or `rate` a second at random moments."""
    flush_ms, commit_ms = [], []
    rng = random.Random(0)
    barrier.wait(300)
    used_s, start = machine.own_cpu_s(), time.monotonic()
    due = start
    for step in steps:
        if rate is not None:
            due += rng.expovariate(rate)
            time.sleep(max(0.0, due - time.monotonic()))
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

SESSION: Final = (
    "SET NAMES binary",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)


def mariadb_tables(connection: Connection, shard: int) -> None:
    """Yield the product's own tables, empty and owned."""
    names = {name: f"foqs_{shard}_{name}" for name in mysql_sql.TABLES}
    for migration in MIGRATIONS:
        run_all(connection, [step.statement.format(**names) for step in migration.steps() if step.statement])
    owner = f"epoch = {rows.EPOCH}, timers_epoch = {rows.EPOCH}, nonce = '{rows.NONCE}', flush = 0"
    run_all(connection, [f"UPDATE {names['owner']} SET {owner}"])


def _on_mariadb(place: str, shape: str, size: int, count: int, payload: int, barrier: Any, results: Any) -> None:
    path, _, shard = place.rpartition(":")
    connection = Connection(Path(path), DATABASE)
    run_all(connection, SESSION)
    steps = packets(f"foqs_{shard}", shape, size, count, payload)
    committed = query("COMMIT")

    def write(step: tuple[bytes, list[int]]) -> None:
        packet, expected = step
        if [result.matched for result in connection.run(packet)] != expected:
            raise AssertionError("a statement did not match the rows it names")

    def commit() -> None:
        connection.run(committed)

    rate = rows.shape(shape).rate
    if rows.shape(shape).bare:
        # Autocommit: the statement is its own commit.
        results.put(_timed([committed] * len(steps), lambda _: None, _each(write, steps), rate, barrier))
    else:
        results.put(_timed(steps, write, commit, rate, barrier))
    connection.close()


def _each(write: Callable[[Any], None], steps: Iterable[Any]) -> Callable[[], None]:
    following = iter(steps)
    return lambda: write(next(following))


def packets(tables: str, shape: str, size: int, count: int, payload: int) -> list[tuple[bytes, list[int]]]:
    """Build the flushes of a run, each up to its COMMIT, and the row count that each statement must match.

    `tables` is the prefix of the tables' names.
    """
    content = _content(payload).replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    return [_packet(tables, flush, content, payload) for flush in _flushes(shape, size, count)]


def _packet(shard: str, flush: Flush, content: bytes, payload: int) -> tuple[bytes, list[int]]:
    """Build one flush. `content` is escaped."""
    texts: list[bytes] = []
    expected: list[int] = []
    if flush.number:
        texts = [
            b"START TRANSACTION",
            (
                f"UPDATE {shard}_owner SET flush = {flush.number}, clock_ms = {rows.NOW_MS + flush.number} WHERE one = 1 "
                f"AND epoch = {rows.EPOCH} AND nonce = '{rows.NONCE}' AND flush = {flush.number - 1}"
            ).encode(),
        ]
        expected = [0, 1]
    lease = ", ".join(f"{name} = {value}" for name, value in _lease(flush).items())
    rows_by_id = f"{shard}_item FORCE INDEX (PRIMARY)"
    heads = [
        (f"DELETE {shard}_item FROM {rows_by_id}", flush.done),
        (f"UPDATE {rows_by_id} SET {lease}", flush.leased),
    ]
    if flush.read:
        heads.insert(1, (f"SELECT id, payload FROM {rows_by_id}", flush.leased))
    for head, ids in heads:
        for start in range(0, len(ids), mysql_sql.IDS_PER_STATEMENT):
            part = ids[start : start + mysql_sql.IDS_PER_STATEMENT]
            texts.append(f"{head} WHERE id IN ({','.join(map(str, part))})".encode())
            expected.append(len(part))
    if flush.born:
        row = rows.mysql_values(0, b"%b", leased_by=flush if flush.born_leased else None) | {"payload_bytes": payload}
        fields = [_literal(value) if name != "id" else b"%d" for name, value in row.items()]
        mark = b"(" + b",".join(fields) + b")"
        texts.append(
            f"INSERT INTO {shard}_item ({', '.join(row)}) VALUES ".encode()
            + b",".join([mark % (number, content) for number in flush.born])
        )
        expected.append(len(flush.born))
    return query_bytes(b";".join(texts)), expected


def _literal(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b"'%b'" % value
    return b"NULL" if value is None else (f"'{value}'" if isinstance(value, str) else str(value)).encode()


def _lease(flush: Flush) -> dict[str, int]:
    """Return the assignments of a lease."""
    row = rows.values(0, b"", leased_by=flush)
    return {name: row[name] for name in FIRST_LEASE_COLUMNS}


# ------------------------------------------------------------------ SQLite


def _on_sqlite(place: str, shape: str, size: int, count: int, payload: int, barrier: Any, results: Any) -> None:
    db = _sqlite_file(Path(place))
    content = _content(payload)
    steps = [
        (
            (flush.number, rows.NOW_MS, 0, rows.NOW_MS, rows.EPOCH, rows.NONCE, flush.number) if flush.number else None,
            [(number,) for number in flush.leased] if flush.read else [],
            [(number,) for number in flush.done],
            [(*_lease(flush).values(), number) for number in flush.leased],
            [_row(number, content, flush) for number in flush.born],
        )
        for flush in _flushes(shape, size, count)
    ]

    def write(step: Any) -> None:
        fence, reads, deletes, leases, inserts = step
        db.execute(sqlite_sql.BEGIN)
        if fence and db.execute(sqlite_sql.FENCE, fence).rowcount != 1:
            raise AssertionError("the fence matched no row")
        for number in reads:
            db.execute("SELECT payload FROM item WHERE id = ?", number).fetchone()
        for text, values in (
            (sqlite_sql.DELETE, deletes),
            (sqlite_sql.LEASES[FIRST_LEASE_COLUMNS], leases),
            (sqlite_sql.INSERT, inserts),
        ):
            if values and db.executemany(text, values).rowcount != len(values):
                raise AssertionError("a statement did not match the rows it names")

    def commit() -> None:
        db.execute("COMMIT")

    results.put(_timed(steps, write, commit, rows.shape(shape).rate, barrier))
    db.close()


def _row(number: int, content: bytes, flush: Flush) -> tuple[Any, ...]:
    row = rows.values(number, content, leased_by=flush if flush.born_leased else None)
    return tuple(row[name] for name in COLUMNS)


def _sqlite_file(path: Path) -> sqlite3.Connection:
    """Create a file with the product's tables and settings."""
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -16384"):
        db.execute(f"PRAGMA {pragma}")
    for step in sqlite_sql.MIGRATIONS:
        for text in step.statements:
            db.execute(text)
    db.execute(sqlite_sql.ADD_OWNER, (0,))
    db.execute(sqlite_sql.SET_OWNER, (rows.EPOCH, rows.NONCE, 0, 0))
    return db


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.limit", description=__doc__)
    parser.add_argument("--database", nargs="+", choices=("mariadb", "sqlite"), default=["mariadb", "sqlite"])
    names = [shape.name for shape in rows.SHAPES]
    parser.add_argument("--shape", nargs="+", choices=names, default=names)
    parser.add_argument("--flush", nargs="+", type=int, default=[32, 100, 200], help="items of a flush")
    parser.add_argument("--payload", type=int, default=1024, help="bytes of an item")
    parser.add_argument("--items", type=int, default=30_000, help="items of a run, in each shard")
    parser.add_argument(
        "--singles",
        type=int,
        default=2_000,
        help=f"items of a run in flushes of one; at most {RATED_MAX} for a shape with a rate",
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the medians are shown")
    parser.add_argument("--no-plots", action="store_true")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
