"""Which ways to enqueue in a user's transaction lose, double or reorder items when everything is killed?

A program commits orders with two items each; a tenth roll back, and transactions that overlap commit in reverse. The items go
into a FOQS host of one shard: through the outbox of FOQS with `foqs relay`; through txoutbox, a published outbox, without and
with an idempotency key of the row's id; or by a call after the commit. Meanwhile both relays, the host, the database and the
program are killed, again and again. With --away, both relays once stay away for longer than the key window, after they were
killed while the host did not answer. At the end each committed item is in the queue once, or it is lost or doubled. With
--together, all ways run at the same time, each with servers of its own.
`python -m perf.outbox_kills`
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from foqs.dev.server_process import stop_on_signals
from foqs_client import SyncClient
from foqs_client.outbox.outbox_connection import OutboxConnection
from foqs_client.outbox.outbox_sql import Dialect, create_tables
from foqs_client.outbox.parked_rows import drop, list_parked, resend
from perf.lib.outbox_user import TOPIC, WAYS, payloads_of
from perf.lib.race import Broken
from perf.lib.report import Report, say
from perf.lib.servers import FoqsHost, Postgres, ServerNotAvailable

KEY_WINDOW_S: Final = 130
"""Little more than the least that a namespace may have."""
SHOWN: Final = (
    "way", "transactions", "kills", "away_s", "committed_items", "lost", "doubled", "overtaken", "rolled_back_items",
    "for_a_person", "took_s",
)  # fmt: skip
_FOQS: Final = str(Path(sys.executable).with_name("foqs"))
_RELAYS: Final = 2
_WAIT_S: Final = 900.0
"""The time without progress after which a run fails."""
_LOOK_S: Final = 0.1
_STARTS_MAX: Final = 50
_LEFT: Final = {
    "foqs": "SELECT (SELECT COUNT(*) FROM foqs_outbox) + (SELECT COUNT(*) FROM foqs_parked)",
    "txoutbox": "SELECT COUNT(*) FROM outbox WHERE status = 'pending'",
}
"""The rows that a relay still moves."""
_DEAD: Final = "SELECT payload FROM outbox WHERE status = 'dead'"
_PARKED_MAX: Final = 10_000


def main() -> None:
    options = _parser().parse_args()
    report, stop = Report("outbox_kills"), threading.Event()
    with ThreadPoolExecutor(len(options.ways) if options.together else 1) as threads:
        runs = {way: threads.submit(_run, options, way, stop) for way in options.ways}
        try:
            for way, run in runs.items():
                figures = run.result()
                say(f"{way}: {figures}")
                report.add(
                    {"way": way, "transactions": options.transactions, "kills": options.kills, "away_s": options.away},
                    figures,
                )
        finally:
            stop.set()
    report.table(SHOWN)


def _run(options: argparse.Namespace, way: str, stop: threading.Event) -> dict[str, Any]:
    if stop.is_set():
        raise Broken(f"{way}: the program was stopped")
    database = Postgres({"shared_buffers": "64MB", "max_wal_size": "1GB", "min_wal_size": "80MB"})
    with database, FoqsHost(None, 1, {"namespace.key_window_ms": KEY_WINDOW_S * 1_000}) as host:
        trial = _Trial(way, database, host, options.transactions, stop)
        trial.create_tables()
        began_s = time.monotonic()
        trial.run(options.kills, options.away)
        took_s = time.monotonic() - began_s
        return {**trial.judge(), "took_s": round(took_s, 1)}


class _Trial:
    """A user's program, two relays, a host and a database, all of which are killed. The event `stop` ends it."""

    def __init__(self, way: str, database: Postgres, host: FoqsHost, transactions: int, stop: threading.Event) -> None:
        self._way = way
        self._outbox = way.partition("-")[0]
        """The part of the name that says whose tables there are."""
        self._database = database
        self._host = host
        self._transactions = transactions
        self._stop = stop
        self._url = f"postgresql://postgres@/postgres?host={database.folder}&port={database.port}"
        self._done = 0
        """Transactions that have ended, in some way."""
        self._left = -1
        """Rows that were left to the relays when this was last asked."""
        self._decided = 0
        """Parked rows about which a person has decided."""
        self._user: subprocess.Popen[str]
        self._relays: list[subprocess.Popen[bytes]] = []

    def create_tables(self) -> None:
        statements = ["CREATE TABLE orders (id BIGINT PRIMARY KEY)"]
        if self._outbox == "foqs":
            statements += create_tables(Dialect.POSTGRES)
        for statement in statements:
            self._query(statement)
        if self._outbox == "txoutbox":
            from perf.lib.peers import txoutbox_relay

            asyncio.run(txoutbox_relay.create_tables(self._url))

    def run(self, kills: int, away_s: float) -> None:
        """Kill everything, evenly over the transactions, and wait until the outbox is empty."""
        kinds: list[Callable[[], None]] = [self._kill_relays, self._kill_host, self._kill_database, self._kill_user]
        disturbances = kinds * kills
        if away_s and self._outbox in _LEFT:
            disturbances.insert(len(disturbances) // 2, lambda: self._stay_away(away_s))
        with self._running():
            for place, disturb in enumerate(disturbances, 1):
                wanted = place * self._transactions // (len(disturbances) + 1)
                self._wait(lambda wanted=wanted: self._done >= wanted, f"{wanted} transactions have ended")  # type: ignore[misc]
                say(f"{self._way}: {self._done} transactions, disturbance {place} of {len(disturbances)}")
                disturb()
            self._wait(lambda: self._user.poll() == 0, "the user's program is done")
            if self._outbox in _LEFT:
                self._wait(self._is_empty, "the outbox is empty")

    def judge(self) -> dict[str, int]:
        """Compare the queue with the orders."""
        committed = [number for (number,) in self._query("SELECT id FROM orders ORDER BY id")]
        wanted = [payload for number in committed for payload in payloads_of(number)]
        dead = {bytes(payload) for (payload,) in self._query(_DEAD)} if self._outbox == "txoutbox" else set()
        queued = [payload for _, payload in sorted(self._dequeue_all())]
        counts = Counter(queued)
        return {
            "committed_items": len(wanted),
            "lost": sum(not counts[payload] and payload not in dead for payload in wanted),
            "doubled": sum(count > 1 for count in counts.values()),
            "overtaken": _overtaken(list(counts)),
            "rolled_back_items": len(counts.keys() - set(wanted)),
            "for_a_person": len(dead) + self._decided,
        }

    def _is_empty(self) -> bool:
        """Return whether no row is left that a relay moves. Parked rows hold others back, so a person decides about them."""
        if self._outbox == "foqs":
            self._decide()
        [(self._left,)] = self._query(_LEFT[self._outbox])
        return self._left == 0

    def _decide(self) -> None:
        """Decide about parked rows as docs/outbox.md says: drop a row whose item is in the queue, and resend another one."""
        with closing(
            OutboxConnection(partial(psycopg.connect, self._url, autocommit=True), Dialect.POSTGRES)
        ) as tables:
            parked = [row for row in list_parked(tables, _PARKED_MAX) if not row.is_resent]
            queued = self._queued() if parked else set()
            for row in parked:
                if row.payload in queued:
                    drop(tables, row.id)
                else:
                    resend(tables, row.id, may_double=True)
            self._decided += len(parked)

    def _queued(self) -> set[bytes]:
        """Return the payloads in the queue."""
        found: set[bytes] = set()
        with SyncClient(self._host.address) as client:
            cursor = None
            while True:
                page = client.list_items(0, cursor=cursor, with_payload=True)
                found.update([view.payload or b"" for view in page.items])
                if (cursor := page.next_cursor) is None:
                    return found

    def _dequeue_all(self) -> list[tuple[int, bytes]]:
        """Return the number of each item, by which its shard has got them, and its payload."""
        found: list[tuple[int, bytes]] = []
        with SyncClient(self._host.address) as client:
            while deliveries := list(client.dequeue({TOPIC: 500}, lease_ms=600_000, wait_ms=200)):
                found += [(int(each.id.partition("-")[2]), each.payload) for each in deliveries]
                client.ack(deliveries)
        return found

    # ------------------------------------------------------------------ processes

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            self._start_user()
            self._start_relays()
            yield
            for relay in self._relays:
                relay.send_signal(signal.SIGTERM)
            for relay in self._relays:
                with suppress(subprocess.TimeoutExpired):
                    relay.wait(60)
        finally:
            self._user.kill()
            self._user.wait()
            self._end_relays()

    def _start_user(self) -> None:
        arguments = [self._way, self._url, self._host.address, str(self._done + 1), str(self._transactions + 1)]
        self._user = subprocess.Popen(
            [sys.executable, "-m", "perf.lib.outbox_user", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read_progress, args=(self._user,), daemon=True).start()

    def _read_progress(self, user: subprocess.Popen[str]) -> None:
        assert user.stdout is not None
        for line in user.stdout:
            self._done = int(line)

    def _start_relays(self) -> None:
        self._relays = [self._start_relay() for _ in range(_RELAYS)] if self._outbox in _LEFT else []

    def _start_relay(self) -> subprocess.Popen[bytes]:
        commands = {
            "foqs": [_FOQS, "relay", "--database", self._url, "--address", self._host.address, "--log-level", "error"],
            "txoutbox": [
                *(sys.executable, "-m", "perf.lib.peers.txoutbox_relay", self._url, self._host.address),
                "keys" if self._way.endswith("keys") else "plain",
            ],
        }
        # Their logs tell of every kill.
        silent = subprocess.DEVNULL
        return subprocess.Popen(commands[self._outbox], stdout=silent, stderr=silent, start_new_session=True)

    def _restart_ended_relays(self) -> None:
        """Do what a supervisor does: a relay ends if it starts while the host or the database is away."""
        self._relays = [relay if relay.poll() is None else self._start_relay() for relay in self._relays]

    def _end_relays(self) -> None:
        for relay in self._relays:
            relay.kill()
            relay.wait()

    # --------------------------------------------------------------- disturbances

    def _kill_relays(self) -> None:
        self._end_relays()
        self._start_relays()

    def _kill_host(self) -> None:
        self._host.stop(signal.SIGKILL)
        self._host.start()

    def _kill_database(self) -> None:
        self._database.stop(signal.SIGKILL)
        for _ in range(_STARTS_MAX):
            try:
                self._database.start()
            except ServerNotAvailable:  # processes of the killed server hold its memory for a moment
                self._stop.wait(_LOOK_S)
            else:
                return
        raise Broken(f"{self._way}: Postgres does not start again")

    def _kill_user(self) -> None:
        """Kill the program; another one goes on. What was open is gone."""
        self._user.kill()
        self._user.wait()
        self._start_user()

    def _stay_away(self, seconds: float) -> None:
        """Kill both relays while the host does not answer, and start others after this time."""
        self._host.send_signal(signal.SIGSTOP)
        time.sleep(2)
        self._end_relays()
        self._host.send_signal(signal.SIGCONT)
        self._stop.wait(seconds)
        self._start_relays()

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds. Raises Broken: nothing goes on, or the program is stopped."""
        seen, until_s = None, 0.0
        while not condition():
            if seen != (seen := (self._done, self._left)):
                until_s = time.monotonic() + _WAIT_S
            if time.monotonic() > until_s:
                raise Broken(f"{self._way}: {what}: no progress for {_WAIT_S:.0f} s, {self._left} rows left")
            if self._user.poll() not in (None, 0):
                raise Broken(f"{self._way}: the user's program ended with {self._user.returncode}")
            self._restart_ended_relays()
            if self._stop.wait(_LOOK_S):
                raise Broken(f"{self._way}: the program was stopped")


def _overtaken(payloads: list[bytes]) -> int:
    """Return how many items came after one of a later transaction, or a later place, of their row group."""
    latest: defaultdict[bytes, tuple[int, int]] = defaultdict(lambda: (-1, -1))
    overtaken = 0
    for payload in payloads:
        group, number, place = payload.split(b"/")
        position = int(number), int(place)
        overtaken += position < latest[group]
        latest[group] = max(latest[group], position)
    return overtaken


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.outbox_kills", description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--transactions", type=int, default=100_000, help="of each way")
    parser.add_argument("--kills", type=int, default=10, help="of each party")
    parser.add_argument("--away", type=float, default=0, help="seconds; more than the key window of 130 s to be of use")
    parser.add_argument("--together", action="store_true", help="run all ways at the same time")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
