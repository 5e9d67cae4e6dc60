"""A trial of an outbox: users write transactions, two relays move their rows to a real host, and everything is killed.

Always true: the orders in the user's database say what was committed, because each transaction writes one with its items.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from random import Random
from typing import Any, Final

from foqs_client import Item, SyncClient
from foqs_client.outbox import enqueue
from tests.support.outbox_databases import MARKERS, Place
from tests.support.poll import until
from tests.support.processes import RestartableHost

TOPIC: Final = "work"
_ITEMS: Final = 2
"""Of each transaction."""
_USERS: Final = 3
_GROUPS: Final = 99
"""Row groups. Each belongs to one user, because it is a multiple of their number."""


class OutboxTrial:
    """Users, two relays and a host.

    Attributes:
        done: transactions that have ended, in some way.
    """

    def __init__(self, place: Place, host: RestartableHost, transactions: int, rng: Random) -> None:
        self.place = place
        self.host = host
        self.done = 0
        self._rng = rng
        self._transactions = transactions
        self._relays: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start relays and users. At the end, wait for the users, and for an empty outbox, and stop the relays."""
        users = [threading.Thread(target=self._write, args=(user,)) for user in range(_USERS)]
        try:
            self._relays = [self._start_relay() for _ in range(2)]
            for user in users:
                user.start()
            yield
            for user in users:
                user.join()
            until(lambda: self.left() == 0, "the outbox is empty", 600.0)
            for relay in self._relays:
                relay.terminate()
            assert [relay.wait(60) for relay in self._relays] == [0, 0]
        finally:
            for relay in self._relays:
                relay.kill()
                relay.wait()
            for user in users:
                user.join()

    def run(self, disturbances: list[Callable[[], None]]) -> None:
        """Disturb the trial, evenly over its transactions, and wait until it is over."""
        with self.running():
            for place, disturb in enumerate(disturbances, 1):
                at = self._transactions * place // (len(disturbances) + 1)
                until(lambda at=at: self.done >= at, f"{at} transactions have ended", 600.0)  # type: ignore[misc]
                disturb()

    def kill_relay(self) -> None:
        """Kill one of the relays, as a crash would, and start another one."""
        place = self._rng.randrange(len(self._relays))
        self._relays[place].kill()
        self._relays[place].wait()
        self._relays[place] = self._start_relay()

    def kill_host(self) -> None:
        self.host.kill9()
        self.host.start()

    def left(self) -> int:
        """Return the rows that are in the outbox or parked."""
        query = "SELECT (SELECT COUNT(*) FROM foqs_outbox) + (SELECT COUNT(*) FROM foqs_parked)"
        return int(self.place.query(query)[0][0])

    def committed(self) -> dict[str, list[str]]:
        """Return the payloads of the committed transactions of each row group, in order."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for (number,) in self.place.query("SELECT id FROM orders ORDER BY id"):
            found[_group(number)] += _payloads(number)
        return dict(found)

    def queued(self) -> dict[str, list[str]]:
        """Return the payloads of the queue's items by row group, in the order in which their shard has got them."""
        found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        with SyncClient(self.host.address) as client:
            while deliveries := list(client.dequeue({TOPIC: 500}, lease_ms=60_000, wait_ms=100)):
                for each in deliveries:
                    payload = each.payload.decode()
                    found[payload.partition("/")[0]].append((int(each.id.partition("-")[2]), payload))
                client.ack(deliveries)
        return {group: [payload for _, payload in sorted(items)] for group, items in found.items()}

    def _start_relay(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.quick_relay", self.place.url, self.host.address]
        return subprocess.Popen(command)

    def _write(self, user: int) -> None:
        rng = Random(f"{self._transactions}/{user}")
        connection = self._connect()
        for number in range(user + _USERS, self._transactions + _USERS, _USERS):
            try:
                self._write_one(connection, number, rolls_back=rng.random() < 0.1)
            except Exception:  # the database was killed: the orders say whether it was committed
                with suppress(Exception):
                    connection.close()
                connection = self._connect()
            with self._lock:
                self.done += 1
        connection.close()

    def _connect(self) -> Any:
        """Return a connection to the user's database, as soon as it answers."""
        found: list[Any] = []

        def connects() -> bool:
            with suppress(Exception):
                found.append(self.place.connect(False))
            return bool(found)

        until(connects, "the user's database answers", 120.0)
        return found[0]

    def _write_one(self, connection: Any, number: int, *, rolls_back: bool) -> None:
        items = [Item(TOPIC, payload.encode()) for payload in _payloads(number)]
        enqueue(connection, items[:1], row_groups=[_group(number)])
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"INSERT INTO orders VALUES ({MARKERS[self.place.dialect]})", (number,))
        enqueue(connection, items[1:], row_groups=[_group(number)])
        connection.rollback() if rolls_back else connection.commit()


def _group(number: int) -> str:
    """Return the row group of a transaction."""
    return str(number % _GROUPS)


def _payloads(number: int) -> list[str]:
    return [f"{_group(number)}/{number}/{place}" for place in range(_ITEMS)]
