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
        """Return the payloads of the committed transactions of each user, in order."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for (number,) in self.place.query("SELECT id FROM orders ORDER BY id"):
            group = f"user {number % _USERS}"
            found[group] += [f"{group}/{number}/{place}" for place in range(_ITEMS)]
        return dict(found)

    def queued(self) -> dict[str, list[str]]:
        """Return the payloads of the queue's items by user, in the order in which their shard has got them."""
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
        connection: Any = None
        for number in range(user + _USERS, self._transactions + _USERS, _USERS):
            try:
                if connection is None:
                    connection = self.place.connect(False)
                self._write_one(connection, user, number, rolls_back=rng.random() < 0.1)
            except Exception:  # the database was killed: the orders say whether it was committed
                with suppress(Exception), closing(connection):
                    connection.rollback()
                connection = None
            with self._lock:
                self.done += 1
        if connection is not None:
            connection.close()

    def _write_one(self, connection: Any, user: int, number: int, *, rolls_back: bool) -> None:
        group = f"user {user}"
        items = [Item(TOPIC, f"{group}/{number}/{place}".encode()) for place in range(_ITEMS)]
        enqueue(connection, items[:1], row_groups=[group])
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"INSERT INTO orders VALUES ({MARKERS[self.place.dialect]})", (number,))
        enqueue(connection, items[1:], row_groups=[group])
        connection.rollback() if rolls_back else connection.commit()
