"""The loop of a relay: killed at each step, stopped, refused, and without its database."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foqs_client import Item
from foqs_client.errors import FoqsError, InvalidArgument, PermissionDenied, RateLimited, Unavailable, Unreachable
from foqs_client.outbox import enqueue
from foqs_client.outbox.gaps import IdRange
from foqs_client.outbox.outbox_connection import DatabaseUnreachable, OutboxConnection, TablesUnavailable
from foqs_client.outbox.outbox_figures import OutboxFigures
from foqs_client.outbox.parked_rows import list_parked
from foqs_client.outbox.relay_limits import RelayLimits
from foqs_client.outbox.relay_loop import Relay
from foqs_client.outbox.relay_memory import SendCall
from foqs_client.outbox.relay_pauses import DEFAULT_PAUSES, RelayPauses
from foqs_client.outbox.relay_tables import OutboxOwner, RelayTables
from foqs_client.outbox.row_groups import OutboxRow
from foqs_client.outbox.statement_thread import StatementThread
from tests.support.outbox_databases import Place, sqlite_place
from tests.support.poll import until
from tests.support.relay_process import STEPS, FileQueue
from tests.support.virtual_time import run_virtual


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return sqlite_place(tmp_path).prepare()


def add(place: Place, payloads: list[bytes], row_group: str | None = None, *, ends: bool = True) -> None:
    """Write items in a transaction of a user, which commits if it `ends`, and rolls back otherwise."""
    with closing(place.connect(False)) as connection:
        enqueue(connection, [Item("t", payload) for payload in payloads], row_groups=[row_group] * len(payloads))
        connection.commit() if ends else connection.rollback()


def left(place: Place) -> int:
    return int(place.query("SELECT (SELECT COUNT(*) FROM foqs_outbox) + (SELECT COUNT(*) FROM foqs_parked)")[0][0])


@pytest.mark.process
def test_relays_that_are_killed_at_each_step_send_each_committed_row_once(place: Place, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.support.relay_process",
        str(tmp_path / "user.db"),
        str(tmp_path / "queue.db"),
    ]
    expected: list[bytes] = []
    for step, times in STEPS:
        payloads = [f"{step} {times} {number}".encode() for number in range(3)]
        add(place, payloads[:2], "group")
        add(place, [b"rolled back"], ends=False)
        add(place, payloads[2:])
        expected += payloads
        assert subprocess.run([*command, step, str(times)], timeout=60).returncode == -signal.SIGKILL, step
    with subprocess.Popen(command) as relay:
        until(lambda: left(place) == 0, "the outbox is empty")
        relay.terminate()
        assert relay.wait(60) == 0

    with closing(FileQueue(tmp_path / "queue.db")) as queue:
        found = queue.payloads()
    assert sorted(found) == sorted(expected)
    grouped = [payload for payload in expected if not payload.endswith(b" 2")]
    assert [payload for payload in found if payload in grouped] == grouped


class ScriptedQueue:
    """A queue that answers each row with the next error that its payload has, and then takes it."""

    def __init__(self, errors: Mapping[bytes, list[FoqsError]]) -> None:
        self.errors = errors
        self.taken: list[bytes] = []

    async def keys_until_ms(self) -> int:
        return 1

    async def send(self, call: SendCall) -> Mapping[int, FoqsError | None]:
        answers: dict[int, FoqsError | None] = {}
        for row in call.rows:
            assert isinstance(row.item, Item)
            errors = self.errors.get(row.item.payload)
            answers[row.id] = errors.pop(0) if errors else None
            if answers[row.id] is None:
                self.taken.append(row.item.payload)
        return answers


class NoThread(StatementThread):
    """Statements run in the loop and take no virtual time."""

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)


def relay_of(
    place: Place,
    queue: Any,
    pauses: RelayPauses = DEFAULT_PAUSES,
    connect: Callable[[], Any] | None = None,
    nonce: str = "a" * 32,
) -> Relay:
    """Return a relay of the running loop, whose time may be virtual."""
    tables = RelayTables(OutboxConnection(connect or (lambda: place.connect(True)), place.dialect), nonce)
    clock = asyncio.get_running_loop().time
    return Relay(tables, queue, pauses, clock=clock, thread=NoThread(clock))


async def soon(is_so: Callable[[], bool]) -> None:
    """Return when this is so, which is looked at often in virtual time."""
    while not is_so():  # noqa: ASYNC110 - of tables in files, which give no signal
        await asyncio.sleep(0.01)


def run_until(
    place: Place, queue: Any, is_done: Callable[[Relay], bool], connect: Callable[[], Any] | None = None
) -> Relay:
    """Run a relay in virtual time until this is so, and stop it."""

    async def run() -> Relay:
        relay = relay_of(place, queue, connect=connect)
        running = asyncio.ensure_future(relay.run())
        await soon(lambda: is_done(relay))
        relay.stop()
        await running
        return relay

    return run_virtual(run, until_s=3_600)


def test_a_refused_row_is_parked_with_its_reason_and_holds_its_group_until_it_is_resent(place: Place) -> None:
    queue = ScriptedQueue({b"bad": [InvalidArgument("too odd")], b"later": [Unavailable("not now")] * 2})
    add(place, [b"bad", b"behind"], "group")
    add(place, [b"later"])
    run_until(place, queue, lambda _: b"later" in queue.taken and len(place.query("SELECT 1 FROM foqs_parked")) == 1)

    assert queue.taken == [b"later"]
    assert place.query("SELECT payload, reason, may_be_queued FROM foqs_parked") == [
        (b"bad", "INVALID_ARGUMENT: too odd", 0)
    ]
    with closing(place.connect(True)) as connection:
        connection.execute("UPDATE foqs_parked SET verdict = 'resend'")
    run_until(place, queue, lambda _: left(place) == 0)
    assert queue.taken == [b"later", b"bad", b"behind"]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("payload", "'bad'", "payload"),
        ("payload", "7", "payload"),
        ("metadata", "'bad'", "metadata"),
        ("priority", "'high'", "priority"),
        ("topic", "x'ff'", "topic"),
        ("row_group", "x'ff'", "row_group"),
        ("event_id", "x'ff'", "event_id"),
        ("ttl_ms", "0", "ttl_ms"),
    ],
)
def test_a_row_that_is_no_item_is_parked_and_the_others_are_sent(
    place: Place, column: str, value: str, reason: str
) -> None:
    add(place, [b"bad", b"good"])
    with closing(place.connect(True)) as connection:
        connection.execute(f"UPDATE foqs_outbox SET {column} = {value} WHERE id = 1")
    queue = ScriptedQueue({})
    run_until(place, queue, lambda _: left(place) == 1 and queue.taken == [b"good"])

    [(found,)] = place.query("SELECT reason FROM foqs_parked WHERE id = 1")
    assert reason in found
    with closing(OutboxConnection(lambda: place.connect(True), place.dialect)) as tables:
        assert [row.id for row in list_parked(tables, 10)] == [1]


def test_a_relay_says_why_rows_wait(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    queue = ScriptedQueue({b"1": [PermissionDenied("no grant to enqueue")] * 1_000})
    add(place, [b"1", b"2"])
    problems: list[str] = []

    def is_reported(relay: Relay) -> bool:
        if problem := relay.problems.get("refused rows"):
            problems.append(problem)
        return bool(problems) and relay.refused_rows > 1

    relay = run_until(place, queue, is_reported)

    assert problems[0] == "1 sends of rows were refused, the last one with PERMISSION_DENIED: no grant to enqueue"
    assert "refused rows: rows wait: 1 sends of rows were refused" in caplog.text
    assert relay.problems == {}  # of a relay that works no more


def test_a_statement_that_does_not_end_is_a_problem(place: Place) -> None:
    began, ends, now_s = threading.Event(), threading.Event(), [0.0]

    def connect() -> Any:
        began.set()
        ends.wait(60)
        return place.connect(True)

    async def main() -> None:
        tables = RelayTables(OutboxConnection(connect, place.dialect), "a" * 32)
        relay = Relay(tables, ScriptedQueue({}), clock=lambda: now_s[0])
        starting = asyncio.ensure_future(relay.wait_for_start())
        await asyncio.to_thread(began.wait)
        assert relay.problems["the outbox' database"] == "no answer yet"
        now_s[0] = 12.0
        assert relay.problems["the outbox' database"] == "a statement has been running for 12 s"
        ends.set()
        await starting
        assert relay.problems == {}
        relay.stop()
        await relay.run()

    asyncio.run(main())


class AwayTables(RelayTables):
    """Tables whose server is away for the first reads."""

    def __init__(self, place: Place, away: int) -> None:
        super().__init__(OutboxConnection(lambda: place.connect(True), place.dialect), "a" * 32)
        self.away = away

    def read_owner(self) -> OutboxOwner:
        self.away -= 1
        if self.away >= 0:
            raise DatabaseUnreachable("OperationalError: connection refused")
        return super().read_owner()


class AwayQueue(ScriptedQueue):
    """A queue whose hosts are away for the first questions."""

    def __init__(self, errors: list[FoqsError]) -> None:
        super().__init__({})
        self.away = errors

    async def keys_until_ms(self) -> int:
        if self.away:
            raise self.away.pop(0)
        return await super().keys_until_ms()


def starting_relay(tables: RelayTables, queue: ScriptedQueue) -> Relay:
    clock = asyncio.get_running_loop().time
    return Relay(tables, queue, clock=clock, thread=NoThread(clock))


def test_a_relay_waits_for_a_host_and_a_database_that_are_away_at_its_start(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    add(place, [b"1"])
    caplog.set_level("INFO", "foqs.relay")
    queue = AwayQueue([Unreachable("no host"), Unavailable("not yet"), Unreachable("no host")])

    async def run() -> None:
        relay = starting_relay(AwayTables(place, 5), queue)
        assert set(relay.problems.values()) == {"no answer yet"}  # before anything was asked, it is not ready
        starting = asyncio.ensure_future(relay.wait_for_start())
        await soon(lambda: queue.away == [])
        assert relay.problems["the outbox' database"] == "OperationalError: connection refused"
        await starting
        assert relay.problems == {}
        running = asyncio.ensure_future(relay.run())
        await soon(lambda: left(place) == 0)
        relay.stop()
        await running

    run_virtual(run, until_s=3_600)
    assert queue.taken == [b"1"]
    assert sorted(record.getMessage() for record in caplog.records) == [
        "the outbox' database: all is well again",
        "the outbox' database: rows wait: OperationalError: connection refused",
        "the queue: all is well again",
        "the queue: rows wait: UNREACHABLE: no host",
    ]


def test_a_relay_that_is_stopped_at_its_start_waits_no_longer(place: Place) -> None:
    async def run() -> None:
        relay = starting_relay(AwayTables(place, 1_000_000), AwayQueue([]))
        starting = asyncio.ensure_future(relay.wait_for_start())
        await soon(lambda: relay.problems.keys() == {"the outbox' database"})
        relay.stop()
        await starting
        await relay.run()

    run_virtual(run, until_s=60)


@pytest.mark.parametrize(
    ("error", "kind"), [(None, TablesUnavailable), (PermissionDenied("no grant to enqueue"), PermissionDenied)]
)
def test_what_no_waiting_mends_ends_a_relay_at_its_start(
    tmp_path: Path, error: FoqsError | None, kind: type[Exception]
) -> None:
    """A database without tables, also while the host is away; and a refusal, also while the database is away."""
    place = sqlite_place(tmp_path)  # without tables

    async def run() -> None:
        errors: list[FoqsError] = [Unreachable("no host")] * 1_000_000 if error is None else [error]
        with pytest.raises(kind):
            await starting_relay(
                AwayTables(place, 0 if error is None else 1_000_000), AwayQueue(errors)
            ).wait_for_start()

    run_virtual(run, until_s=60)


def test_a_relay_writes_rounds_while_no_host_answers(place: Place) -> None:
    class FrozenQueue(ScriptedQueue):
        async def keys_until_ms(self) -> int:
            await asyncio.Event().wait()
            raise AssertionError

    add(place, [b"1"])
    relay = run_until(place, FrozenQueue({}), lambda relay: relay.rounds > 2)

    assert relay.sent_rows == 0


def test_rows_of_a_send_that_fails_are_sent_again(place: Place) -> None:
    class FailingQueue(ScriptedQueue):
        fails = 2

        async def send(self, call: SendCall) -> Mapping[int, FoqsError | None]:
            self.fails -= 1
            if self.fails >= 0:
                raise TypeError("odd")
            return await super().send(call)

    queue = FailingQueue({})
    add(place, [b"1", b"2"])
    run_until(place, queue, lambda _: left(place) == 0)

    assert sorted(queue.taken) == [b"1", b"2"]


def test_a_relay_outlasts_a_database_that_does_not_answer(place: Place) -> None:
    add(place, [b"1", b"2"])
    queue = ScriptedQueue({})
    failures = iter([sqlite3.OperationalError("down")] * 4)

    def connect() -> Any:
        for error in failures:
            raise error
        return place.connect(True)

    relay = run_until(place, queue, lambda _: left(place) == 0, connect=connect)

    assert relay.sent_rows == 2
    assert queue.taken == [b"1", b"2"]


def test_a_row_waits_for_the_gaps_below_it_although_their_read_fails(place: Place) -> None:
    class LosesItsDatabaseOnce(RelayTables):
        losses = 0

        def read_ranges(self, ranges: Sequence[IdRange]) -> tuple[list[OutboxRow], bool]:
            if self.losses:
                self.losses -= 1
                raise TablesUnavailable("down")
            return super().read_ranges(ranges)

    async def run() -> None:
        clock = asyncio.get_running_loop().time
        tables = LosesItsDatabaseOnce(OutboxConnection(lambda: place.connect(True), place.dialect), "a" * 32)
        relay = Relay(tables, queue, clock=clock, thread=NoThread(clock))
        running = asyncio.ensure_future(relay.run())
        add(place, [b"of another transaction"])
        with closing(place.connect(True)) as connection:
            connection.execute("UPDATE foqs_outbox SET id = 3")
        await soon(lambda: bool(queue.taken))
        tables.losses = 1
        with closing(place.connect(False)) as connection:  # whose first id was given before the row that was read
            enqueue(connection, [Item("t", b"first"), Item("t", b"second")], row_groups=["group"] * 2)
            connection.execute("UPDATE foqs_outbox SET id = 2 WHERE payload = ?", (b"first",))
            connection.execute("UPDATE foqs_outbox SET id = 4 WHERE payload = ?", (b"second",))
            connection.commit()
        await soon(lambda: left(place) == 0)
        relay.stop()
        await running
        assert not tables.losses

    queue = ScriptedQueue({})
    run_virtual(run, until_s=3_600)

    assert queue.taken == [b"of another transaction", b"first", b"second"]


def test_a_stop_leaves_no_row_that_was_sent(place: Place) -> None:
    add(place, [b"%d" % number for number in range(600)])
    queue = ScriptedQueue({})
    run_until(place, queue, lambda _: len(queue.taken) >= 500)

    assert left(place) == 600 - len(queue.taken)
    assert b'"stamps":[]' in place.query("SELECT state FROM foqs_relay")[0][0]


class SlowThread(NoThread):
    """A statement takes ten milliseconds of virtual time."""

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0.01)
        return function(*arguments)


@pytest.mark.once
def test_a_long_catch_up_of_few_groups_does_not_read_the_whole_table_for_each_memory_of_rows(place: Place) -> None:
    with closing(place.connect(False)) as connection:
        groups = [str(number % 20) for number in range(8_000)]
        enqueue(connection, [Item("t", group.encode()) for group in groups], row_groups=groups)
        connection.commit()

    async def run() -> float:
        clock = asyncio.get_running_loop().time
        tables = RelayTables(OutboxConnection(lambda: place.connect(True), place.dialect), "a" * 32)
        limits = RelayLimits(waiting_rows_max=80, run_rows_max=1)
        relay = Relay(tables, ScriptedQueue({}), limits=limits, clock=clock, thread=SlowThread(clock))
        running = asyncio.ensure_future(relay.run())
        await soon(lambda: left(place) == 0)
        took_s = clock()
        relay.stop()
        await running
        return took_s

    assert run_virtual(run, until_s=3_600) < 90  # 143 s if each sweep reads the whole table


def test_two_relays_that_take_over_from_each_other_send_each_row_once_and_in_order(
    place: Place, tmp_path: Path
) -> None:
    expected = [b"%d" % number for number in range(40)]

    async def run(queue: FileQueue) -> None:
        # An idle owner writes a round every two seconds, and the other one waits for one second only.
        pauses = replace(DEFAULT_PAUSES, takeover_s=1.0)
        relays = [relay_of(place, queue, pauses, nonce=name * 32) for name in "ab"]
        running = [asyncio.ensure_future(relay.run()) for relay in relays]
        for first in range(0, len(expected), 4):
            owner = relays[first // 4 % 2]
            await soon(lambda owner=owner: owner.is_owner)  # type: ignore[misc]
            add(place, expected[first : first + 4], "group")
            await soon(lambda first=first: len(queue.payloads()) > first)  # type: ignore[misc]
        await soon(lambda: left(place) == 0)
        for relay in relays:
            relay.stop()
        await asyncio.gather(*running)

    with closing(FileQueue(tmp_path / "queue.db")) as queue:
        run_virtual(lambda: run(queue), until_s=3_600)
        assert queue.payloads() == expected


def test_a_relay_that_is_stopped_is_succeeded_at_once_and_one_that_dies_after_ten_seconds(place: Place) -> None:
    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        relays = [relay_of(place, ScriptedQueue({}), nonce=name * 32) for name in "abc"]
        running = []
        took_s = []
        for relay in relays:
            running.append(asyncio.ensure_future(relay.run()))
            began_s = loop.time()
            await soon(lambda relay=relay: relay.is_owner)  # type: ignore[misc]
            took_s.append(loop.time() - began_s)
            if relay is relays[0]:
                relay.stop()
                await running[0]
            elif relay is relays[1]:
                running[1].cancel()
        return took_s

    first_s, after_stop_s, after_death_s = run_virtual(run, until_s=3_600)
    assert max(first_s, after_stop_s) < 1
    assert 10 <= after_death_s < 13


def test_a_refused_row_waits_as_long_as_the_refusal_says_and_all_rows_while_the_namespace_is_at_a_limit(
    place: Place,
) -> None:
    sent_s: defaultdict[bytes, list[float]] = defaultdict(list)

    class TimedQueue(ScriptedQueue):
        async def send(self, call: SendCall) -> Mapping[int, FoqsError | None]:
            for row in call.rows:
                assert isinstance(row.item, Item)
                sent_s[row.item.payload].append(asyncio.get_running_loop().time())
            return await super().send(call)

    errors: dict[bytes, list[FoqsError]] = {
        b"of its shard": [Unavailable("x", retry_after_ms=9_000)],
        b"of the namespace": [RateLimited("x", retry_after_ms=20_000)],
    }

    async def run() -> None:
        relay = relay_of(place, TimedQueue(errors))
        running = asyncio.ensure_future(relay.run())
        for refused, beside in ((b"of its shard", b"1"), (b"of the namespace", b"2")):
            add(place, [refused])
            await soon(lambda refused=refused: bool(sent_s[refused]))  # type: ignore[misc]
            add(place, [beside])
            await soon(lambda: left(place) == 0)
        relay.stop()
        await running

    run_virtual(run, until_s=3_600)
    first_s, again_s = sent_s[b"of its shard"]
    assert again_s >= first_s + 9 > sent_s[b"1"][0]
    first_s, again_s = sent_s[b"of the namespace"]
    assert min(again_s, sent_s[b"2"][0]) >= first_s + 20


def test_the_lag_grows_while_no_count_is_answered(place: Place) -> None:
    now_s = [0.0]
    tables = RelayTables(OutboxConnection(lambda: place.connect(True), place.dialect), "a" * 32)
    relay = Relay(tables, ScriptedQueue({}), clock=lambda: now_s[0])
    relay.figures = OutboxFigures(rows=1, oldest_ms=4_000)
    assert relay.lag_s == 4.0
    now_s[0] = 70.0
    assert relay.lag_s == 64.0
    relay.figures = OutboxFigures()  # rows may have been added since this count
    assert relay.lag_s == 60.0
    now_s[0] = 1.0
    assert relay.lag_s == 0.0
