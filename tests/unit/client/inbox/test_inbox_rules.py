"""The rules of the inbox over random histories: consumers that die and freeze, leases that end, days that pass, prunings.

The queue is the plainest one: items with tokens. Each planted mistake does work twice, or loses some.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pytest

from foqs_client import Delivery
from foqs_client.errors import StaleLease
from foqs_client.inbox import committing, once, prune
from foqs_client.inbox.inbox_rows import BEFORE_ALL, add_row, delete_rows, read_old
from foqs_client.inbox.pruning import KEEP_S
from foqs_client.outbox.outbox_sql import Dialect, create_tables
from foqs_client.outbox.user_connections import user_connection
from foqs_client.types import Outcome
from tests.support.example_counts import examples

STEPS: Final = 60
HISTORIES: Final = examples(100)
KEEP_MS: Final = KEEP_S * 1_000
DAY_MS: Final = 86_400_000


@dataclass
class PlainItem:
    work: int
    token: int = 0
    is_leased: bool = False


class PlainQueue:
    """Items by id, as an installation has them. Another installation gives the same ids again."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: dict[str, PlainItem] = {}
        self._tokens = 0
        self._ids = 0

    def put(self, work: int) -> None:
        self._ids += 1
        self.items[f"0-{self._ids}"] = PlainItem(work)

    def deliver(self, id: str) -> Delivery:
        item = self.items[id]
        self._tokens += 1
        item.token, item.is_leased = self._tokens, True
        return Delivery(id, item.token, payload=b"%d" % item.work, incarnation=self.number)

    def incarnation(self) -> int:
        return self.number

    def ack(self, leases: Sequence[tuple[str, int]]) -> list[Outcome]:
        return [self._ack(*lease) for lease in leases]

    def _ack(self, id: str, token: int) -> Outcome:
        item = self.items.get(id)
        if item is None:
            return Outcome(already_gone=True)
        if item.token != token:
            return Outcome(StaleLease("delivered again"))
        del self.items[id]
        return Outcome()


Prune = Callable[[sqlite3.Connection, PlainQueue], None]


def prune_by_acks(connection: sqlite3.Connection, queue: PlainQueue) -> None:
    prune(connection, queue)  # type: ignore[arg-type]


def prune_by_time(connection: sqlite3.Connection, queue: PlainQueue) -> None:
    """Delete all old rows, as other inboxes do."""
    tables = user_connection(connection)
    delete_rows(tables, "foqs_", read_old(tables, "foqs_", KEEP_MS, BEFORE_ALL))


def prune_without_errors(connection: sqlite3.Connection, queue: PlainQueue) -> None:
    """Ack, and delete whatever the outcome is."""
    tables = user_connection(connection)
    rows = read_old(tables, "foqs_", KEEP_MS, BEFORE_ALL)
    queue.ack([(row.id, row.token) for row in rows if row.is_of(queue.number)])
    delete_rows(tables, "foqs_", rows)


def prune_without_incarnation(connection: sqlite3.Connection, queue: PlainQueue) -> None:
    """Ack the items of all rows, also of another installation."""
    tables = user_connection(connection)
    rows = read_old(tables, "foqs_", KEEP_MS, BEFORE_ALL)
    outcomes = queue.ack([(row.id, row.token) for row in rows])
    delete_rows(tables, "foqs_", [row for row, outcome in zip(rows, outcomes, strict=True) if outcome.error is None])


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in ("CREATE TABLE effect (work)", *create_tables(Dialect.SQLITE)):
            connection.execute(statement)
        yield connection


class History:
    """One history. `problem` is what is wrong at its end; None if nothing is."""

    def __init__(self, rng: Random, connection: sqlite3.Connection, prune: Prune) -> None:
        self.rng = rng
        self.connection = connection
        self.queue = PlainQueue(1)
        self.wanted: list[int] = []
        self._prune = prune
        self._held: list[Delivery] = []
        """Deliveries whose handlers have not begun; for less time than rows are kept."""
        self._works = 0

    def play(self) -> str | None:
        steps = (
            (self._put, 3), (self._deliver, 6), (self._handle, 6), (self._end_leases, 3), (self._pass_days, 2),
            (self._prune_now, 4), (self._start_anew, 1),
        )  # fmt: skip
        [*acts], [*weights] = zip(*steps, strict=True)
        for _ in range(STEPS):
            self.rng.choices(acts, weights)[0]()
        self._finish()
        done = sorted(work for (work,) in self.connection.execute("SELECT work FROM effect"))
        return None if done == sorted(self.wanted) else f"{done} was done of {sorted(self.wanted)}"

    def _put(self) -> None:
        self._works += 1
        self.wanted.append(self._works)
        self.queue.put(self._works)

    def _deliver(self) -> None:
        free = [id for id, item in self.queue.items.items() if not item.is_leased]
        if free:
            self._held.append(self.queue.deliver(self.rng.choice(free)))

    def _handle(self, fate: str | None = None) -> None:
        if not self._held:
            return
        delivery = self._held.pop(self.rng.randrange(len(self._held)))
        fate = fate or self.rng.choice(["ack", "ack", "rolled back", "no ack"])
        is_new = once(self.connection, delivery)
        if is_new:
            self.connection.execute("INSERT INTO effect VALUES (?)", (int(delivery.payload),))
        self.connection.rollback() if fate == "rolled back" else self.connection.commit()
        if fate == "ack":
            self.queue.ack([(delivery.id, delivery.token)])

    def _end_leases(self) -> None:
        for item in self.queue.items.values():
            item.is_leased = item.is_leased and self.rng.random() < 0.5

    def _pass_days(self) -> None:
        """Let more time pass than rows are kept. No handler is frozen for so long."""
        self._held.clear()
        with self.connection:
            self.connection.execute("UPDATE foqs_inbox SET done_ms = done_ms - ?", (KEEP_MS + DAY_MS,))

    def _prune_now(self) -> None:
        with self.connection:
            self._prune(self.connection, self.queue)

    def _start_anew(self) -> None:
        """Delete all data of the installation, after its work is done."""
        self._finish()
        self.queue = PlainQueue(self.queue.number + 1)

    def _finish(self) -> None:
        self._held.clear()
        for item in self.queue.items.values():
            item.is_leased = False
        while self.queue.items:
            self._deliver()
            self._handle("ack")


def first_problem(prune: Prune) -> str | None:
    for seed in range(HISTORIES):
        with database() as connection:
            problem = History(Random(seed), connection, prune).play()
        if problem is not None:
            return f"seed {seed}: {problem}"
    return None


def test_work_is_done_exactly_once_in_all_histories() -> None:
    assert first_problem(prune_by_acks) is None


@pytest.mark.parametrize("mistake", [prune_by_time, prune_without_errors, prune_without_incarnation])
def test_a_planted_mistake_of_pruning_is_found(mistake: Prune) -> None:
    assert first_problem(mistake) is not None


def test_a_name_without_the_incarnation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(incarnation: int, id: str) -> str:
        return f"{1:016x}/{id}"

    monkeypatch.setattr(committing, "delivery_name", name)
    assert first_problem(prune_by_acks) is not None


def test_a_row_that_is_not_in_the_transaction_of_the_effects_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_and_commit(tables: Any, *arguments: Any) -> bool:
        is_new = add_row(tables, *arguments)
        tables._connection.commit()
        return is_new

    monkeypatch.setattr(committing, "add_row", add_and_commit)
    assert first_problem(prune_by_acks) is not None
