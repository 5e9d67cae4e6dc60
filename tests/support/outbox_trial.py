"""A trial of an outbox: users write transactions, two relays move their rows to a real host, and everything is killed.

Always true: the orders in the user's database say what was committed, because each transaction writes one with its items; a user
has several transactions open, and commits them in reverse; a row group belongs to one user, and its transactions do not overlap.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from foqs_client import Item, ItemFilter, SyncClient
from foqs_client.outbox import enqueue
from foqs_client.outbox.outbox_connection import OutboxConnection
from foqs_client.outbox.parked_rows import drop, list_parked, resend
from foqs_client.outbox.relay_state import decode_state
from tests.support.freezing import freeze, thaw
from tests.support.mariadb import MariaDb
from tests.support.outbox_databases import MARKERS, mysql_place
from tests.support.poll import until
from tests.support.processes import RestartableHost

TOPIC: Final = "work"
SHARDS: Final = 2
_ITEMS: Final = 2
"""Of each transaction."""
_USERS: Final = 3
_OPEN: Final = 3
"""Transactions that a user has open at once."""
_GROUPS: Final = 99
"""Row groups. Each belongs to one user, because it is a multiple of their number."""
_WAIT_S: Final = 900.0
_SAY_S: Final = 10.0
_QUIET_S: Final = 120.0
"""Items that do not come for this long do not come."""
_PARKED_MAX: Final = 10_000


@dataclass(frozen=True)
class _RelayProcess:
    nonce: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class OutboxTrial:
    """Users, two relays, a host and a MariaDB.

    Attributes:
        done: transactions that have ended, in some way.
    """

    def __init__(self, database: MariaDb, host: RestartableHost, transactions: int, rng: Random) -> None:
        self.database = database
        self.place = mysql_place(database).prepare()
        self.host = host
        self.done = 0
        self._rng = rng
        self._transactions = transactions
        self._written_max = 0
        """Users wait after this number of transactions: the next disturbance comes first."""
        self._rows_max = transactions // 5
        """Users wait while the outbox has more rows, so that relays have work when things are killed."""
        self._relays: list[_RelayProcess] = []
        self._lock = threading.Lock()
        self._restart = threading.Lock()
        """Held while the database restarts."""
        self._may_write = threading.Event()
        self._counts: Counter[str] = Counter()
        self._began_s = time.monotonic()
        self._said_s = 0.0

    # ------------------------------------------------------------------ the trial

    def run(self, disturbances: Sequence[Callable[[], None]]) -> None:
        """Disturb the trial, evenly over its transactions, and wait until it is over."""
        with self._running():
            part = self._transactions // (len(disturbances) + 1)
            for disturb in disturbances:
                self._written_max += part
                self._wait(lambda: self.done >= self._written_max, f"{self._written_max} transactions have ended")
                self._say(getattr(disturb, "func", disturb).__name__)
                disturb()
            self._written_max = self._transactions
        self._say(f"over: {dict(self._counts)}")

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Start relays and users. At the end, wait for the users, and for an empty outbox, and stop the relays."""
        users = [threading.Thread(target=self._write, args=(user,)) for user in range(_USERS)]
        try:
            self._relays = [self._start_relay() for _ in range(2)]
            for user in users:
                user.start()
            yield
            self._wait(lambda: not any(user.is_alive() for user in users), "the users are done")
            self._wait(lambda: self._left() == 0, "the outbox is empty")
            for relay in self._relays:
                relay.process.terminate()
            assert [relay.process.wait(60) for relay in self._relays] == [0, 0]
        finally:
            for relay in self._relays:
                relay.kill()
            self.done = self._transactions  # users write no more
            self._may_write.set()
            for user in users:
                user.join()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Return when a condition holds. Meanwhile users write as long as relays keep up, and progress is printed."""

        def holds() -> bool:
            left = self._left()
            may_write = left < self._rows_max and self.done < self._written_max
            (self._may_write.set if may_write else self._may_write.clear)()
            if time.monotonic() - self._said_s >= _SAY_S:
                self._say(f"{self.done} transactions have ended, {left} rows are in the outbox")
            return condition()

        until(holds, what, _WAIT_S, 0.1)

    def _say(self, text: str) -> None:
        self._said_s = time.monotonic()
        print(f"{self._said_s - self._began_s:6.1f} s: {text}", flush=True)

    # --------------------------------------------------------------- disturbances

    def kill_relay(self) -> None:
        """Kill the relay that owns the outbox, as a crash would, and start another one."""
        place = self._owner()
        self._relays[place].kill()
        self._relays[place] = self._start_relay()
        self._counts["relays killed"] += 1

    def kill_host(self) -> None:
        self.host.kill9()
        self.host.start()
        self._counts["hosts killed"] += 1

    def kill_database(self) -> None:
        with self._restart:
            self.database.kill9()
            self.database.start()
        self._counts["databases killed"] += 1

    def freeze_relay(self, seconds: float) -> None:
        """Let the owner stand still for this time. What it had begun to send arrives afterwards."""
        relay = self._relays[self._owner()]
        freeze(relay.process.pid)
        self._pass(seconds)
        assert self._relays[self._owner()] is not relay
        thaw(relay.process.pid)
        self._counts["relays frozen for longer than the key window"] += 1

    def stop_relays(self, seconds: float) -> None:
        """Kill both relays while the host does not answer, and start others after this time. Decide about the rows in doubt."""
        self.host.freeze()
        self._wait(lambda: bool(self._rows_stamped()), "rows are sent")
        for relay in self._relays:
            relay.kill()
        self._counts["rows in doubt"] += self._rows_stamped()
        self.host.thaw()
        self._pass(seconds)
        self._relays = [self._start_relay() for _ in range(2)]
        self._wait(lambda: bool(self._parked()), "rows in doubt are parked")
        self._wait(self._is_decided, "no row is parked")
        self._counts["outages of all relays for longer than the key window"] += 1

    def _pass(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= end_s, f"{seconds} s have passed")

    def _owner(self) -> int:
        """Return the place of the relay that owns the outbox, as soon as one does."""
        nonces = [relay.nonce for relay in self._relays]

        def nonce() -> str:
            return "".join([nonce for (nonce,) in self.place.query("SELECT nonce FROM foqs_relay")])

        self._wait(lambda: nonce() in nonces, "a relay owns the outbox")
        return nonces.index(nonce())

    def _rows_stamped(self) -> int:
        """Return how many rows are stamped."""
        [(state,)] = self.place.query("SELECT state FROM foqs_relay")
        return sum(len(stamp.ids) for stamp in decode_state(bytes(state)).stamps)

    def _left(self) -> int:
        """Return the rows that are in the outbox or parked."""
        query = "SELECT (SELECT COUNT(*) FROM foqs_outbox) + (SELECT COUNT(*) FROM foqs_parked)"
        return int(self.place.query(query)[0][0])

    def _parked(self) -> int:
        return int(self.place.query("SELECT COUNT(*) FROM foqs_parked")[0][0])

    def _is_decided(self) -> bool:
        """Decide about the parked rows as an operator does who looks for them in the queue. Return whether there is none."""
        with closing(OutboxConnection(lambda: self.place.connect(True), self.place.dialect)) as tables:
            parked = [row for row in list_parked(tables, _PARKED_MAX) if not row.is_resent]
            queued = self._queued_payloads() if parked else set()
            for row in parked:
                assert row.may_be_queued
                if row.payload in queued:
                    drop(tables, row.id)
                    self._counts["parked rows dropped, because they were in the queue"] += 1
                else:
                    resend(tables, row.id, may_double=True)
                    self._counts["parked rows resent"] += 1
        return not self._parked()

    def _queued_payloads(self) -> set[bytes]:
        found: set[bytes] = set()
        with SyncClient(self.host.address) as client:
            for shard in range(SHARDS):
                cursor = None
                while True:
                    page = client.list_items(shard, cursor=cursor, with_payload=True)
                    found.update([view.payload or b"" for view in page.items])
                    if (cursor := page.next_cursor) is None:
                        break
        return found

    # ------------------------------------------------------------------ judgement

    def committed(self) -> dict[str, list[str]]:
        """Return the payloads of the committed transactions of each row group, in order."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for (number,) in self.place.query("SELECT id FROM orders ORDER BY id"):
            found[_group(number)] += _payloads(number)
        return dict(found)

    def delivered(self) -> dict[str, list[str]]:
        """Return the payloads of the queue's items by row group, in the order in which their shard has got them."""
        payloads: dict[str, str] = {}
        """By item id: an item whose ack was late comes again."""
        with SyncClient(self.host.address) as client:
            # A reply without items does not say that none is left: a shard of a slow machine may be late.
            quiet_s = time.monotonic() + _QUIET_S
            while client.count(ItemFilter(TOPIC)).items and time.monotonic() < quiet_s:
                deliveries = client.dequeue({TOPIC: 500}, lease_ms=60_000, wait_ms=100)
                payloads |= {each.id: each.payload.decode() for each in deliveries}
                if deliveries:
                    client.ack(deliveries)
                    quiet_s = time.monotonic() + _QUIET_S
        self._say(f"delivered: {len(payloads)} items")
        found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for item, payload in payloads.items():
            found[payload.partition("/")[0]].append((int(item.partition("-")[2]), payload))
        return {group: [payload for _, payload in sorted(items)] for group, items in found.items()}

    # ----------------------------------------------------------- relays and users

    def _start_relay(self) -> _RelayProcess:
        nonce = f"{self._rng.getrandbits(128):032x}"
        command = [sys.executable, "-m", "tests.support.quick_relay", self.place.url, self.host.address, nonce]
        return _RelayProcess(nonce, subprocess.Popen(command))

    def _write(self, user: int) -> None:
        """Write the transactions of a user: some at a time, in order, and commit them in reverse."""
        rng = Random(f"{self._transactions}/{user}")
        numbers = range(user + _USERS, self._transactions + _USERS, _USERS)
        connections: list[Any] = []
        for start in range(0, len(numbers), _OPEN):
            self._may_write.wait()
            if self.done >= self._transactions:
                break
            part = numbers[start : start + _OPEN]
            try:
                connections = connections or [self._connect() for _ in range(_OPEN)]
                for connection, number in zip(connections, part, strict=False):
                    self._insert(connection, number)
                for connection, _ in reversed(list(zip(connections, part, strict=False))):
                    connection.rollback() if rng.random() < 0.1 else connection.commit()
            except Exception:  # the database was killed: the orders say what was committed
                _close(connections)
                connections = []
            with self._lock:
                self.done += len(part)
        _close(connections)

    def _connect(self) -> Any:
        """Return a connection to the user's database, when it answers: the driver leaves the socket of a refused one open."""
        with self._restart:
            return self.place.connect(False)

    def _insert(self, connection: Any, number: int) -> None:
        items = [Item(TOPIC, payload.encode()) for payload in _payloads(number)]
        enqueue(connection, items[:1], row_groups=[_group(number)])
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"INSERT INTO orders VALUES ({MARKERS[self.place.dialect]})", (number,))
        enqueue(connection, items[1:], row_groups=[_group(number)])


def _close(connections: list[Any]) -> None:
    for connection in connections:
        with suppress(Exception):
            connection.close()


def _group(number: int) -> str:
    """Return the row group of a transaction."""
    return str(number % _GROUPS)


def _payloads(number: int) -> list[str]:
    return [f"{_group(number)}/{number}/{place}" for place in range(_ITEMS)]
