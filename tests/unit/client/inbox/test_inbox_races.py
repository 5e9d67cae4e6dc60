"""An inbox beside a host in memory: the races of docs/design/outbox.md, chapter Inbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foqs.testing import SyncFakeHost
from foqs_client import Delivery, InvalidArgument, Item, Namespace, StaleLease, SyncClient
from foqs_client.inbox import Pruned, once, prune
from foqs_client.inbox.inbox_rows import add_row
from foqs_client.outbox.outbox_sql import Dialect, create_tables

LEASE_MS = 30_000
DAY_MS = 86_400_000


class Shop:
    """A user's database with charges, and its consumers."""

    def __init__(self, path: Path, client: SyncClient, fake: SyncFakeHost) -> None:
        self.client = client
        self.fake = fake
        self.connection = sqlite3.connect(path)
        for statement in ("CREATE TABLE IF NOT EXISTS charge (item)", *create_tables(Dialect.SQLITE)):
            self.connection.execute(statement)

    def put(self, attempts_max: int = 0) -> None:
        self.client.enqueue([Item("charge", b"17", lease_ms=LEASE_MS, attempts_max=attempts_max)])[0].require()

    def get(self) -> Delivery:
        [delivery] = self.client.dequeue({"charge": 1})
        return delivery

    def handle(self, delivery: Delivery) -> bool:
        """Charge, if it is to be done."""
        with self.connection:
            is_new = once(self.connection, delivery)
            if is_new:
                self.connection.execute("INSERT INTO charge VALUES (?)", (delivery.id,))
        return is_new

    def work(self) -> None:
        """Handle all items, and ack them."""
        while found := self.client.dequeue({"charge": 1}):
            self.handle(found[0])
            self.client.ack(found)[0].require()

    def age_rows(self) -> None:
        with self.connection:
            self.connection.execute("UPDATE foqs_inbox SET done_ms = done_ms - ?", (8 * DAY_MS,))

    def prune(self) -> Pruned:
        self.age_rows()
        with self.connection:
            return prune(self.connection, self.client)

    @property
    def charges(self) -> int:
        [(count,)] = self.connection.execute("SELECT COUNT(*) FROM charge")
        return int(count)

    @property
    def rows(self) -> int:
        [(count,)] = self.connection.execute("SELECT COUNT(*) FROM foqs_inbox")
        return int(count)


@contextmanager
def opened(path: Path) -> Iterator[Shop]:
    with SyncFakeHost() as fake, fake.client() as client, closing(sqlite3.connect(path)):
        shop = Shop(path, client, fake)
        with closing(shop.connection):
            yield shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop.db") as found:
        yield found


def test_an_item_whose_lease_ends_while_a_handler_works_is_done_by_one_of_two(shop: Shop) -> None:
    shop.put()
    first = shop.get()
    shop.fake.advance(LEASE_MS)
    second = shop.get()

    assert (second.id, second.incarnation) == (first.id, first.incarnation)
    assert (shop.handle(second), shop.handle(first), shop.charges) == (True, False, 1)
    assert isinstance(shop.client.ack([first])[0].error, StaleLease)
    shop.client.ack([second])[0].require()


def test_an_item_whose_handler_dies_or_fails_after_its_commit_is_acked_when_it_comes_again(shop: Shop) -> None:
    shop.put()
    shop.handle(shop.get())
    shop.fake.advance(LEASE_MS)  # it died
    again = shop.get()
    assert shop.handle(again) is False
    shop.client.nack([again])[0].require()  # the outcome of its commit was unknown to it
    shop.fake.advance(DAY_MS)
    shop.work()

    assert shop.charges == 1
    assert shop.client.topics().topics == []


@pytest.mark.parametrize("state", ["leased", "ready"])
def test_consumers_that_are_away_for_longer_than_rows_are_kept_do_nothing_twice(shop: Shop, state: str) -> None:
    shop.put()
    shop.handle(shop.get())
    if state == "ready":
        shop.fake.advance(LEASE_MS)

    assert shop.prune() == Pruned(deleted=1)
    shop.work()
    assert (shop.charges, shop.rows) == (1, 0)


def test_the_row_of_an_item_that_is_being_delivered_stays(shop: Shop) -> None:
    shop.put()
    shop.handle(shop.get())
    shop.fake.advance(LEASE_MS)
    again = shop.get()

    assert shop.prune() == Pruned(waiting=1)
    shop.fake.advance(LEASE_MS)  # and its consumer dies
    assert shop.prune() == Pruned(waiting=1)
    assert shop.handle(again) is False
    shop.work()
    assert shop.prune() == Pruned(deleted=1)
    assert shop.charges == 1


def test_a_dead_item_is_pruned_if_its_last_delivery_has_committed(shop: Shop) -> None:
    shop.put(attempts_max=1)
    shop.handle(shop.get())
    shop.fake.advance(LEASE_MS)
    assert len(shop.client.dead().items) == 1

    assert shop.prune() == Pruned(deleted=1)
    assert shop.client.dead().items == []


def test_the_row_of_a_dead_item_stays_until_it_is_redriven_and_acked(shop: Shop) -> None:
    shop.put(attempts_max=2)
    first = shop.get()
    shop.handle(first)
    for _ in range(2):
        shop.fake.advance(LEASE_MS)
        shop.client.dequeue({"charge": 1})
    assert len(shop.client.dead().items) == 1
    assert shop.prune() == Pruned(waiting=1)

    shop.client.redrive([first.id])[0].require()
    shop.work()
    assert (shop.charges, shop.prune()) == (1, Pruned(deleted=1))


def test_a_moved_item_is_new_work(shop: Shop) -> None:
    shop.put()
    first = shop.get()
    shop.handle(first)
    shop.client.nack([first])[0].require()
    shop.client.move([first.id], "other")[0].require()
    shop.client.move([item.id for item in shop.client.peek("other", "deferred").items], "charge")[0].require()
    shop.fake.advance(DAY_MS)
    shop.work()
    assert (shop.charges, shop.prune()) == (2, Pruned(deleted=2))


def test_an_item_of_a_new_installation_is_new_work_although_it_has_the_id_of_an_old_one(tmp_path: Path) -> None:
    with opened(tmp_path / "shop.db") as shop:
        shop.put()
        old = shop.get()
        assert shop.handle(old) is True
    with opened(tmp_path / "shop.db") as shop:
        shop.put()
        new = shop.get()
        assert shop.handle(replace(new, id=old.id)) is True
        with shop.connection:  # the row of the old installation names the new item's lease
            shop.connection.execute("DELETE FROM foqs_inbox WHERE delivery LIKE ?", (f"{new.incarnation:016x}/%",))
            shop.connection.execute(
                "UPDATE foqs_inbox SET delivery = ?, token = ?", (f"{old.incarnation:016x}/{new.id}", new.token)
            )

        assert shop.prune() == Pruned(others=1)
        assert not shop.client.ack([new])[0].already_gone


def test_a_client_that_stays_connected_names_each_incarnation_of_its_namespace(shop: Shop) -> None:
    incarnations = []
    with shop.fake.client(namespace="brief") as client:
        for _ in range(2):
            shop.client.create_namespace(Namespace("brief"))
            client.enqueue([Item("charge")])[0].require()
            [delivery] = client.dequeue({"charge": 1})
            assert shop.handle(delivery) is True
            assert delivery.incarnation == client.incarnation()
            client.ack([delivery])[0].require()
            incarnations.append(delivery.incarnation)
            shop.client.delete_namespace("brief")

    assert incarnations[0] != incarnations[1]
    assert shop.prune() == Pruned(others=2)


def test_a_connection_that_does_not_count_rows_is_refused() -> None:
    class Pipeline:
        """A connection of psycopg that has sent a statement and not read its reply."""

        dialect = Dialect.POSTGRES

        def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
            return -1

        def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            return []

    with pytest.raises(InvalidArgument, match="pipeline") as refused:
        add_row(Pipeline(), "foqs_", "1/2", 1)
    assert refused.value.field == "connection"
