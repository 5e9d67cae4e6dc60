"""An inbox makes the effects of a delivery and the fact that they are done one transaction, over each kind of connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
import sqlalchemy as sa

from foqs_client import Delivery
from foqs_client.errors import FoqsError, InvalidArgument, NotImplementedYet, StaleLease, Unavailable
from foqs_client.inbox import Pruned, once, once_async, prune, prune_async
from foqs_client.inbox.inbox_pruner import InboxPruner, PrunerPauses
from foqs_client.inbox.inbox_rows import delivery_name, oldest_age_ms
from foqs_client.outbox import NotInTransaction
from foqs_client.outbox.outbox_connection import OutboxConnection
from foqs_client.outbox.outbox_sql import Dialect
from foqs_client.types import Outcome
from tests.support.outbox_databases import DATABASES, ORDER, WAYS, MakePlace, Place, RolledBack, Way, insert_order
from tests.support.poll import eventually

INCARNATION: Final = 2**63 - 1
FIRST: Final = Delivery("12-8796093022209", 2**63 - 1, incarnation=INCARNATION)
AGAIN: Final = Delivery(FIRST.id, 7, incarnation=INCARNATION)
OTHER: Final = Delivery(FIRST.id, 7, incarnation=1)
DAY_MS: Final = 86_400_000


def work(way: Way, delivery: Delivery, *, ends: bool = True, commits: bool = False) -> bool:
    """Insert an order if the delivery is new, in one transaction. Return whether it is."""

    def act(connection: Any) -> bool:
        is_new = once(connection, delivery)
        if is_new:
            insert_order(connection)
        return is_new

    async def act_async(connection: Any) -> bool:
        is_new = await once_async(connection, delivery)
        if is_new:
            await connection.execute(sa.text(ORDER))
        return is_new

    return way.transact(act, act_async, ends=ends, commits=commits)


def names(place: Place) -> list[str]:
    return [name for (name,) in place.query("SELECT delivery FROM foqs_inbox ORDER BY delivery")]


@pytest.mark.parametrize(("kind", "connection"), WAYS)
def test_effects_are_committed_with_their_row_and_not_again(make_place: MakePlace, kind: str, connection: str) -> None:
    place = make_place(kind).prepare()
    way = Way(place, connection)
    with pytest.raises(RolledBack):
        work(way, FIRST, ends=False)
    assert place.query("SELECT id FROM orders") == [] == names(place)

    assert work(way, FIRST) is True
    assert work(way, AGAIN) is False

    assert place.query("SELECT id FROM orders") == [(17,)]
    [(name, token, done_ms)] = place.query("SELECT delivery, token, done_ms FROM foqs_inbox")
    assert (name, token) == ("7fffffffffffffff/12-8796093022209", FIRST.token)
    assert done_ms > 1_700_000_000_000
    with pytest.raises(NotInTransaction):
        work(way, OTHER, commits=True)
    place.query("DELETE FROM orders")
    assert work(way, OTHER) is True
    assert len(names(place)) == 2


@contextmanager
def opened(place: Place, *, waits: bool = True) -> Iterator[Any]:
    """A connection in a transaction. Unless it `waits`, it fails soon if another one has what it needs."""
    with closing(place.connect(False)) as connection:
        if not waits:
            limit = {
                Dialect.SQLITE: "PRAGMA busy_timeout = 50",
                Dialect.POSTGRES: "SET LOCAL lock_timeout = '50ms'",
                Dialect.MYSQL: "SET innodb_lock_wait_timeout = 1",
            }
            connection.cursor().execute(limit[place.dialect])
        yield connection


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("kind", DATABASES)
def test_a_second_handler_of_an_item_waits_for_the_first_one(make_place: MakePlace, kind: str, commits: bool) -> None:
    place = make_place(kind).prepare()
    begun = threading.Event()

    def second() -> bool:
        with opened(place) as connection:
            begun.set()
            is_new = once(connection, AGAIN)
            connection.commit()
            return is_new

    with opened(place) as connection, ThreadPoolExecutor(1) as thread:
        assert once(connection, FIRST)
        waiting = thread.submit(second)
        begun.wait()
        assert not waiting.done()
        connection.commit() if commits else connection.rollback()
        assert waiting.result() is not commits
    assert len(names(place)) == 1


@pytest.mark.parametrize("kind", DATABASES)
def test_a_handler_that_waits_longer_than_the_database_allows_fails_and_does_nothing(
    make_place: MakePlace, kind: str
) -> None:
    place = make_place(kind).prepare()
    with opened(place) as first, opened(place, waits=False) as second:
        assert once(first, FIRST)
        with pytest.raises(Exception, match=r"lock|Lock"):
            once(second, AGAIN)
        second.rollback()
        first.commit()
        assert once(second, AGAIN) is False
        second.commit()


def test_a_delivery_of_an_older_host_is_refused(make_place: MakePlace) -> None:
    place = make_place("sqlite").prepare()
    with opened(place) as connection, pytest.raises(NotImplementedYet, match="upgrade the hosts"):
        once(connection, Delivery("0-1", 1))


class ScriptedClient:
    """A client whose acks have these errors, by id."""

    def __init__(self, errors: Mapping[str, FoqsError]) -> None:
        self.errors = errors
        self.acked: list[tuple[str, int]] = []

    def incarnation(self) -> int:
        return INCARNATION

    def ack(self, leases: Sequence[tuple[str, int]]) -> list[Outcome]:
        self.acked += leases
        return [Outcome(self.errors.get(id), already_gone=id == "0-2") for id, _ in leases]


class AsyncScriptedClient:
    def __init__(self, scripted: ScriptedClient) -> None:
        self._scripted = scripted

    async def incarnation(self) -> int:
        return self._scripted.incarnation()

    async def ack(self, leases: Sequence[tuple[str, int]], timeout_ms: int = 0) -> list[Outcome]:
        return self._scripted.ack(leases)


ERRORS: Final = {"0-3": StaleLease("delivered again"), "0-4": Unavailable("not now")}
DONE: Final = {
    **{delivery_name(INCARNATION, f"0-{number}"): 10 for number in range(1, 6)},
    delivery_name(1, "0-1"): 10,
    delivery_name(INCARNATION, "0-9"): 6,
}
"""The days since each row was added, by its name."""
LEFT: Final = sorted(
    delivery_name(*each) for each in [(INCARNATION, "0-3"), (INCARNATION, "0-4"), (INCARNATION, "0-9"), (1, "0-1")]
)


def add_old(place: Place) -> None:
    [(now_ms,)] = place.query(NOW[place.dialect])
    for name, days in DONE.items():
        place.query(f"INSERT INTO foqs_inbox (delivery, token, done_ms) VALUES ('{name}', 5, {now_ms - days * DAY_MS})")


NOW: Final = {
    Dialect.MYSQL: "SELECT UNIX_TIMESTAMP() * 1000",
    Dialect.POSTGRES: "SELECT floor(extract(epoch FROM now()))::bigint * 1000",
    Dialect.SQLITE: "SELECT unixepoch() * 1000",
}


@pytest.mark.parametrize(("kind", "connection"), WAYS)
def test_pruning_deletes_old_rows_whose_items_cannot_come_again_and_no_others(
    make_place: MakePlace, kind: str, connection: str
) -> None:
    place = make_place(kind).prepare()
    add_old(place)
    client = ScriptedClient(ERRORS)

    def act(connection: Any) -> Pruned:
        return prune(connection, client)  # type: ignore[arg-type]

    async def act_async(connection: Any) -> Pruned:
        return await prune_async(connection, AsyncScriptedClient(client))  # type: ignore[arg-type]

    assert Way(place, connection).transact(act, act_async) == Pruned(deleted=3, waiting=2, others=1)
    assert sorted(client.acked) == [(f"0-{number}", 5) for number in range(1, 6)]
    assert names(place) == LEFT
    with closing(OutboxConnection(lambda: place.connect(True), place.dialect)) as tables:
        assert (oldest_age_ms(tables, "foqs_") or 0) >= 10 * DAY_MS


@pytest.mark.parametrize("kind", DATABASES)
def test_a_pruning_reads_no_more_rows_than_it_may_and_the_next_one_goes_on_after_them(
    make_place: MakePlace, kind: str
) -> None:
    place = make_place(kind).prepare()
    add_old(place)
    client = ScriptedClient(ERRORS)
    found: list[Pruned] = []
    with closing(place.connect(True)) as connection:
        after = None
        while not found or after is not None:
            found.append(prune(connection, client, rows_max=2, after=after))  # type: ignore[arg-type]
            after = found[-1].last

    assert [each.deleted + each.waiting + each.others for each in found] == [2, 2, 2, 0]
    assert sum(each.deleted for each in found) == 3
    assert names(place) == LEFT


def test_rows_are_kept_for_a_day_at_least(make_place: MakePlace) -> None:
    place = make_place("sqlite").prepare()
    with closing(place.connect(True)) as connection, pytest.raises(InvalidArgument, match="below a day"):
        prune(connection, ScriptedClient({}), keep_s=86_399)  # type: ignore[arg-type]


def run_pruner(
    place: Place, client: Any, is_owner: Callable[[], bool], is_done: Callable[[InboxPruner], bool]
) -> InboxPruner:
    """Prune beside a relay until this is so."""

    async def main() -> InboxPruner:
        tables = OutboxConnection(lambda: place.connect(True), place.dialect)
        pruner = InboxPruner(tables, client, is_owner, pauses=PrunerPauses(0.0, 0.0, 0.0))

        async def ask() -> bool:
            return is_done(pruner)

        running = asyncio.ensure_future(pruner.run())
        await eventually(ask, "it is pruned")
        running.cancel()
        await asyncio.wait([running])
        return pruner

    return asyncio.run(main())


@pytest.mark.parametrize("kind", DATABASES)
def test_a_relay_prunes_while_it_owns_the_outbox_and_outlasts_a_failure(
    make_place: MakePlace, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = make_place(kind).prepare()
    add_old(place)
    asked: list[str] = []

    class Client(AsyncScriptedClient):
        async def incarnation(self) -> int:
            asked.append("incarnation")
            if len(asked) < 3:
                raise Unavailable("not now")
            return await super().incarnation()

    turns = iter(range(1_000_000))
    pruner = run_pruner(
        place, Client(ScriptedClient(ERRORS)), lambda: next(turns) > 2, lambda each: each.waiting_rows > 0
    )

    assert (pruner.pruned_rows, pruner.waiting_rows, pruner.other_rows) == (3, 2, 1)
    assert names(place) == LEFT
    assert caplog.text.count("the inbox is not pruned now") == 1


def test_a_pruner_keeps_no_connection_while_it_waits_after_a_failure(make_place: MakePlace) -> None:
    place = make_place("sqlite").prepare()
    add_old(place)
    connections: list[Any] = []
    acks: list[int] = []

    def connect(commits: bool) -> Any:
        connections.append(place.connect(commits))
        return connections[-1]

    class Client(AsyncScriptedClient):
        async def ack(self, leases: Sequence[tuple[str, int]], timeout_ms: int = 0) -> list[Outcome]:
            acks.append(timeout_ms)
            if len(acks) == 1:
                raise Unavailable("no host answers")
            return await super().ack(leases)

    pruner = run_pruner(
        replace(place, connect=connect), Client(ScriptedClient({})), lambda: True, lambda each: each.pruned_rows > 0
    )

    assert pruner.pruned_rows == 5 and len(connections) >= 2
    assert 0 < acks[0] < 10_000, "a database ends a session that says nothing for 10 s"
