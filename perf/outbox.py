"""How many rows per second does a relay move from a user's database into the queue?

The outbox is filled with committed rows, and then one `foqs relay` empties it: relay, host and both databases share the machine.
The rate counts from the first tenth of the rows to the last one, so start and stop do not count. With --profile, the relay
runs once more under the profiler, which slows it down: read the shares, not the times. `python -m perf.outbox`
"""

from __future__ import annotations

import argparse
import os
import pstats
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pymysql

from foqs.dev.server_process import free_port, stop_on_signals
from foqs_client.outbox.outbox_sql import Dialect, create_tables
from perf.lib import machine
from perf.lib.race import Broken
from perf.lib.report import Report, middle, render, say
from perf.lib.servers import DATABASE, MariaDb
from perf.lib.stage import Stage, add_stage_options, stage

AIM: Final = 20_000
SHOWN: Final = (
    "system", "rows", "row_groups", "payload_bytes", "rows_per_s", "aim", "relay_us", "host_us", "database_us",
    "user_database_us", "cores_used",
)  # fmt: skip
_PROGRAM: Final = (str(Path(sys.executable).with_name("foqs")),)
_INSERT: Final = "INSERT INTO foqs_outbox (event_id, topic, payload, row_group) VALUES (%s, 'perf', %s, %s)"
_FILL_ROWS: Final = 1_000
_LOOK_S: Final = 0.05
_END_S: Final = 600.0


def main() -> None:
    options = _parser().parse_args()
    report = Report("outbox")
    for groups in options.row_groups:
        runs = [_run(options, groups) for _ in range(options.rounds)]
        figures = {name: middle([run[name] for run in runs]) for name in runs[0]}
        report.add(
            {"system": options.system, "rows": options.rows, "row_groups": groups, "payload_bytes": options.payload,
             "shards": options.shards, "rounds": options.rounds},
            {**figures, "aim": AIM, "runs_rows_per_s": [run["rows_per_s"] for run in runs]},
        )  # fmt: skip
    report.table(SHOWN)
    if options.profile:
        _show_profile(options, options.row_groups[0])


def _run(options: argparse.Namespace, groups: int, command: Sequence[str] = _PROGRAM) -> dict[str, float]:
    """Let a relay empty a new outbox, and return its figures. Raises Broken."""
    with MariaDb() as user, stage(options.system, options.shards) as found:
        _fill(user, options, groups)
        port = free_port()
        relay = _start(user, found, port, command)
        try:
            begun_s, begun_rows = _wait_for(relay, port, options.rows // 10)
            used_s = {name: -value for name, value in _used_s(user, found, relay).items()}
            ended_s, ended_rows = _wait_for(relay, port, options.rows)
            used_s = {name: value + used_s[name] for name, value in _used_s(user, found, relay).items()}
            relay.send_signal(signal.SIGTERM)
            if relay.wait(_END_S):
                raise Broken(f"the relay ended with {relay.returncode}")
        finally:
            with suppress(ProcessLookupError):
                relay.kill()
            relay.wait()
        if (waiting := found.waiting()) != options.rows:
            raise Broken(f"{options.rows} rows were committed, and {waiting} items are in the queue")
    rows, took_s = ended_rows - begun_rows, ended_s - begun_s
    costs = {f"{name}_us": value / rows * 1e6 for name, value in used_s.items()}
    say(f"{groups} row groups: {rows / took_s:,.0f} rows/s")
    return {"rows_per_s": rows / took_s, **costs, "cores_used": sum(used_s.values()) / took_s}


def _fill(user: MariaDb, options: argparse.Namespace, groups: int) -> None:
    with closing(pymysql.connect(unix_socket=str(user.socket), user="root", database=DATABASE)) as connection:
        cursor = connection.cursor()
        for statement in create_tables(Dialect.MYSQL):
            cursor.execute(statement)
        for start in range(0, options.rows, _FILL_ROWS):
            numbers = range(start, min(start + _FILL_ROWS, options.rows))
            rows = [
                (uuid.uuid4().hex, b"x" * options.payload, f"group-{number % groups}" if groups else None)
                for number in numbers
            ]
            cursor.executemany(_INSERT, rows)
            connection.commit()


def _start(user: MariaDb, found: Stage, port: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
    assert found.host is not None
    environment = {
        **os.environ,
        "FOQS_OUTBOX_DATABASE": f"mysql://root@localhost/{DATABASE}?unix_socket={user.socket}",
        "FOQS_ADDRESS": found.host.address,
    }
    arguments = ["relay", "--http-port", str(port), "--progress", "0s", "--log-level", "warning", "-o", "json"]
    return subprocess.Popen([*command, *arguments], env=environment, stdout=subprocess.DEVNULL)


def _used_s(user: MariaDb, found: Stage, relay: subprocess.Popen[bytes]) -> dict[str, float]:
    return {"relay": machine.cpu_s(relay.pid), "user_database": machine.cpu_s(user.pid), **found.cpu_s()}


def _wait_for(relay: subprocess.Popen[bytes], port: int, rows: int) -> tuple[float, int]:
    """Return the time at which the queue has answered this number of rows, and their number then."""
    end_s = time.monotonic() + _END_S
    while time.monotonic() < end_s:
        if relay.poll() is not None:
            raise Broken(f"the relay ended with {relay.returncode}")
        if (sent := _sent_rows(port)) >= rows:
            return time.monotonic(), sent
        time.sleep(_LOOK_S)
    raise Broken(f"the relay did not send {rows} rows in {_END_S:.0f} s")


def _sent_rows(port: int) -> int:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        for line in reply.read().decode().splitlines():
            name, _, value = line.partition(" ")
            if name == "foqs_relay_sent_rows_total":
                return int(float(value))
    return 0


def _show_profile(options: argparse.Namespace, groups: int) -> None:
    """Print the functions of the relay that use the most CPU time."""
    with TemporaryDirectory(prefix="foqs-perf-profile-") as folder:
        target = str(Path(folder) / "relay.profile")
        _run(options, groups, (sys.executable, "-m", "perf.lib.profiled", target))
        stats: Any = pstats.Stats(target)
        total_s = float(Path(f"{target}.total").read_text())
    own = sorted(((entry[2], function) for function, entry in stats.stats.items()), reverse=True)
    rows = [
        [f"{Path(file).name}:{line} {name}", f"{used_s / options.rows * 1e6:.2f}", f"{used_s / total_s * 100:.1f}"]
        for used_s, (file, line, name) in own[: options.top]
    ]
    say(f"\nthe relay under the profiler: {total_s / options.rows * 1e6:.1f} us a row\n")
    say(render(("function of the relay", "us a row", "% of all"), rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.outbox", description=__doc__)
    add_stage_options(parser, shards=2)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each run")
    parser.add_argument("--row-groups", type=int, nargs="+", default=[0], help="0: rows without a group")
    parser.add_argument("--payload", type=int, default=1_024, help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also show the functions of the relay by their CPU time")
    parser.add_argument("--top", type=int, default=30, help="functions to show")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
